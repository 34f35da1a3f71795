// The tokenizer that lies beside a model, in its folder. Values; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace muster::train {

class ModelTokenizer {
 public:
  ModelTokenizer() = default;  // of no folder: takes any
  // Looks for tokenizer.json and tokenizer.model, which may both be there: two forms of one.
  static Result<ModelTokenizer> find(const std::string& folder);
  // A folder of checkpoints has no file; they say which tokenizer it was.
  static ModelTokenizer named(const std::string& folder, const std::string& hash);

  // The file, not_found if there is none.
  Result<std::string> file() const;
  // failed_precondition unless token ids by the tokenizer of this hash (SHA-256 of its file) are the model's;
  // `what` names what is tokenized with it. A folder that says nothing of a tokenizer takes any.
  Result<void> check(const std::string& hash, const std::string& what) const;

 private:
  std::string folder_;
  std::vector<std::string> hashes_;
};

}  // namespace muster::train
