#include "wire/runner/fields.h"

namespace muster::wire {

const json::Value* Fields::find(std::string_view name) const {
  const auto* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const json::Value* Fields::need(std::string_view name) {
  const auto* value = find(name);
  if (value == nullptr) wrong(name, "is missing");
  return value;
}

void Fields::wrong(std::string_view name, std::string what) {
  if (error_->has_value()) return;
  *error_ = Error{ErrorCode::invalid_argument, "member " + path_ + std::string(name) + " " + std::move(what)};
}

void Fields::wrong_type(std::string_view name, std::string_view type, const json::Value& value) {
  wrong(name, "must be " + std::string(type) + ", not " + json::dump(value).substr(0, 80));
}

std::string Fields::text(std::string_view name) {
  return need(name) == nullptr ? std::string() : maybe_text(name);
}

std::string Fields::maybe_text(std::string_view name) {
  const auto* value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return std::string(json::view(value->get_string()));
  wrong_type(name, "a string", *value);
  return {};
}

std::int64_t Fields::number(std::string_view name, const json::Value& value, std::int64_t min,
                            std::int64_t max) {
  boost::system::error_code failed;
  const auto number = value.to_number<std::int64_t>(failed);
  if (failed) {
    wrong_type(name, "an integer", value);
    return min;
  }
  if (number < min || number > max) {
    wrong(name, "is " + std::to_string(number) + ", allowed are " + std::to_string(min) + " to " +
                    std::to_string(max));
    return min;
  }
  return number;
}

std::int64_t Fields::integer(std::string_view name, std::int64_t min, std::int64_t max) {
  const auto* value = need(name);
  return value == nullptr ? min : number(name, *value, min, max);
}

std::optional<std::int64_t> Fields::maybe_integer(std::string_view name, std::int64_t min, std::int64_t max) {
  const auto* value = find(name);
  if (value == nullptr) return std::nullopt;
  return number(name, *value, min, max);
}

bool Fields::boolean(std::string_view name) {
  const auto* value = need(name);
  if (value == nullptr) return false;
  if (value->is_bool()) return value->get_bool();
  wrong_type(name, "true or false", *value);
  return false;
}

std::vector<std::string> Fields::texts(std::string_view name) {
  std::vector<std::string> out;
  const auto* value = find(name);
  if (value == nullptr) return out;
  if (!value->is_array()) {
    wrong_type(name, "a list of strings", *value);
    return out;
  }
  for (const auto& element : value->get_array()) {
    if (!element.is_string()) {
      wrong_type(name, "a list of strings", *value);
      return out;
    }
    out.emplace_back(json::view(element.get_string()));
  }
  return out;
}

std::map<std::string, std::string> Fields::text_map(std::string_view name) {
  std::map<std::string, std::string> out;
  const auto* value = find(name);
  if (value == nullptr) return out;
  if (!value->is_object()) {
    wrong_type(name, "an object of strings", *value);
    return out;
  }
  for (const auto& member : value->get_object()) {
    if (!member.value().is_string()) {
      wrong_type(std::string(name) + "." + std::string(member.key()), "a string", member.value());
      return out;
    }
    out.emplace(member.key(), json::view(member.value().get_string()));
  }
  return out;
}

bool Fields::maybe_object(std::string_view name, const Read& read) {
  const auto* value = find(name);
  if (value == nullptr) return false;
  if (!value->is_object()) {
    wrong_type(name, "an object", *value);
    return false;
  }
  Fields inner(value->get_object(), path_ + std::string(name) + ".", error_);
  read(inner);
  return true;
}

void Fields::object(std::string_view name, const Read& read) {
  if (need(name) != nullptr) maybe_object(name, read);
}

void Fields::objects(std::string_view name, const Read& read) {
  const auto* value = find(name);
  if (value == nullptr) return;
  if (!value->is_array()) return wrong_type(name, "a list of objects", *value);
  std::size_t index = 0;
  for (const auto& element : value->get_array()) {
    const auto place = std::string(name) + "[" + std::to_string(index++) + "]";
    if (!element.is_object()) return wrong_type(place, "an object", element);
    Fields inner(element.get_object(), path_ + place + ".", error_);
    read(inner);
  }
}

}  // namespace muster::wire
