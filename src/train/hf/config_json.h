// Hugging Face's config.json of Llama 2 and 3 shapes: text in, ModelConfig out, and back.
//
// Both spellings of the rotary settings are read (rope_theta + rope_scaling, and rope_parameters); the first
// is written, which every reader knows. A member that changes the mathematics in a way that Muster has not is
// refused by its name; one that does not is ignored. Pure functions: any thread.
#pragma once

#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "train/model/params.h"

namespace muster::train::hf {

// invalid_argument: a size is missing or of the wrong type; unsupported: what Muster does not compute, with
// what it does. What is left out has Hugging Face's default.
Result<ModelConfig> parse_config(std::string_view text);

// What parse_config() reads, over the members of `base`: those that Muster does not know (token ids, say)
// stay.
json::Object to_config(const ModelConfig& model, json::Object base = {});

}  // namespace muster::train::hf
