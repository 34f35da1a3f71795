// Tokenising a corpus into shards: reads in order, codes in parallel, writes in order.
//
// The output depends on the inputs (names and bytes), the tokenizer and the options, not on the number of
// threads. Memory: about 4 MiB a thread. Call from one thread; it starts its own workers and joins them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/corpus.h"
#include "text/shards.h"
#include "text/tokenizer.h"

namespace muster::text {

struct TokenizeReport {
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;    // with the end tokens
  std::uint64_t bytes = 0;     // of text
  std::uint64_t replaced = 0;  // U+FFFD written in place of bytes that are not UTF-8
  std::uint64_t files_without_text = 0;
  std::vector<std::string> shards;  // paths, complete on disk
};

struct TokenizeOptions {
  bool split_documents = false;
  std::uint64_t shard_tokens = 100'000'000;  // a shard is closed at the first document end behind this
  int threads = 1;
  std::function<void(const TokenizeReport&)> progress;  // after every chunk, on the calling thread
};

// Writes tokens-STEM-HASH-NNNNN.mts into `folder` (made if absent). A shard has the name of the first file in
// it, so nodes that tokenise different files write different names. failed_precondition if the folder holds
// shards already, or if no input has text. After an error no shard of this run is left.
Result<TokenizeReport> tokenize(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer,
                                const std::string& folder, const TokenizeOptions& options);

}  // namespace muster::text
