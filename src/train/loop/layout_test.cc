// Every parallel layout against one rank. The gate is the gradient of every parameter before clipping, and
// the global norm, in fp64: loss curves hide what AdamW and clipping forgive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "train/ckpt/checkpoint.h"
#include "train/loop/test_run.h"

namespace muster::train {
namespace {

constexpr double kGate = 1e-12;
// Of the largest gradient of all: what is below is rounding of a gradient that is 0 (queries and keys where
// no token sees two).
constexpr double kNoise = 1e-15;
constexpr int kGatedSteps = 2;

struct Layout {
  int pp = 1, replica = 1, shard = 1, tp = 1;
  int node_ranks = 0;
  std::vector<std::string> settings;  // model, batch and mesh
  int ranks() const { return pp * replica * shard * tp; }
};

std::string name_of(const Layout& layout) {
  return "pp " + std::to_string(layout.pp) + ", replica " + std::to_string(layout.replica) + ", shard " +
         std::to_string(layout.shard) + ", tp " + std::to_string(layout.tp) + ", node of " +
         std::to_string(layout.node_ranks) + ": " + join(layout.settings, " ");
}

Config config_of(const Layout& layout) {
  auto settings = layout.settings;
  for (const auto& [axis, extent] : {std::pair("pp", layout.pp), std::pair("replica", layout.replica),
                                     std::pair("shard", layout.shard), std::pair("tp", layout.tp)})
    settings.push_back("mesh." + std::string(axis) + "=" + std::to_string(extent));
  return tiny(settings);
}

// The same run on one rank: the same micro-batches, one after the other.
Layout alone(const Layout& layout) {
  Layout one{.settings = {}};
  for (const std::string& setting : layout.settings) {
    if (!setting.starts_with("mesh.") && !setting.starts_with("train.activation"))
      one.settings.push_back(setting);
  }
  return one;
}

// Of each gated step: loss, norm, and the gradient of each global tensor, row-major.
struct StepGradients {
  double loss = 0, norm = 0;
  std::map<std::string, std::vector<double>> tensors;
};
struct Gradients {
  std::string error;
  std::vector<StepGradients> steps;
};

// What this rank owns of the gradients, at its place in the global tensors.
void add_owned(Trainer& trainer, std::map<std::string, std::vector<double>>& tensors) {
  const ParamTable& table = trainer.model().table();
  const ParamTable whole(table.config());
  for (const Param& param : table.params()) {
    const Slice global = whole_slice(param.name, whole_box(whole.at(param.name).shape));
    auto& values = tensors[param.name];
    values.resize(static_cast<std::size_t>(global.numel()));
    if (!table.owns(param)) continue;
    for (const Range part :
         within(trainer.replicas().placement().owned(), {param.offset, param.offset + param.numel})) {
      const auto mine = trainer.model().gradients().as<double>(part);
      const Slice slice{param.name, param.box, {part.begin - param.offset, part.end - param.offset}};
      for (const Run& run : intersect(global, slice))
        std::copy_n(mine.begin() + run.b, run.count, values.begin() + run.a);
    }
  }
}

std::vector<Gradients> gradients_on(const Layout& layout, const TokenStream& data) {
  const Config config = config_of(layout);
  const auto run = [&](Comm& comm) {
    set_threads(1);
    Gradients out;
    auto trainer = Trainer::create({.config = config,
                                    .train = &data,
                                    .comm = &comm,
                                    .node_ranks = layout.node_ranks,
                                    .machine = {},
                                    .dtype = Dtype::f64});
    if (!trainer) {
      out.error = trainer.error().message;
      return out;
    }
    for (int step = 0; step < kGatedSteps; ++step) {
      const auto report = (*trainer)->step();
      if (!report) {
        out.error = report.error().message;
        return out;
      }
      out.steps.push_back({.loss = report->loss, .norm = report->gradient_norm, .tensors = {}});
      add_owned(**trainer, out.steps.back().tensors);
    }
    return out;
  };
  return on_ranks<Gradients>(layout.ranks(), run);
}

// How far a layout is from one rank; "" if it is not. An element that two ranks own is the same on both.
std::string difference(const std::vector<Gradients>& ranks, const Gradients& one) {
  for (const Gradients& rank : ranks) {
    if (!rank.error.empty()) return rank.error;
  }
  for (std::size_t step = 0; step < one.steps.size(); ++step) {
    const std::string at = "step " + std::to_string(step + 1) + " ";
    for (const Gradients& rank : ranks) {
      const StepGradients &got = rank.steps[step], &wanted = one.steps[step];
      if (!(std::abs(got.loss - wanted.loss) <= kGate * std::abs(wanted.loss))) return at + "loss";
      if (!(std::abs(got.norm - wanted.norm) <= kGate * wanted.norm)) return at + "norm";
    }
    double largest = 0;
    for (const auto& [name, wanted] : one.steps[step].tensors) {
      for (const double value : wanted) largest = std::max(largest, std::abs(value));
    }
    for (const auto& [name, wanted] : one.steps[step].tensors) {
      double greatest = 0, worst = 0;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        double owned = 0;
        for (const Gradients& rank : ranks) {
          const auto found = rank.steps[step].tensors.find(name);
          const double here = found == rank.steps[step].tensors.end() ? 0 : found->second[i];
          if (here != 0 && owned != 0 && here != owned) return at + name + ": owners differ";
          if (here != 0) owned = here;
        }
        greatest = std::max(greatest, std::abs(wanted[i]));
        worst = std::max(worst, std::abs(wanted[i] - owned));
        if (std::isnan(owned)) worst = owned;
      }
      if (!(worst <= std::max(kGate * greatest, kNoise * largest)))
        return at + name + ": " + std::to_string(worst / greatest);
    }
  }
  return "";
}

// Tokens of which many are 0, in runs of very different length; as data.ignored_token these are no targets.
MemoryStream masked_tokens(std::uint64_t seed, std::int64_t vocab) {
  Rng rng(seed);
  std::vector<std::int64_t> values;
  while (values.size() < 3000) {
    const auto count = rng.between(1, 20);
    const bool masked = rng.chance(0.5);
    for (std::int64_t i = 0; i < count; ++i) values.push_back(masked ? 0 : rng.between(0, vocab - 1));
  }
  return MemoryStream(std::move(values), static_cast<int>(vocab));
}

std::string check(const Layout& layout, std::uint64_t seed, std::int64_t vocab) {
  const MemoryStream data = masked_tokens(seed, vocab);
  const Gradients one = gradients_on(alone(layout), data)[0];
  if (!one.error.empty()) return "one rank: " + one.error;
  return difference(gradients_on(layout, data), one);
}

// Any layout that can work, at most eight ranks.
Layout random_layout(Rng& rng) {
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(rng.below(values.size())));
  };
  const auto setting = [](const char* key, auto value) {
    if constexpr (std::is_arithmetic_v<decltype(value)>) {
      return key + std::string("=") + std::to_string(value);
    } else {
      return key + std::string("=") + value;
    }
  };
  Layout layout;
  do {
    layout.pp = pick({1, 1, 2, 3, 4});
    layout.replica = pick({1, 1, 2, 3, 5});
    layout.shard = pick({1, 1, 2, 3, 4, 6});
    layout.tp = pick({1, 1, 2, 3, 4});
  } while (layout.ranks() > 8 || layout.ranks() == 1);
  const int kv_heads = layout.tp * pick({1, 1, 2}), heads = kv_heads * pick({1, 2, 3});
  const int layers = layout.pp + static_cast<int>(rng.below(3)), micro = pick({1, 1, 2, 3}),
            micros = pick({1, 2, 3, 5}), parts = layout.replica * layout.shard;
  layout.node_ranks = layout.tp * pick({1, 2, 3});
  layout.settings = {setting("model.layers", layers),
                     setting("model.heads", heads),
                     setting("model.kv_heads", kv_heads),
                     setting("model.head_dim", pick({2, 4, 6})),
                     setting("model.width", pick({8, 20, 24})),
                     setting("model.ffn", pick({5, 16, 31})),
                     setting("model.init_std", "0.2"),
                     setting("model.tied", rng.chance(0.5) ? "true" : "false"),
                     setting("data.ignored_token", rng.chance(0.7) ? 0 : -1),
                     setting("train.sequence", pick({1, 3, 7, 12})),
                     setting("train.micro_batch", micro),
                     setting("train.batch", micro * micros * parts),
                     setting("train.seed", static_cast<int>(rng.below(1000))),
                     setting("optim.lr", "0.001"),
                     setting("optim.clip", "0.05"),
                     setting("train.activation_checkpointing", rng.chance(0.3)   ? "full"
                                                               : rng.chance(0.5) ? "selective"
                                                                                 : "none"),
                     setting("mesh.zero", static_cast<int>(rng.below(2))),
                     setting("mesh.schedule", rng.chance(0.5) ? "gpipe" : "1f1b"),
                     setting("mesh.gather", rng.chance(0.3) ? "flat" : "auto"),
                     setting("mesh.sequence_parallel", rng.chance(0.5) ? "true" : "false")};
  if (layout.pp > 1 && rng.chance(0.4)) {  // what the first stages have over goes to the last
    std::string stages;
    for (int stage = 1; stage < layout.pp; ++stage) stages += "1,";
    layout.settings.push_back("mesh.stage_layers=" + stages + std::to_string(layers - layout.pp + 1));
  }
  return layout;
}

// For two minutes at most; MUSTER_LONG_TESTS runs it for ten. A seed that fails is run alone by
// MUSTER_SEED.
TEST(Layouts, RandomOnesHaveTheGradientsOfOneRank) {
  const char* given = std::getenv("MUSTER_SEED");
  const bool longer = std::getenv("MUSTER_LONG_TESTS") != nullptr;
  const auto limit = std::chrono::seconds(longer ? 600 : 120);
  const int cases = given != nullptr ? 1 : longer ? 1'000'000 : 400;
  const auto first =
      given != nullptr ? static_cast<std::uint64_t>(*parse_int(given)) : std::random_device{}();
  const auto start = std::chrono::steady_clock::now();
  int done = 0;
  for (; done < cases && std::chrono::steady_clock::now() - start < limit; ++done) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(done);
    Rng rng(seed);
    const std::int64_t vocab = rng.between(5, 70);
    const Layout layout = random_layout(rng);
    ASSERT_EQ(check(layout, seed, vocab), "") << "MUSTER_SEED=" << seed << ": " << name_of(layout);
  }
  std::cout << done << " layouts from seed " << first << "\n";
  EXPECT_GE(done, given != nullptr ? 1 : 20);
}

TEST(Layouts, SixStagesOfFourCutsTwiceAreFortyEightRanks) {
  const Layout layout{
      .pp = 6,
      .replica = 2,
      .tp = 4,
      .settings = {"model.layers=7", "model.heads=8", "model.kv_heads=4", "model.head_dim=4",
                   "model.width=24", "model.ffn=33", "model.init_std=0.2", "model.tied=true",
                   "data.ignored_token=0", "train.sequence=9", "train.micro_batch=1", "train.batch=16",
                   "optim.lr=0.001", "mesh.zero=1", "mesh.sequence_parallel=true"}};
  EXPECT_EQ(check(layout, 48, 61), "");
}

TEST(Layouts, EveryKindOfParallelismAtOnce) {
  for (const char* gather : {"flat", "hierarchical"}) {
    const Layout layout{
        .pp = 2,
        .replica = 2,
        .shard = 4,
        .tp = 2,
        .node_ranks = 4,
        .settings = {"model.layers=3", "model.heads=4", "model.kv_heads=2", "model.tied=true",
                     "data.ignored_token=0", "train.micro_batch=1", "train.batch=24", "optim.lr=0.001",
                     "mesh.zero=1", "mesh.sequence_parallel=true", "train.activation_checkpointing=full",
                     "mesh.gather=" + std::string(gather)}};
    EXPECT_EQ(check(layout, 7, 64), "") << gather;
  }
}

// The trajectory gate: ten steps in fp64 at a small learning rate.
TEST(Layouts, HaveTheTrajectoryOfOneRank) {
  const auto data = tokens();
  const auto run = [&](Layout layout) {
    for (const char* text : {"train.steps=10", "optim.lr=0.001", "optim.clip=0.05", "train.batch=8",
                             "train.micro_batch=1", "model.layers=3"})
      layout.settings.emplace_back(text);
    return run_ranks(layout.ranks(), [&](int) {
      return RunOptions{.config = config_of(layout), .train = &data, .dtype = Dtype::f64};
    });
  };
  for (const char* tied : {"model.tied=false", "model.tied=true"}) {
    const Trace one = run({.settings = {tied}})[0];
    ASSERT_EQ(one.error, "");
    for (const Layout& layout :
         {Layout{.tp = 2, .settings = {tied}},
          Layout{.replica = 4, .tp = 2, .settings = {tied, "mesh.zero=1", "mesh.sequence_parallel=true"}},
          Layout{.pp = 3, .replica = 2, .settings = {tied, "mesh.zero=1"}},
          Layout{.replica = 2, .shard = 4, .settings = {tied}},
          Layout{.pp = 2, .shard = 2, .tp = 2, .settings = {tied, "mesh.schedule=gpipe"}}}) {
      for (const Trace& trace : run(layout)) {
        ASSERT_EQ(trace.error, "") << name_of(layout);
        for (std::size_t step = 0; step < one.losses.size(); ++step) {
          EXPECT_NEAR(trace.losses[step], one.losses[step], 1e-12 * one.losses[step]) << name_of(layout);
          EXPECT_NEAR(trace.norms[step], one.norms[step], 1e-12 * one.norms[step]) << name_of(layout);
        }
      }
    }
  }
}

// Every tensor of the newest checkpoint in a folder, whole.
std::map<std::string, std::vector<double>> tensors_in(const std::string& folder) {
  auto latest = latest_checkpoint(folder, OnDamage::refuse);
  EXPECT_TRUE(latest && latest->reader) << folder;
  std::map<std::string, std::vector<double>> tensors;
  for (const TensorInfo& info : latest->reader->info().tensors) {
    auto& values = tensors[info.name];
    values.resize(info.numel());
    EXPECT_TRUE(latest->reader->read(whole_slice(info.name, whole_box(info.shape)),
                                     std::as_writable_bytes(std::span(values))));
  }
  return tensors;
}

// What a layout has saved is what it held, and what another one takes up is what was saved: each rank's part
// element by element.
TEST(Layouts, CheckpointsAreCutAnew) {
  const auto data = tokens();
  const std::vector<Layout> layouts = {{.settings = {}},
                                       {.replica = 2, .tp = 2, .settings = {"mesh.zero=1"}},
                                       {.replica = 3, .settings = {"mesh.zero=1"}},
                                       {.pp = 2, .replica = 2, .shard = 2, .settings = {"mesh.zero=1"}},
                                       {.pp = 2, .shard = 3, .settings = {}}};
  const auto run = [&](const Layout& layout, const std::string& folder, int steps,
                       std::function<void(Trainer&)> look) {
    Layout with = layout;
    for (const char* text :
         {"train.micro_batch=1", "checkpoint.every=0", "train.batch=12", "model.tied=true"})
      with.settings.emplace_back(text);
    with.settings.push_back("checkpoint.dir=" + folder);
    for (const Trace& trace : run_ranks(layout.ranks(), [&](int) {
           return RunOptions{.config = config_of(with),
                             .train = &data,
                             .stop = after(steps, true),
                             .prepare = look,
                             .steps_only = false,
                             .dtype = Dtype::f64};
         }))
      EXPECT_EQ(trace.error, "");
  };
  for (const Layout& from : layouts) {
    const TempDir folder;
    run(from, folder.path(), 1, {});
    for (const Layout& to : layouts) {
      const auto saved = tensors_in(folder.path());
      std::atomic<int> elements = 0;
      run(to, folder.path(), 1, [&](Trainer& trainer) {
        const ParamTable& table = trainer.model().table();
        for (const Param& param : table.params()) {
          const auto& whole = saved.at(param.name);
          const auto& moment = saved.at("optimizer.first_moment." + param.name);
          const std::int64_t columns = param.shape.size() == 2 ? param.shape[1] : param.numel;
          const std::int64_t global_columns = ParamTable(table.config()).at(param.name).shape.back();
          for (std::int64_t i = 0; i < param.numel; ++i) {
            const std::int64_t row = param.shape.size() == 2 ? i / columns + param.box.start[0] : 0;
            const auto at =
                static_cast<std::size_t>(row * global_columns + i % columns + param.box.start.back());
            const Range flat{param.offset + i, param.offset + i + 1};
            const auto holds = [&](std::span<const Range> pieces) { return !within(pieces, flat).empty(); };
            const Model& model = trainer.model();
            if (holds(model.parameters().pieces())) {
              ASSERT_EQ(model.parameters().as<double>(flat)[0], whole[at]) << param.name << " " << i;
            }
            if (!holds(trainer.optimizer().pieces())) continue;
            ASSERT_EQ(trainer.optimizer().first_moment().as<double>(flat)[0], moment[at])
                << param.name << " " << i;
            ++elements;
          }
        }
      });
      EXPECT_GE(elements, parameter_count(*preset("tiny")) / 2);
    }
  }
}

}  // namespace
}  // namespace muster::train
