#include "train/plan/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/plan/test_plan.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

constexpr double kGib = 1024.0 * 1024 * 1024;

TEST(Fit, MoreThanTheMachineHasIsRefusedWithWhatWouldHelp) {
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

// Each part of the plan, where it is the largest, with what makes that part less.
TEST(Fit, WhatTakesMostIsAnyPart) {
  const std::pair<double MemoryPlan::*, const char*> parts[] = {
      {&MemoryPlan::parameters, "for parameters and gradients: choose a smaller model"},
      {&MemoryPlan::gradients, "for parameters and gradients: choose a smaller model"},
      {&MemoryPlan::optimizer, "for the optimizer's state: set mesh.zero = 1"},
      {&MemoryPlan::activations, "for activations: set train.activation_checkpointing"},
      {&MemoryPlan::work, "for the work space of a block and the logits: set a smaller train.micro_batch"},
      {&MemoryPlan::messages, "for messages of sums over ranks: set mesh.zero = 1"},
      {&MemoryPlan::save, "for the copy of the state that a save writes"}};
  for (const auto& [part, words] : parts) {
    MemoryPlan memory{1, 1, 1, 1, 1, 1, 1};
    memory.*part = 3 * kGib;
    EXPECT_THAT(what_takes_most(memory), HasSubstr(words));
    EXPECT_THAT(what_takes_most(memory), HasSubstr("3.00 GiB a rank"));
  }
}

// In fp32 a save copies 12 bytes a parameter; weights and gradients are 8.
TEST(Fit, WithCheckpointsTheCopyOfASaveTakesMost) {
  const std::vector<std::string> small = {"model.preset=llama-8b", "train.micro_batch=1", "train.batch=1",
                                          "train.sequence=64"};
  std::vector<std::string> saving = small;
  saving.push_back("checkpoint.dir=/c");
  const SharedMemory machine{.name = "machine", .bytes = kGib, .ranks = {0}};
  EXPECT_THAT(check_memory(plan_of(small, 1), {&machine, 1}).error().message,
              HasSubstr("for parameters and gradients"));
  EXPECT_THAT(check_memory(plan_of(saving, 1), {&machine, 1}).error().message,
              HasSubstr("for the copy of the state that a save writes"));
}

}  // namespace
}  // namespace muster::train
