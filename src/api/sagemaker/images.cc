#include "api/sagemaker/images.h"

namespace muster::api::sagemaker {

bool matches(std::string_view pattern, std::string_view text) {
  // Greedy with one point of return: linear in practice, quadratic at worst.
  std::size_t p = 0;
  std::size_t t = 0;
  auto star = std::string_view::npos;
  std::size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::optional<std::string> look_up(const PatternTable& table, std::string_view text) {
  const std::pair<const std::string, std::string>* best = nullptr;
  for (const auto& entry : table) {
    if (matches(entry.first, text) && (best == nullptr || entry.first.size() > best->first.size()))
      best = &entry;
  }
  if (best == nullptr) return std::nullopt;
  return best->second;
}

Result<std::string> resolve_image(const PatternTable& table, std::string_view image) {
  const auto program = [](std::string_view name) -> std::optional<std::string> {
    const auto bare = name.substr(0, name.find(':'));
    if (bare == "muster/train") return "train";
    if (bare == "muster/data") return "data";
    if (bare == "muster/host") return "host";
    return std::nullopt;
  };
  if (auto built_in = program(image)) return *built_in;
  if (const auto mapped = look_up(table, image)) {
    if (auto built_in = program(*mapped)) return *built_in;
    return fail(ErrorCode::invalid_argument,
                "image \"" + std::string(image) + "\" is mapped to \"" + *mapped +
                    "\" under [images], which is not muster/train, muster/data or muster/host");
  }
  return fail(
      ErrorCode::invalid_argument,
      "image \"" + std::string(image) +
          "\" cannot be run here: use muster/train, muster/data or muster/host, or map it to one of them "
          "under [images] in muster.toml, for example \"" +
          std::string(image.substr(0, image.find(':'))) + "*\" = \"muster/host\"");
}

}  // namespace muster::api::sagemaker
