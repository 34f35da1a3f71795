// What the commands of muster-data share, and those that do not live in main.cc. Each prints its result to
// standard output. Used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/corpus.h"
#include "text/tokenize.h"

namespace muster::data_program {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

std::string grouped(std::uint64_t value);                         // 1234567 -> "1,234,567"
std::string counted(std::uint64_t value, std::string_view noun);  // "1 shard", "1,234 shards"
std::string duration(double seconds);                             // format_duration
std::string below(const std::string& folder,
                  const std::string& name);  // "shards/" and "train": "shards/train"

// The files of the folders and files given, and the bytes of all. failed_precondition: there is none.
Result<std::vector<text::InputFile>> inputs_of(const std::vector<std::string>& paths, std::uint64_t& bytes);

struct TokenizeArguments {
  std::vector<std::string> input;
  std::string tokenizer;
  std::string output;
  std::vector<std::string> parts;
  bool allow_empty = false;
  double line_mb_max = 128;
  text::TokenizeOptions options;
};
// cancelled: SIGINT or SIGTERM stopped it, and no shard is left.
Result<void> tokenize(TokenizeArguments arguments);
int stopped_by_signal();  // 128 + the signal

struct CodeArguments {
  std::string tokenizer;
  std::string input;  // empty: standard input
  bool json_lines = false;
  bool special_tokens = false;
};
Result<void> encode(const CodeArguments& arguments);
Result<void> decode(const CodeArguments& arguments);

}  // namespace muster::data_program
