// Writes a model as a Hugging Face folder that transformers' from_pretrained() loads: config.json and
// safetensors, one file or several with an index. Weights pass through in pieces, so memory does not grow
// with the model. Errors are those of the file system but where said. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "train/hf/number.h"
#include "train/layout/layout.h"
#include "train/model/params.h"

namespace muster::train::hf {

// Where the elements of a slice of the model come from.
using ReadSlice = std::function<Result<void>(const Slice&, std::span<float>)>;

struct WriteOptions {
  Number number = Number::bf16;
  std::uint64_t file_bytes_max = 5'000'000'000;  // of tensors; a tensor that is larger has a file of its own
};

struct Written {
  std::uint64_t bytes = 0;  // of tensors
  int files = 0;
};

// Writes the weights into `folder`, which exists. invalid_argument: a number is finite in the model and
// infinite in the chosen format; the message names tensor and value.
Result<Written> write_weights(const std::string& folder, const ModelConfig& config, const ReadSlice& read,
                              const WriteOptions& options);

// Copies the files beside the weights that are there: tokenizer, its settings, generation settings. Answers
// how many.
Result<int> copy_companions(const std::string& from, const std::string& to);

// Makes a folder by `fill`, which is given the path of an empty one beside it; it has its name only when all
// of it is there. already_exists: there is a folder or file with content.
Result<void> make_folder_atomic(const std::string& folder,
                                const std::function<Result<void>(const std::string&)>& fill);

}  // namespace muster::train::hf
