// Every parallel layout against one rank. The gate is the gradient of every parameter before clipping, and
// the global norm, in fp64: loss curves hide what AdamW and clipping forgive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>

#include "base/file.h"
#include "train/ckpt/checkpoint.h"
#include "train/loop/test_layout.h"
#include "train/plan/plan.h"

namespace muster::train {
namespace {

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
                     setting("data.document_mask", rng.chance(0.4) ? "true" : "false"),
                     setting("train.sequence", pick({1, 3, 7, 12, 24})),
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
    const std::int64_t vocab = rng.between(5, 70);
    const Layout layout = random_layout(rng);
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
        .settings = {"model.layers=3", "model.heads=4", "model.kv_heads=2", "model.tied=true",
                     "data.ignored_token=0", "train.micro_batch=1", "train.batch=24", "optim.lr=0.001",
                     "mesh.zero=1", "mesh.sequence_parallel=true", "train.activation_checkpointing=full",
                     "mesh.gather=" + std::string(gather)}};
    EXPECT_EQ(check(layout, 7, 64), "") << gather;
  }
}

// What a mistake at one call of a collective does to the messages that it receives, on every rank.
enum class Mistake { doubled, left_out, other_group };

// Where in the source a collective is called.
using Site = std::pair<std::string, unsigned>;

Site site_of(const Operation& operation) {
  const std::string file = operation.site.file_name();
  return {file.substr(file.rfind("/src/") + 1), operation.site.line()};
}

// All calls but those of texts, which only matter where a rank fails or differs (Faults, Resume), and those
// that collectives are built from.
bool computes(const Operation& operation) {
  return operation.name != "gather_text" && site_of(operation).first.find("train/comm/") == std::string::npos;
}

// Calls that only a whole run makes: of its checkpoints, its evaluations that may be given up, its model.
bool of_whole_run(const Site& site) {
  return site.first.find("train/ckpt/") != std::string::npos ||
         site.first.find("loop/trainer.cc") != std::string::npos;
}

struct Mutation {
  std::optional<Site> site;  // none: only look
  Mistake mistake = Mistake::doubled;
  std::set<Site> seen;
  std::mutex mutex;            // of seen
  std::atomic<int> calls = 0;  // of all ranks at the site
};

// A mistake may make ranks ask each other for ever.
constexpr int kCallsMost = 2000;

class MutantTransport final : public Transport {
 public:
  MutantTransport(std::unique_ptr<Transport> inner, Mutation& mutation)
      : inner_(std::move(inner)), mutation_(mutation) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void abort(std::string_view reason) override { inner_->abort(reason); }
  Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        const Operation& operation) override {
    const Site site = site_of(operation);
    if (computes(operation)) {
      const std::lock_guard lock(mutation_.mutex);
      mutation_.seen.insert(site);
    }
    if (site == mutation_.site && ++mutation_.calls > kCallsMost)
      return fail(ErrorCode::timeout, "ranks that come to no end");
    if (site != mutation_.site) return inner_->exchange(sends, receives, operation);
    if (mutation_.mistake == Mistake::left_out) return {};
    if (receives.empty()) {  // a call that only sends
      std::vector<std::vector<std::byte>> spoilt;
      std::vector<Send> changed(sends.begin(), sends.end());
      for (Send& send : changed) {
        spoilt.emplace_back(send.data.begin(), send.data.end());
        spoil(spoilt.back(), {});
        send.data = spoilt.back();
      }
      return inner_->exchange(changed, receives, operation);
    }
    const auto done = inner_->exchange(sends, receives, operation);
    for (std::size_t i = 0; done && i < receives.size(); ++i)
      spoil(receives[i].data, i < sends.size() ? sends[i].data : std::span<const std::byte>());
    return done;
  }

 private:
  // `own`: what this rank sent.
  void spoil(std::span<std::byte> data, std::span<const std::byte> own) const {
    if (mutation_.mistake == Mistake::doubled) {
      for (std::size_t at = 0; at + sizeof(double) <= data.size(); at += sizeof(double)) {
        double value = 0;
        std::memcpy(&value, data.data() + at, sizeof value);
        value *= 2;
        std::memcpy(data.data() + at, &value, sizeof value);
      }
    } else {  // as if the peers were this rank itself
      std::ranges::fill(data, std::byte{});
      std::copy_n(own.begin(), std::min(data.size(), own.size()), data.begin());
    }
  }
  const std::unique_ptr<Transport> inner_;
  Mutation& mutation_;
};

// Every call of a collective in a step, in the layouts that make it, with each mistake: the gate must see it.
TEST(Layouts, NoCallOfACollectiveInAStepCanBeWrongUnseen) {
  const std::vector<std::string> common = {"model.layers=4", "model.tied=true", "train.micro_batch=1",
                                           "train.batch=16", "data.ignored_token=0"};
  std::vector<Layout> layouts = {
      {.replica = 2, .settings = {}},
      {.replica = 3, .tp = 2, .settings = {"mesh.zero=1", "train.batch=12"}},
      {.pp = 2, .replica = 2, .tp = 2, .settings = {"mesh.zero=1", "mesh.sequence_parallel=true"}},
      {.replica = 2, .shard = 2, .settings = {"mesh.zero=1"}},
      {.shard = 4, .node_ranks = 2, .settings = {"mesh.gather=hierarchical"}}};
  std::map<Site, std::vector<std::size_t>> sites;  // the layouts in which a call is made
  std::vector<Gradients> references;
  const auto data = tokens();
  const auto run = [&](const Layout& layout, Mutation& mutation) {
    return gradients_on(layout, data, {.wrap = [&](std::unique_ptr<Transport> transport) {
                          return std::make_unique<MutantTransport>(std::move(transport), mutation);
                        }});
  };
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    layouts[i].settings.insert(layouts[i].settings.begin(), common.begin(), common.end());
    references.push_back(gradients_on(alone(layouts[i]), data)[0]);
    Mutation none;
    ASSERT_EQ(difference(run(layouts[i], none), references[i]), "") << name_of(layouts[i]);
    for (const Site& site : none.seen) {
      if (!of_whole_run(site)) sites[site].push_back(i);
    }
  }
  EXPECT_GE(sites.size(), 18U);  // as many as there are; fewer: a layout above misses some
  int mutants = 0;
  for (const auto& [site, in] : sites) {
    for (const Mistake mistake : {Mistake::doubled, Mistake::left_out, Mistake::other_group}) {
      ++mutants;
      const bool seen = std::ranges::any_of(in, [&](std::size_t i) {
        Mutation mutation{.site = site, .mistake = mistake};
        return difference(run(layouts[i], mutation), references[i]) != "";
      });
      EXPECT_TRUE(seen) << site.first << ":" << site.second << " mistake " << static_cast<int>(mistake);
    }
  }
  std::cout << mutants << " mutants at " << sites.size() << " calls\n";
}

// Every tensor of the newest checkpoint in a folder, whole; none: there is no checkpoint.
Tensors tensors_in(const std::string& folder) {
  Tensors tensors;
  auto latest = latest_checkpoint(folder, OnDamage::refuse);
  if (!latest || !latest->reader) return tensors;
  for (const TensorInfo& info : latest->reader->info().tensors) {
    auto& values = tensors[info.name];
    values.resize(info.numel());
    EXPECT_TRUE(latest->reader->read(whole_slice(info.name, whole_box(info.shape)),
                                     std::as_writable_bytes(std::span(values))));
  }
  return tensors;
}

// What a whole run leaves: how it ended on each rank, its checkpoint, its model.
struct Left {
  std::vector<std::string> ends;
  Tensors checkpoint, model;
  bool operator==(const Left&) const = default;
};

// Of four ranks that hold unlike parts; `stop`: one of them is asked to stop in the first evaluation.
Left whole_run(const TokenStream& data, Mutation& mutation, bool stop) {
  const TempDir folder;
  const Layout layout{.pp = 2,
                      .replica = 2,
                      .settings = {"model.layers=3", "mesh.zero=1", "train.batch=4", "train.micro_batch=1",
                                   "train.steps=2", "checkpoint.every=1", "checkpoint.dir=" + folder / "ckpt",
                                   "output.dir=" + folder / "model"}};
  const Config config = config_of(layout);
  const auto run = [&](Comm& comm) -> std::string {
    set_threads(1);
    auto trainer = Trainer::create({.config = config,
                                    .train = &data,
                                    .validation = &data,
                                    .comm = &comm,
                                    .writer = {.node = comm.rank(), .local_rank = 0},
                                    .machines = {},
                                    .dtype_override = Dtype::f64,
                                    .stop_requested = after(1, stop && comm.rank() == 1),
                                    .ask_every_s = {}});
    if (!trainer) return trainer.error().message;
    const auto outcome = (*trainer)->run();
    if (!outcome) return outcome.error().message;
    return *outcome == Outcome::stopped ? "stopped" : "finished";
  };
  Left left{.ends = on_ranks(layout.ranks(), run, {.wrap = [&](std::unique_ptr<Transport> transport) {
                               return std::make_unique<MutantTransport>(std::move(transport), mutation);
                             }})};
  left.checkpoint = tensors_in(folder / "ckpt");
  left.model = tensors_in(folder / "model");
  return left;
}

// The same mistakes where ranks save, stop, and write the finished model.
TEST(Layouts, NoCallOfACollectiveInAWholeRunCanBeWrongUnseen) {
  const auto data = tokens();
  Mutation none, stopping;
  const Left whole = whole_run(data, none, false), stopped = whole_run(data, stopping, true);
  ASSERT_THAT(whole.ends, testing::Each("finished"));
  ASSERT_THAT(stopped.ends, testing::Each("stopped"));
  ASSERT_FALSE(whole.model.empty() || stopped.checkpoint.empty());
  std::set<Site> sites;
  std::ranges::copy_if(none.seen, std::inserter(sites, sites.end()), of_whole_run);
  EXPECT_GE(sites.size(), 4U);
  for (const Site& site : sites) {
    for (const Mistake mistake : {Mistake::doubled, Mistake::left_out, Mistake::other_group}) {
      // A flag that is doubled is still one; and all say alike whether they are through with a save, unless a
      // disk is slow: Saver.ASlowDiskIsNoStall.
      if (mistake == Mistake::doubled && site.first.ends_with("loop/trainer.cc")) continue;
      if (mistake == Mistake::other_group && site.first.ends_with("ckpt/saver.cc")) continue;
      const auto seen = [&](bool stop) {
        Mutation mutation{.site = site, .mistake = mistake};
        return whole_run(data, mutation, stop) != (stop ? stopped : whole);
      };
      EXPECT_TRUE(seen(false) || seen(true))
          << site.first << ":" << site.second << " mistake " << static_cast<int>(mistake);
    }
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

// Whether all weights are held, and each copy is that of one rank to 1e-10; "" if so.
std::string weights_off(const std::vector<Tensors>& ranks, const Tensors& one) {
  for (const auto& [name, wanted] : one) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      int copies = 0;
      for (const Tensors& rank : ranks) {
        const auto found = rank.find(name);
        if (found == rank.end() || std::isnan(found->second[i])) continue;
        ++copies;
        if (const double off = std::abs(found->second[i] - wanted[i]); !(off <= 1e-10))
          return name + " " + std::to_string(i) + " is off by " + std::to_string(off * 1e10) + "e-10";
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
                             "train.micro_batch=1", "model.layers=3"})
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
      for (const Trace& trace : run(layout, of_ranks)) {
        ASSERT_EQ(trace.error, "") << name_of(layout);
        for (std::size_t step = 0; step < one.losses.size(); ++step) {
          EXPECT_NEAR(trace.losses[step], one.losses[step], 1e-12 * one.losses[step]) << name_of(layout);
          EXPECT_NEAR(trace.norms[step], one.norms[step], 1e-12 * one.norms[step]) << name_of(layout);
        }
      }
      EXPECT_EQ(weights_off(of_ranks, of_one[0]), "") << name_of(layout);
    }
  }
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
