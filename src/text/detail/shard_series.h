// Documents into the shards of one folder, one shard behind the other. Used by one thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/shards.h"

namespace muster::text::detail {

// The shards are removed again unless finish() has succeeded.
class ShardSeries {
 public:
  ShardSeries(std::string folder, Vocabulary vocabulary, std::uint64_t shard_tokens)
      : folder_(std::move(folder)), vocabulary_(std::move(vocabulary)), shard_tokens_(shard_tokens) {}
  ShardSeries(const ShardSeries&) = delete;
  ShardSeries& operator=(const ShardSeries&) = delete;
  ~ShardSeries();

  // Makes the folder. failed_precondition if it holds shards already.
  Result<void> begin();
  // `input`: the name of the file that the document is in; a shard is named after its first document's.
  Result<void> begin_document(const std::string& input);
  Result<void> append(std::span<const TokenId> tokens, std::uint64_t bytes);
  Result<void> end_document();
  // Closes the last shard; from then on the shards stay.
  Result<void> finish();

  const std::vector<std::string>& paths() const { return paths_; }  // complete on disk

 private:
  Result<void> close_shard();

  const std::string folder_;
  const Vocabulary vocabulary_;
  const std::uint64_t shard_tokens_;
  std::optional<ShardWriter> shard_;
  std::string path_;
  std::string input_;
  int ordinal_ = 0;  // of shards named after input_
  std::vector<std::string> paths_;
  bool finished_ = false;
};

}  // namespace muster::text::detail
