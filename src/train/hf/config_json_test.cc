#include "train/hf/config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::train::hf {
namespace {

using testing::HasSubstr;

// The smallest config.json that is read, with `members` over it.
std::string small(const std::string& members = "{}") {
  json::Object config = json::parse_object(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "vocab_size":100,"hidden_size":48,"intermediate_size":80,"num_hidden_layers":3,"num_attention_heads":6})")
                            .value();
  const auto over = json::parse_object(members).value();
  for (const auto& [name, value] : over) config[name] = value;
  return json::dump(config);
}

TEST(ConfigJson, WhatIsLeftOutHasHuggingFacesDefaults) {
  const ModelConfig expected{.vocab = 100,
                             .layers = 3,
                             .width = 48,
                             .heads = 6,
                             .kv_heads = 6,
                             .head_dim = 8,
                             .ffn = 80,
                             .rope_theta = 10000,
                             .norm_eps = 1e-6,
                             .tied = false,
                             .max_sequence = 2048,
                             .init_std = 0.02};
  const auto model = parse_config(small());
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(*model, expected);
}

// As published for Llama 3.2 1B.
constexpr char kLlama32[] = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 128256})";

TEST(ConfigJson, ReadsLlama32) {
  const auto model = parse_config(kLlama32);
  ASSERT_TRUE(model) << model.error().message;
  ModelConfig expected = preset("llama-1b").value();
  expected.rope_scaling = "llama3";
  expected.rope_factor = 32;
  expected.max_sequence = 131072;
  EXPECT_EQ(*model, expected);
  EXPECT_EQ(parameter_count(*model), 1'235'814'400);
}

TEST(ConfigJson, BothSpellingsOfTheRotarySettings) {
  struct Case {
    const char* members;
    const char* scaling;
    double theta, factor, low, high;
    std::int64_t original;
  };
  const Case cases[] = {
      {R"({"rope_theta": 5e5})", "default", 5e5, 1, 1, 4, 8192},
      {R"({"rope_theta": 500000, "rope_scaling": null})", "default", 5e5, 1, 1, 4, 8192},
      {R"({"rope_parameters": {"rope_type": "default", "rope_theta": 100000}})", "default", 1e5, 1, 1, 4,
       8192},
      {R"({"rope_parameters": {"rope_theta": 7}, "rope_theta": 7.0})", "default", 7, 1, 1, 4, 8192},
      {R"({"rope_scaling": {"type": "linear", "factor": 2}})", "linear", 1e4, 2, 1, 4, 8192},
      {R"({"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 9e3}})", "linear", 9e3,
       2.5, 1, 4, 8192},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 2, "high_freq_factor": 5,
           "original_max_position_embeddings": 512}})",
       "llama3", 1e4, 8, 2, 5, 512},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 2, "high_freq_factor": 5,
           "rope_theta": 3e5}, "max_position_embeddings": 4096})",
       "llama3", 3e5, 8, 2, 5, 4096},
      {R"({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 11},
           "rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 11})",
       "linear", 11, 2, 1, 4, 8192},
  };
  for (const Case& c : cases) {
    const auto model = parse_config(small(c.members));
    ASSERT_TRUE(model) << c.members << ": " << model.error().message;
    EXPECT_EQ(model->rope_scaling, c.scaling) << c.members;
    EXPECT_EQ(model->rope_theta, c.theta) << c.members;
    EXPECT_EQ(model->rope_factor, c.factor) << c.members;
    EXPECT_EQ(model->rope_low_freq_factor, c.low) << c.members;
    EXPECT_EQ(model->rope_high_freq_factor, c.high) << c.members;
    EXPECT_EQ(model->rope_original_sequence, c.original) << c.members;
  }
}

TEST(ConfigJson, WhatItCannotDoIsRefusedByName) {
  struct Case {
    const char* members;
    const char* says;
  };
  const Case cases[] = {
      {R"({"architectures": ["MistralForCausalLM"]})",
       "architectures is [\"MistralForCausalLM\"]; Muster computes"},
      {R"({"model_type": "qwen2"})", "model_type is \"qwen2\""},
      {R"({"hidden_act": "gelu"})", "hidden_act is \"gelu\"; Muster computes the shapes of Llama 2 and 3"},
      {R"({"attention_bias": true})", "attention_bias is true"},
      {R"({"mlp_bias": true})", "mlp_bias is true"},
      {R"({"attention_dropout": 0.1})", "attention_dropout is"},
      {R"({"sliding_window": 4096})", "sliding_window is 4096"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types is"},
      {R"({"num_local_experts": 8})", "num_local_experts is 8"},
      {R"({"num_experts": 8})", "num_experts is 8"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is"},
      {R"({"pretraining_tp": 2})", "pretraining_tp is 2"},
      {R"({"quantization_config": {"bits": 4}})", "quantization_config is {\"bits\":4}"},
      {R"({"rope_scaling": {"type": "dynamic", "factor": 2}})",
       "rope_scaling.rope_type is \"dynamic\"; Muster computes the shapes of Llama 2 and 3: rope_type "
       "default, "
       "linear or llama3"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2}})", "rope_scaling.rope_type is \"yarn\""},
      {R"({"rope_parameters": {"rope_type": "longrope"}})", "rope_parameters.rope_type is \"longrope\""},
      {R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", "partial_rotary_factor is"},
      {R"({"rope_parameters": {"full_attention": {"rope_theta": 1}}})", "rope_parameters.full_attention is"},
  };
  for (const Case& c : cases) {
    const auto model = parse_config(small(c.members));
    ASSERT_FALSE(model) << c.members;
    EXPECT_EQ(model.error().code, ErrorCode::unsupported) << c.members;
    EXPECT_THAT(model.error().message, HasSubstr(c.says));
  }
}

TEST(ConfigJson, WhatIsWrongIsRefusedByName) {
  struct Case {
    const char* members;
    const char* says;
  };
  const Case cases[] = {
      {R"({"hidden_size": null})", "config.json: hidden_size is missing"},
      {R"({"hidden_size": "48"})", "hidden_size is \"48\"; a whole number is needed"},
      {R"({"hidden_size": 48.5})", "a whole number is needed"},
      {R"({"hidden_size": 50})", "model.width 50 is not a multiple of model.heads 6"},
      {R"({"num_key_value_heads": 4})", "model.kv_heads is 4; it must divide model.heads"},
      {R"({"rms_norm_eps": "small"})", "rms_norm_eps is \"small\"; a number is needed"},
      {R"({"tie_word_embeddings": 1})", "tie_word_embeddings is 1; true or false is needed"},
      {R"({"rope_scaling": 2})", "rope_scaling is 2; an object is needed"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling of type linear has no factor"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0.5}})", "model.rope_factor is 0.5"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})", "llama3 has no low_freq_factor"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
       "model.rope_high_freq_factor (4."},
      {R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e4}})", "rope_theta is there twice"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1e4}})",
       "rope_scaling and rope_parameters say different things"},
      {R"({"architectures": null, "model_type": null})", "neither architectures nor model_type"},
  };
  for (const Case& c : cases) {
    const auto model = parse_config(small(c.members));
    ASSERT_FALSE(model) << c.members;
    EXPECT_EQ(model.error().code, ErrorCode::invalid_argument) << c.members;
    EXPECT_THAT(model.error().message, HasSubstr(c.says));
  }
  EXPECT_THAT(parse_config("[1]").error().message, testing::StartsWith("config.json: "));
}

TEST(ConfigJson, WhatIsWrittenReadsBack) {
  std::vector<ModelConfig> models = {parse_config(kLlama32).value(), parse_config(small()).value()};
  for (const auto& name : preset_names()) models.push_back(preset(name).value());
  models.back().rope_scaling = "linear";
  models.back().rope_factor = 2.5;
  for (const ModelConfig& model : models) {
    const auto again = parse_config(json::dump(to_config(model)));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, model);
  }
}

TEST(ConfigJson, WritesOverWhatWasThereAndKeepsTheRest) {
  const auto base = json::parse_object(R"({"eos_token_id": 7, "vocab_size": 3, "dtype": "bfloat16",
      "rope_parameters": {"rope_type": "llama3"}})")
                        .value();
  const auto config = to_config(preset("tiny").value(), base);
  EXPECT_EQ(json::opt_int(config, "eos_token_id"), 7);
  EXPECT_EQ(json::opt_int(config, "vocab_size"), 64);
  EXPECT_FALSE(config.contains("dtype") || config.contains("rope_parameters") ||
               config.contains("rope_scaling"));
}

}  // namespace
}  // namespace muster::train::hf
