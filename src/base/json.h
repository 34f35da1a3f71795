// JSON: Boost.JSON with our errors and typed access.
//
// Reading is strict about types and lenient about unknown members. Every error names the path of the member,
// what was expected and what was found. Functions without state: any thread.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace muster::json {

using Value = boost::json::value;
using Object = boost::json::object;
using Array = boost::json::array;

// At most 32 levels deep. invalid_argument with the byte offset on malformed text.
Result<Value> parse(std::string_view text);
Result<Object> parse_object(std::string_view text);
std::string dump(const Value& value);    // compact
std::string pretty(const Value& value);  // two-space indentation, members in their order

// Members of an object by name. The get_* answer an error when the member is absent or of another type; the
// opt_* answer nullopt when it is absent or null.
Result<std::string> get_string(const Object& object, std::string_view name);
Result<std::int64_t> get_int(const Object& object, std::string_view name);
Result<bool> get_bool(const Object& object, std::string_view name);
std::optional<std::string> opt_string(const Object& object, std::string_view name);
std::optional<std::int64_t> opt_int(const Object& object, std::string_view name);
std::optional<double> opt_double(const Object& object, std::string_view name);
std::optional<bool> opt_bool(const Object& object, std::string_view name);
// nullptr when absent, null, or of another type.
const Object* opt_object(const Object& object, std::string_view name);
const Array* opt_array(const Object& object, std::string_view name);

// {"a": "x", ...} as a map; members that are not strings are left out.
std::map<std::string, std::string> string_map(const Object& object);
Object from_string_map(const std::map<std::string, std::string>& map);
// ["a", ...]; elements that are not strings are left out.
std::vector<std::string> string_list(const Array& array);
Array from_string_list(const std::vector<std::string>& list);

inline std::string_view view(const boost::json::string& text) { return {text.data(), text.size()}; }

}  // namespace muster::json
