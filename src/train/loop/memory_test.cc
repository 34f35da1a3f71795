#include "train/loop/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "train/loop/state.h"
#include "train/loop/test_layout.h"

namespace muster::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two machines with two ranks each, as four nodes of one rank; on one of them a rank has a limit of its own.
TEST(Memory, RanksOnOneMachineShareIt) {
  const std::vector<std::vector<MemoryLimit>> limits = {{{"a", "machine", 64}},
                                                        {{"a", "machine", 64}, {"a 7", "cgroup /jobs", 8}},
                                                        {{"b", "machine", 32}},
                                                        {{"b", "machine", 30}}};
  const auto all = on_ranks(4, [&](Comm& comm) {
    return shared_memories(limits[static_cast<std::size_t>(comm.rank())], comm).value();
  });
  for (const auto& memories : all) {
    ASSERT_EQ(memories.size(), 3U);
    EXPECT_THAT(memories[0].ranks, ElementsAre(0, 1));
    EXPECT_THAT(memories[1].ranks, ElementsAre(1));
    EXPECT_EQ(memories[1].name, "cgroup /jobs");
    EXPECT_EQ(memories[1].bytes, 8);
    EXPECT_THAT(memories[2].ranks, ElementsAre(2, 3));
    EXPECT_EQ(memories[2].bytes, 30);
  }
  const auto mine = memory_limits();
  ASSERT_FALSE(mine.empty());
  EXPECT_EQ(mine[0].name, "machine");
  EXPECT_GT(mine[0].bytes, 1e8);
  EXPECT_NE(mine[0].id, "");
}

// Each rank is a node of its own, and none is allowed to think that the machine is.
TEST(Memory, MoreThanTheMachineHasIsRefusedBeforeItIsAllocated) {
  const auto data = tokens();
  const auto traces = run_ranks(2, [&](int) {
    return RunOptions{
        .config = tiny({"model.preset=llama-70b", "train.batch=4"}), .train = &data, .node_ranks = 1};
  });
  for (const Trace& trace : traces) {
    EXPECT_THAT(trace.error, HasSubstr("the 2 ranks that share the machine of rank 0 need together 2."));
    EXPECT_THAT(trace.error, HasSubstr("parameters and gradients: choose a smaller model"));
  }
  EXPECT_THAT(check_memory_of_model(*preset("llama-70b", 128256), Dtype::f64).error().message,
              HasSubstr("70553706496 parameters, needs 1."));
}

// What a rank has allocated, of what the plan counts exactly.
struct Allocated {
  std::string error;
  double parameters = 0, gradients = 0, optimizer = 0, save = 0;
};

Allocated allocated_by(const Layout& layout, const Config& config, const TokenStream& data, Comm& comm) {
  set_threads(1);
  const auto trainer = Trainer::create(
      {.config = config, .train = &data, .comm = &comm, .node_ranks = layout.node_ranks, .machines = {}});
  if (!trainer) return {.error = trainer.error().message};
  Model& model = (*trainer)->model();
  const AdamW& optimizer = (*trainer)->optimizer();
  const auto bytes = [](const FlatBuffer& buffer) { return static_cast<double>(buffer.bytes().size()); };
  const FlatBuffer& weights = optimizer.weights(std::as_const(model).parameters());
  Allocated out{.parameters = bytes(model.parameters()),
                .gradients = bytes(model.gradients()),
                .optimizer = bytes(optimizer.first_moment()) + bytes(optimizer.second_moment()) +
                             (optimizer.has_master() ? bytes(weights) : 0)};
  for (const TensorSlice& slice :
       state_slices(model.table(), weights, &optimizer, (*trainer)->replicas().placement().written()))
    out.save += static_cast<double>(slice.bytes.size());
  return out;
}

// Of every stage, the rank that has most against the plan.
TEST(Memory, IsAllocatedAsThePlanSays) {
  const auto data = tokens();
  for (const Layout& layout : std::vector<Layout>{
           {.settings = {}},
           {.settings = {"train.precision=bf16"}},
           {.replica = 3, .settings = {"mesh.zero=1"}},
           {.replica = 3, .settings = {"mesh.zero=1", "train.precision=bf16"}},
           {.shard = 4, .settings = {}},
           {.shard = 4, .settings = {"model.tied=true", "train.precision=bf16"}},
           {.tp = 2, .settings = {"mesh.sequence_parallel=true"}},
           {.pp = 3, .settings = {"model.tied=true"}},
           {.pp = 2, .replica = 2, .shard = 2, .settings = {"model.tied=true", "mesh.zero=1"}},
           {.pp = 2, .shard = 2, .tp = 2, .settings = {}}}) {
    const TempDir folder;
    Layout wide = layout;
    for (const std::string& text :
         {std::string("model.width=512"), std::string("model.ffn=2048"), std::string("model.layers=4"),
          std::string("train.sequence=8"), std::string("train.batch=12"), std::string("train.micro_batch=1"),
          "checkpoint.dir=" + folder.path()})
      wide.settings.push_back(text);
    Config config = config_of(wide);
    config.model.vocab = 64;
    config.model = validated(config.model).value();
    const Plan plan = make_plan(config, layout.ranks(), 0).value();
    const auto all =
        on_ranks(layout.ranks(), [&](Comm& comm) { return allocated_by(wide, config_of(wide), data, comm); });
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      const MemoryPlan& m = plan.stages[stage].memory;
      Allocated most;
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        ASSERT_EQ(all[rank].error, "") << name_of(wide);
        if (plan.layout.mesh.coordinate(Axis::pp, static_cast<int>(rank)) != static_cast<int>(stage))
          continue;
        most.parameters = std::max(most.parameters, all[rank].parameters);
        most.gradients = std::max(most.gradients, all[rank].gradients);
        most.optimizer = std::max(most.optimizer, all[rank].optimizer);
        most.save = std::max(most.save, all[rank].save);
      }
      const auto near = [&](const char* what, double got, double wanted) {
        EXPECT_NEAR(got, wanted, 0.02 * wanted) << what << " of stage " << stage << ", " << name_of(wide);
      };
      if (layout.shard == 1) {  // else the plan has the units at work with them
        near("parameters", most.parameters, m.parameters);
        const bool receives =
            config.model.tied && layout.pp > 1 && stage == 0;  // the head's, in the plan too
        if (!receives) near("gradients", most.gradients, m.gradients);
      }
      near("optimizer", most.optimizer, m.optimizer);
      near("save", most.save, m.save);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// One step of a model of 17 M parameters, with so much more address space than is in use: "" or the error.
std::string step_within(rlim_t room) {
  const auto data = tokens();
  Comm comm("world", single_transport());
  TrainerParts parts{.config = tiny({"model.width=512", "model.layers=4", "model.heads=8", "model.ffn=1376",
                                     "model.kv_heads=8", "model.head_dim=64", "train.batch=4",
                                     "train.micro_batch=4", "train.sequence=256"}),
                     .train = &data,
                     .comm = &comm,
                     .machines = {}};
  set_threads(1);
  rlimit before{};
  EXPECT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const std::string statm = *read_file("/proc/self/statm", 4096);
  const auto now = static_cast<rlim_t>(*parse_int(split(statm, ' ')[0]) * sysconf(_SC_PAGESIZE));
  const rlimit low{.rlim_cur = now + room, .rlim_max = before.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_AS, &low), 0);
  std::string error;
  if (const auto trainer = Trainer::create(parts); !trainer) {
    error = trainer.error().message;
  } else if (const auto step = (*trainer)->step(); !step) {
    error = step.error().message;
  }
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  return error;
}

// With more and more of it, wherever it ends: an error that says what is needed, until there is enough.
TEST(Memory, RunningOutOfItIsAnError) {
  ASSERT_EQ(step_within(rlim_t{16} << 30), "");  // and all that a first step loads
  std::map<std::string, int> ends;
  constexpr rlim_t kMore = 40 << 20;
  for (rlim_t room = kMore; ends["well"] == 0 && room < 60 * kMore; room += kMore) {
    const std::string error = step_within(room);
    if (!error.empty()) {
      ASSERT_THAT(error, HasSubstr(" by plan, and less is free here. Most of it, ")) << room;
    }
    ++ends[error.empty() ? "well" : error.substr(0, error.find(':'))];
  }
  for (const auto& [end, count] : ends) std::cout << count << " x " << end << "\n";
  EXPECT_GT(ends["no memory for the model and its optimizer"], 0);
  EXPECT_GT(ends["no memory for a step"], 0);
  EXPECT_EQ(ends["well"], 1);
}
#endif

}  // namespace
}  // namespace muster::train
