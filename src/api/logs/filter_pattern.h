// The filter patterns of FilterLogEvents for unstructured text. Pure.
//
//   ERROR timeout      both terms, anywhere, upper and lower case told apart
//   "out of memory"    a phrase; \" inside stands for a quote
//   -DEBUG             lines without it
//   ?WARN ?ERROR       at least one; ignored beside other terms, as CloudWatch documents
//   (empty)            every line
//
// JSON `{...}`, field `[...]` and `%regex%` patterns are refused by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace muster::api::logs {

class FilterPattern {
 public:
  static Result<FilterPattern> parse(std::string_view pattern);
  bool matches(std::string_view line) const;

 private:
  std::vector<std::string> required_;
  std::vector<std::string> excluded_;
  std::vector<std::string> any_of_;
};

}  // namespace muster::api::logs
