#include "train/loop/journal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/text.h"

namespace muster::train {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

struct Said {
  std::vector<std::string> lines;
  JournalOptions options(const std::string& path, double peak = 0) {
    return {.path = path,
            .steps = 10,
            .every = 4,
            .step_tokens = 100,
            .flop_per_token = 1e6,
            .peak_flop_s = peak,
            .say = [this](const std::string& line) { lines.push_back(line); }};
  }
};

void run_steps(Journal& journal, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) {
    journal.step({.step = step,
                  .loss = 3.0 + static_cast<double>(step),
                  .gradient_norm = 0.5,
                  .learning_rate = 1e-3,
                  .tokens = static_cast<std::uint64_t>(step) * 100});
  }
}

// "step 1, step 2, eval 2" of a file.
std::string told(const std::string& path) {
  std::string out;
  const std::string text = *read_file(path);
  for (const auto line : split(text, '\n')) {
    if (line.empty()) continue;
    const auto record = json::parse_object(line);
    EXPECT_TRUE(record) << line;
    if (!record) continue;
    out += (out.empty() ? "" : ", ") + *json::opt_string(*record, "type") + " " +
           std::to_string(*json::opt_int(*record, "step"));
  }
  return out;
}

// A device or a pipe is written to, a link is followed: neither is replaced by a file.
TEST(Journal, WritesIntoWhatIsNotAFile) {
  const TempDir folder;
  Said said;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  const UniqueFd reader(open((folder / "pipe").c_str(), O_RDWR | O_NONBLOCK));
  ASSERT_TRUE(write_file_atomic(folder / "file", ""));
  ASSERT_EQ(symlink((folder / "file").c_str(), (folder / "link").c_str()), 0);
  for (const char* name : {"pipe", "link"}) {
    Journal journal(said.options(folder / name));
    ASSERT_TRUE(journal.begin(0)) << name;
    run_steps(journal, 1, 2);
  }
  char got[1000] = {};
  EXPECT_GT(read(reader.get(), got, sizeof got - 1), 0);
  EXPECT_THAT(got, HasSubstr("\"step\":2"));
  EXPECT_EQ(told(folder / "file"), "step 1, step 2");
  EXPECT_EQ(std::filesystem::read_symlink(folder / "link"), folder / "file");
}

// A mistyped path costs nobody a file, and a run that starts anew not the metrics of the last one.
TEST(Journal, OverwritesNoOtherFile) {
  const TempDir folder;
  Said said;
  for (const char* text : {"a text", "{\"manifest\":{}}\n", "\n"}) {
    ASSERT_TRUE(write_file_atomic(folder / "file", text));
    const auto begun = Journal(said.options(folder / "file")).begin(0);
    ASSERT_FALSE(begun) << text;
    EXPECT_THAT(begun.error().message, HasSubstr("log.metrics = " + folder / "file"));
    EXPECT_EQ(*read_file(folder / "file"), text);
  }
  for (const int steps : {2, 3}) {
    Journal journal(said.options(folder / "m"));
    ASSERT_TRUE(journal.begin(0));
    run_steps(journal, 1, steps);
  }
  EXPECT_EQ(told(folder / "m"), "step 1, step 2, step 3");
  EXPECT_EQ(told(folder / "m.before"), "step 1, step 2");
  ASSERT_TRUE(write_file_atomic(folder / "torn", "{\"ty"));
  EXPECT_TRUE(Journal(said.options(folder / "torn")).begin(0));
}

TEST(Journal, ALineNowAndThenAndARecordAStep) {
  const TempDir folder;
  Said said;
  Journal journal(said.options(folder / "new/metrics.jsonl", 1e12));
  ASSERT_TRUE(journal.begin(0));
  journal.evaluated(0, {.loss = 4, .bits_per_byte = 2, .tokens = 7, .bytes = 9});
  run_steps(journal, 1, 10);
  journal.saved({.step = 8, .path = "c/step-8", .stall_s = 0.25, .seconds = 1.5});
  ASSERT_EQ(said.lines.size(), 6u);
  EXPECT_EQ(said.lines[0], "eval step=0 split=held-out loss=4.0000 bits_per_byte=2.0000 tokens=7 bytes=9");
  EXPECT_THAT(said.lines[1], testing::StartsWith("step=1/10 "));
  EXPECT_THAT(said.lines[2],
              ContainsRegex("^step=4/10 loss=7.0000 grad_norm=0.5000 lr=1.000e-03 tokens_per_s=[0-9]+ "
                            "peak_share=[0-9.]+ rss_mib=[0-9]+ left_s=[0-9]+$"));
  EXPECT_THAT(said.lines[4], HasSubstr("step=10/10 "));
  EXPECT_EQ(said.lines[5], "checkpoint step=8 path=c/step-8 stall_s=0.250 seconds=1.50");
  EXPECT_EQ(told(folder / "new/metrics.jsonl"),
            "eval 0, step 1, step 2, step 3, step 4, step 5, step 6, step 7, step 8, step 9, step 10, "
            "checkpoint 8");

  const std::string text = *read_file(folder / "new/metrics.jsonl");
  const auto record = *json::parse_object(split(text, '\n')[3]);
  EXPECT_EQ(*json::opt_double(record, "loss"), 6.0);
  EXPECT_EQ(*json::opt_int(record, "tokens"), 300);
  EXPECT_GT(*json::opt_int(record, "rss_bytes"), 1 << 20);
  EXPECT_GT(*json::opt_double(record, "seconds"), 0);
  // 1e6 FLOP a token of 1e12 a second.
  EXPECT_NEAR(*json::opt_double(record, "peak_share"), *json::opt_double(record, "tokens_per_s") * 1e-6,
              1e-9);
}

// No loss is told where there was none: a metric definition finds no number in the line.
TEST(Journal, AStepWithoutTargetsHasNoLoss) {
  const TempDir folder;
  Said said;
  Journal journal(said.options(folder / "m"));
  ASSERT_TRUE(journal.begin(0));
  journal.step({.step = 1, .learning_rate = 1e-3, .tokens = 100});
  EXPECT_THAT(said.lines[0],
              ContainsRegex("^step=1/10 loss=none grad_norm=none lr=1.000e-03 tokens_per_s=[0-9]+ "));
  EXPECT_THAT(said.lines[0], testing::Not(ContainsRegex("loss=[0-9.]+")));
  const auto record = *json::parse_object(trim(*read_file(folder / "m")));
  EXPECT_TRUE(record.at("loss").is_null());
  EXPECT_TRUE(record.at("grad_norm").is_null());
  EXPECT_EQ(*json::opt_int(record, "tokens"), 100);
  journal.evaluated(1, {.windows = 5});
  EXPECT_EQ(said.lines.back(), "eval step=1 split=held-out loss=none bits_per_byte=none tokens=0 bytes=0");
  EXPECT_THAT(*read_file(folder / "m"), HasSubstr(R"("loss":null,"bits_per_byte":null)"));
}

TEST(Journal, WithoutAPeakNoShareIsTold) {
  const TempDir folder;
  Said said;
  Journal journal(said.options(folder / "m"));
  ASSERT_TRUE(journal.begin(0));
  run_steps(journal, 1, 1);
  EXPECT_THAT(said.lines[0], testing::Not(HasSubstr("peak_share")));
  EXPECT_THAT(*read_file(folder / "m"), testing::Not(HasSubstr("peak_share")));
}

// Killed in the middle of a line at step 6; goes on from the checkpoint of step 4, which counted at step 6.
TEST(Journal, AResumedRunRepeatsNoStep) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  Said said;
  {
    Journal journal(said.options(path));
    ASSERT_TRUE(journal.begin(0));
    run_steps(journal, 1, 4);
    journal.evaluated(4, {});
    run_steps(journal, 5, 6);
    journal.saved({.step = 4, .path = "x"});
  }
  ASSERT_TRUE(write_file_atomic(path, *read_file(path) + R"({"type":"step","ste)"));
  {
    Journal journal(said.options(path));
    ASSERT_TRUE(journal.begin(4));
    journal.evaluated(4, {});
    run_steps(journal, 5, 5);
  }
  EXPECT_EQ(told(path), "step 1, step 2, step 3, step 4, checkpoint 4, eval 4, step 5");
  Journal journal(said.options(path));
  ASSERT_TRUE(journal.begin(0));  // anew
  EXPECT_EQ(told(path), "");
}

TEST(Journal, AFileThatCannotBeIsNamed) {
  Said said;
  Journal journal(said.options("/proc/x/metrics.jsonl"));
  EXPECT_THAT(journal.begin(0).error().message, HasSubstr("log.metrics = /proc/x/metrics.jsonl: "));
}

// No file may grow beyond 10 bytes.
TEST(Journal, AFullDiskEndsTheFileNotTheRun) {
  const TempDir folder;
  Said said;
  Journal journal(said.options(folder / "m"));
  ASSERT_TRUE(journal.begin(0));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{.rlim_cur = 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  run_steps(journal, 1, 4);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(said.lines[0], HasSubstr("ends here: write: File too large"));
  EXPECT_EQ(said.lines.size(), 3u);  // the notice once, steps 1 and 4
}

}  // namespace
}  // namespace muster::train
