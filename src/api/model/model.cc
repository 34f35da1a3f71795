#include "api/model/model.h"

#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/assert.h"
#include "base/text.h"

namespace muster::api {

extern const char* const kConstraints;  // constraints.json, built in

namespace {

enum class Type { structure, list, map, string, integer, number, boolean, timestamp, blob };

struct Shape {
  Type type = Type::string;
  std::optional<double> min;
  std::optional<double> max;
  std::unique_ptr<RE2> pattern;
  std::set<std::string, std::less<>> allowed;                // enum
  std::map<std::string, const Shape*, std::less<>> members;  // structure
  std::vector<std::string> required;
  const Shape* element = nullptr;  // list, and values of a map
  const Shape* key = nullptr;      // map
};

struct Operation {
  const Shape* input = nullptr;
  const Shape* output = nullptr;
};

struct Service {
  std::map<std::string, Shape, std::less<>> shapes;
  std::map<std::string, Operation, std::less<>> operations;
};

Type type_of(std::string_view name) {
  if (name == "structure") return Type::structure;
  if (name == "list") return Type::list;
  if (name == "map") return Type::map;
  if (name == "integer" || name == "long") return Type::integer;
  if (name == "float" || name == "double") return Type::number;
  if (name == "boolean") return Type::boolean;
  if (name == "timestamp") return Type::timestamp;
  if (name == "blob") return Type::blob;
  MUSTER_ASSERT(name == "string");
  return Type::string;
}

void fill(Shape& shape, const json::Object& source, std::map<std::string, Shape, std::less<>>& shapes) {
  const auto find = [&](std::string_view name) {
    const auto it = shapes.find(name);
    MUSTER_ASSERT(it != shapes.end());
    return &it->second;
  };
  shape.type = type_of(json::opt_string(source, "type").value_or(""));
  shape.min = json::opt_double(source, "min");
  shape.max = json::opt_double(source, "max");
  if (const auto pattern = json::opt_string(source, "pattern")) {
    shape.pattern = std::make_unique<RE2>(*pattern, RE2::Quiet);
    MUSTER_ASSERT(shape.pattern->ok());
  }
  if (const auto* allowed = json::opt_array(source, "enum")) {
    for (auto& word : json::string_list(*allowed)) shape.allowed.insert(std::move(word));
  }
  if (const auto* members = json::opt_object(source, "members")) {
    for (const auto& [name, type] : json::string_map(*members)) shape.members.emplace(name, find(type));
  }
  if (const auto* required = json::opt_array(source, "required"))
    shape.required = json::string_list(*required);
  if (const auto element = json::opt_string(source, "member")) shape.element = find(*element);
  if (const auto value = json::opt_string(source, "value")) shape.element = find(*value);
  if (const auto key = json::opt_string(source, "key")) shape.key = find(*key);
}

std::string number_text(double value) {
  const auto whole = static_cast<long long>(value);
  return static_cast<double>(whole) == value ? std::to_string(whole) : std::to_string(value);
}

// Whether `text` breaks the pattern by nothing but its line breaks, which '.' does not match.
bool fits_on_one_line(std::string_view text, const RE2& pattern) {
  if (text.find('\n') == std::string_view::npos) return false;
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return RE2::FullMatch(line, pattern);
}

// Characters, not bytes: how the published limits count.
std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

class Checker {
 public:
  explicit Checker(bool refuse_unknown) : refuse_unknown_(refuse_unknown) {}
  std::vector<std::string> found;

  void check(const Shape& shape, const json::Value& value, const std::string& path) {
    if (found.size() >= kMost) return;
    switch (shape.type) {
      case Type::structure:
        return structure(shape, value, path);
      case Type::list:
        return list(shape, value, path);
      case Type::map:
        return map(shape, value, path);
      case Type::string:
        return string(shape, value, path);
      case Type::integer:
      case Type::number:
        return number(shape, value, path);
      case Type::boolean:
        if (!value.is_bool()) wrong_type(path, "true or false", value);
        return;
      case Type::timestamp:
        if (!value.is_number()) wrong_type(path, "a time in seconds since 1970", value);
        return;
      case Type::blob:
        if (!value.is_string()) wrong_type(path, "a base64 string", value);
        return;
    }
  }

 private:
  static constexpr std::size_t kMost = 10;

  void say(std::string sentence) { found.push_back(std::move(sentence)); }
  void wrong_type(const std::string& path, std::string_view wanted, const json::Value& value) {
    say((path.empty() ? "the request" : path) + " must be " + std::string(wanted) + ", not " +
        to_utf8_lossy(json::dump(value).substr(0, 80)));
  }

  void structure(const Shape& shape, const json::Value& value, const std::string& path) {
    const auto* object = value.if_object();
    if (object == nullptr) return wrong_type(path, "an object", value);
    const auto prefix = path.empty() ? "" : path + ".";
    for (const auto& name : shape.required) {
      const auto* member = object->if_contains(name);
      if (member == nullptr || member->is_null()) say(prefix + name + " is required and missing");
    }
    for (const auto& member : *object) {
      const auto known = shape.members.find(std::string_view(member.key()));
      if (known == shape.members.end()) {
        if (refuse_unknown_) say(prefix + std::string(member.key()) + " is not a member");
      } else if (!member.value().is_null()) {
        check(*known->second, member.value(), prefix + std::string(member.key()));
      }
    }
  }

  void count(const Shape& shape, std::size_t size, const std::string& path, std::string_view unit) {
    const auto total = static_cast<double>(size);
    const auto has = path + " has " + std::to_string(size) + " " + std::string(unit);
    if (shape.max && total > *shape.max) say(has + ", at most " + number_text(*shape.max) + " are allowed");
    if (shape.min && total < *shape.min) say(has + ", at least " + number_text(*shape.min) + " are needed");
  }

  void list(const Shape& shape, const json::Value& value, const std::string& path) {
    const auto* array = value.if_array();
    if (array == nullptr) return wrong_type(path, "a list", value);
    count(shape, array->size(), path, "entries");
    for (std::size_t i = 0; i < array->size() && found.size() < kMost; ++i) {
      check(*shape.element, (*array)[i], path + "[" + std::to_string(i) + "]");
    }
  }

  void map(const Shape& shape, const json::Value& value, const std::string& path) {
    const auto* object = value.if_object();
    if (object == nullptr) return wrong_type(path, "an object", value);
    count(shape, object->size(), path, "entries");
    for (const auto& member : *object) {
      if (found.size() >= kMost) return;
      const std::string key(member.key());
      check(*shape.key, json::Value(key), "a key of " + path);
      check(*shape.element, member.value(), path + "[" + shown(key) + "]");
    }
  }

  void string(const Shape& shape, const json::Value& value, const std::string& path) {
    if (!value.is_string()) return wrong_type(path, "a string", value);
    const auto text = json::view(value.get_string());
    const auto length = static_cast<double>(characters(text));
    if (shape.max && length > *shape.max) {
      return say(path + " has " + number_text(length) + " characters, at most " + number_text(*shape.max) +
                 " are allowed");
    }
    if (shape.min && length < *shape.min) {
      return say(path + " has " + number_text(length) + " characters, at least " + number_text(*shape.min) +
                 " are needed");
    }
    if (shape.pattern && !RE2::FullMatch(re2::StringPiece(text.data(), text.size()), *shape.pattern)) {
      const auto& pattern = shape.pattern->pattern();
      if (!fits_on_one_line(text, *shape.pattern)) {
        return say(path + " is " + shown(text) + ", it must match " + pattern);
      }
      return say(path + " is " + shown(text) + ", it must be one line (" + pattern +
                 "); escape the line breaks, or pass the text in a file of an input");
    }
    if (!shape.allowed.empty() && shape.allowed.find(text) == shape.allowed.end()) {
      const std::vector<std::string> words(shape.allowed.begin(), shape.allowed.end());
      const auto near = closest(text, words);
      const auto list =
          words.size() <= 12 ? join(words, ", ") : std::to_string(words.size()) + " known values";
      say(path + " is " + shown(text) + ", it must be one of " + list +
          (near.empty() ? "" : " (did you mean " + near + "?)"));
    }
  }

  void number(const Shape& shape, const json::Value& value, const std::string& path) {
    if (!value.is_number()) return wrong_type(path, "a number", value);
    const auto amount = value.to_number<double>();
    if (shape.type == Type::integer && value.is_double()) return wrong_type(path, "a whole number", value);
    if (shape.max && amount > *shape.max) {
      say(path + " is " + number_text(amount) + ", at most " + number_text(*shape.max) + " is allowed");
    }
    if (shape.min && amount < *shape.min) {
      say(path + " is " + number_text(amount) + ", at least " + number_text(*shape.min) + " is needed");
    }
  }

  bool refuse_unknown_;
};

}  // namespace

std::string shown(std::string_view value) {
  constexpr std::size_t kMost = 80;
  auto text = to_utf8_lossy(value.substr(0, kMost));
  if (value.size() > kMost) text += "...";
  return json::dump(json::Value(text));
}

struct Model::Impl {
  std::map<std::string, Service, std::less<>> services;

  const Operation& find(std::string_view service, std::string_view operation) const {
    const auto entry = services.find(service);
    MUSTER_ASSERT(entry != services.end());
    const auto found = entry->second.operations.find(operation);
    MUSTER_ASSERT(found != entry->second.operations.end());
    return found->second;
  }
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::shared_ptr<const Model> Model::load() {
  auto impl = std::make_unique<Impl>();
  const auto table = json::parse_object(kConstraints);
  MUSTER_ASSERT(table.has_value());
  for (const auto& entry : table->at("services").as_object()) {
    auto& service = impl->services[std::string(entry.key())];
    const auto& source = entry.value().as_object();
    const auto& shapes = source.at("shapes").as_object();
    for (const auto& shape : shapes) service.shapes[std::string(shape.key())];
    for (const auto& shape : shapes) {
      fill(service.shapes.find(std::string_view(shape.key()))->second, shape.value().as_object(),
           service.shapes);
    }
    for (const auto& operation : source.at("operations").as_object()) {
      auto& made = service.operations[std::string(operation.key())];
      const auto names = json::string_map(operation.value().as_object());
      made.input = &service.shapes.find(names.at("input"))->second;
      if (names.count("output") != 0) made.output = &service.shapes.find(names.at("output"))->second;
    }
  }
  return std::shared_ptr<const Model>(new Model(std::move(impl)));
}

std::vector<std::string> Model::check_input(std::string_view service, std::string_view operation,
                                            const json::Object& request) const {
  Checker checker(false);
  checker.check(*impl_->find(service, operation).input, json::Value(request), "");
  return std::move(checker.found);
}

std::vector<std::string> Model::check_output(std::string_view service, std::string_view operation,
                                             const json::Object& answer) const {
  const auto* shape = impl_->find(service, operation).output;
  if (shape == nullptr)
    return answer.empty() ? std::vector<std::string>{} : std::vector<std::string>{"not empty"};
  Checker checker(true);
  checker.check(*shape, json::Value(answer), "");
  return std::move(checker.found);
}

json::Object Model::common_members(std::string_view service, std::string_view operation,
                                   const json::Object& from) const {
  const auto* shape = impl_->find(service, operation).output;
  MUSTER_ASSERT(shape != nullptr);
  json::Object out;
  for (const auto& member : from) {
    if (!member.value().is_null() && shape->members.count(std::string(member.key())) != 0) {
      out.insert_or_assign(member.key(), member.value());
    }
  }
  return out;
}

std::vector<std::string> Model::operations(std::string_view service) const {
  std::vector<std::string> names;
  const auto entry = impl_->services.find(service);
  MUSTER_ASSERT(entry != impl_->services.end());
  for (const auto& [name, operation] : entry->second.operations) names.push_back(name);
  return names;
}

}  // namespace muster::api
