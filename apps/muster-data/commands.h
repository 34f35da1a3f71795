// The commands of muster-data that do not live in main.cc. Each prints its result to standard output.
#pragma once

#include <string>

#include "base/error.h"

namespace muster::apps {

struct CodeArguments {
  std::string tokenizer;
  std::string input;  // empty: standard input
  bool json_lines = false;
  bool special_tokens = false;
};
Result<void> encode(const CodeArguments& arguments);
Result<void> decode(const CodeArguments& arguments);

}  // namespace muster::apps
