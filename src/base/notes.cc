#include "base/notes.h"

#include <algorithm>
#include <utility>

namespace muster {

Notes::Notes(Note sink, Monotonic monotonic) : sink_(std::move(sink)), monotonic_(std::move(monotonic)) {}

void Notes::say(std::string_view text) {
  std::string line(text.substr(0, kTextBytesMax));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; },
      ' ');
  const auto now = monotonic_();
  const std::lock_guard lock(mutex_);
  if (said_.size() >= kTextsMax && !said_.contains(line)) {
    std::erase_if(said_, [&](const auto& entry) { return now - entry.second.at >= kQuiet; });
    if (said_.size() >= kTextsMax) {
      ++left_out_;
      return;
    }
  }
  const auto [entry, first] = said_.try_emplace(line);
  auto& said = entry->second;
  if (!first && now - said.at < kQuiet) {
    ++said.held_back;
    return;
  }
  if (said.held_back > 0)
    line += " (and " + std::to_string(said.held_back) + " times more since it was said)";
  if (left_out_ > 0) line += " (" + std::to_string(left_out_) + " other lines were left out)";
  said = {now, 0};
  left_out_ = 0;
  if (sink_) sink_(line);
}

}  // namespace muster
