// muster-train as its users run it: real processes, real shards, signals and job folders.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/text.h"
#include "text/shards.h"
#include "text/tokenizer.h"
#include "text/train_tokenizer.h"
#include "train/agent/agent.h"
#include "train/agent/test_process.h"
#include "train/ckpt/checkpoint.h"
#include "train/comm/gloo/gloo.h"

namespace muster::train {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
namespace fs = std::filesystem;

// A text of few words, a tokenizer for it, and two folders of shards.
class Program : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    const std::string file = *folder_ / "text";
    ASSERT_TRUE(write_file_atomic(file, some_text(1, 30'000)));
    const auto trained = text::train_tokenizer({file}, {.vocab_size = 320});
    ASSERT_TRUE(trained) << trained.error().message;
    ASSERT_TRUE(make_directories(*folder_ / "tokenizer"));
    ASSERT_TRUE(write_file_atomic(*folder_ / "tokenizer/tokenizer.model", trained->model));
    write_shard("train", some_text(2, 60'000));
    write_shard("held-out", some_text(3, 8'000));
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string some_text(std::uint64_t seed, std::size_t bytes) {
    static constexpr const char* kWords[] = {"the ",   "cat ",     "and ",   "dog ",    "ran ", "to ",
                                             "a ",     "house.\n", "river ", "slowly ", "of ",  "light ",
                                             "stone ", "sea.\n",   "wind ",  "over "};
    Rng rng(seed);
    std::string out;
    while (out.size() < bytes) out += kWords[rng.below(16)];
    return out;
  }

  static void write_shard(const std::string& name, const std::string& content) {
    const auto tokenizer = text::Tokenizer::load(*folder_ / "tokenizer/tokenizer.model");
    ASSERT_TRUE(tokenizer);
    ASSERT_TRUE(make_directories(*folder_ / name));
    auto writer = text::ShardWriter::create(*folder_ / name + "/a.mts", text::vocabulary_of(*tokenizer));
    ASSERT_TRUE(writer) << writer.error().message;
    writer->begin_document();
    auto ids = tokenizer->encode(content);
    ids.push_back(tokenizer->eos());
    ASSERT_TRUE(writer->append(ids));
    writer->add_source_bytes(content.size());
    ASSERT_TRUE(writer->finish());
  }

  static std::string shared(std::string_view name) { return *folder_ / name; }
  static TempDir* folder_;
};
TempDir* Program::folder_ = nullptr;

using Variables = std::vector<std::pair<std::string, std::string>>;

Child start(const std::vector<std::string>& arguments, const Variables& variables = {}) {
  std::vector<std::string> argv = {MUSTER_TRAIN_PROGRAM};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return start_program(argv, variables);
}

std::vector<std::string> train_arguments(const std::string& train, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--set", "model.preset=tiny",   "--set",      "train.sequence=16",
                                        "--set", "train.batch=4",       "--set",      "train.micro_batch=2",
                                        "--set", "optim.lr=0.01",       "--set",      "run.threads=1",
                                        "--set", "data.train=" + train, "--job-root", "/nonexistent"};
  arguments.insert(arguments.begin(), "train");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> sets(std::initializer_list<std::string> assignments) {
  std::vector<std::string> out;
  for (const auto& assignment : assignments) {
    out.push_back("--set");
    out.push_back(assignment);
  }
  return out;
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The checksums of everything in a step: equal if and only if the tensors are.
std::string checksums(const std::string& step) {
  const auto text = read_file(step + "/manifest.json");
  EXPECT_TRUE(text) << step;
  if (!text) return "";
  const auto outer = json::parse_object(*text);
  return json::dump(outer->at("manifest").at("files")) + json::dump(outer->at("manifest").at("samples"));
}

TEST_F(Program, TrainsEvaluatesAndWrites) {
  const TempDir out;
  // A token of the held-out text is padding here: whoever counts it has another loss.
  std::int64_t padding = 0;
  ASSERT_TRUE(text::ShardSet::open(shared("held-out"))->read(1, {&padding, 1}));
  const auto run = finish(start(train_arguments(
      shared("train"),
      sets({"data.validation=" + shared("held-out"), "data.tokenizer=" + shared("tokenizer/tokenizer.model"),
            "output.dir=" + out / "model", "checkpoint.dir=" + out / "ckpt", "train.steps=30", "log.every=10",
            "data.ignored_token=" + std::to_string(padding)}) +
          std::vector<std::string>{"--nproc", "2"})));
  ASSERT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, HasSubstr("start ranks=2 "));
  EXPECT_THAT(run.out, ContainsRegex("\nstep=30/30 loss=[0-9.]+ grad_norm=[0-9.]+ lr=[0-9.e+-]+ "
                                     "tokens_per_s=[0-9]+ rss_mib=[0-9]+ left_s=0\n"));
  const auto value_after = [&](const std::string& head, const std::string& name) {
    const auto at = run.out.find(name + "=", run.out.find(head));
    return std::atof(run.out.c_str() + at + name.size() + 1);
  };
  EXPECT_LT(value_after("eval step=30", "bits_per_byte"), value_after("eval step=0", "bits_per_byte") - 0.2);

  const auto evaluated =
      finish(start({"eval", "--model", out / "model", "--data", shared("held-out"), "--windows", "64"}));
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NEAR(std::atof(evaluated.out.c_str() + evaluated.out.find("loss=") + 5),
              value_after("eval step=30", "loss"), 2e-4);
  EXPECT_EQ(std::atof(evaluated.out.c_str() + evaluated.out.find("tokens=") + 7),
            value_after("eval step=30", "tokens"));

  const std::vector<std::string> generate = {"generate", "--model",  out / "model", "--prompt",
                                             "the cat",  "--tokens", "20"};
  const auto one = finish(start(generate)),
             two = finish(start(generate + std::vector<std::string>{"--seed", "0"}));
  const auto other = finish(start(generate + std::vector<std::string>{"--seed", "5"}));
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, testing::StartsWith("the cat"));
  EXPECT_GT(one.out.size(), 20u);
  EXPECT_EQ(one.out, two.out);
  EXPECT_NE(one.out, other.out);

  const auto listed = finish(start({"ckpt", "verify", out / "ckpt"}));
  EXPECT_EQ(listed.code, 0);
  EXPECT_THAT(listed.out, ContainsRegex("STEP +SIZE +STATE\n30 +[0-9.]+ [KM]iB +whole\n"));
  const auto converted = finish(start({"ckpt", "convert", out / "ckpt", out / "slim", "--weights-only"}));
  EXPECT_EQ(converted.code, 0) << converted.err;
  EXPECT_THAT(converted.out,
              ContainsRegex("step 30 of .*: [0-9]+ tensors, [0-9.]+ [KM]iB in 1 file in .*/step-30"));
  const auto slim =
      finish(start({"eval", "--model", out / "slim", "--data", shared("held-out"), "--windows", "64"}));
  EXPECT_EQ(slim.out, evaluated.out) << slim.err;
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "slim"})).err,
              HasSubstr("is there already"));
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "x", "--step", "7"})).err,
              HasSubstr("step-7/manifest.json is not there"));
  fs::resize_file(out / "ckpt/step-30/rank-1.bin", 100);
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "x"})).err,
              HasSubstr("damaged: step-30/rank-1.bin has 100 bytes"));
  const auto damaged = finish(start({"ckpt", "ls", out / "ckpt"}));
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, HasSubstr("damaged: step-30/rank-1.bin has 100 bytes"));
}

// Out as a Hugging Face folder, and in again: as it is, and to train on in another layout.
TEST_F(Program, GoesThroughHuggingFacesForm) {
  const TempDir out;
  const auto trained = finish(
      start(train_arguments(shared("train"), sets({"data.tokenizer=" + shared("tokenizer/tokenizer.model"),
                                                   "output.dir=" + out / "model", "train.steps=20"}))));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string hf = out / "hf", half = out / "half", again = out / "again";
  const auto exported = finish(start(
      {"export", "--model", out / "model", "--output", hf, "--dtype", "fp32", "--max-shard-size", "50KB"}));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out,
              ContainsRegex("^export step=20 path=.* dtype=float32 parameters=[0-9]+ files=[2-9] "));
  EXPECT_TRUE(fs::exists(hf + "/model.safetensors.index.json"));

  // The same model by every command.
  const auto same = [&](std::vector<std::string> command, const std::vector<std::string>& more) {
    std::vector<std::string> outputs;
    for (const std::string& folder : {out / "model", hf}) {
      const auto done = finish(start(command + std::vector<std::string>{"--model", folder} + more));
      EXPECT_EQ(done.code, 0) << done.err;
      outputs.push_back(done.out.substr(done.out.find("split=") + 1));  // behind eval's step
    }
    EXPECT_EQ(outputs[0], outputs[1]);
    EXPECT_GT(outputs[0].size(), 20u);
  };
  same({"eval"}, {"--data", shared("held-out"), "--sequence", "16"});
  same({"generate"}, {"--prompt", "the cat", "--tokens", "8"});
  same({"logits"}, {"--tokens", "5,6,7"});

  // bf16 twice is bf16 once.
  ASSERT_EQ(finish(start({"export", "--model", hf, "--output", half})).code, 0);
  ASSERT_EQ(finish(start({"export", "--model", half, "--output", again})).code, 0);
  EXPECT_EQ(read_file(half + "/model.safetensors").value(), read_file(again + "/model.safetensors").value());
  EXPECT_EQ(read_file(again + "/tokenizer.model").value(),
            read_file(shared("tokenizer/tokenizer.model")).value());
  // The last weight becomes NaN: no command works with it.
  const std::string broken = out / "broken";
  fs::copy(again, broken, fs::copy_options::recursive);
  std::string weights = *read_file(broken + "/model.safetensors");
  weights.replace(weights.size() - 2, 2, "\xc0\x7f");
  ASSERT_TRUE(write_file_atomic(broken + "/model.safetensors", weights));
  for (const auto& command : {std::vector<std::string>{"eval", "--data", shared("held-out")},
                              {"generate", "--prompt", "the cat"},
                              {"logits", "--tokens", "5"},
                              {"export", "--output", out / "none"}}) {
    const auto run = finish(start(command + std::vector<std::string>{"--model", broken}));
    EXPECT_EQ(run.code, 1) << command[0];
    EXPECT_THAT(run.err, HasSubstr(broken + ": tensor ")) << command[0];
    EXPECT_THAT(run.err, HasSubstr(" has a weight that is NaN")) << command[0];
    EXPECT_EQ(run.out, "") << command[0];
  }
  EXPECT_FALSE(fs::exists(out / "none"));
  const auto twice = finish(start({"export", "--model", hf, "--output", half}));
  EXPECT_EQ(twice.code, 1);
  EXPECT_THAT(twice.err, HasSubstr("is there already; choose another folder"));

  const auto went_on =
      finish(start(std::vector<std::string>{"train", "--job-root", "/nonexistent", "--nproc", "2"} +
                   sets({"model.from=" + hf, "data.train=" + shared("train"), "train.sequence=16",
                         "mesh.tp=2", "train.batch=4", "train.steps=1",
                         "data.validation=" + shared("held-out"), "eval.windows=1000"})));
  EXPECT_EQ(went_on.code, 0) << went_on.err;
  const auto evaluated =
      finish(start({"eval", "--model", hf, "--data", shared("held-out"), "--sequence", "16"}));
  const auto loss_in = [](const std::string& text) {
    return std::atof(text.c_str() + text.find(" loss=") + 6);
  };
  EXPECT_NEAR(loss_in(went_on.out.substr(went_on.out.find("eval step=0"))), loss_in(evaluated.out), 1e-3);
}

TEST_F(Program, ExportsAnyStepOfACheckpoint) {
  const TempDir out;
  const auto trained = finish(start(train_arguments(
      shared("train"), sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=2", "train.steps=4"}))));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto weights = [&](const std::string& name) {
    return read_file(out / name + "/model.safetensors").value_or("");
  };
  const auto newest = finish(start({"ckpt", "export", out / "ckpt", out / "newest"}));
  EXPECT_THAT(newest.out, testing::StartsWith("export step=4 ")) << newest.err;
  const auto second = finish(start({"ckpt", "export", out / "ckpt", out / "second", "--step", "2"}));
  EXPECT_THAT(second.out, testing::StartsWith("export step=2 ")) << second.err;
  const auto other =
      finish(start({"export", "--model", out / "ckpt", "--output", out / "other", "--step", "2"}));
  EXPECT_THAT(other.out, testing::StartsWith("export step=2 ")) << other.err;
  EXPECT_GT(weights("second").size(), 1000u);
  EXPECT_EQ(weights("second"), weights("other"));
  EXPECT_NE(weights("second"), weights("newest"));
  const auto missing = finish(start({"ckpt", "export", out / "ckpt", out / "x", "--step", "3"}));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("step-3/manifest.json is not there"));
}

// A stage may send and receive at once what its neighbours receive first and answer later: over sockets, too.
TEST_F(Program, PipelinesOverSocketsTrainAsOneRank) {
  const auto steps = [&](const std::vector<std::string>& more) {
    const auto run = finish(start(train_arguments(
        shared("train"),
        sets({"model.layers=3", "train.batch=8", "train.steps=3", "log.every=1", "run.timeout_s=20"}) +
            more)));
    EXPECT_EQ(run.code, 0) << run.err;
    std::string lines;
    for (const auto line : split(run.out, '\n')) {
      if (line.starts_with("step=")) lines.append(line.substr(0, line.find(" lr="))).append("\n");
    }
    return lines;
  };
  const std::string alone = steps({});
  EXPECT_THAT(alone, HasSubstr("step=3/3 loss="));
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    EXPECT_EQ(
        steps(sets({"mesh.pp=3", "mesh.schedule=" + schedule}) + std::vector<std::string>{"--nproc", "3"}),
        alone)
        << schedule;
  }
}

// What only a rank can see, and is the caller's to mend, has the exit code of wrong arguments, too.
TEST_F(Program, ARankThatIsGivenTheWrongThingEndsAsWrongArgumentsDo) {
  const auto arguments = train_arguments(shared("train"), sets({"train.sequence=1000000"}));
  const auto run = finish(start(arguments + std::vector<std::string>{"--nproc", "2"}));
  EXPECT_EQ(run.code, 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("tokens, one window of 1000000 needs 1000001"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which begin with threads of their own
// There is no room for the stack of a thread: the standard library throws where the first save begins.
TEST_F(Program, WhatALibraryThrowsIsTheErrorOfARank) {
  const TempDir dir;
  std::vector<std::string> argv = {"/bin/sh", "-c", R"(ulimit -s 1000000000000 || exit 99; exec "$@")", "sh",
                                   MUSTER_TRAIN_PROGRAM};
  const auto arguments = train_arguments(
      shared("train"), sets({"train.steps=2", "checkpoint.every=1", "checkpoint.dir=" + dir / "ckpt"}));
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.insert(argv.end(), {"--rank", "0", "--store", "127.0.0.1:1"});  // as an agent starts it
  const auto child = spawn(argv);
  ASSERT_TRUE(child) << child.error().message;
  const auto run = finish(*child);
  if (run.code == 99) GTEST_SKIP() << "the limit of the stack cannot be raised here";
  EXPECT_EQ(run.code, kExitFailed) << run.out << run.err;
  EXPECT_THAT(run.err, testing::StartsWith("muster-train: rank 0: Resource temporarily unavailable"));
}
#endif

// The file of rank 1 cannot be opened before the test lets go of it.
TEST_F(Program, ADiskThatHangsIsNoLostPeer) {
  const TempDir dir;
  const std::string step = dir / "ckpt/step-1";
  ASSERT_TRUE(make_directories(step));
  ASSERT_TRUE(write_file_atomic(step + "/rank-1.bin", "old"));
  signal(SIGIO, SIG_IGN);
  const auto held = open_file(step + "/rank-1.bin", O_RDONLY);
  ASSERT_TRUE(held);
  if (fcntl(held->get(), F_SETLEASE, F_RDLCK) != 0) GTEST_SKIP() << "no file leases here";
  auto arguments = train_arguments(
      shared("train"),
      sets({"train.steps=2", "checkpoint.every=1", "run.timeout_s=2", "checkpoint.dir=" + dir / "ckpt"}));
  arguments.insert(arguments.end(), {"--nproc", "2"});
  const auto run = finish(start(arguments));
  EXPECT_EQ(run.code, kExitFailed) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rank 1: nothing was written for 2.0 s: the disk hangs"));
}

// One rank is killed in the middle; the same command goes on, and ends with the bits of a run without the
// fault.
TEST_F(Program, AKilledRankIsNamedAndTheRunGoesOnBitwise) {
  const TempDir out;
  const auto arguments = [&](const std::string& name) {
    return train_arguments(shared("train"), sets({"checkpoint.dir=" + out / name, "checkpoint.every=5",
                                                  "train.steps=120", "log.every=1"}) +
                                                std::vector<std::string>{"--nproc", "2"});
  };
  const Child agent = start(arguments("parts"));
  read_until(agent.out, "start ranks=2");
  std::vector<pid_t> ranks;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto pid = parse_int(entry.path().filename().string());
    if (!pid) continue;
    const auto stat = read_file("/proc/" + std::to_string(*pid) + "/stat", 1 << 16);
    if (!stat) continue;
    const auto fields = split(std::string_view(*stat).substr(stat->rfind(')') + 2), ' ');
    if (parse_int(fields[1]) == agent.pid) ranks.push_back(static_cast<pid_t>(*pid));
  }
  ASSERT_EQ(ranks.size(), 2u);
  const std::string said = read_until(agent.out, "checkpoint step=5 ");
  EXPECT_THAT(said, HasSubstr("step=5/120"));
  const auto begin = boot_time();
  kill(std::max(ranks[0], ranks[1]), SIGKILL);
  const auto broken = finish(agent);
  EXPECT_LT(boot_time() - begin, Millis(5000));
  EXPECT_EQ(broken.code, 128 + SIGKILL);
  EXPECT_THAT(broken.err, ContainsRegex("rank [01] was killed by signal 9 .Killed."));

  const auto again = finish(start(arguments("parts"))), whole = finish(start(arguments("whole")));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(again.out, ContainsRegex("resume step=[0-9]+ samples="));
  EXPECT_EQ(checksums(out / "parts/step-120"), checksums(out / "whole/step-120"));
}

// A second run in the folder ends before its first step; the first one goes on, and may be looked at. Killed,
// it leaves no lock behind.
TEST_F(Program, TwoRunsInOneFolderAreRefused) {
  const TempDir out;
  const auto arguments =
      train_arguments(shared("train"), sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=5",
                                             "train.steps=1000000", "log.every=1", "run.timeout_s=2"}) +
                                           std::vector<std::string>{"--nproc", "2"});
  const Child first = start(arguments);
  read_until(first.out, "checkpoint step=5 ");
  const auto second = finish(start(arguments));
  EXPECT_EQ(second.code, kExitFailed);
  EXPECT_THAT(second.err, HasSubstr("checkpoint.dir = " + out / "ckpt is in use by process "));
  EXPECT_THAT(second.out, HasSubstr("notice: checkpoint.dir = " + out / "ckpt is in use by process "));
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "ckpt", "--step", "5"})).code,
              kExitFailed);
  EXPECT_EQ(finish(start({"ckpt", "ls", out / "ckpt"})).code, 0);
  kill(first.pid, SIGKILL);  // its ranks die with it
  EXPECT_EQ(finish(first).code, 128 + SIGKILL);
  const Child again = start(arguments);
  EXPECT_THAT(read_until(again.out, "loss="), HasSubstr("resume step="));
  kill(again.pid, SIGTERM);
  EXPECT_EQ(finish(again).code, kExitStopped);
}

// Nobody writes into the FIFO: reading it would take for ever.
TEST_F(Program, AFileOfAModelThatIsNoFileIsRefusedByName) {
  const TempDir out;
  ASSERT_TRUE(make_directories(out / "hf"));
  ASSERT_TRUE(write_file_atomic(out / "hf/model.safetensors", "12345678"));
  ASSERT_EQ(mkfifo((out / "hf/config.json").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((out / "fifo.mts").c_str(), 0600), 0);
  const std::string config = out / "hf/config.json is a FIFO; a regular file is needed";
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& says) {
    const auto run = finish(start(arguments));
    EXPECT_EQ(run.code, kExitUsage) << join(arguments, " ");
    EXPECT_THAT(run.err, HasSubstr(says)) << join(arguments, " ");
  };
  refused({"eval", "--model", out / "hf", "--data", shared("held-out")}, config);
  refused({"export", "--model", out / "hf", "--output", out / "x"}, config);
  refused(train_arguments(shared("train"), sets({"model.from=" + out / "hf"})), config);
  refused(train_arguments(out.path(), {}), out / "fifo.mts is a FIFO");
  refused({"plan", out / "fifo.mts", "--job-root", "/nonexistent"}, out / "fifo.mts is a FIFO");
}

TEST_F(Program, SigtermSavesAndStops) {
  const TempDir out;
  const auto arguments = train_arguments(
      shared("train"),
      sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=0", "train.steps=1000000", "log.every=1"}));
  {
    const Child agent = start(arguments + std::vector<std::string>{"--nproc", "2"});
    read_until(agent.out, "step=1/1000000");
    kill(agent.pid, SIGTERM);
    kill(agent.pid, SIGINT);  // so soon it is the same request
    const auto run = finish(agent);
    EXPECT_EQ(run.code, 75) << run.err;
    EXPECT_THAT(run.out, ContainsRegex("checkpoint step=[0-9]+ path="));
    EXPECT_THAT(run.out, ContainsRegex("stopped at step [0-9]+ of 1000000; start again to go on"));
  }
  const Child agent =
      start(arguments + std::vector<std::string>{"--nproc", "2"}, {{"TRAINING_JOB_NAME", "demo"}});
  EXPECT_THAT(read_until(agent.out, "resume step="), testing::Not(HasSubstr("step=1/")));
  read_until(agent.out, "loss=");
  kill(agent.pid, SIGTERM);
  const auto run = finish(agent);
  EXPECT_EQ(run.code, 0) << run.err;  // a job that was asked to stop has not failed
  EXPECT_THAT(run.out, HasSubstr("stopped at step"));
}

// Every step is saved, so each kill finds a save at some point of its way.
TEST_F(Program, KilledWhileSavingItGoesOnBitwise) {
  const TempDir out;
  const auto arguments = [&](const std::string& name, const std::string& every) {
    return train_arguments(shared("train"), sets({"checkpoint.dir=" + out / name, "checkpoint.every=" + every,
                                                  "train.steps=40", "log.every=1", "mesh.zero=1"}) +
                                                std::vector<std::string>{"--nproc", "2"});
  };
  std::int64_t last = 0;
  for (const int step : {3, 8, 14, 21, 29}) {
    const Child agent = start(arguments("parts", "1"));
    const std::string said = read_until(agent.out, "step=" + std::to_string(step) + "/40");
    kill(agent.pid, SIGKILL);  // its ranks die with it
    EXPECT_EQ(finish(agent).code, 128 + SIGKILL);
    if (last > 0) {
      EXPECT_THAT(said, ContainsRegex("resume step=[0-9]+ samples="));
    }
    auto latest = latest_checkpoint(out / "parts", OnDamage::refuse);
    ASSERT_TRUE(latest) << latest.error().message;
    if (!latest->reader) continue;  // killed before the first counted
    EXPECT_TRUE(latest->reader->verify());
    EXPECT_GE(latest->reader->info().step, last);
    last = latest->reader->info().step;
  }
  EXPECT_GT(last, 10);
  const auto again = finish(start(arguments("parts", "1"))), whole = finish(start(arguments("whole", "0")));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(checksums(out / "parts/step-40"), checksums(out / "whole/step-40"));
}

// Every step is saved, so the signal finds a save in flight: it is finished, then the last step is saved too.
TEST_F(Program, SigtermWhileSavingLosesNothing) {
  const TempDir out;
  const auto arguments = train_arguments(
      shared("train"),
      sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=1", "train.steps=1000000", "log.every=1"}) +
          std::vector<std::string>{"--nproc", "2"});
  const Child agent = start(arguments);
  read_until(agent.out, "step=3/1000000");
  kill(agent.pid, SIGTERM);
  const auto run = finish(agent);
  EXPECT_EQ(run.code, 75) << run.err;
  const auto at = run.out.find("stopped at step ");
  ASSERT_NE(at, std::string::npos) << run.out;
  const std::string step(split(std::string_view(run.out).substr(at), ' ')[3]);
  EXPECT_THAT(run.out, HasSubstr("checkpoint step=" + step + " path="));
  const auto listed = finish(start({"ckpt", "verify", out / "ckpt"}));
  EXPECT_EQ(listed.code, 0) << listed.out;
  EXPECT_THAT(listed.out, ContainsRegex("STATE\n" + step + " +[0-9.]+ [KM]iB +whole\n"));
  const Child again = start(arguments);
  EXPECT_THAT(read_until(again.out, " samples="), HasSubstr("resume step=" + step));
  read_until(again.out, "loss=");
  kill(again.pid, SIGTERM);
  EXPECT_EQ(finish(again).code, 75);
}

// Each process is a rank, as torchrun starts them; rank 0 hosts the store, since nobody says that an agent
// does.
TEST_F(Program, UnderTorchrunsVariablesAProcessIsARank) {
  auto listener = listen_for_store("127.0.0.1", 0);
  const std::string port = std::to_string((*start_store("127.0.0.1", *std::move(listener)))->port());
  std::vector<Child> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(
        start(train_arguments(shared("train"), sets({"train.steps=3"})), {{"RANK", rank},
                                                                          {"LOCAL_RANK", rank},
                                                                          {"WORLD_SIZE", "2"},
                                                                          {"LOCAL_WORLD_SIZE", "2"},
                                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                                          {"MASTER_PORT", port}}));
  }
  const auto first = finish(ranks[0]), second = finish(ranks[1]);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.out, HasSubstr("start ranks=2 "));
  EXPECT_THAT(first.out, HasSubstr("done step=3/3"));
  EXPECT_EQ(second.out, "");
}

// Two nodes as Muster's runner starts them, on two loopback addresses, with everything under a job's root.
class Job : public Program {
 protected:
  void make_node(const std::string& root, int node, const std::string& hyperparameters) const {
    fs::create_directories(root + "/input/config");
    fs::create_directories(root + "/input/data");
    fs::create_directory_symlink(shared("train"), root + "/input/data/train");
    fs::create_directory_symlink(shared("held-out"), root + "/input/data/validation");
    fs::create_directory_symlink(shared("tokenizer"), root + "/input/data/tokenizer");
    ASSERT_TRUE(write_file_atomic(root + "/input/config/hyperparameters.json", hyperparameters));
    const std::string host = "127.0.0." + std::to_string(node + 1);
    ASSERT_TRUE(write_file_atomic(root + "/input/config/resourceconfig.json",
                                  R"({"current_host":")" + host + R"(","hosts":["127.0.0.1","127.0.0.2"]})"));
  }
  static Variables node_variables(int node, int port) {
    const std::string rank = std::to_string(node);
    return {{"TRAINING_JOB_NAME", "demo"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)},
            {"WORLD_SIZE", "2"},
            {"RANK", rank},
            {"LOCAL_RANK", "0"},
            {"LOCAL_WORLD_SIZE", "1"},
            {"NODE_RANK", rank}};
  }
  static int free_port() {
    auto listener = listen_for_store("127.0.0.1", 0);
    auto store = start_store("127.0.0.1", *std::move(listener));
    return (*store)->port();
  }
};

constexpr char kHyperparameters[] =
    R"({"model.preset":"\"tiny\"","train.sequence":"16","train.batch":"4","train.micro_batch":"2","run.threads":"1",
        "train.steps":"12","checkpoint.every":"5","optim.lr":"0.01","sagemaker_job_name":"\"x\""})";

TEST_F(Job, TwoNodesTrainFromOptMl) {
  const TempDir roots;
  const int port = free_port();
  std::vector<Child> nodes;
  for (int node : {0, 1}) {
    const std::string root = roots / std::to_string(node);
    make_node(root, node, kHyperparameters);
    nodes.push_back(start({"train", "--job-root", root}, node_variables(node, port)));
  }
  const auto first = finish(nodes[0]), second = finish(nodes[1]);
  ASSERT_EQ(first.code, 0) << first.out << first.err;
  ASSERT_EQ(second.code, 0) << second.out << second.err;
  EXPECT_THAT(first.out, HasSubstr("start ranks=2 "));
  EXPECT_THAT(first.out, HasSubstr("done step=12/12"));
  EXPECT_THAT(first.err, HasSubstr("notice: hyperparameter sagemaker_job_name is ignored"));
  EXPECT_EQ(second.out, "");
  EXPECT_TRUE(fs::exists(roots / "0/model/config.json"));
  EXPECT_TRUE(fs::exists(roots / "0/model/tokenizer.model"));
  EXPECT_FALSE(fs::exists(roots / "1/model"));
  // Each node holds its own share; together they are the checkpoint, as the bucket brings them together.
  EXPECT_THAT(finish(start({"ckpt", "verify", roots / "0/checkpoints"})).out,
              HasSubstr("rank-1.bin is missing"));
  for (const char* step : {"step-10", "step-12"}) {
    fs::copy(roots / "1/checkpoints" + "/" + step, roots / "0/checkpoints" + "/" + step,
             fs::copy_options::recursive | fs::copy_options::skip_existing);
  }
  const auto verified = finish(start({"ckpt", "verify", roots / "0/checkpoints"}));
  EXPECT_EQ(verified.code, 0) << verified.out;
  EXPECT_THAT(finish(start({"generate", "--model", roots / "0/model", "--tokens", "5"})).code, 0);
}

// It is still reading its data, and the other node never comes.
TEST_F(Job, AStopBeforeTheRanksStartIsAStop) {
  const TempDir root;
  make_node(root.path(), 0, kHyperparameters);
  const Child node = start({"train", "--job-root", root.path()}, node_variables(0, free_port()));
  read_until(node.err, "notice: hyperparameter");
  kill(node.pid, SIGTERM);
  const auto run = finish(node);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("stopped without saving: asked to stop while starting\n"));
  EXPECT_FALSE(fs::exists(root / "output/failure"));
}

TEST_F(Job, FailuresBecomeTheReason) {
  const TempDir roots;
  const std::string root = roots / "0";
  make_node(root, 0, R"({"train.stepz": "3"})");
  const auto unknown = finish(start({"train", "--job-root", root}));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(*read_file(root + "/output/failure"),
              HasSubstr("hyperparameters.json: unknown key train.stepz; did you mean train.steps?"));

  ASSERT_TRUE(
      write_file_atomic(root + "/input/config/resourceconfig.json", R"({"current_host":"h","hosts":["h"]})"));
  ASSERT_TRUE(
      write_file_atomic(root + "/input/config/hyperparameters.json", R"({"data.train": "/no/such/folder"})"));
  const auto missing = finish(start({"train", "--job-root", root}));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(*read_file(root + "/output/failure"),
              HasSubstr("rank 0 ended with exit code 1: muster-train: rank 0: tokens of /no/such/folder"));

  const std::string resources = root + "/input/config/resourceconfig.json";
  fs::remove(resources);
  fs::create_directory(resources);
  EXPECT_EQ(finish(start({"train", "--job-root", root})).code, 2);
  EXPECT_THAT(*read_file(root + "/output/failure"), HasSubstr(resources));
}

TEST(CommandLine, NumbersOutsideOfTheirLimitsAreRefusedWithBoth) {
  const std::vector<std::string> eval = {"eval", "--model", "x", "--data", "x"},
                                 logits = {"logits", "--model", "x"},
                                 exporting = {"export", "--model", "x", "--output", "y"};
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& message) {
    const auto run = finish(start(arguments));
    EXPECT_EQ(run.code, 2) << message;
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, testing::StartsWith(message + "\n"));
  };
  refused(eval + std::vector<std::string>{"--windows", "0"},
          "--windows: \"0\" is not a whole number from 1 to 1000000000000");
  refused(eval + std::vector<std::string>{"--sequence", "0"},
          "--sequence: \"0\" is not a whole number from 1 to 1048576");
  refused({"generate", "--model", "x", "--temperature", "nan"},
          "--temperature: \"nan\" is not a number from 0 to 100");
  for (const char* size : {"-1", "0"}) {
    refused(exporting + std::vector<std::string>{"--max-shard-size", size},
            "--max-shard-size: \"" + std::string(size) +
                "\" is not a size from 1000 to 1000000000000000 bytes, for example 500MB or 5GB");
  }
  refused(logits + std::vector<std::string>{"--tokens", "99999999999999999999"},
          "--tokens: \"99999999999999999999\" is not a whole number from 0 to 2147483647");
  refused(logits + std::vector<std::string>{"--tokens", "1,,2"},
          "--tokens: \"\" is not a whole number from 0 to 2147483647, in 1,,2");
}

TEST(CommandLine, BadArgumentsAndHelp) {
  EXPECT_EQ(finish(start({})).code, 2);
  EXPECT_EQ(finish(start({"fly"})).code, 2);
  const auto help = finish(start({"--help"}));
  EXPECT_EQ(help.code, 0);
  for (const char* word :
       {"train", "eval", "generate", "export", "logits", "config", "ckpt", "version", "Exit codes"})
    EXPECT_THAT(help.out, HasSubstr(word));
  EXPECT_THAT(finish(start({"train", "--help"})).out, testing::Not(HasSubstr("--local-rank")));
  EXPECT_THAT(finish(start({"version"})).out, testing::StartsWith("muster-train "));
  const auto nothing = finish(start({"train", "--job-root", "/nonexistent"}));
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("data.train is not set"));
  // What only the ranks find out is shown once, too.
  const auto absent = finish(start({"--nproc", "3", "--job-root", "/nonexistent", "--set",
                                    "data.train=/no/such", "--set", "train.batch=12"}));
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.err,
              ContainsRegex("^(\\[rank [12]\\] )?muster-train: rank [0-2]: tokens of /no/such: [^\n]*\n"
                            "rank [0-2] ended with exit code 1\n$"));
  const auto uneven = finish(start({"--nproc", "3", "--job-root", "/nonexistent", "--set", "data.train=x"}));
  EXPECT_EQ(uneven.code, 2);
  EXPECT_THAT(uneven.err, HasSubstr("multiple of 12; 12 and 24 are the nearest"));
  const auto explained =
      finish(start({"config", "--explain", "--set", "train.steps=7", "--job-root", "/nonexistent"}));
  EXPECT_EQ(explained.code, 0);
  EXPECT_THAT(explained.out, ContainsRegex("train.steps +7 +trajectory +--set"));
  EXPECT_THAT(finish(start({"train", "--job-root", "/nonexistent", "--set", "data.train=x", "--accept",
                            "optim.lr,train.stepz"}))
                  .err,
              HasSubstr("--accept: unknown key train.stepz; did you mean train.steps? all keys: "));
  EXPECT_EQ(finish(start({"ckpt", "ls", "/nonexistent"})).code, 1);
  EXPECT_THAT(finish(start({"eval", "--model", "/nonexistent", "--data", "x"})).err,
              HasSubstr("no model in /nonexistent"));
}

}  // namespace
}  // namespace muster::train
