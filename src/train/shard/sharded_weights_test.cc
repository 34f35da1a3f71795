// A model whose weights are in pieces against one that holds them whole, micro-batch by micro-batch.
#include "train/shard/sharded_weights.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "train/comm/test_ranks.h"
#include "train/model/model.h"

namespace muster::train {
namespace {

struct Text {
  std::vector<std::int64_t> tokens, targets;
  Batch batch() const { return {tokens, targets, 2, 9}; }
};

Text text_of(std::uint64_t seed) {
  Rng rng(seed);
  Text text;
  for (int i = 0; i < 18; ++i) {
    text.tokens.push_back(rng.between(0, 599));
    text.targets.push_back(rng.between(0, 599));
  }
  return text;
}

ModelConfig config_of(bool tied) {
  ModelConfig config = *preset("tiny", 600);
  config.tied = tied;
  return *validated(config);
}

// Every rank computes the same, so the sum over three is three times what one has.
TEST(ShardedWeights, HoldAPieceAndComputeTheWhole) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = config_of(tied);
    Model whole = Model::create(config).value();
    whole.init_parameters(3);
    std::vector<double> losses;
    for (const std::uint64_t seed : {1U, 2U})
      losses.push_back(whole.forward_backward(text_of(seed).batch()).value().loss_sum);
    const int size = 3;
    std::vector<std::int64_t> held(size);
    on_ranks(size, [&](Comm& comm) {
      const int rank = comm.rank();
      auto weights = std::make_unique<ShardedWeights>(ParamTable(config), Dtype::f32,
                                                      ShardPlace{.shards = size, .shard = rank},
                                                      GatherGroups{.all = &comm});
      Model model = Model::create(std::move(weights), {}).value();
      model.init_parameters(3);
      held[static_cast<std::size_t>(rank)] = model.parameters().numel();
      for (const Range& piece : model.parameters().pieces())
        EXPECT_TRUE(std::ranges::equal(model.parameters().bytes(piece), whole.parameters().bytes(piece)));
      for (const std::uint64_t seed : {1U, 2U})
        EXPECT_EQ(model.forward_backward(text_of(seed).batch()).value().loss_sum, losses[seed - 1]);
      for (const Range& piece : model.gradients().pieces()) {
        const auto mine = std::as_const(model).gradients().as<float>(piece);
        const auto one = std::as_const(whole).gradients().as<float>(piece);
        for (std::size_t i = 0; i < mine.size(); ++i)
          ASSERT_NEAR(mine[i], 3 * one[i], 1e-6 + 1e-5 * std::abs(one[i])) << i;
      }
      ASSERT_TRUE(comm.barrier());
    });
    EXPECT_EQ(held[0] + held[1] + held[2], whole.table().numel());
    EXPECT_LT(held[0], whole.table().numel() / 2);
  }
}

// A rank that leaves is an error of the step, not numbers that are wrong.
TEST(ShardedWeights, ALostRankIsAnError) {
  const ModelConfig config = config_of(false);
  ThreadWorld world(2);
  Comm comm("shard", world.join(0));
  { Comm other("shard", world.join(1)); }
  Model model = Model::create(std::make_unique<ShardedWeights>(ParamTable(config), Dtype::f32,
                                                               ShardPlace{.shards = 2, .shard = 0},
                                                               GatherGroups{.all = &comm}),
                              {})
                    .value();
  model.init_parameters(1);
  const auto lost = model.forward_backward(text_of(1).batch());
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message.find("all_gather #1 of shard, rank 0 of 2"), std::string::npos);
  EXPECT_FALSE(model.evaluate(text_of(2).batch()));
}

}  // namespace
}  // namespace muster::train
