#include "train/config/config.h"

#include <sys/stat.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/file.h"
#include "base/text.h"
#include "train/config/keys.h"
#include "train/hf/weights.h"

namespace muster::train {
namespace {

std::string shown(const Scalar& value) {
  return std::holds_alternative<std::string>(value) ? "\"" + std::get<std::string>(value) + "\""
                                                    : text_of(value);
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

Result<Scalar> scalar_of_node(const toml::node& node, const std::string& key) {
  if (const auto* whole = node.as_integer()) return Scalar(whole->get());
  if (const auto* real = node.as_floating_point()) return Scalar(real->get());
  if (const auto* flag = node.as_boolean()) return Scalar(flag->get());
  if (const auto* text = node.as_string()) return Scalar(text->get());
  return fail(ErrorCode::invalid_argument,
              key + ": a number, a string, true or false is needed, no list or date");
}

Result<void> flatten(const toml::table& table, const std::string& prefix, const std::string& source,
                     std::vector<Setting>& out) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* inner = node.as_table()) {
      MUSTER_CHECK(flatten(*inner, key + ".", source, out));
      continue;
    }
    MUSTER_TRY(Scalar value, scalar_of_node(node, source + ": " + key));
    out.push_back({key, std::variant<std::string, Scalar>(std::move(value)), source});
  }
  return {};
}

const Key* find_key(const std::vector<Key>& keys, const std::string& name) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

tl::unexpected<Error> unknown_key(const std::vector<Key>& keys, const Setting& setting) {
  std::vector<std::string> names;
  for (const Key& key : keys) names.push_back(key.name);
  const std::string near = closest(setting.key, names);
  return fail(ErrorCode::invalid_argument, setting.source + ": unknown key " + setting.key +
                                               (near.empty() ? ";" : "; did you mean " + near + "?") +
                                               " all keys: muster-train config --explain");
}

Result<void> apply(Config& config, const std::vector<Key>& keys, const Setting& setting) {
  const Key* key = find_key(keys, setting.key);
  if (key == nullptr) return unknown_key(keys, setting);
  if (auto assigned = assign(*key, setting.value); !assigned) {
    return tl::unexpected(assigned.error().with_context(setting.source));
  }
  config.sources[setting.key] = setting.source;
  return {};
}

// The keys that describe a model.
bool is_size(const Key& key) { return key.name.starts_with("model.") && key.key_class == KeyClass::identity; }

bool exists(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0;
}

// The settings of the one TOML file in the channel `config`; none without that channel.
Result<std::vector<Setting>> read_config_channel(const std::string& folder) {
  if (!exists(folder)) return std::vector<Setting>();
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), last; !error && it != last;
       it.increment(error)) {
    if (it->path().extension() == ".toml") files.push_back(it->path().string());
  }
  if (error) return fail_errno("channel config, " + folder, error.value());
  std::ranges::sort(files);
  if (files.size() == 1) return read_toml(files.front());
  return fail(ErrorCode::invalid_argument,
              files.empty()
                  ? "channel config has no *.toml in " + folder + "; put one there or drop the channel"
                  : "channel config has " + std::to_string(files.size()) + " TOML files, " +
                        join(files, ", ") + "; leave one");
}

}  // namespace

Result<Setting> parse_assignment(std::string_view text) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return fail(ErrorCode::invalid_argument,
                "--set " + std::string(text) + ": expected KEY=VALUE, for example train.steps=400");
  }
  return Setting{std::string(trim(text.substr(0, equals))), std::string(trim(text.substr(equals + 1))),
                 "--set"};
}

Result<std::vector<Setting>> parse_toml(std::string_view text, const std::string& source) {
  std::vector<Setting> settings;
  try {
    const toml::table table = toml::parse(text, source);
    MUSTER_CHECK(flatten(table, "", source, settings));
  } catch (const toml::parse_error& error) {
    const auto& where = error.source().begin;
    return fail(ErrorCode::invalid_argument, source + ":" + std::to_string(where.line) + ":" +
                                                 std::to_string(where.column) + ": " +
                                                 std::string(error.description()));
  } catch (const std::exception& error) {  // toml++ 3.3 throws others on some broken input
    return fail(ErrorCode::invalid_argument, source + ": not TOML: " + error.what());
  }
  return settings;
}

Result<std::vector<Setting>> read_toml(const std::string& path) {
  MUSTER_TRY(const std::string text, read_regular_file(path, 1 << 20));
  return parse_toml(text, path);
}

Result<JobSettings> read_job(const std::string& root) {
  JobSettings job;
  const std::string folder = root + "/input/config/";
  auto text = read_regular_file(folder + "hyperparameters.json", 16 << 20);
  if (!text && text.error().code == ErrorCode::not_found) return job;
  if (!text) return tl::unexpected(text.error());
  job.in_job = true;
  const auto add = [&](std::string key, std::string value, std::string source) {
    job.settings.push_back({std::move(key), std::move(value), std::move(source)});
  };
  // What a job has anyway, before what its author says.
  for (const char* channel : {"train", "validation"}) {
    const std::string path = root + "/input/data/" + channel;
    if (exists(path)) add(std::string("data.") + channel, path, "channel " + std::string(channel));
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::string tokenizer = root + "/input/data/tokenizer/" + name;
    if (exists(tokenizer)) add("data.tokenizer", tokenizer, "channel tokenizer");
  }
  const std::string model = root + "/input/data/model";
  if (exists(model)) add("model.from", model, "channel model");
  add("output.dir", root + "/model", "job");
  add("log.metrics", root + "/output/data/metrics.jsonl", "job");
  add("checkpoint.dir", root + "/checkpoints", "job");
  const auto where = read_regular_file(folder + "checkpointconfig.json", 1 << 20);
  if (!where && where.error().code != ErrorCode::not_found) return tl::unexpected(where.error());
  if (where) {
    const auto object = json::parse_object(*where);
    if (!object) return tl::unexpected(object.error().with_context("checkpointconfig.json"));
    if (const auto path = json::opt_string(*object, "LocalPath"))
      add("checkpoint.dir", *path, "checkpointconfig.json");
  } else {
    job.notices.push_back(
        "the job has no CheckpointConfig: its checkpoints end with it, and a stopped one begins anew");
  }
  MUSTER_TRY(auto file, read_config_channel(root + "/input/data/config"));
  std::ranges::move(file, std::back_inserter(job.settings));

  const auto values = json::parse_object(trim(*text).empty() ? std::string("{}") : *text);
  if (!values) return tl::unexpected(values.error().with_context("hyperparameters.json"));
  for (const auto& [name, value] : *values) {
    const std::string key(name);
    if (key.starts_with("sagemaker_")) {
      job.notices.push_back("hyperparameter " + key + " is ignored: it is for SageMaker's own containers");
      continue;
    }
    add(key, value.is_string() ? std::string(json::view(value.as_string())) : json::dump(value),
        "hyperparameters.json");
  }
  return job;
}

Result<std::vector<Setting>> with_pretrained(std::vector<Setting> settings) {
  std::string folder;
  for (const Setting& setting : settings) {
    if (setting.key != "model.from") continue;
    Config config;
    MUSTER_CHECK(apply(config, keys_of(config), setting));
    folder = config.pretrained;
  }
  if (folder.empty()) return settings;
  Config config;
  auto model = hf::read_config(folder);
  if (!model) return tl::unexpected(model.error().with_context("model.from"));
  config.model = *std::move(model);
  std::vector<Setting> layers;
  for (const Key& key : keys_of(config)) {
    if (is_size(key)) layers.push_back({key.name, value_of(key), folder + "/" + hf::kConfigName});
  }
  layers.insert(layers.end(), settings.begin(), settings.end());
  return layers;
}

// Keys that say what shape a model has: who gives one without a preset must give all.
const std::set<std::string_view> kShapeKeys = {"model.layers", "model.width", "model.heads", "model.ffn"};

Result<Config> resolve(const std::vector<Setting>& settings) {
  Config config;
  const auto keys = keys_of(config);
  for (const Setting& setting : settings) {
    if (setting.key == "model.preset") MUSTER_CHECK(apply(config, keys, setting));
  }
  if (config.preset.empty()) {
    const bool shaped = std::any_of(settings.begin(), settings.end(), [](const Setting& s) {
      return kShapeKeys.contains(s.key) || s.key == "model.from";
    });
    if (!shaped) config.preset = "quickstart";
  }
  if (!config.preset.empty()) {
    auto sizes = preset(config.preset);
    if (!sizes) return tl::unexpected(sizes.error().with_context("model.preset"));
    config.model = *sizes;
    for (const Key& key : keys) {
      if (is_size(key)) config.sources[key.name] = "preset " + config.preset;
    }
    // These two a preset has for planning; a run takes its own.
    for (auto [name, size] : {std::pair{"model.vocab", &config.model.vocab},
                              std::pair{"model.max_sequence", &config.model.max_sequence}}) {
      *size = 0;
      config.sources.erase(name);
    }
    // Heads of the preset's width would not fit another stream or number of them.
    const auto sets = [&](std::string_view key) {
      return std::ranges::find(settings, key, &Setting::key) != settings.end();
    };
    if (sets("model.width") || sets("model.heads")) {
      config.model.head_dim = 0;
      config.sources.erase("model.head_dim");
    }
  }
  for (const Setting& setting : settings) MUSTER_CHECK(apply(config, keys, setting));
  if (!config.preset.empty() && !config.pretrained.empty()) {
    return fail(ErrorCode::invalid_argument,
                "model.preset and model.from both say what the model is; give one");
  }
  // What only another key can judge.
  if (config.model.kv_heads == 0) config.model.kv_heads = config.model.heads;
  if (config.model.max_sequence == 0) config.model.max_sequence = config.sequence;
  if (config.sequence > config.model.max_sequence) {
    return fail(ErrorCode::invalid_argument,
                "train.sequence = " + std::to_string(config.sequence) +
                    " is above model.max_sequence = " + std::to_string(config.model.max_sequence) +
                    "; lower one or raise the other (rotary positions have no limit of their own)");
  }
  if (config.min_lr > config.lr) {
    return fail(ErrorCode::invalid_argument, "optim.min_lr = " + text_of(Scalar(config.min_lr)) +
                                                 " is above optim.lr = " + text_of(Scalar(config.lr)) +
                                                 "; lower one or raise the other");
  }
  return config;
}

json::Object to_json(const Config& config) {
  Config copy = config;
  json::Object object;
  for (const Key& key : keys_of(copy)) {
    std::visit([&](const auto& value) { object[key.name] = json::Value(value); }, value_of(key));
  }
  return object;
}

Result<Config> from_json(const json::Object& object) {
  Config config;
  const auto keys = keys_of(config);
  for (const auto& [name, value] : object) {
    const Key* key = find_key(keys, std::string(name));
    if (key == nullptr) return unknown_key(keys, {std::string(name), std::string(), "checkpoint"});
    Scalar scalar;
    if (value.is_string()) {
      scalar = std::string(json::view(value.as_string()));
    } else if (value.is_bool()) {
      scalar = value.as_bool();
    } else if (value.is_int64()) {
      scalar = value.as_int64();
    } else if (value.is_double()) {
      scalar = value.as_double();
    } else {
      return fail(ErrorCode::corrupt, "checkpoint: " + key->name + " is " + json::dump(value));
    }
    if (auto assigned = assign(*key, scalar); !assigned)
      return tl::unexpected(assigned.error().with_context("checkpoint"));
  }
  // A checkpoint older than the key.
  if (config.model.max_sequence == 0) config.model.max_sequence = config.sequence;
  return config;
}

Result<void> check_resume(const json::Object& then, const Config& now,
                          const std::set<std::string>& accepted) {
  MUSTER_TRY(Config before, from_json(then));
  Config after = now;
  if (!then.contains("model.vocab")) before.model.vocab = after.model.vocab;  // older than the key
  const auto old_keys = keys_of(before), new_keys = keys_of(after);
  std::string refusals;
  for (std::size_t i = 0; i < new_keys.size(); ++i) {
    const Key& key = new_keys[i];
    const Scalar was = value_of(old_keys[i]), is = value_of(key);
    if (key.key_class == KeyClass::operational || was == is) continue;
    if (key.key_class == KeyClass::trajectory && accepted.contains(key.name)) continue;
    if (!refusals.empty()) refusals += "; ";
    refusals += key.name + " was " + shown(was) + ", is " + shown(is);
    refusals +=
        key.key_class == KeyClass::identity
            ? " (identity: put it back, or choose another checkpoint.dir)"
            : " (trajectory: put it back, or give --accept " + key.name + ", in a job as ContainerArguments)";
  }
  if (refusals.empty()) return {};
  return fail(ErrorCode::failed_precondition, "this run differs from the checkpoint: " + refusals);
}

Result<void> check_accepted(const std::set<std::string>& accepted) {
  Config config;
  const auto keys = keys_of(config);
  for (const std::string& name : accepted) {
    const Key* key = find_key(keys, name);
    if (key == nullptr) return unknown_key(keys, {name, std::string(), "--accept"});
    if (key->key_class == KeyClass::trajectory) continue;
    return fail(ErrorCode::invalid_argument,
                "--accept " + name + ": " +
                    (key->key_class == KeyClass::identity
                         ? "an identity key may never change; choose another checkpoint.dir for another run"
                         : "an operational key may change freely; leave the flag out"));
  }
  return {};
}

std::string explain(const Config& config) {
  Config copy = config;
  const auto keys = keys_of(copy);
  const auto section_of = [](const Key& key) { return key.name.substr(0, key.name.find('.')); };
  std::vector<std::string> sections;
  for (const Key& key : keys) {
    if (std::ranges::find(sections, section_of(key)) == sections.end()) sections.push_back(section_of(key));
  }
  std::string out;
  for (const std::string& section : sections) {
    out += (out.empty() ? "[" : "\n[") + section + "]\n";
    for (const Key& key : keys) {
      if (section_of(key) != section) continue;
      const auto source = copy.sources.find(key.name);
      const std::string range = range_of(key);
      out += padded(key.name, 20) + " " + padded(shown(value_of(key)), 14) + " " +
             padded(std::string(to_string(key.key_class)), 12) + " " +
             padded(source == copy.sources.end() ? "default" : source->second, 20) + " " + key.help +
             (range.empty() ? "" : " (" + range + ")") + "\n";
    }
  }
  return out;
}

}  // namespace muster::train
