#include <algorithm>

#include "api/sagemaker/detail.h"

namespace muster::api::sagemaker::detail {
namespace {

constexpr std::string_view kNul{"", 1};
constexpr int kProblemsMax = 10;

// The first control character of `text`, or npos.
std::size_t find_control(std::string_view text) {
  const auto at = std::find_if(text.begin(), text.end(),
                               [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  return at == text.end() ? std::string_view::npos : static_cast<std::size_t>(at - text.begin());
}

// " has the character U+001B at byte 3"
std::string has_character(std::string_view text, std::size_t at) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  const auto code = static_cast<unsigned char>(text[at]);
  return std::string(" has the character U+00") + kHex[code / 16] + kHex[code % 16] + " at byte " +
         std::to_string(at + 1);
}

// Looks at every string of a request, with its path for the message.
class CharacterCheck {
 public:
  explicit CharacterCheck(Problems& problems) : problems_(problems) {}

  // `name`: the member that the object is the value of.
  void object(const json::Object& object, const std::string& path, std::string_view name) {
    const bool map = name == "Environment" || name.ends_with("Parameters");
    for (const auto& member : object) {
      const std::string_view key(member.key());
      const auto where = map            ? path + "[" + shown(key) + "]"
                         : path.empty() ? std::string(key.substr(0, 80))
                                        : path + "." + std::string(key.substr(0, 80));
      if (const auto at = find_control(key); at != std::string_view::npos) {
        say("the key " + shown(key) + (path.empty() ? "" : " of " + path) + has_character(key, at) +
            ": keys may have no control characters");
      } else {
        value(member.value(), where, map ? std::string_view() : key);
      }
    }
  }

 private:
  void value(const json::Value& value, const std::string& path, std::string_view name) {
    if (const auto* members = value.if_object()) return object(*members, path, name);
    if (const auto* list = value.if_array()) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        this->value((*list)[i], path + "[" + std::to_string(i) + "]", name);
      }
    }
    if (value.is_string()) string(json::view(value.get_string()), path, name);
  }

  void string(std::string_view text, const std::string& path, std::string_view name) {
    if (const auto nul = text.find(kNul); nul != std::string_view::npos) {
      return say(path + has_character(text, nul) +
                 ", which no environment, command line or file name can hold");
    }
    if (!name.ends_with("Name") && !name.ends_with("LocalPath")) return;
    if (const auto at = find_control(text); at != std::string_view::npos) {
      say(path + has_character(text, at) + ": names and paths may have no control characters");
    }
  }

  void say(std::string sentence) {
    if (said_++ < kProblemsMax) problems_.add(std::move(sentence));
  }

  Problems& problems_;
  int said_ = 0;
};

}  // namespace

void check_characters(const json::Object& request, Problems& problems) {
  CharacterCheck(problems).object(request, "", "");
}

}  // namespace muster::api::sagemaker::detail
