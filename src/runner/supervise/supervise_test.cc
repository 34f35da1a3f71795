#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/file.h"
#include "runner/supervise/command.h"
#include "runner/supervise/lines.h"
#include "runner/supervise/pump.h"

namespace muster::runner {
namespace {

std::vector<std::string> lines_of(const std::vector<std::string>& pieces) {
  std::vector<std::string> out;
  LineSplitter splitter;
  const auto add = [&](std::string_view line) { out.emplace_back(line); };
  for (const auto& piece : pieces) splitter.feed(piece, add);
  splitter.finish(add);
  return out;
}

TEST(Lines, any_cutting_gives_the_same_lines) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of({}), Lines{});
  EXPECT_EQ(lines_of({"a\nb"}), (Lines{"a", "b"}));
  EXPECT_EQ(lines_of({"\n\n"}), (Lines{"", ""}));
  EXPECT_EQ(lines_of({"a", "b\nc", "\n", std::string("\0\xff\n", 3)}),
            (Lines{"ab", "c", std::string("\0\xff", 2)}));
  const std::string text = "one\n\ntwo three\r\nfour";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(lines_of({text.substr(0, cut), text.substr(cut)}), (Lines{"one", "", "two three\r", "four"}));
  }
}

TEST(Lines, long_lines_are_split_without_loss) {
  const std::string wide(1'000'000, 'x');
  for (const bool whole : {true, false}) {
    const auto lines = whole ? lines_of({wide + "\nend\n"})
                             : lines_of({wide.substr(0, 300'000), wide.substr(300'000), "\nend\n"});
    ASSERT_EQ(lines.size(), 5U);
    std::string joined;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_LE(lines[i].size(), kLineBytesMax);
      joined += lines[i];
    }
    EXPECT_EQ(joined, wide);
    EXPECT_EQ(lines[4], "end");
  }
}

TEST(Lines, tail_keeps_the_last) {
  Tail tail(3);
  EXPECT_TRUE(tail.empty());
  for (const auto* line : {"a", "b", " ", "c", "d"}) tail.add(line);
  EXPECT_EQ(tail.text(), "b\nc\nd");
}

struct Ended {
  std::string out;
  std::string err;
  int status = 0;
};

std::string read_all(int fd) {
  ::fcntl(fd, F_SETFL, 0);
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(fd, buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<std::size_t>(count));
  return text;
}

Result<Ended> run(const CommandSpec& spec) {
  MUSTER_TRY(auto command, start(spec));
  Ended ended;
  ended.out = read_all(command.out.get());
  ended.err = read_all(command.err.get());
  ::waitpid(command.pid, &ended.status, 0);
  return ended;
}

CommandSpec shell(const std::string& script) {
  CommandSpec spec;
  spec.words = {"sh", "-c", script};
  spec.environment = {{"PATH", "/usr/bin:/bin"}, {"GREETING", "hello world"}};
  return spec;
}

TEST(Command, environment_streams_folder_and_code) {
  auto spec =
      shell("echo \"$GREETING\"; pwd; echo oops >&2; cat; ps -o sid= -p $$ | tr -d ' '; echo $$; exit 3");
  spec.folder = "/tmp";
  const auto ended = run(spec);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(ended->err, "oops\n");
  EXPECT_EQ(ended->out.substr(0, 17), "hello world\n/tmp\n");
  EXPECT_EQ(WEXITSTATUS(ended->status), 3);
}

TEST(Command, reasons_of_a_command_that_cannot_start) {
  TempDir folder;
  const auto write = [&](const char* name, const char* text, mode_t mode) {
    std::ofstream(folder / name) << text;
    ::chmod((folder / name).c_str(), mode);
  };
  write("plain", "#!/bin/sh\n", 0644);
  write("interpreter", "#!/nowhere/python9\n", 0755);
  write("bare", "\necho ran \"$@\"\n", 0755);
  const auto reason = [&](std::vector<std::string> words) {
    auto spec = shell("");
    spec.words = std::move(words);
    const auto ended = run(spec);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return ended ? "started: " + ended->out : ended.error().message;
  };
  EXPECT_NE(reason({"muster-no-such"}).find("command \"muster-no-such\" not found in PATH (/usr/bin:/bin)"),
            std::string::npos);
  EXPECT_NE(reason({"/nowhere/x"}).find("\"/nowhere/x\" not found on the node"), std::string::npos);
  EXPECT_NE(reason({folder / "plain"}).find("is not executable"), std::string::npos);
  EXPECT_NE(reason({folder / "interpreter"}).find("interpreter of its first line is missing"),
            std::string::npos);
  EXPECT_NE(reason({}).find("no command to run"), std::string::npos);
  EXPECT_EQ(reason({folder / "bare", "a", "b c"}), "started: ran a b c\n");  // a script without #! line
  auto spec = shell("exit 0");
  spec.folder = "/nowhere";
  EXPECT_NE(run(spec).error().message.find("working directory /nowhere"), std::string::npos);
  spec = shell("exit 0");
  spec.become = [] { return EPERM; };
  EXPECT_NE(run(spec).error().message.find("cannot take the job's user"), std::string::npos);
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

TEST(Command, no_descriptor_or_signal_mask_is_inherited) {
  UniqueFd leak(::open("/dev/null", O_RDONLY));  // without O_CLOEXEC
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto ended = run(shell("ls /proc/self/fd | wc -l; grep SigBlk /proc/self/status"));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(ended);
  EXPECT_NE(ended->out.find("4\n"), std::string::npos) << ended->out;  // 0, 1, 2 and ls's own
  EXPECT_NE(ended->out.find("SigBlk:\t0000000000000000"), std::string::npos) << ended->out;
}

TEST(Pump, both_streams_and_the_tail) {
  auto command = start(
      shell("i=0; while [ $i -lt 3000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; printf last"));
  ASSERT_TRUE(command);
  std::vector<std::string> lines;
  int pauses = 0;
  OutputPump pump(
      *command, [&](std::string_view line) { lines.emplace_back(line); }, [&] { ++pauses; });
  pump.finish(Millis{20'000});
  ::waitpid(command->pid, nullptr, 0);
  EXPECT_EQ(lines.size(), 6001U);
  EXPECT_EQ(pump.tail().substr(pump.tail().size() - 8), "err 2999");
  EXPECT_GT(pauses, 0);
}

TEST(Pump, a_process_that_holds_the_pipe_does_not_hold_the_runner) {
  auto command = start(shell("echo first; exec sleep 1000"));
  ASSERT_TRUE(command);
  std::vector<std::string> lines;
  OutputPump pump(
      *command, [&](std::string_view line) { lines.emplace_back(line); }, [] {});
  pump.finish(Millis{100});
  EXPECT_EQ(lines, std::vector<std::string>{"first"});
  EXPECT_EQ(pump.tail(), "first");  // stderr was silent
  signal_group(command->pid, SIGKILL);
  ::waitpid(command->pid, nullptr, 0);
}

TEST(Command, a_child_that_left_its_session_is_killed_too) {
  ASSERT_TRUE(become_supervisor());
  auto command = start(shell("setsid sh -c 'sleep 1000 & sleep 1000' & echo up; sleep 1000"));
  ASSERT_TRUE(command);
  pollfd ready{command->out.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
  kill_everything();
  EXPECT_EQ(read_all(command->out.get()), "up\n");  // returns: nobody holds the pipe
  int killed = 0;
  int status = 0;
  while (::waitpid(-1, &status, 0) > 0) killed += WIFSIGNALED(status) ? 1 : 0;
  EXPECT_GE(killed, 2);
}

}  // namespace
}  // namespace muster::runner
