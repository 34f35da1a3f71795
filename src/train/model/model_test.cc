#include "train/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/rng.h"
#include "train/model/detail/model_detail.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

struct Data {
  std::vector<std::int64_t> tokens, targets;
  std::int64_t rows, sequence;
  Batch batch() const { return {tokens, targets, rows, sequence}; }
};

Data make_data(std::uint64_t seed, std::int64_t rows = 2, std::int64_t sequence = 24,
               std::int64_t vocab = 64) {
  Rng rng(seed);
  Data data{.tokens = {}, .targets = {}, .rows = rows, .sequence = sequence};
  for (std::int64_t i = 0; i < rows * sequence; ++i) {
    data.tokens.push_back(rng.between(0, vocab - 1));
    data.targets.push_back(rng.chance(0.1) ? kIgnoredTarget : rng.between(0, vocab - 1));
  }
  return data;
}

Model make_model(bool tied = false, Dtype dtype = Dtype::f32) {
  at::set_num_threads(1);
  ModelConfig config = preset("tiny").value();
  config.tied = tied;
  Model model = Model::create(config, {.dtype = dtype}).value();
  model.init_parameters(1);
  return model;
}

std::vector<float> gradients_of(Model& model, const Data& data) {
  model.start_accumulation();
  EXPECT_TRUE(model.forward_backward(data.batch()).has_value());
  const auto g = model.gradients().as<float>();
  return {g.begin(), g.end()};
}

class TiedOrNot : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Heads, TiedOrNot, testing::Bool(),
                         [](const auto& variant) { return variant.param ? "tied" : "untied"; });

// What makes data parallelism over n ranks equal n micro-batches on one, bit by bit.
TEST_P(TiedOrNot, MicroBatchesAddLikeRanks) {
  Model model = make_model(GetParam());
  // Many tokens: a GEMM that added into its output (beta = 1) would round differently only when it cuts them
  // up.
  const Data a = make_data(1, 48, 32), b = make_data(2, 48, 32), c = make_data(3, 48, 32);
  const auto ga = gradients_of(model, a), gb = gradients_of(model, b), gc = gradients_of(model, c);
  model.start_accumulation();
  for (const Data* data : {&a, &b, &c}) ASSERT_TRUE(model.forward_backward(data->batch()).has_value());
  const auto got = model.gradients().as<float>();
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], (ga[i] + gb[i]) + gc[i]) << i;
}

TEST_P(TiedOrNot, RepeatsBitForBit) {
  Model model = make_model(GetParam());
  const Data data = make_data(4);
  const auto first = gradients_of(model, data);
  std::ranges::fill(model.gradients().as<float>(), 1e30F);  // what was there before must not show
  gradients_of(model, make_data(5, 1, 7));                  // nor another shape in between
  EXPECT_EQ(gradients_of(model, data), first);
}

TEST(Model, TwoThreadsTrainLikeOne) {
  const Data data[] = {make_data(6), make_data(7)};
  std::vector<float> alone[2], together[2];
  for (int i = 0; i < 2; ++i) {
    Model model = make_model();
    alone[i] = gradients_of(model, data[i]);
  }
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        Model model = make_model();
        for (int repeat = 0; repeat < 5; ++repeat) together[i] = gradients_of(model, data[i]);
      });
    }
  }
  EXPECT_EQ(together[0], alone[0]);
  EXPECT_EQ(together[1], alone[1]);
}

TEST(Model, IgnoredTargetsLeaveNoTrace) {
  Model model = make_model();
  Data data = make_data(8);
  std::ranges::fill(data.targets, kIgnoredTarget);
  const auto g = gradients_of(model, data);
  EXPECT_TRUE(std::ranges::all_of(g, [](float x) { return x == 0; }));
  const StepResult result = model.evaluate(data.batch()).value();
  EXPECT_EQ(result.tokens, 0);
  EXPECT_EQ(result.loss_sum, 0);
}

TEST(Model, LossOfNewModelIsThatOfGuessing) {
  Model model = make_model();
  const StepResult result = model.evaluate(make_data(9).batch()).value();
  EXPECT_NEAR(result.loss_sum / static_cast<double>(result.tokens), std::log(64.0), 0.05);
}

TEST(Model, LogitsInChunksGiveTheSameGradients) {
  Model model = make_model(false, Dtype::f64);
  const Data data = make_data(10, 3, 31);  // 93 tokens: chunks of 32, 32, 29
  const double loss = model.forward_backward(data.batch()).value().loss_sum;
  const auto whole = model.gradients().as<double>();
  const std::vector<double> expected(whole.begin(), whole.end());
  model.detail().head.logit_bytes_max = 32 * 64 * 8;
  model.start_accumulation();
  EXPECT_DOUBLE_EQ(model.forward_backward(data.batch()).value().loss_sum, loss);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(whole[i], expected[i], 1e-12) << i;
}

// A row of three documents is three rows: the same loss and gradients, positions from 0 in each.
TEST(Model, DocumentsInARowAreRowsOfTheirOwn) {
  Model model = make_model(true, Dtype::f64);
  const Data data = make_data(21, 2, 24);
  const std::vector<std::vector<std::int64_t>> begins = {{0, 5, 18}, {11}};
  const std::vector<std::array<std::int64_t, 2>> parts = {{0, 5}, {5, 18}, {18, 24}, {24, 35}, {35, 48}};
  Batch masked = data.batch();
  masked.documents = begins;
  double apart = 0;
  model.start_accumulation();
  for (const auto& [begin, end] : parts) {
    const auto count = static_cast<std::size_t>(end - begin), first = static_cast<std::size_t>(begin);
    const std::span tokens(data.tokens), targets(data.targets);
    apart +=
        model.forward_backward({tokens.subspan(first, count), targets.subspan(first, count), 1, end - begin})
            .value()
            .loss_sum;
  }
  const auto g = model.gradients().as<double>();
  const std::vector<double> expected(g.begin(), g.end());
  model.start_accumulation();
  const double together = model.forward_backward(masked).value().loss_sum;
  EXPECT_NEAR(together, apart, 1e-12 * apart);
  EXPECT_EQ(model.evaluate(masked).value().loss_sum, together);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(g[i], expected[i], 1e-12) << i;
  EXPECT_GT(std::abs(model.evaluate(data.batch()).value().loss_sum - together), 1e-6);  // it does matter
}

TEST(Model, DocumentsThatDoNotFitTheRowsAreRefused) {
  Model model = make_model();
  const Data data = make_data(22, 2, 24);
  const auto message = [&](const std::vector<std::vector<std::int64_t>>& begins) {
    Batch batch = data.batch();
    batch.documents = begins;
    const auto result = model.forward_backward(batch);
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_EQ(message({{}, {3}}), "accepted");
  EXPECT_THAT(message({{3}}), HasSubstr("documents of 1 rows for a batch of 2"));
  EXPECT_THAT(message({{}, {24}}), HasSubstr("a document of row 1 begins at 24"));
  EXPECT_THAT(message({{7, 3}, {}}), HasSubstr("a document of row 0 begins at 3"));
}

// The gradient of a tied head is the first of the backward, that of the embedding, which has its name, the
// last.
TEST(Model, WatchTellsATiedHeadFromItsEmbedding) {
  Model model = make_model(true);
  const Param& norm = model.table().at("model.norm.weight");
  // So large that logits and loss are still numbers, but the head's gradient, 50 times that, is not.
  std::ranges::fill(model.parameters().as<float>({norm.offset, norm.offset + norm.numel}), 8e37F);
  model.watch(true);
  EXPECT_TRUE(model.forward_backward(make_data(23).batch()));
  EXPECT_TRUE(model.not_finite().backward);
  EXPECT_EQ(model.not_finite().where, "model.embed_tokens.weight");
  EXPECT_EQ(model.not_finite().order, 0);
}

TEST(Model, FoldAddsTheTailOnce) {
  Model model = make_model(true);
  gradients_of(model, make_data(11));
  const auto g = model.gradients().as<float>();
  const auto tail = static_cast<std::size_t>(model.table().numel());
  const float own = g[5], head = g[tail + 5];
  EXPECT_NE(head, 0.0F);
  fold_tied_gradient(model.table(), model.gradients(), model.parameters().pieces());
  EXPECT_EQ(g[5], own + head);
  EXPECT_EQ(g[tail + 5], 0.0F);
  fold_tied_gradient(model.table(), model.gradients(), model.parameters().pieces());
  EXPECT_EQ(g[5], own + head);
}

TEST(Model, InitialValuesDependOnTheSeedAlone) {
  Model one = make_model();
  Model many = make_model();
  at::set_num_threads(3);
  many.init_parameters(1);
  at::set_num_threads(1);
  EXPECT_EQ(std::memcmp(one.parameters().data(), many.parameters().data(), one.parameters().bytes().size()),
            0);
  Model exact = make_model(false, Dtype::f64);
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(one.parameters().as<float>()[i], static_cast<float>(exact.parameters().as<double>()[i]));
  }
  many.init_parameters(2);
  EXPECT_NE(one.parameters().as<float>()[0], many.parameters().as<float>()[0]);
}

TEST(Model, RefusesBadBatchesAndLeavesGradients) {
  Model model = make_model();
  const auto before = gradients_of(model, make_data(12));
  const auto message = [&](auto spoil) {
    Data data = make_data(13);
    spoil(data);
    const auto result = model.forward_backward(data.batch());
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_THAT(message([](Data& d) { d.tokens[3] = 64; }),
              HasSubstr("token 3 of the batch is 64; the model's vocabulary has 64"));
  EXPECT_THAT(message([](Data& d) { d.tokens[0] = -1; }), HasSubstr("token 0 of the batch is -1"));
  EXPECT_THAT(message([](Data& d) { d.targets[47] = 64; }), HasSubstr("target 47 of the batch is 64"));
  EXPECT_THAT(message([](Data& d) { d.targets[1] = -2; }), HasSubstr("target 1 of the batch is -2"));
  EXPECT_THAT(message([](Data& d) { d.targets.pop_back(); }),
              HasSubstr("48 tokens and 47 targets; both must be 48"));
  EXPECT_THAT(message([](Data& d) { d.sequence = 33; }), HasSubstr("max_sequence, which is 32"));
  EXPECT_THAT(message([](Data& d) { d.rows = 0; }), HasSubstr("at least 1 x 1"));
  const auto g = model.gradients().as<float>();
  EXPECT_TRUE(std::ranges::equal(g, before));
  ModelConfig config = preset("tiny").value();
  config.vocab = -4;
  EXPECT_THAT(Model::create(config).error().message, HasSubstr("model.vocab is -4"));
}

}  // namespace
}  // namespace muster::train
