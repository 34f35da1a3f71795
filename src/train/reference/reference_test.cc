// The fast model against the plain one, whole: loss, logits, every gradient.
#include "train/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "train/model/model.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

struct Data {
  std::vector<std::int64_t> tokens, targets;
  std::int64_t rows, sequence;
  Batch batch() const { return {tokens, targets, rows, sequence}; }
};

Data make_data(const ModelConfig& config, std::int64_t rows, std::int64_t sequence, std::uint64_t seed) {
  Rng rng(seed);
  Data data{.tokens = {}, .targets = {}, .rows = rows, .sequence = sequence};
  for (std::int64_t i = 0; i < rows * sequence; ++i) {
    data.tokens.push_back(rng.between(0, config.vocab - 1));
    data.targets.push_back(rng.chance(0.2) ? kIgnoredTarget : rng.between(0, config.vocab - 1));
  }
  return data;
}

struct Variant {
  const char* name;
  bool tied;
  std::int64_t heads, kv_heads, rows, sequence;
  const char* scaling = "default";
};

class Whole : public testing::TestWithParam<Variant> {};

TEST_P(Whole, ModelEqualsReference) {
  at::set_num_threads(1);  // small shapes: threads would only wait for each other
  const Variant& v = GetParam();
  ModelConfig config = preset("tiny").value();
  config.tied = v.tied;
  config.heads = v.heads;
  config.kv_heads = v.kv_heads;
  config.init_std = 0.2;
  // Of the four pairs of a head, llama3 leaves one as it is, blends one and stretches two.
  config.rope_theta = 30;
  config.rope_scaling = v.scaling;
  config.rope_factor = 8;
  config.rope_original_sequence = 30;
  Model model = Model::create(config, {.dtype = Dtype::f64}).value();
  const ParamTable& table = model.table();
  model.init_parameters(5);
  const Data data = make_data(config, v.rows, v.sequence, 9);

  const auto expected =
      reference::run(table, model.parameters().as<double>(), data.tokens, data.targets, v.rows, v.sequence);
  const StepResult got = model.forward_backward(data.batch()).value();
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_NEAR(got.loss_sum, expected.loss_sum, 1e-12 * expected.loss_sum);
  EXPECT_EQ(model.evaluate(data.batch()).value().loss_sum, got.loss_sum);

  std::vector<double> logits(expected.logits.size());
  ASSERT_TRUE(model.logits(data.batch(), logits).has_value());
  for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected.logits[i], 1e-11) << i;

  fold_tied_gradient(table, model.gradients(), model.parameters().pieces());
  for (const Param& param : table.params()) {
    double worst = 0, largest = 0;
    for (std::int64_t i = param.offset; i < param.offset + param.numel; ++i) {
      const auto n = static_cast<std::size_t>(i);
      worst = std::max(worst, std::abs(model.gradients().as<double>()[n] - expected.gradients[n]));
      largest = std::max(largest, std::abs(expected.gradients[n]));
    }
    // A single token attends to itself whatever q and k are.
    if (v.sequence > 1) {
      EXPECT_GT(largest, 0) << param.name;
    }
    EXPECT_LE(worst, 1e-12 * (largest > 0 ? largest : 1)) << param.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Whole,
    testing::Values(Variant{"plain", false, 4, 4, 2, 16}, Variant{"grouped", false, 4, 2, 2, 13},
                    Variant{"tied", true, 4, 1, 3, 8}, Variant{"one_token", false, 2, 2, 1, 1},
                    Variant{"longest", true, 8, 8, 1, 32}, Variant{"linear", false, 4, 2, 2, 13, "linear"},
                    Variant{"llama3", false, 4, 2, 2, 24, "llama3"}),
    [](const auto& variant) { return variant.param.name; });

// The reference against finite differences, so that the two are not wrong in the same way.
TEST(Reference, GradientsAreTheSlopesOfTheLoss) {
  ModelConfig config = preset("tiny").value();
  config.vocab = 11;
  config.width = 8;
  config.head_dim = 4;
  config.heads = 2;
  config.kv_heads = 1;
  config.ffn = 6;
  config.tied = true;
  config.init_std = 0.5;
  const ParamTable table(config);
  std::vector<double> parameters(static_cast<std::size_t>(table.numel()));
  for (const Param& param : table.params()) {
    const auto part =
        std::span(parameters)
            .subspan(static_cast<std::size_t>(param.offset), static_cast<std::size_t>(param.numel));
    init_param<double>(config, param, 1, 0, part);
  }
  const Data data = make_data(config, 2, 5, 3);
  const auto loss = [&](const std::vector<double>& p) {
    return reference::run(table, p, data.tokens, data.targets, 2, 5).loss_sum;
  };
  const auto exact = reference::run(table, parameters, data.tokens, data.targets, 2, 5).gradients;
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < parameters.size(); i += 7) {
    std::vector<double> moved = parameters;
    moved[i] += kStep;
    const double above = loss(moved);
    moved[i] -= 2 * kStep;
    EXPECT_NEAR((above - loss(moved)) / (2 * kStep), exact[i], 1e-7) << i;
  }
}

}  // namespace
}  // namespace muster::train
