#include "train/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::train {
namespace {

using testing::HasSubstr;

Config config_of(const std::vector<std::string>& assignments) {
  std::vector<Setting> settings;
  for (const auto& text : assignments) settings.push_back(*parse_assignment(text));
  Config config = resolve(settings).value();
  if (config.model.vocab == 0) config.model.vocab = preset(config.preset).value().vocab;
  config.model = validated(config.model).value();
  return config;
}

Plan plan_of(const std::vector<std::string>& assignments, int ranks, int node_ranks = 0) {
  return make_plan(config_of(assignments), ranks, node_ranks, Dtype::f32).value();
}

constexpr double kGib = 1024.0 * 1024 * 1024;

TEST(Plan, RefusesWhatCannotWorkAndSaysWhatWould) {
  struct Case {
    int ranks;
    std::vector<std::string> settings;
    const char* says;
  };
  for (const Case& c :
       {Case{6, {"mesh.tp=3"}, "possible here: 1, 2"},
        Case{6,
             {"mesh.pp=6"},
             "6 pipeline stages for 4 layers: each stage needs a layer; possible are 1 to 4"},
        Case{6, {"mesh.pp=4"}, "the ranks must be a multiple of that"},
        Case{2, {"mesh.pp=2", "mesh.stage_layers=3,2"}, "that add up to the 4 layers"},
        Case{2, {"mesh.pp=2", "mesh.stage_layers=9223372036854775807,9"}, "that add up to the 4 layers"},
        Case{2, {"mesh.pp=2", "mesh.stage_layers=4,x"}, "mesh.stage_layers = 4,x: 2 whole numbers"},
        Case{3, {"train.batch=16", "train.micro_batch=4"}, "12 and 24 are the nearest"},
        Case{21,
             {"mesh.tp=3", "mesh.shard=7", "model.heads=3", "model.kv_heads=3", "model.head_dim=2",
              "model.width=8", "model.ffn=5", "mesh.sequence_parallel=true", "train.batch=7",
              "train.micro_batch=1"},
             "3 cuts do not divide model.ffn = 5"}}) {
    auto settings = c.settings;
    settings.insert(settings.begin(), "model.preset=quickstart");
    const auto plan = make_plan(config_of(settings), c.ranks, 0, Dtype::f32);
    ASSERT_FALSE(plan) << c.says;
    EXPECT_THAT(plan.error().message, HasSubstr(c.says));
  }
}

// A model of 8 billion parameters takes 128 GB for weights, gradients and AdamW, wherever it lies.
TEST(Plan, StateIsSharedByShardsCutsAndStages) {
  const std::vector<std::string> model = {"model.preset=llama-8b", "train.micro_batch=1", "train.batch=32"};
  const auto state = [&](std::vector<std::string> mesh, int ranks) {
    mesh.insert(mesh.begin(), model.begin(), model.end());
    const Plan plan = plan_of(mesh, ranks);
    double bytes = 0;
    for (const StagePlan& stage : plan.stages)
      bytes += stage.memory.parameters + stage.memory.gradients + stage.memory.optimizer;
    return bytes;
  };
  const double whole = 16.0 * static_cast<double>(parameter_count(config_of(model).model));
  EXPECT_GT(whole, 128e9);
  EXPECT_DOUBLE_EQ(state({}, 1), whole);
  EXPECT_DOUBLE_EQ(state({}, 4), whole);
  EXPECT_NEAR(state({"mesh.zero=1"}, 4), whole * (0.5 + 0.5 / 4), 1e3);
  EXPECT_NEAR(state({"mesh.tp=8"}, 8), whole / 8, 0.001 * whole);  // the norms are on every cut
  EXPECT_NEAR(state({"mesh.pp=4"}, 4), whole, 1e3);                // of all stages together
  const double sharded = state({"mesh.shard=8"}, 8);
  EXPECT_GT(sharded, whole / 8);  // and the largest unit at work
  EXPECT_LT(sharded, whole / 8 + 2 * 4 * 1.06 * 128256 * 4096);
}

TEST(Plan, CheckpointingTradesActivations) {
  const auto activations = [](const char* how) {
    return plan_of({"model.preset=llama-1b", "train.micro_batch=4", "train.sequence=2048", "train.batch=4",
                    std::string("train.activation_checkpointing=") + how},
                   1)
        .stages[0]
        .memory.activations;
  };
  EXPECT_LT(activations("selective"), 0.8 * activations("none"));
  EXPECT_LT(activations("full"), 0.25 * activations("none"));
}

// 1F1B keeps as many micro-batches as stages follow; GPipe all of them.
TEST(Plan, ThePipelineKeepsWhatItsScheduleSays) {
  const auto stages = [](const char* schedule) {
    return plan_of({"model.preset=llama-110m", "train.batch=16", "train.micro_batch=1", "mesh.pp=4",
                    std::string("mesh.schedule=") + schedule},
                   4);
  };
  const Plan a = stages("1f1b"), b = stages("gpipe");
  EXPECT_NEAR(b.stages[1].memory.activations / a.stages[1].memory.activations, 16.0 / 3, 0.01);
  EXPECT_GT(a.bubble, 3.0 / 19 - 0.02);
  EXPECT_LT(a.bubble, 0.35);  // the head makes the last stage uneven
}

// MiCS: M bytes over p ranks, k on a node: (p - k) M / p come into a node with two levels, k times that flat.
TEST(Plan, TwoLevelsBringEachByteIntoANodeOnce) {
  const std::vector<std::string> common = {"model.preset=llama-110m", "model.tied=false", "train.batch=8",
                                           "train.micro_batch=1", "mesh.shard=8"};
  const auto with = [&](const char* gather) {
    auto settings = common;
    settings.push_back(gather);
    return plan_of(settings, 8, 4).stages[0].traffic;
  };
  const TrafficPlan two = with("mesh.gather=auto"), flat = with("mesh.gather=flat");
  EXPECT_DOUBLE_EQ(two.shard, flat.shard);
  const double gradients =
      4.0 * 4 / 8 * static_cast<double>(parameter_count(config_of(common).model));  // to the other node
  EXPECT_NEAR((flat.across - gradients) / (two.across - gradients), 4.0, 1e-9);
}

TEST(Plan, MoreThanTheMachineHasIsRefusedWithWhatWouldHelp) {
  const Plan plan = plan_of({"model.preset=llama-8b", "train.micro_batch=1", "train.batch=8"}, 8);
  std::vector<SharedMemory> apart;
  for (int rank = 0; rank < 8; ++rank)
    apart.push_back({.name = "machine", .bytes = 1024 * kGib, .ranks = {rank}});
  EXPECT_TRUE(check_memory(plan, apart));
  const std::vector<SharedMemory> together = {
      {.name = "machine", .bytes = 1024 * kGib, .ranks = {0, 1, 2, 3, 4, 5, 6, 7}}};
  const auto refused = check_memory(plan, together);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(refused.error().message,
              HasSubstr("the 8 ranks that share the machine of rank 0 need together "));
  EXPECT_THAT(refused.error().message, HasSubstr(" each; it has 1.0"));
  EXPECT_THAT(refused.error().message, HasSubstr("a larger mesh.shard"));
  apart.push_back({.name = "cgroup /jobs", .bytes = 64 * kGib, .ranks = {3}});
  EXPECT_THAT(check_memory(plan, apart).error().message, HasSubstr("; its cgroup /jobs has 64"));
}

TEST(Plan, IsWrittenForPeople) {
  const Config config =
      config_of({"model.preset=llama-70b", "mesh.pp=4", "mesh.tp=8", "mesh.shard=4", "train.batch=64",
                 "train.micro_batch=1", "train.sequence=4096", "train.activation_checkpointing=full"});
  const std::string text = to_text(make_plan(config, 128, 8, Dtype::f32).value(), config);
  EXPECT_THAT(text, HasSubstr("70.55 B parameters, 80 layers of width 8192"));
  EXPECT_THAT(text, HasSubstr("128 = pp 4 x replica 1 x shard 4 x tp 8"));
  EXPECT_THAT(text, HasSubstr("1f1b, stages wait "));
  EXPECT_THAT(text, HasSubstr("memory of a rank"));
  EXPECT_THAT(text, HasSubstr("    3  63-79"));
}

}  // namespace
}  // namespace muster::train
