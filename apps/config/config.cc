#include "apps/config/config.h"

#include <toml++/toml.h>

#include <algorithm>

#include "base/file.h"
#include "base/text.h"

namespace muster::app {
namespace {

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}
  std::string problem;

  void check_keys(const toml::table& table, const std::string& prefix,
                  const std::vector<std::string>& known) {
    for (const auto& [key, value] : table) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      const auto near = closest(key.str(), known);
      say(value, prefix + std::string(key.str()) + " is not a setting" +
                     (near.empty() ? "; known are " + join(known, ", ") : "; did you mean " + near + "?"));
    }
  }
  void text(const toml::table& table, const std::string& name, std::string& out) {
    const auto* node = table.get(name);
    if (node == nullptr) return;
    if (const auto value = node->value_exact<std::string>()) {
      out = *value;
    } else {
      say(*node, name + " must be a string");
    }
  }
  void number(const toml::table& table, const std::string& name, int low, int high, int& out) {
    const auto* node = table.get(name);
    if (node == nullptr) return;
    const auto value = node->value_exact<std::int64_t>();
    if (value && *value >= low && *value <= high) {
      out = static_cast<int>(*value);
    } else {
      say(*node, name + " must be a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
  }
  // A table of strings, each of which must be one of `allowed`.
  void words(const toml::table& table, const std::string& name, const std::vector<std::string>& allowed,
             std::map<std::string, std::string>& out) {
    const auto* node = table.get(name);
    if (node == nullptr) return;
    if (!node->is_table()) return say(*node, name + " must be a table");
    for (const auto& [key, value] : *node->as_table()) {
      const auto word = value.value_exact<std::string>();
      if (!word || std::find(allowed.begin(), allowed.end(), *word) == allowed.end()) {
        say(value, "[" + name + "] \"" + std::string(key.str()) + "\" must be one of " + join(allowed, ", "));
      } else {
        out[std::string(key.str())] = *word;
      }
    }
  }
  void say(const toml::node& node, const std::string& what) {
    if (problem.empty()) problem = path_ + ", line " + std::to_string(node.source().begin.line) + ": " + what;
  }

 private:
  std::string path_;
};

bool is_region(const std::string& text) {
  return !text.empty() && text.size() <= 32 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

}  // namespace

Result<Config> load_config(const std::string& path) {
  Config config;
  if (const auto regular = check_regular(path); !regular) {
    if (regular.error().code == ErrorCode::not_found) return config;
    return tl::unexpected(regular.error());
  }
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return fail(ErrorCode::invalid_argument, path + ", line " + std::to_string(error.source().begin.line) +
                                                 ": " + std::string(error.description()));
  }
  Reader reader(path);
  reader.check_keys(table, "", {"account", "region", "local", "images", "instance_types"});
  reader.text(table, "account", config.account);
  reader.text(table, "region", config.region);
  if (const auto* local = table["local"].as_table()) {
    reader.check_keys(*local, "local.", {"nodes", "user"});
    reader.number(*local, "nodes", 1, 250, config.nodes);
    reader.text(*local, "user", config.user);
  }
  reader.words(table, "images", {"muster/host", "muster/train", "muster/data"}, config.images);
  reader.words(table, "instance_types", {"local", "refuse"}, config.instance_types);
  const bool digits =
      std::all_of(config.account.begin(), config.account.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (reader.problem.empty() && (config.account.size() != 12 || !digits)) {
    reader.problem = path + ": account is \"" + config.account + "\", it must be twelve digits";
  }
  if (reader.problem.empty() && !is_region(config.region)) {
    reader.problem = path + ": region is \"" + config.region +
                     "\", it must be 1 to 32 of a-z, 0-9 and -: bucket names and ARNs hold it";
  }
  if (!reader.problem.empty()) return fail(ErrorCode::invalid_argument, reader.problem);
  return config;
}

}  // namespace muster::app
