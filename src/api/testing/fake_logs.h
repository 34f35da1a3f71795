// For tests of handlers: a log store that keeps the lines of one stream. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ports/log_store.h"

namespace muster::api::testing {

class FakeLogs final : public ports::LogStore {
 public:
  Result<void> create(std::string_view, std::string_view, Time) override { return {}; }
  Result<std::uint64_t> append(std::string_view group, std::string_view stream, std::optional<std::uint64_t>,
                               std::span<const ports::LogLine> added, Time) override {
    written_to = std::string(group) + " " + std::string(stream);
    for (const auto& line : added) lines.push_back(line.text);
    return lines.size();
  }
  Result<std::vector<ports::LogGroup>> groups(std::string_view) override {
    return std::vector<ports::LogGroup>{};
  }
  Result<std::vector<ports::LogStream>> streams(std::string_view, std::string_view) override {
    return std::vector<ports::LogStream>{};
  }
  Result<ports::LogPage> read(std::string_view, std::string_view, const ports::LogQuery&) override {
    return ports::LogPage{};
  }
  Result<void> remove(std::string_view, std::string_view) override { return {}; }
  std::vector<std::string> lines;
  std::string written_to;
};

}  // namespace muster::api::testing
