#include "train/model/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "train/model/flat_buffer.h"

namespace muster::train {
namespace {

ModelConfig tiny(bool tied = false) {
  ModelConfig config = preset("tiny").value();
  config.tied = tied;
  return config;
}

TEST(Params, NamesShapesAndOrderAreHuggingFaces) {
  const ParamTable table(tiny());
  std::string text;
  for (const Param& param : table.params()) {
    text += param.name;
    for (const auto length : param.shape) text += " " + std::to_string(length);
    text += "\n";
  }
  EXPECT_EQ(text,
            "model.embed_tokens.weight 64 32\n"
            "model.layers.0.self_attn.q_proj.weight 32 32\n"
            "model.layers.0.self_attn.k_proj.weight 16 32\n"
            "model.layers.0.self_attn.v_proj.weight 16 32\n"
            "model.layers.0.self_attn.o_proj.weight 32 32\n"
            "model.layers.0.mlp.gate_proj.weight 48 32\n"
            "model.layers.0.mlp.up_proj.weight 48 32\n"
            "model.layers.0.mlp.down_proj.weight 32 48\n"
            "model.layers.0.input_layernorm.weight 32\n"
            "model.layers.0.post_attention_layernorm.weight 32\n"
            "model.layers.1.self_attn.q_proj.weight 32 32\n"
            "model.layers.1.self_attn.k_proj.weight 16 32\n"
            "model.layers.1.self_attn.v_proj.weight 16 32\n"
            "model.layers.1.self_attn.o_proj.weight 32 32\n"
            "model.layers.1.mlp.gate_proj.weight 48 32\n"
            "model.layers.1.mlp.up_proj.weight 48 32\n"
            "model.layers.1.mlp.down_proj.weight 32 48\n"
            "model.layers.1.input_layernorm.weight 32\n"
            "model.layers.1.post_attention_layernorm.weight 32\n"
            "model.norm.weight 32\n"
            "lm_head.weight 64 32\n");
}

TEST(Params, ParametersFollowEachOtherWithoutGaps) {
  const ParamTable table(tiny());
  std::int64_t next = 0;
  for (const Param& param : table.params()) {
    EXPECT_EQ(param.offset, next) << param.name;
    next += param.numel;
  }
  EXPECT_EQ(table.numel(), next);
  EXPECT_EQ(table.gradient_numel(), next);
}

TEST(Params, TiedHeadIsNotStoredButHasItsOwnGradient) {
  const ParamTable table(tiny(true));
  EXPECT_EQ(table.find("lm_head.weight"), nullptr);
  EXPECT_EQ(table.gradient_numel(), table.numel() + 64 * 32);
}

TEST(Params, CountNeedsNoTable) {
  for (const bool tied : {false, true})
    EXPECT_EQ(parameter_count(tiny(tied)), ParamTable(tiny(tied)).numel());
}

TEST(Params, BlocksCoverEveryParameterAndNeverCrossOne) {
  ModelConfig config = tiny();
  config.vocab = 300;  // 9,600 elements: blocks of 4096, 4096, 1408
  const ParamTable table(config);
  std::int64_t next = 0;
  for (const Range block : table.blocks()) {
    EXPECT_EQ(block.begin, next);
    EXPECT_GT(block.size(), 0);
    EXPECT_LE(block.size(), ParamTable::kBlock);
    next = block.end;
  }
  EXPECT_EQ(next, table.numel());
  EXPECT_EQ(table.blocks()[2], (Range{8192, 9600}));
  EXPECT_EQ(table.blocks()[3].begin, 9600);
}

TEST(Params, QuickstartPresetHasAboutFiveMillion) {
  const ParamTable table(preset("quickstart").value());
  EXPECT_GT(table.numel(), 4'500'000);
  EXPECT_LT(table.numel(), 5'500'000);
}

TEST(Params, BenchPresetIsTheModelOfTheBaseline) {
  EXPECT_NEAR(static_cast<double>(ParamTable(preset("bench").value()).numel()), 16.85e6, 0.05e6);
}

TEST(Params, PresetsHaveTheParametersThatTheirNamesSay) {
  const std::pair<const char*, double> presets[] = {
      {"llama-5m", 4.98e6},  {"llama-15m", 15.19e6}, {"llama-110m", 109.5e6}, {"llama-1b", 1.236e9},
      {"llama-7b", 6.738e9}, {"llama-8b", 8.030e9},  {"llama-13b", 13.02e9},  {"llama-70b", 70.55e9}};
  for (const auto& [name, count] : presets) {
    EXPECT_NEAR(static_cast<double>(parameter_count(preset(name).value())) / count, 1, 0.001) << name;
  }
}

// Llama 3.1's rule by hand, for heads of 8 and a context of 30: pair i turns 30 * 30^(-i/4) / (2 pi) times in
// it.
TEST(Params, RopeFrequenciesAreScaledByTheRule) {
  ModelConfig config = tiny();
  config.rope_theta = 30;
  const double plain[] = {1, 0.42728700639623407, 0.18257418583505536, 0.07801157731069053};
  const auto expect = [&](double a, double b, double c, double d) {
    const double expected[] = {a, b, c, d};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(rope_frequency(config, static_cast<std::int64_t>(i)), expected[i], 1e-15) << i;
    }
  };
  expect(plain[0], plain[1], plain[2], plain[3]);
  config.rope_factor = 8;
  config.rope_scaling = "linear";
  expect(plain[0] / 8, plain[1] / 8, plain[2] / 8, plain[3] / 8);
  config.rope_scaling = "llama3";
  config.rope_original_sequence = 30;
  const double kept = (2.0401451756069684 - 1) / 3;  // pair 1 turns 2.04 times
  expect(plain[0], plain[1] * kept + plain[1] / 8 * (1 - kept), plain[2] / 8, plain[3] / 8);
}

TEST(Init, AnyCutGivesTheSameValues) {
  const ModelConfig config = tiny();
  const ParamTable table(config);
  const Param& param = table.at("model.layers.1.mlp.up_proj.weight");
  std::vector<float> whole(static_cast<std::size_t>(param.numel));
  init_param<float>(config, param, 7, 0, whole);
  std::vector<float> part(100);
  init_param<float>(config, param, 7, 333, std::span(part));
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[333 + i]);
}

TEST(Init, HasTheMomentsOfTheTable) {
  ModelConfig config = tiny();
  config.vocab = 4096;
  const ParamTable table(config);
  for (const auto& [name, expected] :
       {std::pair{"model.embed_tokens.weight", 0.02}, std::pair{"lm_head.weight", 0.02}}) {
    const Param& param = table.at(name);
    std::vector<double> values(static_cast<std::size_t>(param.numel));
    init_param<double>(config, param, 1, 0, values);
    double sum = 0, squares = 0, fourth = 0;
    for (const double x : values) {
      sum += x;
      squares += x * x;
      fourth += x * x * x * x;
    }
    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(sum / n, 0.0, 4 * expected / std::sqrt(n)) << name;
    EXPECT_NEAR(std::sqrt(squares / n), expected, 0.01 * expected) << name;
    EXPECT_NEAR(fourth / n / (squares / n) / (squares / n), 3 - 1.2 / 8, 0.05) << name;
  }
  const Param& down = table.at("model.layers.0.mlp.down_proj.weight");
  std::vector<double> values(static_cast<std::size_t>(down.numel));
  init_param<double>(config, down, 1, 0, values);
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.02 / 2,
              0.0008);  // sqrt(2 * 2 layers)
}

TEST(Init, SeedsAndNamesDiffer) {
  const ModelConfig config = tiny();
  const ParamTable table(config);
  const auto first = [&](std::string_view name, std::uint64_t seed) {
    float value = 0;
    init_param<float>(config, table.at(name), seed, 0, {&value, 1});
    return value;
  };
  EXPECT_NE(first("lm_head.weight", 1), first("lm_head.weight", 2));
  EXPECT_NE(first("lm_head.weight", 1), first("model.embed_tokens.weight", 1));
  EXPECT_EQ(first("model.norm.weight", 1), 1.0F);
}

// Every (stage, tp) part of a model whose sizes do not divide.
struct Spread {
  int pp = 1;
  int tp = 1;
  bool tied = false;
};

ModelConfig uneven(bool tied) {
  ModelConfig config = tiny();
  config.layers = 3;
  config.heads = 6;
  config.kv_heads = 3;
  config.head_dim = 4;
  config.vocab = 65;
  config.ffn = 50;
  config.tied = tied;
  return validated(config).value();
}

TEST(ModelParts, TogetherHoldEveryElementOnceWithItsInitialValue) {
  for (const Spread& spread : {Spread{1, 1, true}, Spread{1, 3, false}, Spread{2, 1, true},
                               Spread{3, 3, true}, Spread{2, 3, false}}) {
    const ModelConfig config = uneven(spread.tied);
    const ParamTable whole(config);
    FlatBuffer values(whole.numel(), Dtype::f64), held(whole.numel(), Dtype::f64);
    for (const Param& param : whole.params()) {
      init_param<double>(config, param, 5, 0, values.as<double>({param.offset, param.offset + param.numel}));
    }
    std::vector<int> count(static_cast<std::size_t>(whole.numel()));
    for (int stage = 0; stage < spread.pp; ++stage) {
      for (int tp_rank = 0; tp_rank < spread.tp; ++tp_rank) {
        const ParamTable table(
            config,
            {.layers = part_of(config.layers, stage, spread.pp), .tp_rank = tp_rank, .tp = spread.tp});
        std::int64_t next = 0;
        for (const Range unit : table.units()) {
          EXPECT_EQ(unit.begin, next);
          next = unit.end;
        }
        EXPECT_EQ(next, table.numel());
        const PartSize size = part_size(config, table.part());
        EXPECT_EQ(size.parameters, table.numel());
        EXPECT_EQ(size.gradients, table.gradient_numel());
        EXPECT_EQ(size.blocks, static_cast<std::int64_t>(table.blocks().size()));
        for (const Param& param : table.params()) {
          std::vector<double> mine(static_cast<std::size_t>(param.numel));
          init_param<double>(config, param, 5, 0, mine);
          const Param& global = whole.at(param.name);
          for (const auto& run :
               intersect(whole_slice(param.name, global.box), whole_slice(param.name, param.box))) {
            for (std::int64_t i = 0; i < run.count; ++i) {
              const auto at = static_cast<std::size_t>(global.offset + run.a + i);
              EXPECT_EQ(mine[static_cast<std::size_t>(run.b + i)], values.as<double>()[at]);
              count[at] += table.owns(param) ? 1 : 0;
            }
          }
        }
      }
    }
    EXPECT_EQ(std::ranges::count(count, 1), whole.numel()) << spread.pp << " x " << spread.tp;
  }
}

TEST(ModelParts, ATiedHeadOnAnotherStageIsACopy) {
  const ModelConfig config = uneven(true);
  const ParamTable first(config, {.layers = {0, 2}}), last(config, {.layers = {2, 3}});
  EXPECT_FALSE(first.at("model.embed_tokens.weight").copy);
  EXPECT_TRUE(last.at("model.embed_tokens.weight").copy);
  EXPECT_EQ(first.gradient_numel(), first.numel());
  EXPECT_EQ(last.gradient_numel(), last.numel());
  EXPECT_EQ(first.find("model.norm.weight"), nullptr);
}

TEST(ModelParts, DegreesThatDoNotFitAreRefusedWithThoseThatDo) {
  const ModelConfig config = uneven(false);
  EXPECT_TRUE(check_tensor_parallel(config, 3));
  EXPECT_THAT(check_tensor_parallel(config, 2).error().message,
              testing::AllOf(testing::HasSubstr("over 2 ranks"), testing::HasSubstr("3 key / value heads"),
                             testing::HasSubstr("possible here: 1, 3")));
  const ModelConfig local = local_config(config, {.layers = {1, 3}, .tp_rank = 2, .tp = 3});
  EXPECT_EQ(local.heads, 2);
  EXPECT_EQ(local.kv_heads, 1);
  EXPECT_EQ(local.ffn, 16);
  EXPECT_EQ(local.vocab, 21);
  EXPECT_EQ(local.layers, 2);
}

TEST(Config, RefusalsNameKeyValueAndRemedy) {
  struct Case {
    void (*spoil)(ModelConfig&);
    std::string_view expected;
  };
  const Case cases[] = {
      {[](ModelConfig& c) { c.vocab = 0; }, "model.vocab is 0; it must be from 1 to 1048576"},
      {[](ModelConfig& c) { c.width = 0; },
       "model.width is 0; it must be from 1 to 65536; a model.preset has one"},
      {[](ModelConfig& c) { c.layers = -3; }, "model.layers is -3; it must be from 1 to 1024"},
      {[](ModelConfig& c) { c.kv_heads = 3; }, "model.kv_heads is 3; it must divide model.heads, which is 4"},
      {[](ModelConfig& c) { c.head_dim = 7; }, "model.head_dim is 7; it must be even"},
      {[](ModelConfig& c) { c.head_dim = 0, c.width = 7 * c.heads; }, "model.head_dim is 7, model.width "},
      {[](ModelConfig& c) {
         c.head_dim = 0;
         c.width = 30;
       },
       "model.width 30 is not a multiple of model.heads 4"},
      {[](ModelConfig& c) { c.norm_eps = std::nan(""); },
       "model.norm_eps is nan; it must be from 1e-30 to 1"},
      {[](ModelConfig& c) { c.rope_scaling = "yarn"; }, "model.rope_scaling is \"yarn\"; there are default"},
  };
  for (const Case& bad : cases) {
    ModelConfig config = tiny();
    bad.spoil(config);
    const auto result = validated(config);
    ASSERT_FALSE(result.has_value()) << bad.expected;
    EXPECT_THAT(result.error().message, testing::HasSubstr(std::string(bad.expected)));
  }
  EXPECT_THAT(preset("huge").error().message, testing::HasSubstr("quickstart, bench, tiny, llama-5m"));
}

TEST(Config, LimitsAreOfTheTable) {
  for (const ModelLimit& limit : model_limits()) {
    for (const double beyond : {limit.maximum * 2, limit.minimum - 1}) {
      ModelConfig config = tiny();
      std::visit([&]<typename T>(T ModelConfig::*member) { config.*member = static_cast<T>(beyond); },
                 limit.member);
      const auto result = validated(config);
      ASSERT_FALSE(result) << limit.key << " " << beyond;
      EXPECT_THAT(result.error().message, testing::StartsWith("model." + std::string(limit.key) + " is "));
    }
  }
}

TEST(FlatBuffer, IsZeroAlignedAndMovable) {
  FlatBuffer buffer(1 << 20, Dtype::f32);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
  EXPECT_EQ(buffer.as<float>()[(1 << 20) - 1], 0.0F);
  buffer.as<float>({10, 20})[0] = 3;
  FlatBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.as<float>()[10], 3.0F);
  EXPECT_EQ(moved.bytes({10, 12}).size(), 8U);
  EXPECT_EQ(buffer.data(), nullptr);
}

TEST(FlatBufferDeathTest, WrongTypeIsCaught) {
  FlatBuffer buffer(4, Dtype::f64);
  EXPECT_DEATH(static_cast<void>(buffer.as<float>()), "");
}

}  // namespace
}  // namespace muster::train
