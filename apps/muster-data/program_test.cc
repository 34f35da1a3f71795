// muster-data as its users run it: what is refused before any work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace muster {
namespace {

struct Ended {
  int code = 0;
  std::string output;  // of both streams
};

Ended muster_data(const std::string& arguments) {
  const std::string command = std::string(MUSTER_DATA_PROGRAM) + " " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Ended ended;
  for (int byte = std::fgetc(pipe); byte != EOF; byte = std::fgetc(pipe))
    ended.output += static_cast<char>(byte);
  ended.code = WEXITSTATUS(::pclose(pipe));
  return ended;
}

TEST(DataProgram, NumbersOutsideOfTheirLimitsAreRefusedWithBoth) {
  const std::string tokenize = "tokenize --input /nonexistent --tokenizer x --output x ",
                    train = "train-tokenizer --input /nonexistent --output x ";
  const std::pair<std::string, std::string> cases[] = {
      {tokenize + "--held-out nan", "--held-out: \"nan\" is not a number from 0 to 1"},
      {tokenize + "--max-line-mb nan", "--max-line-mb: \"nan\" is not a number from 0.001 to 4000"},
      {train + "--sample-mb nan", "--sample-mb: \"nan\" is not a number from 1 to 1000000"},
      {train + "--vocab-size -1", "--vocab-size: \"-1\" is not a whole number from 300 to 1000000"},
  };
  for (const auto& [arguments, message] : cases) {
    const auto ended = muster_data(arguments);
    EXPECT_EQ(ended.code, 2) << arguments;
    EXPECT_THAT(ended.output, testing::StartsWith(message + "\n"));
  }
}

}  // namespace
}  // namespace muster
