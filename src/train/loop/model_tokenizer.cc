#include "train/loop/model_tokenizer.h"

#include <unistd.h>

#include <algorithm>

#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"

namespace muster::train {
namespace {

constexpr const char* kTokenizerNames[] = {"tokenizer.json", "tokenizer.model"};

}  // namespace

Result<ModelTokenizer> ModelTokenizer::find(const std::string& folder) {
  ModelTokenizer tokenizer;
  tokenizer.folder_ = folder;
  for (const char* name : kTokenizerNames) {
    const auto content = read_regular_file(folder + "/" + name);
    if (!content && content.error().code == ErrorCode::not_found) continue;
    if (!content) return tl::unexpected(content.error());
    tokenizer.hashes_.push_back(crypto::hex(crypto::sha256(*content)));
  }
  return tokenizer;
}

ModelTokenizer ModelTokenizer::named(const std::string& folder, const std::string& hash) {
  ModelTokenizer tokenizer;
  tokenizer.folder_ = folder;
  tokenizer.hashes_ = {hash};
  return tokenizer;
}

Result<std::string> ModelTokenizer::file() const {
  for (const char* name : kTokenizerNames) {
    if (const std::string path = folder_ + "/" + name; access(path.c_str(), F_OK) == 0) return path;
  }
  return fail(ErrorCode::not_found, folder_ +
                                        " has no tokenizer.json and no tokenizer.model (a folder of "
                                        "checkpoints has none): give --tokenizer FILE");
}

Result<void> ModelTokenizer::check(const std::string& hash, const std::string& what) const {
  if (hashes_.empty() || std::ranges::find(hashes_, hash) != hashes_.end()) return {};
  return fail(ErrorCode::failed_precondition, "the model in " + folder_ + " is for tokenizer " +
                                                  join(hashes_, " or ") + ", " + what + " is made with " +
                                                  hash);
}

}  // namespace muster::train
