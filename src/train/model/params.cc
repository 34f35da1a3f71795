#include "train/model/params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <type_traits>
#include <utility>

#include "base/assert.h"
#include "base/rng.h"
#include "base/text.h"

namespace muster::train {
namespace {

using Config = ModelConfig;

std::int64_t vocab(const Config& c) { return c.vocab; }
std::int64_t width(const Config& c) { return c.width; }
std::int64_t query_width(const Config& c) { return c.query_width(); }
std::int64_t kv_width(const Config& c) { return c.kv_width(); }
std::int64_t ffn(const Config& c) { return c.ffn; }

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

constexpr int kRows = 0, kColumns = 1;  // what tensor parallelism cuts

constexpr ParamSpec kSpecs[] = {
    {kEmbedding, vocab, width, true, Init::normal, kRows},
    {"model.layers.*.self_attn.q_proj.weight", query_width, width, true, Init::normal, kRows},
    {"model.layers.*.self_attn.k_proj.weight", kv_width, width, true, Init::normal, kRows},
    {"model.layers.*.self_attn.v_proj.weight", kv_width, width, true, Init::normal, kRows},
    {"model.layers.*.self_attn.o_proj.weight", width, query_width, true, Init::residual, kColumns},
    {"model.layers.*.mlp.gate_proj.weight", ffn, width, true, Init::normal, kRows},
    {"model.layers.*.mlp.up_proj.weight", ffn, width, true, Init::normal, kRows},
    {"model.layers.*.mlp.down_proj.weight", width, ffn, true, Init::residual, kColumns},
    {"model.layers.*.input_layernorm.weight", width, nullptr, false, Init::ones},
    {"model.layers.*.post_attention_layernorm.weight", width, nullptr, false, Init::ones},
    {"model.norm.weight", width, nullptr, false, Init::ones},
    {"lm_head.weight", vocab, width, true, Init::normal, kRows, kEmbedding},
};

bool per_layer(const ParamSpec& spec) { return spec.pattern.find('*') != std::string_view::npos; }

std::string layer_name(std::string_view pattern, std::int64_t layer) {
  const auto star = pattern.find('*');
  return std::string(pattern.substr(0, star)) + std::to_string(layer) + std::string(pattern.substr(star + 1));
}

std::vector<std::int64_t> shape_of(const Config& config, const ParamSpec& spec) {
  std::vector<std::int64_t> shape = {spec.rows(config)};
  if (spec.columns != nullptr) shape.push_back(spec.columns(config));
  return shape;
}

Param make_param(const Config& config, const ModelPart& part, const ParamSpec& spec, std::string name,
                 std::int64_t offset) {
  Box box = whole_box(shape_of(config, spec));
  if (spec.tp_axis != kNotCut) {
    const auto axis = static_cast<std::size_t>(spec.tp_axis);
    const auto cut = part_of(box.length[axis], part.tp_rank, part.tp);
    box.start[axis] = cut.begin;
    box.length[axis] = cut.size();
  }
  const auto numel = box.numel();
  return {.name = std::move(name),
          .shape = box.length,
          .box = std::move(box),
          .offset = offset,
          .numel = numel,
          .spec = &spec};
}

std::int64_t numel_of(const Config& config, const ModelPart& part, const ParamSpec& spec) {
  return make_param(config, part, spec, "", 0).numel;
}

// The degrees from 1 to `most` that divide both.
std::string degrees(std::int64_t heads, std::int64_t kv_heads) {
  std::string text;
  for (std::int64_t degree = 1; degree <= kv_heads; ++degree) {
    if (heads % degree == 0 && kv_heads % degree == 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(degree);
    }
  }
  return text;
}

struct Preset {
  std::string_view name;
  std::int64_t vocab, layers, width, heads, kv_heads, ffn;
  bool tied;
  std::int64_t max_sequence;
  double rope_theta = 10000.0;
};

constexpr Preset kPresets[] = {
    {"quickstart", 4096, 4, 256, 4, 2, 704, false, 256},
    {"bench", 4096, 4, 512, 8, 8, 1376, false, 256},
    {"tiny", 64, 2, 32, 4, 2, 48, false, 32},
    {"llama-5m", 4096, 5, 256, 4, 2, 768, true, 512},
    {"llama-15m", 32000, 6, 288, 6, 6, 768, true, 1024},
    {"llama-110m", 32000, 12, 768, 12, 12, 2048, true, 2048},
    {"llama-1b", 128256, 16, 2048, 32, 8, 8192, true, 8192, 500000},     // Llama 3.2
    {"llama-7b", 32000, 32, 4096, 32, 32, 11008, false, 4096},           // Llama 2
    {"llama-8b", 128256, 32, 4096, 32, 8, 14336, false, 8192, 500000},   // Llama 3
    {"llama-13b", 32000, 40, 5120, 40, 40, 13824, false, 4096},          // Llama 2
    {"llama-70b", 128256, 80, 8192, 64, 8, 28672, false, 8192, 500000},  // Llama 3
};

constexpr ModelLimit kLimits[] = {
    {"vocab", &ModelConfig::vocab, 1, 1 << 20, true},
    {"layers", &ModelConfig::layers, 1, 1024},
    {"width", &ModelConfig::width, 1, 1 << 16},
    {"heads", &ModelConfig::heads, 1, 1024},
    {"kv_heads", &ModelConfig::kv_heads, 1, 1024},
    {"head_dim", &ModelConfig::head_dim, 2, 1024, true},
    {"ffn", &ModelConfig::ffn, 1, 1 << 20},
    {"rope_theta", &ModelConfig::rope_theta, 1, 1e12},
    {"rope_factor", &ModelConfig::rope_factor, 1, 1e6},
    {"rope_low_freq_factor", &ModelConfig::rope_low_freq_factor, 0, 1e6},
    {"rope_high_freq_factor", &ModelConfig::rope_high_freq_factor, 0, 1e6},
    {"rope_original_sequence", &ModelConfig::rope_original_sequence, 1, 1 << 30},
    {"max_sequence", &ModelConfig::max_sequence, 1, 1 << 20, true},
    {"norm_eps", &ModelConfig::norm_eps, 1e-30, 1},  // above 0 in fp32 too
    {"init_std", &ModelConfig::init_std, 0, 10},
};

// As they are written in a configuration.
std::string shortest(double value) {
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

Result<void> check_limit(const ModelConfig& config, const ModelLimit& limit) {
  const auto value =
      std::visit([&](auto member) { return static_cast<double>(config.*member); }, limit.member);
  if (value >= limit.minimum && value <= limit.maximum) return {};  // no NaN
  const auto shown = [&](auto member) {
    if constexpr (std::is_same_v<decltype(member), double ModelConfig::*>) return shortest(config.*member);
    return std::to_string(config.*member);
  };
  return fail(ErrorCode::invalid_argument, "model." + std::string(limit.key) + " is " +
                                               std::visit(shown, limit.member) + "; it must be from " +
                                               shortest(limit.minimum) + " to " + shortest(limit.maximum) +
                                               (value == 0 ? "; a model.preset has one" : ""));
}

// FNV-1a, 64 bits.
std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}

// Mean 0, standard deviation 1, from the counter alone. Exact integer sums: the same bits everywhere.
double normal_at(std::uint64_t key, std::int64_t index) {
  constexpr int kTerms = 8;
  constexpr double kMean = kTerms * 65535.0 / 2;
  constexpr double kInverseDeviation = 1.0 / 53509.91992145008;  // sqrt(8 * (65536^2 - 1) / 12)
  std::int64_t sum = 0;
  for (std::uint64_t word = 0; word < 2; ++word) {
    const std::uint64_t counter = 2 * static_cast<std::uint64_t>(index) + word + 1;
    const std::uint64_t bits = Rng::mix(key + counter * 0x9e3779b97f4a7c15ULL);
    for (int part = 0; part < 4; ++part) sum += static_cast<std::int64_t>((bits >> (16 * part)) & 0xffff);
  }
  return (static_cast<double>(sum) - kMean) * kInverseDeviation;
}

Result<void> check_rope_scaling(const ModelConfig& config) {
  if (config.rope_scaling == "default") return {};
  if (config.rope_scaling != "linear" && config.rope_scaling != "llama3") {
    return fail(ErrorCode::invalid_argument, "model.rope_scaling is \"" + config.rope_scaling +
                                                 "\"; there are default, linear and llama3");
  }
  if (config.rope_scaling == "linear" ||
      (config.rope_low_freq_factor > 0 && config.rope_high_freq_factor > config.rope_low_freq_factor &&
       config.rope_original_sequence > 0)) {
    return {};
  }
  return fail(ErrorCode::invalid_argument,
              "model.rope_scaling = llama3 needs 0 < model.rope_low_freq_factor (it is " +
                  std::to_string(config.rope_low_freq_factor) + ") < model.rope_high_freq_factor (" +
                  std::to_string(config.rope_high_freq_factor) +
                  ") and model.rope_original_sequence of at least 1 (" +
                  std::to_string(config.rope_original_sequence) + ")");
}

}  // namespace

std::span<const ModelLimit> model_limits() { return kLimits; }

Result<ModelConfig> validated(ModelConfig config) {
  for (const ModelLimit& limit : kLimits) {
    const bool later = config.head_dim == 0 && limit.key == "head_dim";
    if (!later) MUSTER_CHECK(check_limit(config, limit));
  }
  if (config.heads % config.kv_heads != 0) {
    return fail(ErrorCode::invalid_argument, "model.kv_heads is " + std::to_string(config.kv_heads) +
                                                 "; it must divide model.heads, which is " +
                                                 std::to_string(config.heads));
  }
  const bool derived = config.head_dim == 0;
  if (derived) {
    if (config.width % config.heads != 0) {
      return fail(ErrorCode::invalid_argument,
                  "model.width " + std::to_string(config.width) + " is not a multiple of model.heads " +
                      std::to_string(config.heads) + "; change one, or set model.head_dim");
    }
    config.head_dim = config.width / config.heads;
    MUSTER_CHECK(check_limit(config, *std::ranges::find(kLimits, "head_dim", &ModelLimit::key)));
  }
  if (config.head_dim % 2 != 0) {
    return fail(ErrorCode::invalid_argument,
                "model.head_dim is " + std::to_string(config.head_dim) +
                    (derived ? ", model.width " + std::to_string(config.width) + " / model.heads " +
                                   std::to_string(config.heads)
                             : "") +
                    "; it must be even (rotary embedding turns pairs)");
  }
  MUSTER_CHECK(check_rope_scaling(config));
  return config;
}

Result<ModelConfig> preset(std::string_view name, std::int64_t vocab_wanted) {
  const auto found = std::ranges::find(kPresets, name, &Preset::name);
  if (found == std::end(kPresets)) {
    return fail(
        ErrorCode::invalid_argument,
        "model preset \"" + std::string(name) + "\" does not exist; there are " + join(preset_names(), ", "));
  }
  ModelConfig config{.vocab = vocab_wanted != 0 ? vocab_wanted : found->vocab,
                     .layers = found->layers,
                     .width = found->width,
                     .heads = found->heads,
                     .kv_heads = found->kv_heads,
                     .ffn = found->ffn,
                     .rope_theta = found->rope_theta,
                     .tied = found->tied,
                     .max_sequence = found->max_sequence};
  return validated(config);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& one : kPresets) names.emplace_back(one.name);
  return names;
}

double rope_frequency(const ModelConfig& config, std::int64_t pair) {
  const double plain =
      std::pow(config.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(config.head_dim));
  if (config.rope_scaling == "linear") return plain / config.rope_factor;
  if (config.rope_scaling != "llama3") return plain;
  const double turns = static_cast<double>(config.rope_original_sequence) * plain / (2 * std::numbers::pi);
  const double kept = std::clamp(
      (turns - config.rope_low_freq_factor) / (config.rope_high_freq_factor - config.rope_low_freq_factor),
      0.0, 1.0);
  return plain * (kept + (1 - kept) / config.rope_factor);
}

std::span<const ParamSpec> param_specs() { return kSpecs; }

std::int64_t parameter_count(const ModelConfig& config) {
  std::int64_t count = 0;
  for (const ParamSpec& spec : kSpecs) {
    if (config.tied && !spec.tied_to.empty()) continue;
    const std::int64_t one = spec.rows(config) * (spec.columns == nullptr ? 1 : spec.columns(config));
    count += one * (per_layer(spec) ? config.layers : 1);
  }
  return count;
}

ModelPart whole_model(const ModelConfig& config) { return {.layers = {0, config.layers}}; }

PartSize part_size(const ModelConfig& config, const ModelPart& part) {
  const bool first = part.layers.begin == 0, last = part.layers.end == config.layers;
  PartSize size;
  for (auto spec = std::begin(kSpecs); spec != std::end(kSpecs); ++spec) {
    const std::int64_t one = numel_of(config, part, *spec);
    const std::int64_t blocks = (one + ParamTable::kBlock - 1) / ParamTable::kBlock;
    if (per_layer(*spec)) {
      size.parameters += one * part.layers.size();
      size.blocks += blocks * part.layers.size();
    } else if (spec == std::begin(kSpecs) ? first : last) {
      const bool tail = first && config.tied && !spec->tied_to.empty();
      (tail ? size.gradients : size.parameters) += one;
      if (!tail) size.blocks += blocks;
    }
  }
  size.gradients += size.parameters;
  return size;
}

Result<void> check_tensor_parallel(const ModelConfig& config, int tp) {
  if (tp >= 1 && config.heads % tp == 0 && config.kv_heads % tp == 0 && tp <= config.vocab &&
      tp <= config.ffn) {
    return {};
  }
  return fail(ErrorCode::invalid_argument,
              "tensor parallelism over " + std::to_string(tp) + " ranks: the " +
                  std::to_string(config.heads) + " heads and " + std::to_string(config.kv_heads) +
                  " key / value heads must divide by it, and it must not exceed vocabulary and inner width; "
                  "possible here: " +
                  degrees(config.heads, config.kv_heads));
}

ModelConfig local_config(const ModelConfig& config, const ModelPart& part) {
  ModelConfig local = config;
  local.heads = config.heads / part.tp;
  local.kv_heads = config.kv_heads / part.tp;
  local.ffn = part_of(config.ffn, part.tp_rank, part.tp).size();
  local.vocab = part_of(config.vocab, part.tp_rank, part.tp).size();
  local.layers = part.layers.size();
  return local;
}

ParamTable::ParamTable(const ModelConfig& config, const ModelPart& part)
    : config_(config), local_(local_config(config, part)), part_(part) {
  auto end_unit = [this, begin = std::int64_t{0}]() mutable {
    if (numel_ > begin) units_.push_back({std::exchange(begin, numel_), numel_});
  };
  // Hugging Face's order: what stands before the layers, layer by layer, what stands behind them.
  const auto first = std::ranges::find_if(kSpecs, per_layer);
  const auto behind = std::find_if_not(first, std::end(kSpecs), per_layer);
  for (auto spec = std::begin(kSpecs); spec != first && has_embedding(); ++spec) {
    add(*spec, std::string(spec->pattern));
  }
  end_unit();
  for (std::int64_t layer = part.layers.begin; layer < part.layers.end; ++layer) {
    for (auto spec = first; spec != behind; ++spec) add(*spec, layer_name(spec->pattern, layer));
    end_unit();
  }
  for (auto spec = behind; spec != std::end(kSpecs) && has_head(); ++spec) {
    if (!config_.tied || spec->tied_to.empty()) {
      add(*spec, std::string(spec->pattern));
    } else if (const Param* here = find(spec->tied_to)) {
      tail_ += here->numel;
    } else {
      const auto tied = std::ranges::find(kSpecs, spec->tied_to, &ParamSpec::pattern);
      end_unit();
      add(*tied, std::string(tied->pattern));
      params_.back().copy = true;
    }
  }
  end_unit();
  for (const Param& param : params_) {
    for (std::int64_t begin = 0; begin < param.numel; begin += kBlock) {
      blocks_.push_back({param.offset + begin, param.offset + std::min(begin + kBlock, param.numel)});
    }
  }
}

void ParamTable::add(const ParamSpec& spec, std::string name) {
  params_.push_back(make_param(config_, part_, spec, std::move(name), numel_));
  numel_ += params_.back().numel;
}

const Param* ParamTable::find(std::string_view name) const {
  const auto found = std::ranges::find(params_, name, &Param::name);
  return found == params_.end() ? nullptr : &*found;
}

const Param& ParamTable::at(std::string_view name) const {
  const Param* param = find(name);
  MUSTER_ASSERT(param != nullptr);
  return *param;
}

std::span<const Range> ParamTable::blocks(Range range) const {
  const auto first = std::ranges::lower_bound(blocks_, range.begin, {}, &Range::begin);
  const auto last = std::ranges::lower_bound(blocks_, range.end, {}, &Range::begin);
  MUSTER_ASSERT(range.size() == 0 || (first != blocks_.end() && first->begin == range.begin));
  MUSTER_ASSERT(range.size() == 0 || std::prev(last)->end == range.end);
  return {first, last};
}

const Param& ParamTable::param_at(std::int64_t element) const {
  MUSTER_ASSERT(0 <= element && element < numel_);
  return *(std::ranges::upper_bound(params_, element, {}, &Param::offset) - 1);
}

template <typename T>
void init_param(const ModelConfig& config, const Param& param, std::uint64_t seed, std::int64_t begin,
                std::span<T> out) {
  MUSTER_ASSERT(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= param.numel);
  if (param.spec->init == Init::ones) {
    std::ranges::fill(out, T{1});
    return;
  }
  const bool residual = param.spec->init == Init::residual;
  const double deviation =
      config.init_std / (residual ? std::sqrt(2.0 * static_cast<double>(config.layers)) : 1.0);
  const std::uint64_t key = Rng::mix(seed + 0x9e3779b97f4a7c15ULL) ^ hash(param.name);
  const Slice wanted{param.name, param.box, {begin, begin + static_cast<std::int64_t>(out.size())}};
  for (const auto& run :
       intersect(whole_slice(param.name, whole_box(shape_of(config, *param.spec))), wanted)) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      out[static_cast<std::size_t>(run.b + i)] =
          static_cast<T>(static_cast<Wide<T>>(normal_at(key, run.a + i) * deviation));
    }
  }
}
template void init_param<float>(const ModelConfig&, const Param&, std::uint64_t, std::int64_t,
                                std::span<float>);
template void init_param<double>(const ModelConfig&, const Param&, std::uint64_t, std::int64_t,
                                 std::span<double>);
template void init_param<BFloat16>(const ModelConfig&, const Param&, std::uint64_t, std::int64_t,
                                   std::span<BFloat16>);

}  // namespace muster::train
