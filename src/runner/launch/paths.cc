#include "runner/launch/paths.h"

#include <algorithm>

#include "base/text.h"

namespace muster::runner {

S3Location below(const S3Location& prefix, std::string_view name) {
  auto key = prefix.key;
  while (!key.empty() && key.back() == '/') key.pop_back();
  if (!key.empty()) key += '/';
  return {prefix.bucket, key + std::string(name)};
}

Result<std::string> local_name(std::string_view prefix, std::string_view key) {
  std::string_view rest;
  if (key == prefix) {
    rest = key.substr(key.rfind('/') + 1);  // npos + 1 == 0
  } else if (prefix.empty() || prefix.back() == '/') {
    rest = key.substr(prefix.size());
  } else if (key[prefix.size()] == '/') {
    rest = key.substr(prefix.size() + 1);
  } else {
    rest = key.substr(prefix.rfind('/') + 1);
  }
  if (rest.empty()) return std::string();
  const bool marker = rest.back() == '/';
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::invalid_argument, "the key \"" + std::string(key) + "\" " + std::string(why));
  };
  const auto path = marker ? rest.substr(0, rest.size() - 1) : rest;
  for (const auto part : split(path, '/')) {
    if (part.empty() || part == "." || part == "..") return bad("is no path below its prefix");
    if (part.size() > 255) return bad("has a component of more than 255 bytes, which no file can be called");
    if (part.find('\0') != std::string_view::npos) return bad("holds a NUL byte");
  }
  return marker ? std::string() : std::string(path);
}

std::vector<std::string> share_of(std::vector<std::string> keys, domain::Distribution distribution, int rank,
                                  int world) {
  std::sort(keys.begin(), keys.end());
  if (distribution == domain::Distribution::fully_replicated) return keys;
  std::vector<std::string> mine;
  const auto step = static_cast<std::size_t>(world);
  for (auto i = static_cast<std::size_t>(rank); i < keys.size(); i += step)
    mine.push_back(std::move(keys[i]));
  return mine;
}

std::string node_path(std::string_view opt_ml, std::string_view path) {
  constexpr std::string_view kOptMl = "/opt/ml";
  if (path.substr(0, kOptMl.size()) == kOptMl &&
      (path.size() == kOptMl.size() || path[kOptMl.size()] == '/')) {
    return std::string(opt_ml) + std::string(path.substr(kOptMl.size()));
  }
  return std::string(path);
}

}  // namespace muster::runner
