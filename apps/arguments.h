// Limits of a program's arguments, checked as they are read: what a refusal names is the text given and both
// limits. No state; any thread.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>

namespace muster {

namespace detail {

template <class T>
std::string limit_text(T limit) {
  if constexpr (std::integral<T>) {
    return std::to_string(limit);
  } else {
    char text[32];
    std::snprintf(text, sizeof text, "%.15g", limit);
    return text;
  }
}

}  // namespace detail

// For Option::check(): a number from `minimum` to `maximum`, both included; a whole one if T is. NaN is
// outside. What T cannot hold is read as T's largest: `maximum` must be below that.
template <class T>
CLI::Validator between(T minimum, T maximum) {
  const std::string limits = detail::limit_text(minimum) + " to " + detail::limit_text(maximum);
  const auto check = [=](const std::string& text) -> std::string {
    T value{};
    if (CLI::detail::lexical_cast(text, value) && value >= minimum && value <= maximum) return "";
    return "\"" + text + "\" is not a " + (std::integral<T> ? "whole number" : "number") + " from " + limits;
  };
  return {[check](std::string& text) { return check(text); }, limits};
}

// For Option::transform(): bytes with a unit or none (50KB, 5GB; of 1000, KiB of 1024), between the limits.
inline CLI::Validator size_between(std::uint64_t minimum, std::uint64_t maximum) {
  const auto read = [=](std::string& text) -> std::string {
    const std::string given = text;
    std::string problem;
    try {
      problem =
          given.empty() || given[0] < '0' || given[0] > '9' ? "no number" : CLI::AsSizeValue(true)(text);
    } catch (const CLI::ParseError& error) {
      problem = error.what();
    }
    if (problem.empty() && between(minimum, maximum)(text).empty()) return "";
    return "\"" + given + "\" is not a size from " + std::to_string(minimum) + " to " +
           std::to_string(maximum) + " bytes, for example 500MB or 5GB";
  };
  return {read, ""};
}

}  // namespace muster
