#include "train/generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "train/optim/adamw.h"
#include "train/optim/gradient_norm.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Model tiny(std::int64_t kv_heads = 2, Dtype dtype = Dtype::f64) {
  at::set_num_threads(1);  // small shapes: threads would only wait for each other
  ModelConfig config = preset("tiny").value();
  config.kv_heads = kv_heads;
  config.init_std = 0.3;
  Model model = Model::create(config, {.dtype = dtype}).value();
  model.init_parameters(1);
  return model;
}

TEST(Decoder, CachedLogitsAreThoseOfTheWholeText) {
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    Model model = tiny(kv_heads);
    const std::vector<std::int64_t> text{5, 9, 63, 0, 17, 17, 2, 40};
    std::vector<double> whole(text.size() * 64);
    ASSERT_TRUE(model.logits({text, {}, 1, 8}, whole).has_value());
    Decoder decoder(model);
    std::span<const double> logits = decoder.read(std::span(text).first(3)).value();
    for (std::size_t at = 3;; ++at) {
      for (std::size_t v = 0; v < 64; ++v) ASSERT_NEAR(logits[v], whole[(at - 1) * 64 + v], 1e-11) << at;
      if (at == text.size()) break;
      logits = decoder.next(text[at]).value();
    }
    EXPECT_EQ(decoder.length(), 8);
  }
}

TEST(Decoder, RefusesWhatDoesNotFit) {
  Model model = tiny();
  Decoder decoder(model);
  EXPECT_THAT(decoder.read({}).error().message, HasSubstr("0 tokens"));
  EXPECT_THAT(decoder.read(std::vector<std::int64_t>(33, 1)).error().message,
              HasSubstr("max_sequence, which is 32"));
  ASSERT_TRUE(decoder.read(std::vector<std::int64_t>(32, 1)).has_value());
  EXPECT_THAT(decoder.next(1).error().message, HasSubstr("read() a part of it again"));
  ASSERT_TRUE(decoder.read(std::vector<std::int64_t>(4, 1)).has_value());
  EXPECT_THAT(decoder.next(64).error().message, HasSubstr("is 64; the model's vocabulary has 64"));
  EXPECT_EQ(decoder.length(), 4);
}

// A model trained to count modulo 8 must go on counting, also across the end of its window.
TEST(Generate, ContinuesWhatWasLearnt) {
  Model model = tiny(2, Dtype::f32);
  model.init_parameters(2);
  AdamW optimizer(model.table(), Dtype::f32, {.weight_decay = 0});
  std::vector<std::int64_t> tokens, targets;
  for (std::int64_t row = 0; row < 8; ++row) {
    for (std::int64_t i = 0; i < 32; ++i) {
      tokens.push_back((row + i) % 8);
      targets.push_back((row + i + 1) % 8);
    }
  }
  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    model.start_accumulation();
    const StepResult result = model.forward_backward({tokens, targets, 8, 32}).value();
    loss = result.loss_sum / static_cast<double>(result.tokens);
    optimizer.step(model.parameters(), model.gradients(), 3e-3,
                   gradient_scale(global_norm(model.table(), model.gradients()), result.tokens, 1.0));
  }
  EXPECT_LT(loss, 0.05);
  const auto out =
      generate(model, std::vector<std::int64_t>{3}, {.tokens_max = 70, .temperature = 0}).value();
  ASSERT_EQ(out.size(), 70U);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<std::int64_t>((4 + i) % 8)) << i;

  const GenerateOptions until_six{.tokens_max = 70, .temperature = 0, .end_token = 6};
  EXPECT_THAT(generate(model, std::vector<std::int64_t>{3}, until_six).value(), ElementsAre(4, 5));
  int seen = 0;
  const auto stop_at_two = [&](std::int64_t) { return ++seen < 2; };
  EXPECT_THAT(generate(model, std::vector<std::int64_t>{0}, {.temperature = 0}, stop_at_two).value(),
              ElementsAre(1, 2));
}

TEST(Generate, SeedDecides) {
  Model model = tiny();
  const std::vector<std::int64_t> prompt{1, 2, 3};
  const auto run = [&](std::uint64_t seed) {
    return generate(model, prompt, {.tokens_max = 20, .temperature = 1, .seed = seed}).value();
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Generate, RefusesBadOptions) {
  Model model = tiny();
  EXPECT_THAT(generate(model, {}, {}).error().message, HasSubstr("the prompt has no tokens"));
  const std::vector<std::int64_t> prompt{1};
  EXPECT_THAT(generate(model, prompt, {.temperature = -1}).error().message, HasSubstr("temperature is -1"));
  EXPECT_THAT(generate(model, prompt, {.temperature = std::nan("")}).error().message,
              HasSubstr("temperature is nan"));
}

TEST(Generate, DrawsFromNothingThatIsNotFinite) {
  Model model = tiny();
  for (double& weight : model.parameters().as<double>()) weight *= 1e120;
  const std::vector<std::int64_t> prompt{1, 2};
  const auto made = generate(model, prompt, {.tokens_max = 5});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("behind 2 tokens the model's logits are not finite"));
}

TEST(Sample, FollowsTheProbabilities) {
  const std::vector<double> logits{std::log(0.1), std::log(0.6), std::log(0.3)};
  EXPECT_EQ(sample(logits, 1.0, 0, 0.05), 0);
  EXPECT_EQ(sample(logits, 1.0, 0, 0.15), 1);
  EXPECT_EQ(sample(logits, 1.0, 0, 0.69), 1);
  EXPECT_EQ(sample(logits, 1.0, 0, 0.71), 2);
  EXPECT_EQ(sample(logits, 1.0, 0, 0.9999999), 2);
  EXPECT_EQ(sample(logits, 0.0, 0, 0.05), 1);
  EXPECT_EQ(sample(logits, 1.0, 2, 0.05), 1);  // token 0 is cut: 0.6 : 0.3
  EXPECT_EQ(sample(logits, 1.0, 2, 0.67), 2);
  EXPECT_EQ(sample(logits, 0.01, 0, 0.999), 1);  // cold
}

}  // namespace
}  // namespace muster::train
