// Tokenizer: text <-> token ids over a SentencePiece `tokenizer.model`, and the training of one.
//
// Conventions of the tokenizers trained here are Llama's: BPE with byte fallback (every text can be coded),
// digits split, no normalisation, runs of spaces kept, one dummy space in front of a text (removed again by
// decode), unk 0, bos 1, eos 2. Any SentencePiece model loads.
//
// Text is UTF-8. encode() replaces invalid bytes by U+FFFD; callers that count them use to_utf8_lossy first.
//
// A Tokenizer is immutable after load: all methods may be called from any thread. SentencePiece and its
// protobuf stop at tokenizer.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace muster::text {

using TokenId = std::int32_t;

class Tokenizer {
 public:
  // corrupt if the file is not a SentencePiece model.
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> from_bytes(std::string model);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Without bos and eos. An empty text has no tokens. Cost: linear; where splits_at_newlines() a text is
  // coded word by word, each word once a call, which gives the same tokens. A word above 1 MiB is cut.
  std::vector<TokenId> encode(std::string_view text) const;
  // Appends to `out`. first: the text begins a document (gets the dummy space); false: it continues one.
  // Continuing is exact only after a '\n' and when splits_at_newlines().
  void encode_append(std::string_view text, bool first, std::vector<TokenId>& out) const;

  // Control tokens (bos, eos) give nothing. Ids outside [0, vocab_size) are refused. Bytes that do not form
  // UTF-8 (a generation may stop inside a character) become U+FFFD.
  Result<std::string> decode(std::span<const TokenId> ids) const;

  int vocab_size() const;
  // -1 where the model has none.
  TokenId unk() const;
  TokenId bos() const;
  TokenId eos() const;

  // The bytes that `id` stands for inside a text: "▁the" is " the", <0x0A> is "\n", control tokens are "".
  // Precondition: 0 <= id < vocab_size().
  std::string_view bytes(TokenId id) const;

  // True if encode() puts a dummy space in front of a text.
  bool has_dummy_prefix() const;

  // True if encoding line by line (and word by word) is the same as encoding the whole: no piece crosses the
  // border, nothing is normalised. Probed at load; true for every tokenizer trained here.
  bool splits_at_newlines() const;

  // SHA-256 of the model file, 64 hex digits: names the tokenizer in shards and checkpoints.
  const std::string& hash() const;
  // The model file's bytes, for copying into a checkpoint or a model.
  const std::string& model() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

struct TrainTokenizerOptions {
  int vocab_size = 4096;  // 300 .. 1,000,000: 256 byte tokens, 3 control tokens, the rest
  std::uint64_t sample_bytes_max = 512u << 20;  // above: an evenly spaced sample of lines, for memory
};

struct TrainedTokenizer {
  std::string model;  // the bytes of tokenizer.model
  std::uint64_t lines = 0;
  std::uint64_t bytes = 0;           // read
  std::uint64_t bytes_sampled = 0;   // used
  std::uint64_t lines_repaired = 0;  // lines with bytes that are not UTF-8; those became U+FFFD
};

// Trains on the lines of `files`, in the order given. The same files in the same order give the same bytes.
// invalid_argument: vocabulary out of range, or larger than the text can fill; failed_precondition: no text.
Result<TrainedTokenizer> train_tokenizer(const std::vector<std::string>& files,
                                         const TrainTokenizerOptions& options);

}  // namespace muster::text
