// Typed reading of the members of one JSON object, for the codecs of wire/runner. Pure; one thread.
//
// The first thing that is wrong is kept and named by its path ("workload.channels[2].s3_uri must be a string,
// not 5"); what is read after it is empty. So a decoder reads all members in a row and asks for error() once.
// Unknown members are ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"

namespace muster::wire {

class Fields {
 public:
  explicit Fields(const json::Object& object) : object_(object), error_(&own_error_) {}

  // Required members.
  std::string text(std::string_view name);
  std::int64_t integer(std::string_view name, std::int64_t min, std::int64_t max);
  std::uint64_t count(std::string_view name) {
    return static_cast<std::uint64_t>(integer(name, 0, INT64_MAX));
  }
  bool boolean(std::string_view name);
  Time time(std::string_view name) { return Time{integer(name, INT64_MIN, INT64_MAX)}; }
  Millis millis(std::string_view name) { return Millis{integer(name, 0, INT64_MAX)}; }
  // A word that `parse` knows.
  template <typename Enum>
  Enum word(std::string_view name, std::optional<Enum> (*parse)(std::string_view)) {
    const auto value = text(name);
    const auto parsed = parse(value);
    if (!parsed) wrong(name, "is not a known word: \"" + value + "\"");
    return parsed.value_or(Enum{});
  }

  // Empty when absent or null.
  std::optional<std::int64_t> maybe_integer(std::string_view name, std::int64_t min, std::int64_t max);
  std::string maybe_text(std::string_view name);
  std::vector<std::string> texts(std::string_view name);
  std::map<std::string, std::string> text_map(std::string_view name);

  using Read = std::function<void(Fields&)>;
  bool maybe_object(std::string_view name, const Read& read);  // false when absent or null
  void object(std::string_view name, const Read& read);
  void objects(std::string_view name, const Read& read);  // absent: none

  void wrong(std::string_view name, std::string what);
  const std::optional<Error>& error() const { return *error_; }

 private:
  Fields(const json::Object& object, std::string path, std::optional<Error>* error)
      : object_(object), path_(std::move(path)), error_(error) {}
  const json::Value* find(std::string_view name) const;
  const json::Value* need(std::string_view name);
  std::int64_t number(std::string_view name, const json::Value& value, std::int64_t min, std::int64_t max);
  void wrong_type(std::string_view name, std::string_view type, const json::Value& value);

  const json::Object& object_;
  std::string path_;  // "" or "workload."
  std::optional<Error> own_error_;
  std::optional<Error>* error_;  // of the outermost
};

}  // namespace muster::wire
