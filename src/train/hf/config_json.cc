#include "train/hf/config_json.h"

#include <optional>
#include <string>

namespace muster::train::hf {
namespace {

using json::Object;
using json::Value;

constexpr char kSupported[] = "Muster computes the shapes of Llama 2 and 3";

// A member that is there and not null.
const Value* member(const Object& object, std::string_view name) {
  const Value* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string shown(std::string_view name, const Value& value) {
  return std::string(name) + " is " + json::dump(value);
}

tl::unexpected<Error> unsupported(std::string_view name, const Value& value, std::string_view supported) {
  return fail(ErrorCode::unsupported, shown(name, value) + "; " + kSupported + ": " + std::string(supported));
}

Result<void> read(const Object& object, std::string_view name, std::int64_t& out) {
  const Value* value = member(object, name);
  if (value == nullptr) return {};
  if (!value->is_int64()) {
    return fail(ErrorCode::invalid_argument, shown(name, *value) + "; a whole number is needed");
  }
  out = value->as_int64();
  return {};
}

Result<void> read(const Object& object, std::string_view name, double& out) {
  const Value* value = member(object, name);
  if (value == nullptr) return {};
  if (!value->is_number())
    return fail(ErrorCode::invalid_argument, shown(name, *value) + "; a number is needed");
  out = value->to_number<double>();
  return {};
}

Result<void> read(const Object& object, std::string_view name, bool& out) {
  const Value* value = member(object, name);
  if (value == nullptr) return {};
  if (!value->is_bool()) {
    return fail(ErrorCode::invalid_argument, shown(name, *value) + "; true or false is needed");
  }
  out = value->as_bool();
  return {};
}

bool is_true(const Value& value) { return value != Value(false); }
bool is_not_zero(const Value& value) { return !value.is_number() || value.to_number<double>() != 0; }
bool is_not_one(const Value& value) { return !value.is_number() || value.to_number<double>() != 1; }
bool is_above_one(const Value& value) { return !value.is_number() || value.to_number<double>() > 1; }
bool is_there(const Value&) { return true; }
bool is_not_silu(const Value& value) { return value != Value("silu") && value != Value("swish"); }
bool is_not_llama(const Value& value) { return value != Value("llama"); }
bool is_other_class(const Value& value) {
  return !value.is_array() || value.as_array() != json::Array{"LlamaForCausalLM"};
}
bool has_other_layers(const Value& value) {
  if (!value.is_array()) return true;
  for (const Value& layer : value.as_array()) {
    if (layer != Value("full_attention")) return true;
  }
  return false;
}

// Members that change what a model computes.
struct Refusal {
  std::string_view name;
  bool (*refused)(const Value&);
  std::string_view supported;
};
constexpr Refusal kRefusals[] = {
    {"architectures", is_other_class, "architectures [\"LlamaForCausalLM\"]"},
    {"model_type", is_not_llama, "model_type \"llama\""},
    {"hidden_act", is_not_silu, "hidden_act \"silu\""},
    {"attention_bias", is_true, "projections without bias"},
    {"mlp_bias", is_true, "projections without bias"},
    {"attention_dropout", is_not_zero, "no dropout"},
    {"sliding_window", is_there, "attention over the whole text"},
    {"layer_types", has_other_layers, "full_attention in every layer"},
    {"num_experts", is_not_zero, "one MLP a layer, no experts"},
    {"num_local_experts", is_not_zero, "one MLP a layer, no experts"},
    {"n_routed_experts", is_not_zero, "one MLP a layer, no experts"},
    {"partial_rotary_factor", is_not_one, "heads turned as a whole"},
    {"pretraining_tp", is_above_one, "pretraining_tp 1"},
    {"quantization_config", is_there, "weights that are not quantized"},
};

Result<void> refuse_foreign(const Object& config) {
  for (const Refusal& refusal : kRefusals) {
    const Value* value = member(config, refusal.name);
    if (value != nullptr && refusal.refused(*value)) {
      return unsupported(refusal.name, *value, refusal.supported);
    }
  }
  if (member(config, "architectures") == nullptr && member(config, "model_type") == nullptr) {
    return fail(ErrorCode::invalid_argument, "neither architectures nor model_type is there");
  }
  return {};
}

// One of the two places where a value may stand; both must say the same.
Result<void> read_twice(const Object& inner, const Object& outer, std::string_view name, auto& out) {
  auto one = out, other = out;
  MUSTER_CHECK(read(inner, name, one));
  MUSTER_CHECK(read(outer, name, other));
  if (member(inner, name) != nullptr && member(outer, name) != nullptr && one != other) {
    return fail(ErrorCode::invalid_argument, std::string(name) + " is there twice, as " +
                                                 json::dump(*member(outer, name)) + " and as " +
                                                 json::dump(*member(inner, name)));
  }
  out = member(inner, name) != nullptr ? one : other;
  return {};
}

// `name`: rope_scaling or rope_parameters, which is `settings`.
Result<void> parse_rope(const Object& config, std::string_view name, const Object& settings,
                        ModelConfig& model) {
  const Value* type = member(settings, "rope_type");
  if (type == nullptr) type = member(settings, "type");
  const Value plain("default");
  if (type == nullptr) type = &plain;
  const std::string where = std::string(name) + ".rope_type";
  if (*type != plain && *type != Value("linear") && *type != Value("llama3")) {
    return unsupported(where, *type, "rope_type default, linear or llama3");
  }
  for (const auto& [key, value] : settings) {  // one set of settings for each kind of layer
    if (value.is_object())
      return unsupported(std::string(name) + "." + std::string(key), value, "one set for all layers");
  }
  if (const Value* part = member(settings, "partial_rotary_factor"); part != nullptr && is_not_one(*part)) {
    return unsupported("partial_rotary_factor", *part, "heads turned as a whole");
  }
  model.rope_scaling = std::string(json::view(type->as_string()));
  MUSTER_CHECK(read_twice(settings, config, "rope_theta", model.rope_theta));
  if (model.rope_scaling == "default") return {};
  const bool llama3 = model.rope_scaling == "llama3";
  for (const char* needed : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (member(settings, needed) == nullptr) {
      return fail(ErrorCode::invalid_argument,
                  std::string(name) + " of type " + model.rope_scaling + " has no " + needed);
    }
    if (!llama3) break;
  }
  MUSTER_CHECK(read(settings, "factor", model.rope_factor));
  if (!llama3) return {};
  MUSTER_CHECK(read(settings, "low_freq_factor", model.rope_low_freq_factor));
  MUSTER_CHECK(read(settings, "high_freq_factor", model.rope_high_freq_factor));
  model.rope_original_sequence = model.max_sequence;
  return read_twice(settings, config, "original_max_position_embeddings", model.rope_original_sequence);
}

Result<void> parse_rotary(const Object& config, ModelConfig& model) {
  MUSTER_CHECK(read(config, "rope_theta", model.rope_theta));
  std::optional<ModelConfig> first;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Value* settings = member(config, name);
    if (settings == nullptr) continue;
    if (!settings->is_object())
      return fail(ErrorCode::invalid_argument, shown(name, *settings) + "; an object is needed");
    MUSTER_CHECK(parse_rope(config, name, settings->as_object(), model));
    if (first && *first != model) {
      return fail(ErrorCode::invalid_argument, "rope_scaling and rope_parameters say different things");
    }
    first = model;
  }
  return {};
}

Result<ModelConfig> model_of(const Object& config) {
  MUSTER_CHECK(refuse_foreign(config));
  ModelConfig model{.max_sequence = 2048};
  model.norm_eps = 1e-6;
  const std::pair<const char*, std::int64_t*> needed[] = {{"vocab_size", &model.vocab},
                                                          {"hidden_size", &model.width},
                                                          {"intermediate_size", &model.ffn},
                                                          {"num_hidden_layers", &model.layers},
                                                          {"num_attention_heads", &model.heads}};
  for (const auto& [name, size] : needed) {
    if (member(config, name) == nullptr)
      return fail(ErrorCode::invalid_argument, std::string(name) + " is missing");
    MUSTER_CHECK(read(config, name, *size));
  }
  model.kv_heads = model.heads;
  MUSTER_CHECK(read(config, "num_key_value_heads", model.kv_heads));
  MUSTER_CHECK(read(config, "head_dim", model.head_dim));
  MUSTER_CHECK(read(config, "max_position_embeddings", model.max_sequence));
  MUSTER_CHECK(read(config, "rms_norm_eps", model.norm_eps));
  MUSTER_CHECK(read(config, "initializer_range", model.init_std));
  MUSTER_CHECK(read(config, "tie_word_embeddings", model.tied));
  MUSTER_CHECK(parse_rotary(config, model));
  return validated(model);
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text) {
  auto config = json::parse_object(text);
  if (!config) return tl::unexpected(config.error().with_context("config.json"));
  auto model = model_of(*config);
  if (!model) return tl::unexpected(model.error().with_context("config.json"));
  return model;
}

json::Object to_config(const ModelConfig& model, json::Object base) {
  json::Object out = std::move(base);
  for (const char* other : {"rope_parameters", "rope_scaling", "dtype"}) out.erase(other);
  const json::Object members{{"architectures", json::Array{"LlamaForCausalLM"}},
                             {"model_type", "llama"},
                             {"vocab_size", model.vocab},
                             {"hidden_size", model.width},
                             {"intermediate_size", model.ffn},
                             {"num_hidden_layers", model.layers},
                             {"num_attention_heads", model.heads},
                             {"num_key_value_heads", model.kv_heads},
                             {"head_dim", model.head_dim},
                             {"max_position_embeddings", model.max_sequence},
                             {"rms_norm_eps", model.norm_eps},
                             {"initializer_range", model.init_std},
                             {"rope_theta", model.rope_theta},
                             {"tie_word_embeddings", model.tied},
                             {"hidden_act", "silu"},
                             {"attention_bias", false},
                             {"mlp_bias", false}};
  for (const auto& [name, value] : members) out[name] = value;
  if (model.rope_scaling == "default") return out;
  json::Object scaling{{"rope_type", model.rope_scaling}, {"factor", model.rope_factor}};
  if (model.rope_scaling == "llama3") {
    scaling["low_freq_factor"] = model.rope_low_freq_factor;
    scaling["high_freq_factor"] = model.rope_high_freq_factor;
    scaling["original_max_position_embeddings"] = model.rope_original_sequence;
  }
  out["rope_scaling"] = std::move(scaling);
  return out;
}

}  // namespace muster::train::hf
