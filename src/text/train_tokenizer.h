// Training of a SentencePiece tokenizer.
//
// Conventions are Llama's: BPE with byte fallback (every text can be coded), digits split, no normalisation,
// runs of spaces kept, one dummy space in front of a text (removed again by decode), unk 0, bos 1, eos 2.
// Any thread; a training starts its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace muster::text {

inline constexpr int kVocabMin = 300;  // 256 byte tokens, 3 control tokens, the rest
inline constexpr int kVocabMax = 1'000'000;

struct TrainTokenizerOptions {
  int vocab_size = 4096;                        // kVocabMin to kVocabMax
  std::uint64_t sample_bytes_max = 512u << 20;  // above: an evenly spaced sample of lines, for memory
  // Of JSON lines (see text/corpus.h), as in TokenizeOptions.
  bool json_lines = false;
  std::string text_field = "text";
  bool skip_bad_lines = false;
};

struct TrainedTokenizer {
  std::string model;  // the bytes of tokenizer.model
  std::uint64_t lines = 0;
  std::uint64_t bytes = 0;           // read
  std::uint64_t bytes_sampled = 0;   // used
  std::uint64_t bad_lines = 0;       // of JSON lines, left out
  std::uint64_t lines_repaired = 0;  // lines with bytes that are not UTF-8; those became U+FFFD
};

// Trains on the lines of `files`, text or JSON lines, compressed or not, in the order given; what is no plain
// text is read twice. The same files in the same order give the same bytes. invalid_argument: vocabulary out
// of range, or larger than the text can fill; failed_precondition: no text; corrupt: a bad line or a damaged
// file.
Result<TrainedTokenizer> train_tokenizer(const std::vector<std::string>& files,
                                         const TrainTokenizerOptions& options);

}  // namespace muster::text
