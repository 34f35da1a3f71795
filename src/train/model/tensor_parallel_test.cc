// Tensor and sequence parallelism against one rank, in fp64: loss, every gradient, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "train/comm/test_ranks.h"
#include "train/model/detail/model_detail.h"
#include "train/model/model.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

constexpr double kClose = 1e-12;

struct Micro {
  std::vector<std::int64_t> tokens, targets;
  std::int64_t rows, sequence;
  Batch batch() const { return {tokens, targets, rows, sequence}; }
};

// Few tokens of many are targets in some rows, so that an average of averages would differ.
Micro make_micro(std::uint64_t seed, std::int64_t rows, std::int64_t sequence, std::int64_t vocab) {
  Rng rng(seed);
  Micro micro{.tokens = {}, .targets = {}, .rows = rows, .sequence = sequence};
  for (std::int64_t row = 0; row < rows; ++row) {
    const double ignored = rng.uniform();
    for (std::int64_t i = 0; i < sequence; ++i) {
      micro.tokens.push_back(rng.between(0, vocab - 1));
      micro.targets.push_back(rng.chance(ignored) ? kIgnoredTarget : rng.between(0, vocab - 1));
    }
  }
  return micro;
}

struct Outcome {
  std::string error;
  double loss = 0, evaluated = 0;
  std::int64_t tokens = 0;
  std::map<std::string, std::vector<double>> gradients;  // of global tensors, row-major
};

// The gradient of a part into its place in the global tensor.
void place(const Param& param, const std::vector<std::int64_t>& global, std::span<const double> part,
           std::vector<double>& whole) {
  std::int64_t numel = 1;
  for (const auto length : global) numel *= length;
  whole.resize(static_cast<std::size_t>(numel));
  const Slice all = whole_slice(param.name, whole_box(global)), mine = whole_slice(param.name, param.box);
  for (const Run& run : intersect(all, mine)) {
    std::copy_n(part.begin() + run.b, run.count, whole.begin() + run.a);
  }
}

struct Case {
  ModelConfig config;
  int tp = 1;
  bool sequence_parallel = false;
  std::vector<Micro> micros;
  std::int64_t logit_bytes_max = 0;  // 0: as it is
};

// One outcome a rank; `gradients` has what the rank holds at its place.
std::vector<Outcome> run(const Case& c) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(c.tp));
  on_ranks(c.tp, [&](Comm& comm) {
    at::set_num_threads(1);
    Outcome& out = outcomes[static_cast<std::size_t>(comm.rank())];
    auto model =
        Model::create(c.config, {.dtype = Dtype::f64, .tp = &comm, .sequence_parallel = c.sequence_parallel});
    if (!model) {
      out.error = model.error().message;
      return;
    }
    if (c.logit_bytes_max > 0) model->detail().head.logit_bytes_max = c.logit_bytes_max;
    model->init_parameters(5);
    model->start_accumulation();
    for (const Micro& micro : c.micros) {
      const auto result = model->forward_backward(micro.batch());
      ASSERT_TRUE(result) << result.error().message;
      out.loss += result->loss_sum;
      out.tokens += result->tokens;
    }
    ASSERT_TRUE(model->finish_accumulation());
    out.evaluated = model->evaluate(c.micros[0].batch()).value().loss_sum;
    const ParamTable& table = model->table();
    const ParamTable whole(table.config());
    fold_tied_gradient(table, model->gradients(), model->parameters().pieces());
    for (const Param& param : table.params()) {
      place(param, whole.at(param.name).shape,
            model->gradients().as<double>({param.offset, param.offset + param.numel}),
            out.gradients[param.name]);
    }
    ASSERT_TRUE(comm.barrier());
  });
  return outcomes;
}

// What the ranks hold of a tensor, put together: cut tensors are added (each rank has zeros elsewhere),
// replicated ones must be the same on all.
std::vector<double> put_together(const std::vector<Outcome>& ranks, const std::string& name, bool cut) {
  std::vector<double> all = ranks[0].gradients.at(name);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const auto& more = ranks[rank].gradients.at(name);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(cut || all[i] == more[i]) << name << " on rank " << rank;
      if (cut) all[i] += more[i];
    }
  }
  return all;
}

void expect_equal(const Case& c, const std::string& what) {
  Case alone = c;
  alone.tp = 1;
  alone.sequence_parallel = false;
  const Outcome one = run(alone)[0];
  const auto many = run(c);
  for (const Outcome& rank : many) {
    ASSERT_EQ(rank.error, "") << what;
    EXPECT_NEAR(rank.loss, one.loss, kClose * std::abs(one.loss) + 1e-300) << what;
    EXPECT_NEAR(rank.evaluated, one.evaluated, kClose * std::abs(one.evaluated) + 1e-300) << what;
    EXPECT_EQ(rank.loss, many[0].loss) << what;  // the same bits: no rank may go another way
    EXPECT_EQ(rank.tokens, one.tokens) << what;
  }
  const ParamTable table(validated(c.config).value());
  for (const Param& param : table.params()) {
    const auto& expected = one.gradients.at(param.name);
    const auto got = put_together(many, param.name, param.spec->tp_axis != kNotCut);
    double greatest = 1e-300, worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      greatest = std::max(greatest, std::abs(expected[i]));
      worst = std::max(worst, std::abs(expected[i] - got[i]));
    }
    EXPECT_LE(worst / greatest, kClose) << param.name << ", " << what;
  }
}

ModelConfig config_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t vocab, std::int64_t ffn,
                      bool tied) {
  return {.vocab = vocab,
          .layers = 2,
          .width = 24,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 6,
          .ffn = ffn,
          .tied = tied,
          .max_sequence = 64,
          .init_std = 0.2};
}

// Vocabulary and inner width that do not divide, several micro-batches with masks of very different length.
TEST(TensorParallel, HasTheGradientsOfOneRank) {
  for (const bool tied : {false, true}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const int tp : {2, 3}) {
        const Case c{.config = config_of(6, tp == 2 ? 2 : 3, 71, 31, tied),
                     .tp = tp,
                     .sequence_parallel = sequence_parallel,
                     .micros = {make_micro(1, 2, 13, 71), make_micro(2, 2, 13, 71), make_micro(3, 1, 7, 71)}};
        expect_equal(c, "tp " + std::to_string(tp) + (sequence_parallel ? ", sequence parallel" : "") +
                            (tied ? ", tied" : ""));
      }
    }
  }
}

// Parts of 36 and 35 of the vocabulary: for themselves they would make chunks of 16 and 32 tokens.
TEST(TensorParallel, UnevenPartsOfTheVocabularyMakeTheSameChunks) {
  expect_equal({.config = config_of(6, 2, 71, 31, false),
                .tp = 2,
                .micros = {make_micro(1, 2, 20, 71)},
                .logit_bytes_max = 35 * 8 * 32},
               "chunks");
}

// One token on four ranks: under sequence parallelism three of them have no row at all.
TEST(TensorParallel, MoreRanksThanTokens) {
  for (const bool sequence_parallel : {false, true}) {
    expect_equal({.config = config_of(4, 4, 9, 5, false),
                  .tp = 4,
                  .sequence_parallel = sequence_parallel,
                  .micros = {make_micro(4, 1, 1, 9), make_micro(5, 1, 3, 9)}},
                 sequence_parallel ? "sequence parallel" : "");
  }
}

TEST(TensorParallel, RefusesDegreesThatCannotWork) {
  const Case c{.config = config_of(6, 2, 71, 31, false), .tp = 3, .micros = {make_micro(1, 1, 4, 71)}};
  for (const Outcome& rank : run(c)) EXPECT_THAT(rank.error, HasSubstr("possible here: 1, 2"));
}

// A rank that leaves is an error of the step, not numbers that are wrong.
TEST(TensorParallel, ALostRankIsAnError) {
  ThreadWorld world(2);
  Comm comm("tp", world.join(0));
  {
    Comm other("tp", world.join(1));
    ASSERT_TRUE(Model::create(config_of(4, 2, 71, 31, false), {.dtype = Dtype::f64, .tp = &other}));
  }
  Model model = Model::create(config_of(4, 2, 71, 31, false), {.dtype = Dtype::f64, .tp = &comm}).value();
  model.init_parameters(1);
  const Micro micro = make_micro(1, 2, 8, 71);
  const auto lost = model.forward_backward(micro.batch());
  ASSERT_FALSE(lost);
  EXPECT_THAT(lost.error().message, HasSubstr("all_reduce #1 of tp, rank 0 of 2"));
  EXPECT_FALSE(model.evaluate(micro.batch()));
}

}  // namespace
}  // namespace muster::train
