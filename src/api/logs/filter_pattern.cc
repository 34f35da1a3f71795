#include "api/logs/filter_pattern.h"

#include <algorithm>

#include "base/text.h"

namespace muster::api::logs {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Takes a term off the front of `rest`: a quoted phrase or the characters up to a space.
Result<std::string> take_term(std::string_view& rest, std::string_view pattern) {
  std::string term;
  if (rest.empty() || rest[0] != '"') {
    const auto end = std::find_if(rest.begin(), rest.end(), is_space);
    term.assign(rest.begin(), end);
    rest.remove_prefix(term.size());
    return term;
  }
  for (std::size_t at = 1; at < rest.size(); ++at) {
    if (rest[at] == '"') {
      rest.remove_prefix(at + 1);
      return term;
    }
    if (rest[at] == '\\' && at + 1 < rest.size() && (rest[at + 1] == '"' || rest[at + 1] == '\\')) ++at;
    term += rest[at];
  }
  return fail(ErrorCode::invalid_argument,
              "filterPattern " + std::string(pattern) + " has a quote that is not closed");
}

bool contains(std::string_view line, const std::string& term) {
  return line.find(term) != std::string_view::npos;
}

}  // namespace

Result<FilterPattern> FilterPattern::parse(std::string_view pattern) {
  auto rest = trim(pattern);
  if (rest.starts_with('{') || rest.starts_with('[') || rest.starts_with('%')) {
    return fail(ErrorCode::invalid_argument,
                "filterPattern " + std::string(pattern) +
                    ": JSON, field and regular expression patterns are not supported; use "
                    "terms, \"phrases\", ?alternatives and -exclusions");
  }
  FilterPattern out;
  while (!rest.empty()) {
    if (is_space(rest[0])) {
      rest.remove_prefix(1);
      continue;
    }
    auto* list = &out.required_;
    if (rest.size() > 1 && !is_space(rest[1])) {
      if (rest[0] == '-') list = &out.excluded_;
      if (rest[0] == '?') list = &out.any_of_;
      if (list != &out.required_) rest.remove_prefix(1);
    }
    MUSTER_TRY(auto term, take_term(rest, pattern));
    if (!term.empty()) list->push_back(std::move(term));
  }
  return out;
}

bool FilterPattern::matches(std::string_view line) const {
  const auto in_line = [&](const std::string& term) { return contains(line, term); };
  if (required_.empty() && excluded_.empty())
    return any_of_.empty() || std::any_of(any_of_.begin(), any_of_.end(), in_line);
  return std::all_of(required_.begin(), required_.end(), in_line) &&
         std::none_of(excluded_.begin(), excluded_.end(), in_line);
}

}  // namespace muster::api::logs
