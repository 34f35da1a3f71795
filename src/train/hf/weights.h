// The weights in a Hugging Face folder: model.safetensors, or the files that model.safetensors.index.json
// lists. Read by slices of global tensors (train/layout), so that a rank under any layout reads the bytes of
// what it holds and no others. Immutable after open(): any thread may read.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/hf/safetensors.h"
#include "train/layout/layout.h"
#include "train/model/params.h"

namespace muster::train::hf {

inline constexpr char kConfigName[] = "config.json";
inline constexpr char kWeightsName[] = "model.safetensors";
inline constexpr char kIndexName[] = "model.safetensors.index.json";

// Whether the folder has weights of this kind.
bool has_weights(const std::string& folder);

// The folder's config.json as text, and as a ModelConfig. Errors of the file, and of parse_config().
Result<std::string> read_config_text(const std::string& folder);
Result<ModelConfig> read_config(const std::string& folder);

class Weights {
 public:
  // not_found: there are none; corrupt: a file (see File::open) or the index is wrong.
  static Result<Weights> open(const std::string& folder);

  const Tensor* find(std::string_view name) const;  // nullptr if there is none

  // That they are the weights of this model: every tensor there, with its shape, and no other that would
  // change what it computes. A head that is stored although it is tied is left alone, as transformers does.
  Result<void> check(const ModelConfig& config) const;

  // The elements of a slice as fp32, exactly. Asserts that the tensor is there with the slice's shape
  // (check()) and that `out` has its size.
  void read(const Slice& slice, std::span<float> out) const;

  // Names these weights by their headers and the first bytes of every tensor, for comparing the folders of
  // several nodes without reading them whole: 8 hex digits.
  std::string fingerprint() const;

 private:
  struct Place {
    std::size_t file = 0;
    std::size_t tensor = 0;
  };
  Result<void> add(const std::string& path);
  Result<void> check_index(const std::map<std::string, std::string>& files) const;

  std::string folder_;
  std::vector<File> files_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace muster::train::hf
