#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <random>

#include "base/file.h"
#include "train/agent/process.h"
#include "train/ckpt/lock.h"
#include "train/loop/test_run.h"

namespace muster::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

void resume_twice(const std::string& precision) {
  const auto data = tokens();
  const TempDir folder;
  // The same micro-batches in the same order: 6 windows are 3 x 2 on one rank and 2 each on three.
  const auto config = [&](const std::string& name) {
    return tiny({"checkpoint.dir=" + folder / name, "checkpoint.every=0", "train.steps=9", precision});
  };
  const Trace whole = run_alone({.config = config("whole"), .train = &data, .steps_only = false});
  ASSERT_EQ(whole.error, "");

  // Three ranks, stopped after 2 steps because the last rank was asked; one rank for 3 more; three to the
  // end.
  auto traces = run_ranks(3, [&](int rank) {
    return RunOptions{
        .config = config("parts"), .train = &data, .stop = after(2, rank == 2), .steps_only = false};
  });
  for (const Trace& trace : traces) {
    EXPECT_EQ(trace.error, "");
    EXPECT_EQ(trace.outcome, Outcome::stopped);
  }
  EXPECT_THAT(traces[0].lines.back(), HasSubstr("stopped at step 2 of 9"));
  EXPECT_TRUE(fs::exists(folder / "parts/step-2/rank-2.bin"));
  const Trace second =
      run_alone({.config = config("parts"), .train = &data, .stop = after(3, true), .steps_only = false});
  EXPECT_EQ(second.error, "");
  EXPECT_THAT(second.lines, testing::Contains(HasSubstr("resume step=2 samples=12")));
  EXPECT_THAT(second.lines.back(), HasSubstr("stopped at step 5 of 9"));
  traces = run_ranks(
      3, [&](int) { return RunOptions{.config = config("parts"), .train = &data, .steps_only = false}; });
  for (const Trace& trace : traces) {
    EXPECT_EQ(trace.error, "");
    EXPECT_EQ(trace.state, whole.state);
  }
  // Once more: nothing left to do, nothing changed.
  const Trace again = run_alone({.config = config("parts"), .train = &data, .steps_only = false});
  EXPECT_EQ(again.error, "");
  EXPECT_EQ(again.state, whole.state);
  EXPECT_EQ(again.lines.back(), "done step=9/9");  // no step was made: there is no loss to tell
}

TEST(Resume, TwiceIsBitwiseAndWithAnotherNumberOfRanks) { resume_twice("train.precision=fp32"); }
TEST(Resume, TwiceIsBitwiseInBf16) { resume_twice("train.precision=bf16"); }

json::Object machine(const std::string& cpu, int threads) { return {{"cpu", cpu}, {"threads", threads}}; }

// Two ranks save on `then` and go on on `now`: the notices.
std::vector<std::string> notices_of_move(const std::vector<json::Object>& then,
                                         const std::vector<json::Object>& now) {
  const auto data = tokens();
  const TempDir folder;
  const auto run = [&](const std::vector<json::Object>& machines, bool stops) {
    return run_ranks(2, [&](int rank) {
      return RunOptions{
          .config = tiny({"train.batch=4", "train.steps=2", "checkpoint.dir=" + folder / "ckpt"}),
          .train = &data,
          .stop = stops ? after(1, rank == 0) : nullptr,
          .steps_only = false,
          .machines = machines};
    });
  };
  EXPECT_EQ(run(then, true)[0].error, "");
  const auto traces = run(now, false);
  EXPECT_EQ(traces[0].error, "");
  std::vector<std::string> notices;
  for (const std::string& line : traces[0].lines) {
    if (line.starts_with("notice: not bitwise")) notices.push_back(line);
  }
  return notices;
}

TEST(Resume, AnotherMachineUnderAnyRankIsSaid) {
  const json::Object a = machine("A", 1), b = machine("B", 1), a2 = machine("A", 2);
  using testing::ElementsAre;
  using testing::IsEmpty;
  EXPECT_THAT(notices_of_move({a, a}, {a, a}), IsEmpty());
  EXPECT_THAT(notices_of_move({a, b}, {a, b}), IsEmpty());
  EXPECT_THAT(notices_of_move({a, a}, {a, b}),
              ElementsAre(R"(notice: not bitwise: the checkpoint is of {"cpu":"A","threads":1}, )"
                          R"(rank 1 is now on {"cpu":"B","threads":1})"));
  EXPECT_THAT(
      notices_of_move({a, b}, {a2, a2}),
      ElementsAre(HasSubstr(R"({"cpu":"A","threads":1} and {"cpu":"B","threads":1}, rank 0 is now on )"
                            R"({"cpu":"A","threads":2}; 1 more differ)")));
  EXPECT_THAT(notices_of_move({a, b}, {a, a}),
              ElementsAre(HasSubstr(R"(no rank is now on {"cpu":"B","threads":1})")));
}

// Three ranks, then one, two, three: with the optimizer's state cut over them, and with all of it on each.
TEST(Resume, OptimizerStateIsCutAnew) {
  const auto data = tokens();
  const TempDir folder;
  const auto run = [&](const std::string& zero, const std::string& precision) {
    std::string state;
    int done = 0;
    for (const int ranks : {3, 1, 2, 3}) {
      done += 2;
      const bool last = done == 8;
      for (const Trace& trace : run_ranks(ranks, [&](int rank) {
             return RunOptions{
                 .config = tiny({"model.tied=true", "checkpoint.dir=" + folder / (zero + precision),
                                 "checkpoint.every=0", "train.micro_batch=1", zero, precision}),
                 .train = &data,
                 .stop = last ? nullptr : after(2, rank == 0),
                 .steps_only = false};
           })) {
        EXPECT_EQ(trace.error, "");
        EXPECT_EQ(trace.outcome, last ? Outcome::finished : Outcome::stopped);
        state = trace.state;
      }
    }
    return state;
  };
  for (const std::string precision : {"train.precision=fp32", "train.precision=bf16"}) {
    const auto whole = run("mesh.zero=0", precision);
    EXPECT_EQ(run("mesh.zero=1", precision), whole) << precision;
    EXPECT_EQ(whole.size(), 64U);
  }
}

// A flipped bit in the newest checkpoint, in bytes that only one of the ranks reads.
TEST(Resume, ADamagedCheckpointIsNamedAndTheOneBeforeTakenOnlyWhenAsked) {
  const auto data = tokens();
  const TempDir folder;
  const auto run = [&](const std::string& name, const std::string& resume) {
    return run_ranks(3, [&, name, resume](int) {
      return RunOptions{.config = tiny({"checkpoint.dir=" + folder / name, "checkpoint.every=3",
                                        "mesh.zero=1", "checkpoint.resume=" + resume}),
                        .train = &data,
                        .steps_only = false};
    });
  };
  const auto whole = run("whole", "auto");
  ASSERT_EQ(whole[0].error, "");
  fs::copy(folder / "whole", folder / "hurt", fs::copy_options::recursive);
  fs::copy(folder / "whole", folder / "cut", fs::copy_options::recursive);
  const std::string file = folder / "hurt/step-8/rank-1.bin";
  std::string bytes = *read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // of the last moment
  ASSERT_TRUE(write_file_atomic(file, bytes));

  for (const auto& trace : run("hurt", "auto")) {
    EXPECT_THAT(trace.error, HasSubstr("step-8/rank-1.bin: block 0"));
    EXPECT_THAT(trace.error, HasSubstr("--resume latest-valid"));
  }
  for (const auto& trace : run("hurt", "latest-valid")) {
    EXPECT_EQ(trace.error, "");
    EXPECT_EQ(trace.state, whole[0].state);
    if (trace.lines.empty()) continue;
    EXPECT_THAT(trace.lines, testing::Contains(HasSubstr("step 8 passed over, it is damaged: rank ")));
    EXPECT_THAT(trace.lines, testing::Contains(HasSubstr("resume step=6 samples=36")));
  }
  // What a kill leaves is no damage.
  fs::remove(folder / "cut/step-8/manifest.json");
  const auto cut = run("cut", "required");
  EXPECT_EQ(cut[0].error, "");
  EXPECT_THAT(cut[0].lines, testing::Contains(HasSubstr("step 8 passed over: its save did not finish")));
  EXPECT_THAT(cut[0].lines, testing::Contains(HasSubstr("resume step=6 samples=36")));
  EXPECT_EQ(cut[0].state, whole[0].state);
}

struct Cut {
  int ranks;
  std::vector<std::string> layout;
};
const Cut kCuts[] = {
    {1, {}}, {2, {"mesh.zero=1"}}, {2, {"mesh.shard=2"}}, {2, {"mesh.pp=2"}}, {2, {"mesh.tp=2"}}};

// Eight steps with a save after every second one. `stop` is asked after each step.
std::vector<Trace> run_cut(const Cut& cut, const std::string& folder, const std::function<bool()>& stop) {
  const auto data = tokens();
  auto settings = cut.layout;
  for (const auto& text : {"checkpoint.dir=" + folder, std::string("checkpoint.every=2"),
                           std::string("model.layers=2"), std::string("train.batch=4")})
    settings.push_back(text);
  return run_ranks(cut.ranks, [&](int rank) {
    return RunOptions{
        .config = tiny(settings), .train = &data, .stop = rank == 0 ? stop : nullptr, .steps_only = false};
  });
}

// After `healthy` steps no file of this process may grow beyond `limit`.
std::function<bool()> limit_files_after(int healthy, rlim_t limit) {
  return [healthy, limit, step = std::make_shared<int>(0)] {
    if ((*step)++ != healthy) return false;
    rlimit files{};
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &files), 0);
    files.rlim_cur = limit;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &files), 0);
    return false;
  };
}

// What goes wrong with the saves of a run, at random, and how the run ends without that.
struct Mishap {
  int index;    // of kCuts
  int healthy;  // steps, some with saves, before it
  std::uint64_t limit;
  std::string name, state;

  const Cut& cut() const { return kCuts[index]; }
};

// Calls `body` so many times, with a byte of a file that a save writes.
void for_mishaps(int rounds, const std::string& folder, const std::function<void(const Mishap&)>& body) {
  constexpr int kCases = static_cast<int>(std::size(kCuts));
  std::string states[kCases];
  std::uint64_t longest[kCases] = {};
  for (int i = 0; i < kCases; ++i) {
    const auto traces = run_cut(kCuts[i], folder + "/whole", nullptr);
    ASSERT_EQ(traces[0].error, "");
    states[i] = traces[0].state;
    for (const auto& entry : fs::directory_iterator(folder + "/whole/step-8"))
      longest[i] = std::max<std::uint64_t>(longest[i], entry.file_size());
    fs::remove_all(folder + "/whole");
  }
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  std::cout << "seed " << seed << std::endl;
  Rng rng(seed);
  for (int round = 0; round < rounds; ++round) {
    Mishap mishap{.index = round % kCases, .healthy = 2 * static_cast<int>(rng.below(4)), .limit = 0};
    mishap.limit = rng.below(longest[mishap.index]);
    mishap.state = states[mishap.index];
    mishap.name = join(mishap.cut().layout, " ") + ", byte " + std::to_string(mishap.limit) + " after " +
                  std::to_string(mishap.healthy) + " steps";
    body(mishap);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The victim of the next test: the kernel writes up to the limit and kills the process (SIGXFSZ).
TEST(DISABLED_LimitedRun, Saves) {
  const auto number = [](const char* name) { return *parse_int(std::getenv(name)); };
  const rlimit core{.rlim_cur = 0, .rlim_max = 0};
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &core), 0);
  signal(SIGXFSZ, SIG_DFL);
  run_cut(
      kCuts[number("RUN_CUT")], std::getenv("RUN_FOLDER"),
      limit_files_after(static_cast<int>(number("RUN_HEALTHY")), static_cast<rlim_t>(number("RUN_LIMIT"))));
}

// The process dies in a save, at 100 random bytes, while the training goes on behind it; each time the next
// start passes over what is half written, goes on from the last step that counts, and ends with the same
// bits.
TEST(Resume, FromAKillAtAnyByteOfASaveIsBitwise) {
  const TempDir folder;
  for_mishaps(100, folder.path(), [&](const Mishap& mishap) {
    const std::string dir = folder / "killed";
    const auto child =
        spawn({*own_program(), "--gtest_also_run_disabled_tests", "--gtest_filter=DISABLED_LimitedRun.Saves"},
              {{"RUN_CUT", std::to_string(mishap.index)},
               {"RUN_FOLDER", dir},
               {"RUN_HEALTHY", std::to_string(mishap.healthy)},
               {"RUN_LIMIT", std::to_string(mishap.limit)}});
    ASSERT_TRUE(child) << child.error().message;
    const auto ended = wait_child(*child);
    ASSERT_EQ(ended.signal, SIGXFSZ) << ended.describe() << mishap.name;
    const auto resumed = run_cut(mishap.cut(), dir, nullptr);
    EXPECT_THAT(resumed[0].lines, testing::Contains(HasSubstr("its save did not finish"))) << mishap.name;
    for (const Trace& trace : resumed) {
      ASSERT_EQ(trace.error, "") << mishap.name;
      ASSERT_EQ(trace.state, mishap.state) << mishap.name;
    }
    fs::remove_all(dir);
  });
}

// The same where writes only fail, as on a full disk: the run ends with an error, and nothing is half
// written.
TEST(Resume, FromFailuresAtAnyByteOfASaveIsBitwise) {
  const TempDir folder;
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for_mishaps(100, folder.path(), [&](const Mishap& mishap) {
    const std::string dir = folder / "failed";
    const auto failed = run_cut(mishap.cut(), dir, limit_files_after(mishap.healthy, mishap.limit));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    for (const Trace& trace : failed) {
      ASSERT_THAT(trace.error, HasSubstr("/step-")) << mishap.name;
      ASSERT_THAT(trace.error, HasSubstr("File too large")) << mishap.name;
    }
    for (const auto& entry : fs::directory_iterator(dir)) {
      if (!entry.is_directory()) continue;
      EXPECT_TRUE(fs::exists(entry.path() / "manifest.json")) << mishap.name;
    }
    for (const Trace& resumed : run_cut(mishap.cut(), dir, nullptr)) {
      ASSERT_EQ(resumed.error, "") << mishap.name;
      ASSERT_EQ(resumed.state, mishap.state) << mishap.name;
    }
    fs::remove_all(dir);
  });
}

TEST(Run, SavesEveryStepAndKeepsWhatItIsTold) {
  const auto data = tokens();
  const TempDir folder;
  const auto trace = run_alone({.config = tiny({"checkpoint.dir=" + folder.path(), "checkpoint.every=1",
                                                "checkpoint.keep=1", "checkpoint.keep_every=4"}),
                                .train = &data,
                                .steps_only = false});
  ASSERT_EQ(trace.error, "");
  int saves = 0;
  for (const auto& line : trace.lines) {
    saves += line.starts_with("checkpoint step=") ? 1 : 0;
    if (line.starts_with("checkpoint step=")) {
      EXPECT_THAT(line, testing::ContainsRegex(" stall_s=[0-9.]+ seconds=[0-9.]+$"));
    }
  }
  EXPECT_EQ(saves, 8);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder.path())) left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre(kLockName, "step-4", "step-8"));
}

// Three ranks, stopped after three steps; the rest with one. The file tells of every step once.
// A run that is over is not cut short.
TEST(Resume, RefusesFewerStepsThanWereMade) {
  const auto data = tokens();
  const TempDir folder;
  const auto run = [&](const std::string& steps) {
    return run_alone({.config = tiny({"checkpoint.dir=" + folder / "c", "train.steps=" + steps}),
                      .train = &data,
                      .accepted = {"train.steps"},
                      .steps_only = false});
  };
  EXPECT_EQ(run("4").error, "");
  EXPECT_THAT(run("3").error, HasSubstr("train.steps = 3, but the newest checkpoint in " + folder / "c"));
  EXPECT_EQ(run("4").lines.back(), "done step=4/4");
}

TEST(Resume, TheMetricsGoOnWhereTheCheckpointIs) {
  const auto data = tokens(), held_out = tokens(3, 500);
  const TempDir folder;
  const auto options = [&](int stop_after, bool here) {
    return RunOptions{.config = tiny({"checkpoint.dir=" + folder / "ckpt", "checkpoint.every=2",
                                      "log.metrics=" + folder / "metrics.jsonl", "run.peak_gflops=100"}),
                      .train = &data,
                      .validation = &held_out,
                      .stop = stop_after > 0 ? after(stop_after, here) : nullptr,
                      .steps_only = false};
  };
  for (const Trace& trace : run_ranks(3, [&](int rank) { return options(2 + 3, rank == 2); }))
    EXPECT_EQ(trace.error, "");  // asked between the two passes of the first evaluation, and after each step
  EXPECT_EQ(run_alone(options(0, false)).error, "");
  std::map<std::string, std::vector<std::int64_t>> steps;
  const std::string text = *read_file(folder / "metrics.jsonl");
  for (const auto line : split(text, '\n')) {
    if (line.empty()) continue;
    const auto record = json::parse_object(line);
    ASSERT_TRUE(record) << line;
    const std::string type = *json::opt_string(*record, "type");
    steps[type].push_back(*json::opt_int(*record, "step"));
    if (type == "step") {
      EXPECT_GT(*json::opt_double(*record, "peak_share"), 0);
      EXPECT_EQ(*json::opt_int(*record, "tokens"), steps[type].back() * 6 * 16);
    }
  }
  EXPECT_THAT(steps["step"], testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(steps["checkpoint"], testing::ElementsAre(2, 3, 4, 6, 8));
  EXPECT_THAT(steps["eval"], testing::ElementsAre(0, 3, 8));
}

// As where every node has a folder of its own and nobody has brought them together.
TEST(Resume, RanksThatSeeOtherCheckpointsAreRefused) {
  const auto data = tokens();
  const TempDir folder;
  const auto run = [&](bool alike) {
    return run_ranks(2, [&, alike](int rank) {
      return RunOptions{
          .config = tiny({"train.batch=4", "checkpoint.dir=" + folder / (alike || rank == 0 ? "a" : "b")}),
          .train = &data,
          .steps_only = false};
    });
  };
  EXPECT_EQ(run(true)[0].error, "");
  for (const Trace& trace : run(false)) {
    EXPECT_THAT(trace.error, HasSubstr("the ranks find different checkpoints in "));
    EXPECT_THAT(trace.error, HasSubstr("finished steps none"));
  }
}

TEST(Resume, RefusesAnotherRun) {
  const auto data = tokens(), other = tokens(2, 5000);
  const TempDir folder;
  const std::string dir = "checkpoint.dir=" + folder.path();
  ASSERT_EQ(run_alone({.config = tiny({dir}), .train = &data, .steps_only = false}).error, "");
  EXPECT_THAT(run_alone({.config = tiny({dir, "train.seed=2"}), .train = &data}).error,
              HasSubstr("train.seed was 1, is 2 (identity"));
  EXPECT_THAT(run_alone({.config = tiny({dir, "train.steps=9"}), .train = &data}).error,
              HasSubstr("--accept train.steps"));
  EXPECT_EQ(
      run_alone({.config = tiny({dir, "train.steps=9"}), .train = &data, .accepted = {"train.steps"}}).error,
      "");
  EXPECT_THAT(run_alone({.config = tiny({dir}), .train = &other}).error, HasSubstr("trained on other data"));
  const auto as_many = tokens(2);
  EXPECT_THAT(run_alone({.config = tiny({dir}), .train = &as_many}).error,
              HasSubstr("trained on other data"));
}

// Checkpoints from before there were digests of the data: their counts are all that is known.
TEST(Resume, OldDescriptionsOfDataAreTakenWithANotice) {
  struct Undigested : MemoryStream {
    using MemoryStream::MemoryStream;
    json::Object description() const override {
      json::Object all = MemoryStream::description();
      all.erase("digest");
      return all;
    }
  };
  const auto data = tokens();
  std::vector<std::int64_t> values(data.size());
  ASSERT_TRUE(data.read(0, values));
  const Undigested old(values, data.vocab_size(), data.tokenizer_hash());
  const TempDir folder;
  const std::string dir = "checkpoint.dir=" + folder.path();
  ASSERT_EQ(run_alone({.config = tiny({dir}), .train = &old, .steps_only = false}).error, "");
  const Trace again = run_alone({.config = tiny({dir}), .train = &data});
  EXPECT_EQ(again.error, "");
  EXPECT_THAT(again.lines, testing::Contains(HasSubstr("notice: the checkpoint is older than digests")));
  const auto longer = tokens(1, 4001);
  EXPECT_THAT(run_alone({.config = tiny({dir}), .train = &longer}).error, HasSubstr("trained on other data"));
}

TEST(Resume, AFolderThatAnotherRunUsesIsRefusedOnAllRanks) {
  const auto data = tokens();
  const TempDir folder;
  const auto start = [&] {
    return run_ranks(2, [&](int) {
      return RunOptions{.config = tiny({"train.batch=4", "train.steps=2", "run.timeout_s=1",
                                        "checkpoint.dir=" + folder.path()}),
                        .train = &data,
                        .steps_only = false};
    });
  };
  auto other = lock_checkpoints(folder.path(), Millis(0));
  ASSERT_TRUE(other && *other);
  for (const Trace& trace : start()) {
    EXPECT_THAT(trace.error,
                HasSubstr("rank 0: checkpoint.dir = " + folder.path() + " is in use by process "));
    EXPECT_THAT(trace.error, HasSubstr("give this one a checkpoint.dir of its own"));
  }
  EXPECT_FALSE(fs::exists(folder / "step-2"));
  other->reset();
  EXPECT_EQ(start()[0].error, "");  // whose lock goes with it
  EXPECT_EQ(start()[0].error, "");
  EXPECT_TRUE(fs::exists(folder / "step-2"));
}

// What is missing is never a silent start at step 0.
TEST(Resume, AMissingCheckpointIsSaidOrRefused) {
  const auto data = tokens();
  const TempDir folder;
  const auto start = [&](const std::string& dir, const std::string& how) {
    const auto traces = run_ranks(2, [&](int) {
      return RunOptions{
          .config = tiny({"train.batch=4", "checkpoint.dir=" + dir, "checkpoint.resume=" + how}),
          .train = &data,
          .steps_only = false};
    });
    EXPECT_EQ(traces[0].error, traces[1].error);
    return traces[0];
  };
  const auto says = [](const std::string& line) { return testing::Contains(testing::StrEq(line)); };
  // A first run, in a folder that is made, and in one that is there, as in a job.
  const std::string made = folder / "run-a";
  EXPECT_THAT(start(made + "/", "auto").lines,
              says("notice: no checkpoint in " + made + "/, a new folder: starting at step 0"));
  ASSERT_TRUE(make_directories(folder / "empty"));
  EXPECT_THAT(start(folder / "empty", "latest-valid").lines,
              says("notice: no checkpoint in " + folder / "empty" + ": starting at step 0"));
  // Mistyped at the end, and on the way.
  EXPECT_THAT(start(folder / "rum-a", "auto").lines,
              says("notice: no checkpoint in " + folder / "rum-a" + ", a new folder: starting at step 0; " +
                   made + " has step 8"));
  for (const char* how : {"auto", "latest-valid"}) {
    EXPECT_THAT(
        start(folder / "rums/a", how).error,
        HasSubstr("checkpoint.dir = " + folder / "rums/a: there is no folder " + folder / "rums to make"));
  }
  EXPECT_FALSE(fs::exists(folder / "rums"));
  // required never makes one.
  EXPECT_THAT(
      start(folder / "none", "required").error,
      HasSubstr("checkpoint.resume = required, but checkpoint.dir = " + folder / "none" + " is not there"));
  EXPECT_FALSE(fs::exists(folder / "none"));
  ASSERT_TRUE(make_directories(folder / "none/step-3"));  // of a save that was cut off
  EXPECT_THAT(start(folder / "none", "required").error, HasSubstr("there is no finished checkpoint in "));
  EXPECT_THAT(start("", "required").error, HasSubstr("required, but checkpoint.dir is not set"));
  EXPECT_EQ(start(made, "required").lines.back(), "done step=8/8");
}

}  // namespace
}  // namespace muster::train
