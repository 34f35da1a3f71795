#include "train/config/keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/assert.h"
#include "base/text.h"

namespace muster::train {
namespace {

constexpr double kMany = 1e12;
constexpr double kSeedMost = 9007199254740991;  // 2^53 - 1: every reader of JSON keeps it exact
constexpr double kLongest = 1 << 20;            // of model.max_sequence, too
constexpr double kLastToken = (1 << 20) - 1;    // of the largest vocabulary

// Beyond these fp32 rounds a beta to 1, or epsilon to 0, and the first update makes weights that are no
// numbers.
constexpr double kBetaMost = 0.999999;
constexpr double kEpsLeast = 1e-30;

// One layer of JSON quotes, which SDKs put around strings.
std::string unquoted(const std::string& text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    const auto value = json::parse(text);
    if (value && value->is_string()) return std::string(json::view(value->as_string()));
  }
  return text;
}

// As TOML reads a bare value; underscores between digits included.
Scalar scalar_of(const std::string& quoted) {
  std::string text(trim(unquoted(quoted)));
  if (text == "true") return true;
  if (text == "false") return false;
  std::string digits = text;
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (const auto whole = parse_int(digits)) return *whole;
  if (const auto number = parse_double(digits); number && std::isfinite(*number)) return *number;
  return text;
}

bool is_whole(const Key& key) {
  return std::holds_alternative<std::int64_t*>(key.target) || std::holds_alternative<int*>(key.target);
}

// What a key has that no layer sets, as text; empty: that is no value which could be given.
std::string default_of(const Key& key) {
  Config plain;
  const auto keys = keys_of(plain);
  const Key& same = *std::ranges::find(keys, key.name, &Key::name);
  const Scalar value = value_of(same);
  if (std::holds_alternative<std::string>(value)) return "";
  const bool low = is_whole(same) && static_cast<double>(std::get<std::int64_t>(value)) < same.minimum;
  return low ? "" : text_of(value);
}

// "a number from 1e-30 to 1 is needed; the default is 1e-05".
std::string wanted(const Key& key) {
  std::string what = is_whole(key)                                 ? "a whole number"
                     : std::holds_alternative<double*>(key.target) ? "a number"
                     : std::holds_alternative<bool*>(key.target)   ? "true or false"
                                                                   : "a string";
  if (!key.choices.empty()) {
    what = "one of " + range_of(key);
  } else if (const std::string range = range_of(key); !range.empty()) {
    what += " from " + range;
  }
  const std::string usual = default_of(key);
  return what + " is needed" + (usual.empty() ? "" : "; the default is " + usual);
}

tl::unexpected<Error> refused(const Key& key, const std::string& value) {
  return fail(ErrorCode::invalid_argument, key.name + " = " + value + ": " + wanted(key));
}

Result<void> assign_scalar(const Key& key, const Scalar& value) {
  const std::string shown = std::holds_alternative<std::string>(value)
                                ? "\"" + std::get<std::string>(value) + "\""
                                : text_of(value);
  const auto in_range = [&](double number) { return number >= key.minimum && number <= key.maximum; };
  const auto* whole = std::get_if<std::int64_t>(&value);
  if (auto* const* target = std::get_if<std::int64_t*>(&key.target)) {
    if (whole == nullptr || !in_range(static_cast<double>(*whole))) return refused(key, shown);
    **target = *whole;
  } else if (auto* const* small = std::get_if<int*>(&key.target)) {
    if (whole == nullptr || !in_range(static_cast<double>(*whole))) return refused(key, shown);
    **small = static_cast<int>(*whole);
  } else if (auto* const* real = std::get_if<double*>(&key.target)) {
    const auto* number = std::get_if<double>(&value);
    if (whole == nullptr && number == nullptr) return refused(key, shown);
    const double given = number != nullptr ? *number : static_cast<double>(*whole);
    if (!in_range(given)) return refused(key, shown);
    **real = given;
  } else if (auto* const* flag = std::get_if<bool*>(&key.target)) {
    const auto* given = std::get_if<bool>(&value);
    if (given == nullptr) return refused(key, shown);
    **flag = *given;
  } else {
    const auto* text = std::get_if<std::string>(&value);
    const bool known = text != nullptr &&
                       (key.choices.empty() || std::count(key.choices.begin(), key.choices.end(), *text) > 0);
    if (!known) return refused(key, shown);
    *std::get<std::string*>(key.target) = *text;
  }
  return {};
}

}  // namespace

Dtype compute_dtype(const Config& config) { return config.precision == "bf16" ? Dtype::bf16 : Dtype::f32; }

std::string_view to_string(KeyClass key_class) {
  switch (key_class) {
    case KeyClass::identity:
      return "identity";
    case KeyClass::trajectory:
      return "trajectory";
    case KeyClass::operational:
      return "operational";
  }
  return "?";
}

namespace {

// The limits of a model are those that it is made with.
void limit_model_keys(std::vector<Key>& keys) {
  for (const ModelLimit& limit : model_limits()) {
    const auto key = std::ranges::find(keys, "model." + std::string(limit.key), &Key::name);
    MUSTER_ASSERT(key != keys.end());
    key->minimum = limit.derived ? 0 : limit.minimum;
    key->maximum = limit.maximum;
  }
}

}  // namespace

std::vector<Key> keys_of(Config& c) {
  using enum KeyClass;
  ModelConfig& m = c.model;
  std::vector<Key> keys = {
      {"model.preset", operational,
       "Sizes to start from (" + join(preset_names(), ", ") +
           "); the keys below override it. Default: quickstart, unless model.from or a "
           "size (layers, width, heads, ffn) is given; without a preset all four are needed",
       &c.preset},
      {"model.from", operational,
       "Hugging Face folder to start from: its sizes, and its weights unless there is a checkpoint; empty: "
       "none",
       &c.pretrained},
      {"model.vocab", identity, "Vocabulary; 0: that of the data", &m.vocab},
      {"model.layers", identity, "Decoder layers", &m.layers},
      {"model.width", identity, "Width of the residual stream", &m.width},
      {"model.heads", identity, "Query heads", &m.heads},
      {"model.kv_heads", identity, "Key and value heads; divides model.heads", &m.kv_heads},
      {"model.head_dim", identity,
       "Width of a head; 0: width / heads, which is what a preset's becomes where one of these is set",
       &m.head_dim},
      {"model.ffn", identity, "Inner width of the SwiGLU block", &m.ffn},
      {"model.rope_theta", identity, "Base of the rotary position frequencies", &m.rope_theta},
      {"model.rope_scaling",
       identity,
       "How these frequencies are stretched for longer texts",
       &m.rope_scaling,
       -INFINITY,
       INFINITY,
       {"default", "linear", "llama3"}},
      {"model.rope_factor", identity, "By how much: linear, llama3", &m.rope_factor},
      {"model.rope_low_freq_factor", identity,
       "llama3: pairs with fewer turns in the original sequence are stretched in full",
       &m.rope_low_freq_factor},
      {"model.rope_high_freq_factor", identity, "llama3: pairs with more turns are not stretched",
       &m.rope_high_freq_factor},
      {"model.rope_original_sequence", identity, "llama3: the sequence before stretching",
       &m.rope_original_sequence},
      {"model.max_sequence", identity, "Longest text the model is for; 0: train.sequence", &m.max_sequence},
      {"model.norm_eps", identity, "Epsilon of RMSNorm", &m.norm_eps},
      {"model.tied", identity, "The output head is the embedding", &m.tied},
      {"model.init_std", identity, "Standard deviation of the initial weights", &m.init_std},
      {"data.train", operational,
       "Folder of token shards to train on; several, with commas between, are mixed", &c.train_data},
      {"data.validation", operational, "Folder of held-out token shards; empty: none", &c.validation_data},
      {"data.tokenizer", operational,
       "tokenizer.json or tokenizer.model, copied beside the model; empty: none", &c.tokenizer},
      {"data.mixture", operational,
       "Of several folders in data.train, with commas between, the weights, likewise; empty: by their tokens",
       &c.mixture},
      {"data.document_mask", identity, "Attention stays inside documents, and positions restart in each",
       &c.document_mask},
      {"data.ignored_token", identity, "Targets with this id (padding) take no part in the loss; -1: none",
       &c.ignored_token, -1, kLastToken},
      {"train.steps", trajectory, "Optimizer steps in all", &c.steps, 1, kMany},
      {"train.batch", trajectory, "Windows a step, over all ranks", &c.batch, 1, 1e9},
      {"train.micro_batch", trajectory, "Windows a forward pass on one rank", &c.micro_batch, 1, 1e6},
      {"train.sequence", identity, "Tokens of a window", &c.sequence, 1, kLongest},
      {"train.precision",
       trajectory,
       "What parameters and activations are computed in; bf16: with fp32 master weights, gradients and loss",
       &c.precision,
       -INFINITY,
       INFINITY,
       {"fp32", "bf16"}},
      {"train.activation_checkpointing",
       operational,
       "What a forward keeps: none: all; selective: not what is cheap to make again; full: layer inputs only",
       &c.activation_checkpointing,
       -INFINITY,
       INFINITY,
       {"none", "selective", "full"}},
      {"train.seed", identity, "Seed of weights and data order", &c.seed, 0, kSeedMost},
      {"optim.lr", trajectory, "Learning rate after the warm-up, then down by a cosine", &c.lr, 0, 100},
      {"optim.min_lr", trajectory, "Learning rate at the end; equal to optim.lr: constant", &c.min_lr, 0,
       100},
      {"optim.warmup", trajectory, "Steps of linear warm-up", &c.warmup, 0, kMany},
      {"optim.weight_decay", trajectory, "AdamW weight decay, on matrices only", &c.weight_decay, 0, 10},
      {"optim.beta1", trajectory, "AdamW decay of the first moment", &c.beta1, 0, kBetaMost},
      {"optim.beta2", trajectory, "AdamW decay of the second moment", &c.beta2, 0, kBetaMost},
      {"optim.eps", trajectory, "AdamW epsilon", &c.eps, kEpsLeast, 1},
      {"optim.clip", trajectory, "Largest global gradient norm; 0: no clipping", &c.clip, 0, 1e9},
      {"checkpoint.dir", operational, "Folder of checkpoints, of one run at a time; empty: none are written",
       &c.checkpoint_dir},
      {"checkpoint.every", operational, "Steps between checkpoints; 0: only at the end and when stopped",
       &c.checkpoint_every, 0, kMany},
      {"checkpoint.keep", operational, "Newest finished checkpoints kept", &c.checkpoint_keep, 1, 1e6},
      {"checkpoint.keep_every", operational,
       "Of the older ones, steps that this divides are kept too; 0: none", &c.checkpoint_keep_every, 0,
       kMany},
      {"checkpoint.resume",
       operational,
       "auto: go on from the newest one; if there is none say so and start at step 0 (the folder around "
       "checkpoint.dir must be there); required: refuse to start anew; latest-valid: as auto, but past "
       "damaged "
       "ones",
       &c.checkpoint_resume,
       -INFINITY,
       INFINITY,
       {"auto", "required", "latest-valid"}},
      {"eval.every", operational, "Steps between held-out evaluations; 0: before and after only",
       &c.eval_every, 0, kMany},
      {"eval.windows", operational, "Held-out windows evaluated, at most", &c.eval_windows, 1, kMany},
      {"log.every", operational, "Steps between lines of progress", &c.log_every, 1, kMany},
      {"log.metrics", operational, "File of JSON lines, one a step; empty: none", &c.metrics},
      {"output.dir", operational, "Folder for the final model; empty: none is written", &c.output_dir},
      {"run.nproc", operational, "Ranks on each node; 0: as started", &c.nproc, 0, 1024},
      {"run.threads", operational, "Threads of a rank; 0: cores / ranks of the machine", &c.threads, 0, 1024},
      {"run.peak_gflops", operational,
       "Peak of one rank, to show the share of it that is reached; 0: not shown", &c.peak_gflops, 0, 1e9},
      {"run.timeout_s", operational, "Seconds a collective may wait for a peer", &c.timeout_s, 1, 1e6},
      {"mesh.pp", operational, "Pipeline stages", &c.mesh.pp, 1, 1e6},
      {"mesh.replica", operational,
       "Replicas of the model, which share the batch; 0: as many as the ranks allow", &c.mesh.replica, 0,
       1e6},
      {"mesh.shard", operational, "Ranks over which the parameters are cut (ZeRO-3, MiCS)", &c.mesh.shard, 1,
       1e6},
      {"mesh.tp", operational, "Tensor-parallel ranks", &c.mesh.tp, 1, 1e6},
      {"mesh.sequence_parallel", operational,
       "Tensor-parallel ranks also share the stream between the blocks", &c.sequence_parallel},
      {"mesh.zero", operational, "State cut over the replicas; 0: none, 1: the optimizer's (ZeRO-1)", &c.zero,
       0, 1},
      {"mesh.gather",
       operational,
       "How mesh.shard gathers: auto: in two levels where a group spans nodes and tiles them",
       &c.gather,
       -INFINITY,
       INFINITY,
       {"auto", "flat", "hierarchical"}},
      {"mesh.schedule",
       operational,
       "Order of a pipeline's micro-batches",
       &c.schedule,
       -INFINITY,
       INFINITY,
       {"1f1b", "gpipe"}},
      {"mesh.stage_layers", operational, "Layers of each pipeline stage, as 3,2,2; empty: balanced by cost",
       &c.stage_layers},
  };
  limit_model_keys(keys);
  return keys;
}

Result<void> assign(const Key& key, const std::variant<std::string, Scalar>& value) {
  if (const auto* typed = std::get_if<Scalar>(&value)) return assign_scalar(key, *typed);
  const std::string& text = std::get<std::string>(value);
  // A path may look like a number: a string key takes the text as it is.
  if (std::holds_alternative<std::string*>(key.target)) return assign_scalar(key, Scalar(unquoted(text)));
  return assign_scalar(key, scalar_of(text));
}

std::string range_of(const Key& key) {
  if (!key.choices.empty()) return join(key.choices, ", ");
  if (!std::isfinite(key.minimum)) return "";
  const auto bound = [&](double value) {
    return text_of(is_whole(key) ? Scalar(static_cast<std::int64_t>(value)) : Scalar(value));
  };
  return bound(key.minimum) + " to " + bound(key.maximum);
}

Scalar value_of(const Key& key) {
  return std::visit(
      [](const auto* target) -> Scalar {
        if constexpr (std::is_same_v<decltype(target), const int*>) {
          return static_cast<std::int64_t>(*target);
        } else {
          return *target;
        }
      },
      key.target);
}

std::string text_of(const Scalar& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, std::get<double>(value));  // shortest that reads back
  return std::string(buffer, end.ptr);
}

}  // namespace muster::train
