// Mistakes at every call of a collective, one at a time: the gates of test_layout.h, or what a whole run
// leaves, must show each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <regex>
#include <set>

#include "base/file.h"
#include "train/loop/test_layout.h"

namespace muster::train {
namespace {

// What a mistake at one call of a collective does to the messages that it receives, on every rank.
enum class Mistake { doubled, left_out, other_group };

// Where in the source a collective is called.
using Site = std::pair<std::string, unsigned>;

Site site_of(const Operation& operation) {
  const std::string file = operation.site.file_name();
  return {file.substr(file.rfind("/src/") + 1), operation.site.line()};
}

// All calls but those that collectives are built from.
bool counts(const Site& site) {
  return site.first == "src/train/comm/agree.cc" || !site.first.starts_with("src/train/comm/");
}

// Calls that only a whole run makes: of its checkpoints, its evaluations that may be given up, its model.
bool of_whole_run(const Site& site) {
  return site.first.starts_with("src/train/ckpt/") || site.first == "src/train/loop/trainer.cc";
}

// Calls that no mutant is made of, by file, and the tests that fail where one is wrong.
struct Listed {
  std::string file;
  int calls;
  std::string test;
};
const std::vector<Listed> kListed = {
    {"src/train/ckpt/steps.cc", 1, "Resume.RanksThatSeeOtherCheckpointsAreRefused"},
    {"src/train/loop/machine.cc", 1, "Machine.RanksShareItsCores"},
    {"src/train/loop/machine.cc", 1, "Machine.EveryRankKnowsTheMachinesOfAll"},
    {"src/train/loop/not_finite.cc", 1, "Faults.InEveryLayoutTheLayerWhereItBeganIsNamed"},
    // What it prevents, a closed connection that looks like a lost peer, is a race: no test shows it each
    // time.
    {"src/train/loop/rank.cc", 1, ""}};

bool has_test(const std::string& name) {
  const auto& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      if (suite.name() + ("." + std::string(suite.GetTestInfo(j)->name())) == name) return true;
    }
  }
  return false;
}

bool is_listed(const Site& site) {
  return std::ranges::any_of(kListed, [&](const Listed& listed) { return listed.file == site.first; });
}

struct Mutation {
  std::optional<Site> site;  // none: only look
  Mistake mistake = Mistake::doubled;
  std::map<Site, std::string> seen;  // which collective is called there
  std::mutex mutex;                  // of seen
  std::atomic<int> calls = 0;        // of all ranks at the site
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
    if (counts(site)) {
      const std::lock_guard lock(mutation_.mutex);
      mutation_.seen.try_emplace(site, operation.name);
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

// The transport of a rank whose calls may be wrong.
RanksOptions with(Mutation& mutation) {
  return {.wrap = [&](std::unique_ptr<Transport> transport) {
    return std::make_unique<MutantTransport>(std::move(transport), mutation);
  }};
}

// Layouts that between them make every call of a step, and their gradients on one rank.
struct StepCases {
  MemoryStream data = tokens();
  std::vector<Layout> layouts = {
      {.replica = 2, .settings = {}},
      {.replica = 3,
       .tp = 2,
       .cuts_parameters = true,
       .settings = {"mesh.zero=1", "train.batch=12", "model.width=72", "model.ffn=130"}},
      {.pp = 2, .replica = 2, .tp = 2, .settings = {"mesh.zero=1", "mesh.sequence_parallel=true"}},
      {.replica = 2, .shard = 2, .cuts_parameters = true, .settings = {"mesh.zero=1", "model.width=72"}},
      {.shard = 4,
       .node_ranks = 2,
       .cuts_parameters = true,
       .settings = {"mesh.gather=hierarchical", "model.width=72"}}};
  std::vector<Gradients> references;

  StepCases() {
    for (Layout& layout : layouts) {
      for (const char* text : {"model.layers=4", "model.tied=true", "train.micro_batch=1", "train.batch=16",
                               "data.ignored_token=0"})
        layout.settings.insert(layout.settings.begin(), text);
      references.push_back(gradients_on(alone(layout), data)[0]);
    }
  }
  std::string difference_of(std::size_t i, Mutation& mutation) const {
    return difference(gradients_on(layouts[i], data, with(mutation)), references[i]);
  }
};

// A text that is garbled is no mistake of ours. Those that the ranks of a step tell each other are all alike:
// unlike ones are of Faults and Memory.
bool is_sensible(Mistake mistake, const std::string& collective, bool texts_differ) {
  return collective != "gather_text" || mistake == Mistake::left_out ||
         (mistake == Mistake::other_group && texts_differ);
}

constexpr Mistake kMistakes[] = {Mistake::doubled, Mistake::left_out, Mistake::other_group};

// Every call of a collective in a step, in the layouts that make it, with each mistake: the gate must see it.
TEST(Mutants, NoCallOfACollectiveInAStepCanBeWrongUnseen) {
  const StepCases cases;
  std::map<Site, std::vector<std::size_t>> layouts_of;
  std::map<Site, std::string> sites;
  for (std::size_t i = 0; i < cases.layouts.size(); ++i) {
    Mutation none;
    ASSERT_EQ(cases.difference_of(i, none), "") << name_of(cases.layouts[i]);
    for (const auto& [site, collective] : none.seen) {
      if (of_whole_run(site)) continue;
      sites[site] = collective;
      layouts_of[site].push_back(i);
    }
  }
  int mutants = 0;
  for (const auto& [site, collective] : sites) {
    for (const Mistake mistake : kMistakes) {
      if (!is_sensible(mistake, collective, false)) continue;
      ++mutants;
      const bool seen = std::ranges::any_of(layouts_of[site], [&](std::size_t i) {
        Mutation mutation{.site = site, .mistake = mistake};
        return cases.difference_of(i, mutation) != "";
      });
      EXPECT_TRUE(seen) << site.first << ":" << site.second << " mistake " << static_cast<int>(mistake);
    }
  }
  std::cout << mutants << " mutants at " << sites.size() << " calls\n";
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
  Left left{.ends = on_ranks(layout.ranks(), run, with(mutation))};
  left.checkpoint = tensors_in(folder / "ckpt");
  left.model = tensors_in(folder / "model");
  return left;
}

// The same mistakes where ranks save, stop, and write the finished model.
TEST(Mutants, NoCallOfACollectiveInAWholeRunCanBeWrongUnseen) {
  const auto data = tokens();
  Mutation none, stopping;
  const Left whole = whole_run(data, none, false), stopped = whole_run(data, stopping, true);
  ASSERT_THAT(whole.ends, testing::Each("finished"));
  ASSERT_THAT(stopped.ends, testing::Each("stopped"));
  ASSERT_FALSE(whole.model.empty() || stopped.checkpoint.empty());
  for (const auto& [site, collective] : none.seen) {
    if (!of_whole_run(site) || is_listed(site)) continue;
    for (const Mistake mistake : kMistakes) {
      // A flag that is doubled is still one; and all say alike whether they are through with a save, unless a
      // disk is slow: Saver.ASlowDiskIsNoStall.
      if (!is_sensible(mistake, collective, true)) continue;
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

// The calls in the sources of the trainer, by file; those that collectives are built from are left out.
std::map<std::string, int> calls_in_sources() {
  const std::filesystem::path root = MUSTER_SOURCE_DIR;
  const std::regex call(
      R"((\.|->)(all_reduce|reduce_scatter|all_gather|gather_text|exchange|barrier)(<\w+(::\w+)*>)?\()");
  std::map<std::string, int> calls;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "src/train")) {
    const std::string name = entry.path().filename(), file = entry.path().lexically_relative(root);
    if (!entry.is_regular_file() || name.ends_with("_test.cc") || name.starts_with("test_")) continue;
    if (!counts({file, 0})) continue;
    const std::string text = read_file(entry.path()).value();
    const auto found = std::distance(std::sregex_iterator(text.begin(), text.end(), call), {});
    if (found > 0) calls[file] = static_cast<int>(found);
  }
  return calls;
}

// A call that is new is in a run above, or has a test of its own in kListed.
TEST(Mutants, AreOfEveryCallOrATestIsNamed) {
  const StepCases cases;
  std::set<Site> seen;
  const auto add = [&](const Mutation& none) {
    for (const auto& [site, collective] : none.seen) seen.insert(site);
  };
  for (std::size_t i = 0; i < cases.layouts.size(); ++i) {
    Mutation none;
    EXPECT_EQ(cases.difference_of(i, none), "");
    add(none);
  }
  Mutation none;
  EXPECT_THAT(whole_run(cases.data, none, false).ends, testing::Each("finished"));
  add(none);
  std::map<std::string, int> covered;
  for (const Site& site : seen) covered[site.first] += is_listed(site) ? 0 : 1;
  for (const Listed& listed : kListed) {
    covered[listed.file] += listed.calls;
    EXPECT_TRUE(listed.test.empty() || has_test(listed.test)) << listed.test;
  }
  for (const auto& [file, calls] : calls_in_sources())
    EXPECT_EQ(covered[file], calls) << file << ": a call without a mutant that is not in kListed";
}

}  // namespace
}  // namespace muster::train
