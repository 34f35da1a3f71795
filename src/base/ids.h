// Strong ids: a number with a type; a JobId cannot be passed where an AttemptId is meant. Values only.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace muster {

template <typename Tag>
struct StrongId {
  std::uint64_t value = 0;  // 0: none; ids start at 1
  constexpr auto operator<=>(const StrongId&) const = default;
  constexpr explicit operator bool() const { return value != 0; }
};

template <typename Tag>
std::string to_string(StrongId<Tag> id) {
  return std::to_string(id.value);
}

}  // namespace muster

template <typename Tag>
struct std::hash<muster::StrongId<Tag>> {
  std::size_t operator()(muster::StrongId<Tag> id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
