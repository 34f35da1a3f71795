#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "base/file.h"
#include "train/loop/state.h"
#include "train/loop/test_run.h"

namespace muster::train {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// Makes what this rank writes of a parameter not a number: of replicas one is hurt.
void hurt(Trainer& trainer, const std::string& parameter) {
  for (const TensorSlice& piece : state_slices(trainer.model().table(), trainer.model().parameters(), nullptr,
                                               trainer.replicas().placement().written())) {
    if (piece.slice.tensor != parameter || piece.bytes.empty()) continue;
    const float wrong = std::numeric_limits<float>::quiet_NaN();
    const BFloat16 narrow(wrong);
    if (trainer.model().dtype() == Dtype::bf16) {
      std::memcpy(const_cast<std::byte*>(piece.bytes.data()), &narrow, sizeof narrow);
    } else {
      std::memcpy(const_cast<std::byte*>(piece.bytes.data()), &wrong, sizeof wrong);
    }
  }
}

// Sets all that this rank holds of a parameter.
void fill(Trainer& trainer, const std::string& parameter, float value) {
  FlatBuffer& parameters = trainer.model().parameters();
  for (const Param& param : trainer.model().table().params()) {
    if (param.name != parameter) continue;
    for (const Range part : within(parameters.pieces(), {param.offset, param.offset + param.numel})) {
      if (parameters.dtype() == Dtype::bf16) {
        std::ranges::fill(parameters.as<BFloat16>(part), BFloat16(value));
      } else {
        std::ranges::fill(parameters.as<float>(part), value);
      }
    }
  }
}

struct FaultyLayout {
  const char* name;
  int ranks;
  std::vector<std::string> settings;
};
const FaultyLayout kFaultyLayouts[] = {
    {"one rank", 1, {}},
    {"dp 3", 3, {}},
    {"dp 2, zero 1", 2, {"mesh.zero=1"}},
    {"tp 2", 2, {"mesh.tp=2"}},
    {"tp 2, sequence parallel", 2, {"mesh.tp=2", "mesh.sequence_parallel=true"}},
    {"pp 2, 1f1b", 2, {"mesh.pp=2"}},
    {"pp 2, gpipe", 2, {"mesh.pp=2", "mesh.schedule=gpipe"}},
    {"shard 2", 2, {"mesh.shard=2"}},
    {"shard 2, dp 2", 4, {"mesh.shard=2", "mesh.replica=2"}},
    {"full recomputation", 1, {"train.activation_checkpointing=full"}},
    {"pp 2 in bf16", 2, {"mesh.pp=2", "train.precision=bf16"}},
    {"tp 2, shard 2 in bf16", 4, {"mesh.tp=2", "mesh.shard=2", "train.precision=bf16"}},
    {"pp 2, tp 2, dp 2", 8, {"mesh.pp=2", "mesh.tp=2", "mesh.replica=2"}},
};

std::vector<Trace> run_faulty(const FaultyLayout& layout, const TokenStream& data,
                              const std::function<void(Trainer&)>& prepare) {
  auto settings = layout.settings;
  for (const char* text : {"model.layers=2", "train.batch=12", "train.micro_batch=1"})
    settings.emplace_back(text);
  return run_ranks(layout.ranks, [&](int) {
    return RunOptions{.config = tiny(settings), .train = &data, .prepare = prepare};
  });
}

TEST(Faults, InEveryLayoutTheLayerWhereItBeganIsNamed) {
  const auto data = tokens();
  for (const FaultyLayout& layout : kFaultyLayouts) {
    for (const auto& [parameter, where] :
         {std::pair("model.layers.1.mlp.down_proj.weight", "output of model.layers.1 "),
          std::pair("model.layers.0.self_attn.q_proj.weight", "output of model.layers.0 ")}) {
      const auto traces = run_faulty(layout, data, [&](Trainer& trainer) { hurt(trainer, parameter); });
      for (const Trace& trace : traces) {
        EXPECT_THAT(trace.error, ContainsRegex("^step 1: the loss of rank [0-9]+ is [-+]?nan"))
            << layout.name;
        EXPECT_THAT(trace.error, HasSubstr(std::string("it began in the ") + where + "on rank "))
            << layout.name;
        EXPECT_THAT(trace.error, HasSubstr("nothing was updated")) << layout.name;
        EXPECT_TRUE(trace.losses.empty()) << layout.name;
      }
    }
  }
}

// Weights so large in the last norm that logits and loss are still numbers, but their gradient is not: on the
// ranks that hold them. Every layout finds the last stage's ranks, and a parameter.
TEST(Faults, InEveryLayoutAGradientThatIsNotFiniteIsFoundBehindAFiniteLoss) {
  const auto data = tokens();
  for (const FaultyLayout& layout : kFaultyLayouts) {
    const auto traces =
        run_faulty(layout, data, [](Trainer& trainer) { fill(trainer, "model.norm.weight", 8e37F); });
    for (const Trace& trace : traces) {
      EXPECT_THAT(trace.error,
                  ContainsRegex("^step 1: the gradient is not finite; it began in the gradient of "
                                "[a-z0-9_.]+ on rank [0-9, ]+; nothing was updated"))
          << layout.name;
      EXPECT_EQ(trace.error, traces[0].error) << layout.name;
      EXPECT_TRUE(trace.losses.empty()) << layout.name;
    }
  }
}

// Not a number two steps behind the one that is being saved: that save is of good weights, and is finished.
TEST(Faults, TheCheckpointInFlightIsKept) {
  const auto data = tokens();
  const TempDir folder;
  const auto run = [&](const std::string& name, bool faulty) {
    return run_ranks(2, [&, faulty](int) {
      const auto trainer = std::make_shared<Trainer*>();
      const auto steps = std::make_shared<int>(0);
      return RunOptions{
          .config = tiny({"train.batch=4", "checkpoint.dir=" + folder / name, "checkpoint.every=2"}),
          .train = &data,
          // Asked in each step behind its forward and backward: what is hurt in the third shows in the
          // fourth.
          .stop =
              [=] {
                if (++*steps == 3 && faulty) hurt(**trainer, "model.norm.weight");
                return false;
              },
          .prepare = [=](Trainer& made) { *trainer = &made; },
          .steps_only = false};
    });
  };
  const auto whole = run("whole", false);
  ASSERT_EQ(whole[0].error, "");
  const auto faulty = run("faulty", true);
  for (const Trace& trace : faulty)
    EXPECT_THAT(trace.error, ContainsRegex("^step 4: the loss of rank [01] is"));
  EXPECT_THAT(faulty[0].lines, testing::Contains(testing::StartsWith("checkpoint step=2 ")));
  const auto resumed = run("faulty", false);
  EXPECT_EQ(resumed[0].error, "");
  EXPECT_THAT(resumed[0].lines, testing::Contains(testing::StartsWith("resume step=2 ")));
  EXPECT_EQ(resumed[0].state, whole[0].state);
}

// What an update made infinite is not saved, and the checkpoint before it stays.
TEST(Faults, WeightsThatAreNotFiniteAreNotSaved) {
  const auto data = tokens();
  const TempDir folder;
  const auto traces = run_ranks(2, [&](int rank) {
    const auto trainer = std::make_shared<Trainer*>(nullptr);
    const auto steps = std::make_shared<int>(0);
    return RunOptions{.config = tiny({"train.batch=4", "checkpoint.dir=" + folder.path(), "mesh.zero=1",
                                      "checkpoint.every=1", "checkpoint.keep=1"}),
                      .train = &data,
                      .stop =
                          [=] {
                            if (++*steps == 3 && rank == 0) hurt(**trainer, "model.embed_tokens.weight");
                            return false;
                          },
                      .prepare = [=](Trainer& made) { *trainer = &made; },
                      .steps_only = false};
  });
  for (const Trace& trace : traces)
    EXPECT_THAT(trace.error, HasSubstr("step 3: weights are not finite after its update; it is not saved"));
  const auto newest = latest_checkpoint(folder.path(), OnDamage::refuse);
  ASSERT_TRUE(newest && newest->reader);
  EXPECT_EQ(newest->reader->info().step, 2);
}

// Padding alone: the run goes on, and says that it learned nothing.
TEST(Faults, ABatchWithoutTargetsUpdatesNothing) {
  const MemoryStream data(std::vector<std::int64_t>(600, 0), 64);
  const TempDir folder;
  const auto run = [&](const char* steps) {
    const auto traces = run_ranks(2, [&](int) {
      return RunOptions{.config = tiny({steps, "train.batch=4", "data.ignored_token=0",
                                        "checkpoint.dir=" + folder / steps}),
                        .train = &data,
                        .steps_only = false};
    });
    for (const Trace& trace : traces) EXPECT_EQ(trace.error, "");
    return traces[0];
  };
  const Trace one = run("train.steps=1"), three = run("train.steps=3");
  EXPECT_EQ(one.state, three.state);
  EXPECT_THAT(three.lines, testing::Contains(HasSubstr("notice: step 3: no target of the batch counts")));
}

}  // namespace
}  // namespace muster::train
