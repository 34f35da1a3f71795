// Every parallel layout against one rank. The gate is the gradient of every parameter before clipping, and
// the global norm, in fp64: loss curves hide what AdamW and clipping forgive.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "base/file.h"
#include "train/loop/test_layout.h"
#include "train/plan/plan.h"

namespace muster::train {
namespace {

// From this vocabulary on a random layout is of a model whose parameters have several blocks, which lie on
// several ranks.
constexpr std::int64_t kLargeVocab = 300;

// Any layout that can work, at most eight ranks.
Layout random_layout(Rng& rng, std::int64_t vocab) {
  const bool large = vocab >= kLargeVocab;
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
  } while (layout.ranks() > 8 || layout.replica * layout.shard * (large ? 1 : layout.pp * layout.tp) == 1);
  layout.cuts_parameters = large;
  const int kv_heads = layout.tp * pick({1, 1, 2}), heads = kv_heads * pick({1, 2, 3});
  const int layers = layout.pp + static_cast<int>(rng.below(large ? 2 : 3)),
            micro = large ? 1 : pick({1, 1, 2, 3}), micros = large ? pick({1, 2}) : pick({1, 2, 3, 5}),
            parts = layout.replica * layout.shard, ffn = large ? pick({60, 131, 290}) : pick({5, 16, 31});
  // Cuts of unlike size whose shards cut the norms elsewhere are refused.
  const bool norms_alike =
      !large || layout.tp == 1 || layout.shard == 1 || (ffn % layout.tp == 0 && vocab % layout.tp == 0);
  const bool zero = large && layout.shard == 1 ? true : rng.chance(0.5);
  layout.node_ranks = layout.tp * pick({1, 2, 3});
  layout.settings = {setting("model.layers", layers),
                     setting("model.heads", heads),
                     setting("model.kv_heads", kv_heads),
                     setting("model.head_dim", pick({2, 4, 6})),
                     setting("model.width", large ? pick({72, 75, 100}) : pick({8, 20, 24})),
                     setting("model.ffn", ffn),
                     setting("model.init_std", "0.2"),
                     setting("model.tied", rng.chance(0.5) ? "true" : "false"),
                     setting("data.ignored_token", rng.chance(0.7) ? 0 : -1),
                     setting("data.document_mask", rng.chance(0.4) ? "true" : "false"),
                     setting("train.sequence", large ? pick({3, 7}) : pick({1, 3, 7, 12, 24})),
                     setting("train.micro_batch", micro),
                     setting("train.batch", micro * micros * parts),
                     setting("train.seed", static_cast<int>(rng.below(1000))),
                     setting("optim.lr", "0.001"),
                     setting("optim.clip", "0.05"),
                     setting("train.activation_checkpointing", rng.chance(0.3)   ? "full"
                                                               : rng.chance(0.5) ? "selective"
                                                                                 : "none"),
                     setting("mesh.zero", zero ? 1 : 0),
                     setting("mesh.schedule", rng.chance(0.5) ? "gpipe" : "1f1b"),
                     setting("mesh.gather", rng.chance(0.3) ? "flat" : "auto"),
                     setting("mesh.sequence_parallel", norms_alike && rng.chance(0.5) ? "true" : "false")};
  // With AdamW's eps of 1e-8 the rounding of a gradient that is nearly 0 becomes one of a weight that is a
  // million times larger; among as many parameters some second step shows it.
  if (large) layout.settings.emplace_back("optim.eps=1e-4");
  if (layout.pp > 1 && rng.chance(0.4)) {  // what the first stages have over goes to the last
    std::string stages;
    for (int stage = 1; stage < layout.pp; ++stage) stages += "1,";
    layout.settings.push_back("mesh.stage_layers=" + stages + std::to_string(layers - layout.pp + 1));
  }
  return layout;
}

// Random layouts, one a seed, for some time at most. MUSTER_LONG_TESTS: for five times as long. A seed that
// fails is run alone by MUSTER_SEED. Each is told before it is run, on one line of a terminal: a hang, or an
// assertion that ends the program, would lose it.
template <typename Check>
void try_random_layouts(int cases, std::chrono::seconds limit, int least, const Check& check) {
  const char* given = std::getenv("MUSTER_SEED");
  const bool longer = std::getenv("MUSTER_LONG_TESTS") != nullptr;
  if (longer) limit *= 5;
  if (longer) cases = 1'000'000;
  if (given != nullptr) cases = least = 1;
  const auto first =
      given != nullptr ? static_cast<std::uint64_t>(*parse_int(given)) : std::random_device{}();
  const auto start = std::chrono::steady_clock::now();
  int done = 0;
  for (; done < cases && std::chrono::steady_clock::now() - start < limit; ++done) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(done);
    std::cout << "\rMUSTER_SEED=" << seed << std::flush;
    Rng rng(seed);
    const std::int64_t vocab = rng.chance(0.4) ? rng.between(kLargeVocab, 700) : rng.between(5, 70);
    const Layout layout = random_layout(rng, vocab);
    ASSERT_EQ(check(layout, seed, vocab), "") << "MUSTER_SEED=" << seed << ": " << name_of(layout);
  }
  std::cout << "\r" << done << " layouts from seed " << first << "\n";
  EXPECT_GE(done, least);
}

TEST(Layouts, RandomOnesHaveTheGradientsOfOneRank) {
  try_random_layouts(400, std::chrono::seconds(120), 20, check);
}

// Beside fp64, by the norm of the difference.
TEST(Layouts, RandomOnesInBf16HaveTheGradientsOfFp64ButForRounding) {
  try_random_layouts(60, std::chrono::seconds(40), 10,
                     [](const Layout& layout, std::uint64_t seed, std::int64_t vocab) {
                       return check_narrow(layout, seed, vocab, kNarrowRandom);
                     });
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
        .cuts_parameters = true,
        .settings = {"model.layers=3", "model.heads=4", "model.kv_heads=2", "model.width=72", "model.ffn=260",
                     "model.tied=true", "data.ignored_token=0", "train.micro_batch=1", "train.batch=24",
                     "optim.lr=0.001", "mesh.zero=1", "mesh.sequence_parallel=true",
                     "train.activation_checkpointing=full", "mesh.gather=" + std::string(gather)}};
    EXPECT_EQ(check(layout, 7, 331), "") << gather;
  }
}

// Bytes that a rank sends, by the name of the group without its ranks.
class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void abort(std::string_view reason) override { inner_->abort(reason); }
  Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        const Operation& operation) override {
    for (const Send& send : sends)
      sent[std::string(operation.group.substr(0, operation.group.find(" (")))] +=
          static_cast<double>(send.data.size());
    return inner_->exchange(sends, receives, operation);
  }
  std::map<std::string, double> sent;

 private:
  const std::unique_ptr<Transport> inner_;
};

// What plan says a rank sends in a step is what it sends, but for what the norm takes.
TEST(Layouts, SendWhatThePlanSays) {
  const auto data = tokens();
  for (const Layout& layout : std::vector<Layout>{
           {.replica = 3, .settings = {}},
           {.replica = 3, .tp = 2, .settings = {"mesh.zero=1", "model.tied=true"}},
           {.tp = 2, .settings = {"train.activation_checkpointing=full"}},
           {.tp = 2, .settings = {"mesh.sequence_parallel=true", "train.activation_checkpointing=full"}},
           {.tp = 2, .settings = {"mesh.sequence_parallel=true", "train.activation_checkpointing=selective"}},
           {.pp = 3, .tp = 2, .settings = {"mesh.sequence_parallel=true", "model.tied=true"}},
           {.shard = 3, .settings = {"model.tied=true", "train.activation_checkpointing=full"}},
           {.replica = 2, .shard = 4, .node_ranks = 2, .settings = {"mesh.zero=1"}},
           {.pp = 2, .replica = 2, .shard = 2, .settings = {"model.tied=true", "mesh.zero=1"}},
           {.pp = 2,
           .replica = 2,
           .tp = 2,
           .settings = {"model.tied=true", "mesh.zero=1", "train.precision=bf16"}},
           {.replica = 2, .shard = 4, .node_ranks = 2, .settings = {"train.precision=bf16"}}}) {
    Layout wide = layout;
    for (const char* text :
         {"model.width=128", "model.layers=3", "train.sequence=32", "train.batch=24", "train.micro_batch=1"})
      wide.settings.emplace_back(text);
    Config config = config_of(wide);
    config.model.vocab = 64;
    config.model = validated(config.model).value();
    const Plan plan = make_plan(config, layout.ranks(), layout.node_ranks).value();
    std::vector<CountingTransport*> counters;
    const auto run = [&](Comm& comm) {
      set_threads(1);
      const auto trainer = Trainer::create({.config = config_of(wide),
                                            .train = &data,
                                            .comm = &comm,
                                            .node_ranks = layout.node_ranks,
                                            .machines = {}});
      EXPECT_TRUE(trainer) << trainer.error().message;
      auto& sent = counters[static_cast<std::size_t>(comm.rank())]->sent;
      sent.clear();
      EXPECT_TRUE((*trainer)->step());
      return sent;
    };
    const auto sent = on_ranks(layout.ranks(), run, {.wrap = [&](std::unique_ptr<Transport> transport) {
                                 auto counter = std::make_unique<CountingTransport>(std::move(transport));
                                 counters.push_back(counter.get());
                                 return counter;
                               }});
    // A rank of a group sends more or less than another as cuts are uneven; all of a stage send what is
    // planned. The sums for the norm come on top.
    for (int stage = 0; stage < layout.pp; ++stage) {
      std::map<std::string, double> of;
      const int ranks = layout.ranks() / layout.pp;
      for (int rank = stage * ranks; rank < (stage + 1) * ranks; ++rank) {
        for (const auto& [group, bytes] : sent[static_cast<std::size_t>(rank)]) of[group] += bytes / ranks;
      }
      const TrafficPlan& t = plan.stages[static_cast<std::size_t>(stage)].traffic;
      const double shard = of["shard"] + of["shard across nodes"] + of["shard within a node"];
      for (const auto& [name, got, wanted] :
           {std::tuple("tensor", of["tp"], t.tensor), std::tuple("pipeline", of["stages"], t.pipeline),
            std::tuple("shard", shard, t.shard), std::tuple("replica", of["replica"], t.replica),
            std::tuple("tied", of["tied"], t.tied)}) {
        EXPECT_NEAR(got, wanted, 0.02 * wanted + 4000)
            << name << " of stage " << stage << ", " << name_of(wide);
      }
    }
  }
}

// Whether all of `one` is held, and each copy is as there, but for `bound`; "" if so.
std::string off(const std::vector<Tensors>& ranks, const Tensors& one, double bound) {
  for (const auto& [name, wanted] : one) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      int copies = 0;
      for (const Tensors& rank : ranks) {
        const auto found = rank.find(name);
        if (found == rank.end() || std::isnan(found->second[i])) continue;
        ++copies;
        if (const double by = std::abs(found->second[i] - wanted[i]); !(by <= bound))
          return name + " " + std::to_string(i) + " is off by " + std::to_string(by * 1e10) + "e-10";
      }
      if (copies == 0) return name + " " + std::to_string(i) + " is held by no rank";
    }
  }
  return "";
}

// The trajectory gate: ten steps in fp64 at a small learning rate.
TEST(Layouts, HaveTheTrajectoryOfOneRank) {
  const auto data = tokens();
  const auto run = [&](Layout layout, std::vector<Tensors>& weights) {
    for (const char* text : {"train.steps=10", "optim.lr=0.001", "optim.clip=0.05", "train.batch=8",
                             "train.micro_batch=1", "model.layers=3", "model.width=72", "model.ffn=130"})
      layout.settings.emplace_back(text);
    weights.resize(static_cast<std::size_t>(layout.ranks()));
    return run_ranks(layout.ranks(), [&](int rank) {
      return RunOptions{.config = config_of(layout),
                        .train = &data,
                        .after_run =
                            [&weights, rank](Trainer& trainer) {
                              weights[static_cast<std::size_t>(rank)] = weights_of(trainer);
                            },
                        .dtype = Dtype::f64};
    });
  };
  for (const char* tied : {"model.tied=false", "model.tied=true"}) {
    std::vector<Tensors> of_one, of_ranks;
    const Trace one = run({.settings = {tied}}, of_one)[0];
    ASSERT_EQ(one.error, "");
    for (const Layout& layout :
         {Layout{.tp = 2, .settings = {tied}},
          Layout{.replica = 4, .tp = 2, .settings = {tied, "mesh.zero=1", "mesh.sequence_parallel=true"}},
          Layout{.pp = 3, .replica = 2, .settings = {tied, "mesh.zero=1"}},
          Layout{.replica = 2, .shard = 4, .settings = {tied}},
          Layout{.pp = 2, .shard = 2, .tp = 2, .settings = {tied, "mesh.schedule=gpipe"}}}) {
      const auto traces = run(layout, of_ranks);
      EXPECT_EQ(std::ranges::any_of(traces, &Trace::cuts_parameter), layout.replica * layout.shard > 1)
          << name_of(layout);
      for (const Trace& trace : traces) {
        ASSERT_EQ(trace.error, "") << name_of(layout);
        for (std::size_t step = 0; step < one.losses.size(); ++step) {
          EXPECT_NEAR(trace.losses[step], one.losses[step], 1e-12 * one.losses[step]) << name_of(layout);
          EXPECT_NEAR(trace.norms[step], one.norms[step], 1e-12 * one.norms[step]) << name_of(layout);
        }
      }
      EXPECT_EQ(off(of_ranks, of_one[0], 1e-10), "") << name_of(layout);
    }
  }
}

// The state that this rank has, weights and moments, by the names of a checkpoint.
Tensors state_of(Trainer& trainer) {
  Tensors state = weights_of(trainer);
  const AdamW& optimizer = trainer.optimizer();
  for (const auto& [kind, buffer] : {std::pair("first_moment.", &optimizer.first_moment()),
                                     std::pair("second_moment.", &optimizer.second_moment())}) {
    for (auto& [name, values] : tensors_of(trainer, *buffer, optimizer.pieces()))
      state["optimizer." + std::string(kind) + name] = std::move(values);
  }
  return state;
}

// What a layout has saved is what it held, and what another one takes up is what was saved: all that each
// rank has, element by element. The vocabulary is cut unevenly, and beyond the tokens of the data.
TEST(Layouts, CheckpointsAreCutAnew) {
  const auto data = tokens();
  const std::vector<Layout> layouts = {
      {.settings = {}},
      {.replica = 2, .tp = 2, .cuts_parameters = true, .settings = {"mesh.zero=1"}},
      {.replica = 3, .cuts_parameters = true, .settings = {"mesh.zero=1"}},
      {.pp = 2, .replica = 2, .shard = 2, .cuts_parameters = true, .settings = {"mesh.zero=1"}},
      {.pp = 2, .shard = 3, .cuts_parameters = true, .settings = {}},
      {.tp = 2, .settings = {}},
      {.tp = 3, .settings = {}},
      {.shard = 3, .tp = 2, .cuts_parameters = true, .settings = {}},
      {.tp = 2, .settings = {"mesh.sequence_parallel=true"}}};
  // One step more of a layout: what its ranks have before and after it.
  const auto run = [&](const Layout& layout, const std::string& folder, std::vector<Tensors>& before,
                       std::vector<Tensors>& after_it) {
    Layout with = layout;
    for (const char* text :
         {"train.micro_batch=1", "checkpoint.every=0", "train.batch=12", "model.tied=true", "model.vocab=67",
          "model.heads=6", "model.kv_heads=6", "model.head_dim=4", "model.width=132", "model.ffn=100"})
      with.settings.emplace_back(text);
    with.settings.push_back("checkpoint.dir=" + folder);
    before.resize(static_cast<std::size_t>(layout.ranks()));
    after_it.resize(before.size());
    const auto traces = run_ranks(layout.ranks(), [&](int rank) {
      const auto keep = [rank](std::vector<Tensors>& states) {
        return
            [&states, rank](Trainer& trainer) { states[static_cast<std::size_t>(rank)] = state_of(trainer); };
      };
      return RunOptions{.config = config_of(with),
                        .train = &data,
                        .stop = after(1, true),
                        .prepare = keep(before),
                        .after_run = keep(after_it),
                        .steps_only = false,
                        .dtype = Dtype::f64};
    });
    for (const Trace& trace : traces) EXPECT_EQ(trace.error, "") << name_of(layout);
    EXPECT_EQ(std::ranges::any_of(traces, &Trace::cuts_parameter), layout.cuts_parameters) << name_of(layout);
  };
  for (const Layout& from : layouts) {
    const TempDir folder;
    std::vector<Tensors> before, after_it;
    run(from, folder.path(), before, after_it);
    for (const Layout& to : layouts) {
      const Tensors saved = tensors_in(folder.path());
      ASSERT_EQ(saved.at("model.embed_tokens.weight").size(), 67U * 132U);
      ASSERT_EQ(off(after_it, saved, 0), "") << name_of(from);
      run(to, folder.path(), before, after_it);
      ASSERT_EQ(off(before, saved, 0), "") << name_of(from) << " to " << name_of(to);
    }
  }
}

}  // namespace
}  // namespace muster::train
