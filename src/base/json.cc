#include "base/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>

namespace muster::json {

namespace {

// Builds the value as the parser goes, as Boost's own parser does, but for numbers with a fraction or an
// exponent: of these Boost 1.81 makes some one bit off, here they are read from their text.
struct ExactHandler {
  static constexpr std::size_t max_object_size = Object::max_size();
  static constexpr std::size_t max_array_size = Array::max_size();
  static constexpr std::size_t max_key_size = boost::json::string::max_size();
  static constexpr std::size_t max_string_size = boost::json::string::max_size();
  using Text = boost::json::string_view;
  using Code = boost::system::error_code;

  boost::json::value_stack stack;

  bool on_document_begin(Code&) { return true; }
  bool on_document_end(Code&) { return true; }
  bool on_object_begin(Code&) { return true; }
  bool on_object_end(std::size_t members, Code&) { return stack.push_object(members), true; }
  bool on_array_begin(Code&) { return true; }
  bool on_array_end(std::size_t elements, Code&) { return stack.push_array(elements), true; }
  bool on_key_part(Text part, std::size_t, Code&) { return stack.push_chars(part), true; }
  bool on_key(Text last, std::size_t, Code&) { return stack.push_key(last), true; }
  bool on_string_part(Text part, std::size_t, Code&) { return stack.push_chars(part), true; }
  bool on_string(Text last, std::size_t, Code&) { return stack.push_string(last), true; }
  bool on_number_part(Text, Code&) { return true; }  // only of a text that comes in pieces
  bool on_int64(std::int64_t value, Text, Code&) { return stack.push_int64(value), true; }
  bool on_uint64(std::uint64_t value, Text, Code&) { return stack.push_uint64(value), true; }
  bool on_double(double near, Text text, Code&) {
    double exact = near;  // stays, 0 or infinite, where it is out of range
    std::from_chars(text.data(), text.data() + text.size(), exact);
    return stack.push_double(exact), true;
  }
  bool on_bool(bool value, Code&) { return stack.push_bool(value), true; }
  bool on_null(Code&) { return stack.push_null(), true; }
  bool on_comment_part(Text, Code&) { return true; }
  bool on_comment(Text, Code&) { return true; }
};

}  // namespace

Result<Value> parse(std::string_view text) {
  boost::json::basic_parser<ExactHandler> parser{boost::json::parse_options{}};
  parser.handler().stack.reset();
  boost::system::error_code error;
  const auto used = parser.write_some(false, text.data(), text.size(), error);
  if (error) {
    return fail(ErrorCode::invalid_argument,
                "malformed JSON: " + error.message() + " near byte " + std::to_string(used));
  }
  if (used < text.size()) {
    return fail(ErrorCode::invalid_argument,
                "malformed JSON: unexpected text after the value at byte " + std::to_string(used));
  }
  return parser.handler().stack.release();
}

Result<Object> parse_object(std::string_view text) {
  MUSTER_TRY(auto value, parse(text));
  if (!value.is_object()) return fail(ErrorCode::invalid_argument, "expected a JSON object");
  return std::move(value.get_object());
}

std::string dump(const Value& value) { return boost::json::serialize(value); }

namespace {
void write_pretty(std::string& out, const Value& value, std::size_t indent) {
  const auto line = [&](std::size_t depth) {
    out += '\n';
    out.append(depth * 2, ' ');
  };
  if (value.is_object() && !value.get_object().empty()) {
    out += '{';
    bool first = true;
    for (const auto& member : value.get_object()) {
      if (!first) out += ',';
      first = false;
      line(indent + 1);
      out += boost::json::serialize(boost::json::string(member.key()));
      out += ": ";
      write_pretty(out, member.value(), indent + 1);
    }
    line(indent);
    out += '}';
  } else if (value.is_array() && !value.get_array().empty()) {
    out += '[';
    bool first = true;
    for (const auto& element : value.get_array()) {
      if (!first) out += ',';
      first = false;
      line(indent + 1);
      write_pretty(out, element, indent + 1);
    }
    line(indent);
    out += ']';
  } else {
    out += boost::json::serialize(value);
  }
}

const Value* find(const Object& object, std::string_view name) {
  const auto* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

tl::unexpected<Error> missing(const Value* value, std::string_view name, std::string_view type) {
  if (value == nullptr)
    return fail(ErrorCode::invalid_argument, "member " + std::string(name) + " is missing");
  return fail(ErrorCode::invalid_argument, "member " + std::string(name) + " must be " + std::string(type) +
                                               ", not " + boost::json::serialize(*value).substr(0, 80));
}
}  // namespace

std::string pretty(const Value& value) {
  std::string out;
  write_pretty(out, value, 0);
  return out;
}

Result<std::string> get_string(const Object& object, std::string_view name) {
  auto value = opt_string(object, name);
  if (value) return *std::move(value);
  return missing(find(object, name), name, "a string");
}

Result<std::int64_t> get_int(const Object& object, std::string_view name) {
  const auto value = opt_int(object, name);
  if (value) return *value;
  return missing(find(object, name), name, "an integer");
}

Result<bool> get_bool(const Object& object, std::string_view name) {
  const auto value = opt_bool(object, name);
  if (value) return *value;
  return missing(find(object, name), name, "true or false");
}

std::optional<std::string> opt_string(const Object& object, std::string_view name) {
  const auto* value = find(object, name);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return std::string(view(value->get_string()));
}

std::optional<std::int64_t> opt_int(const Object& object, std::string_view name) {
  const auto* value = find(object, name);
  if (value == nullptr) return std::nullopt;
  boost::system::error_code error;
  const auto number = value->to_number<std::int64_t>(error);
  if (error) return std::nullopt;
  return number;
}

std::optional<double> opt_double(const Object& object, std::string_view name) {
  const auto* value = find(object, name);
  if (value == nullptr) return std::nullopt;
  boost::system::error_code error;
  const auto number = value->to_number<double>(error);
  if (error) return std::nullopt;
  return number;
}

std::optional<bool> opt_bool(const Object& object, std::string_view name) {
  const auto* value = find(object, name);
  if (value == nullptr || !value->is_bool()) return std::nullopt;
  return value->get_bool();
}

const Object* opt_object(const Object& object, std::string_view name) {
  const auto* value = find(object, name);
  return value == nullptr ? nullptr : value->if_object();
}

const Array* opt_array(const Object& object, std::string_view name) {
  const auto* value = find(object, name);
  return value == nullptr ? nullptr : value->if_array();
}

std::map<std::string, std::string> string_map(const Object& object) {
  std::map<std::string, std::string> out;
  for (const auto& member : object) {
    if (member.value().is_string()) out.emplace(member.key(), view(member.value().get_string()));
  }
  return out;
}

Object from_string_map(const std::map<std::string, std::string>& map) {
  Object out;
  for (const auto& [key, value] : map) out.emplace(key, value);
  return out;
}

std::vector<std::string> string_list(const Array& array) {
  std::vector<std::string> out;
  for (const auto& element : array) {
    if (element.is_string()) out.emplace_back(view(element.get_string()));
  }
  return out;
}

Array from_string_list(const std::vector<std::string>& list) {
  Array out;
  for (const auto& element : list) out.emplace_back(element);
  return out;
}

}  // namespace muster::json
