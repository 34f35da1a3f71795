// Tokenising a corpus into shards: files are read and coded in parallel, and written in order.
//
// The output depends on the inputs (names and bytes), the tokenizer and the options, not on the number of
// threads. Memory: about 6 MiB a thread and 1 MiB for each of up to 8 files, and more where a line or a text
// that cannot be cut is longer. Call from one thread; it starts its own workers and joins them.
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
  std::uint64_t documents = 0;  // with those held out
  std::uint64_t tokens = 0;     // with the end tokens
  std::uint64_t bytes = 0;      // of text
  std::uint64_t held_out_documents = 0;
  std::uint64_t held_out_tokens = 0;
  std::uint64_t file_bytes = 0;  // read, compressed as they are
  std::uint64_t replaced = 0;    // U+FFFD written in place of bytes that are not UTF-8, of text
  std::uint64_t files_without_text = 0;
  std::uint64_t empty_documents = 0;  // lines of JSON whose text is empty
  std::uint64_t bad_lines = 0;
  std::vector<std::string> first_bad_lines;  // kBadLinesShown at most: "FILE line N: why"
  std::vector<std::string> shards;           // paths, complete on disk
};

inline constexpr std::size_t kBadLinesShown = 10;

struct TokenizeOptions {
  bool split_documents = false;  // text: blank lines part documents
  bool json_lines = false;       // every file is JSON lines, whatever its name
  std::string text_field = "text";
  std::size_t line_bytes_max = 128u << 20;   // of JSON lines
  bool skip_bad_lines = false;               // leave them out; otherwise they end the run
  double held_out = 0;                       // share of the documents; see below
  std::uint64_t shard_tokens = 100'000'000;  // a shard is closed at the first document end behind this
  int threads = 1;
  // After every chunk, on the calling thread. False: stop, and leave nothing.
  std::function<bool(const TokenizeReport&)> progress;
};

// Writes tokens-STEM-HASH-NNNNN.mts into `folder` (made if absent). A shard has the name of the first file in
// it, so nodes that tokenise different files write different names. With held_out > 0 the shards go to train/
// and held-out/ in `folder`; a document's own text decides where it goes, so that the share is the same
// however the corpus is ordered, cut into files or spread over nodes.
//
// Lines of JSON lines are bad that are no JSON object in UTF-8 with a string of that name, or too long.
// Unless they are skipped, corrupt shows the first kBadLinesShown of them. failed_precondition if a
// folder holds shards already, or if no input has text. After an error no shard of this run is left.
Result<TokenizeReport> tokenize(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer,
                                const std::string& folder, const TokenizeOptions& options);

}  // namespace muster::text
