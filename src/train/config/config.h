// The configuration of a training run: one table of keys that the file, --set, a job's hyperparameters,
// --explain, checkpoints and resume all read.
//
// Layers, later ones win: default, [model] preset or from, file (TOML), job (under /opt/ml: channels, the
// TOML file of a channel named config, hyperparameters), --set. Unknown keys are refused with the nearest
// known one.
//
// Each key has a class that decides what a resumed run may change: identity (model, seed, sequence: a
// difference refuses), trajectory (learning rate, batch, schedule: needs --accept KEY), operational (paths,
// logging, mesh: free). Values only; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "train/mesh/mesh.h"
#include "train/model/params.h"

namespace muster::train {

struct Config {
  std::string preset;      // model.preset; empty: none
  std::string pretrained;  // model.from: a Hugging Face folder; empty: none
  ModelConfig model;       // vocab 0: the data's
  std::string train_data, validation_data, tokenizer;
  std::string mixture;         // weights of the folders of train_data; empty: by their size
  bool document_mask = false;  // attention stays inside documents

  std::int64_t ignored_token = -1;  // a target that takes no part in the loss

  std::int64_t steps = 400;
  std::int64_t batch = 16;       // windows a step, over all ranks
  std::int64_t micro_batch = 4;  // windows a forward pass on one rank
  std::int64_t sequence = 256;
  std::int64_t seed = 1;

  double lr = 1e-3, min_lr = 1e-4;
  std::int64_t warmup = 20;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, clip = 1.0;

  std::string checkpoint_dir;  // empty: no checkpoints
  std::int64_t checkpoint_every = 100;
  std::int64_t checkpoint_keep = 2;
  std::int64_t checkpoint_keep_every = 0;  // 0: none but those
  std::string checkpoint_resume = "auto";

  std::int64_t eval_every = 0;     // 0: only before and after
  std::int64_t eval_windows = 64;  // at most
  std::int64_t log_every = 10;
  std::string metrics;     // log.metrics; empty: no file
  double peak_gflops = 0;  // of a rank; 0: not stated
  std::string output_dir;  // empty: no model is written

  std::int64_t nproc = 0;    // 0: as started
  std::int64_t threads = 0;  // 0: local cores / local ranks
  double timeout_s = 600;
  MeshShape mesh;
  bool sequence_parallel = false;
  std::int64_t zero = 0;          // 1: the optimizer's state is cut over the replicas
  std::string gather = "auto";    // of mesh.shard: auto, flat, hierarchical
  std::string schedule = "1f1b";  // of the pipeline
  std::string stage_layers;       // "3,2,2"; empty: balanced
  std::string activation_checkpointing = "none";
  std::string precision = "fp32";  // of parameters and activations

  std::map<std::string, std::string> sources;  // key -> where its value comes from
};

// train.precision as a type.
Dtype compute_dtype(const Config& config);

enum class KeyClass { identity, trajectory, operational };
std::string_view to_string(KeyClass key_class);

// A value as text (--set, hyperparameters: read as a TOML scalar, else as a string) or typed (from a file).
using Scalar = std::variant<std::int64_t, double, bool, std::string>;
struct Setting {
  std::string key;
  std::variant<std::string, Scalar> value;
  std::string source;  // "run.toml", "--set", "hyperparameters.json"
};

// "train.steps=400" of --set.
Result<Setting> parse_assignment(std::string_view text);
// All keys of a TOML file, dotted.
Result<std::vector<Setting>> read_toml(const std::string& path);
Result<std::vector<Setting>> parse_toml(std::string_view text, const std::string& source);

// What a job brings under `root` (/opt/ml): channels, the one *.toml of the channel `config` if there is one,
// hyperparameters.json.
struct JobSettings {
  bool in_job = false;
  std::vector<Setting> settings;
  std::vector<std::string> notices;  // what was ignored, for the log
};
Result<JobSettings> read_job(const std::string& root);

// If one of the settings is model.from: the sizes in the config.json there, as a layer below all others.
Result<std::vector<Setting>> with_pretrained(std::vector<Setting> settings);

// Resolves the layers in the order given and checks every value.
Result<Config> resolve(const std::vector<Setting>& settings);

// The resolved values by dotted key, as stored in a checkpoint.
json::Object to_json(const Config& config);
// The configuration of a checkpoint. Keys this program does not know are an error.
Result<Config> from_json(const json::Object& object);

// Whether a run with `now` may go on from a checkpoint of `then`: names every key that forbids it, both
// values and the remedy. `accepted`: keys given by --accept.
Result<void> check_resume(const json::Object& then, const Config& now, const std::set<std::string>& accepted);

// Whether --accept may name these: trajectory keys only.
Result<void> check_accepted(const std::set<std::string>& accepted);

// The table for people: key, value, source, class, meaning.
std::string explain(const Config& config);

}  // namespace muster::train
