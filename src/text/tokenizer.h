// Tokenizer: text <-> token ids, of a SentencePiece `tokenizer.model` or a `tokenizer.json` of the BPE kind
// (Hugging Face `tokenizers`). load() tells which it is by the content.
//
// Of a tokenizer.json this is done, all else is refused by name (docs/adr/0050-tokenizer-json.md):
// byte-level BPE (GPT-2, Llama 3, SmolLM2, ...: the pre-tokenizers of detail/words.h), and BPE on spaces
// written as U+2581 with byte fallback (Llama 2). Its bos and eos are found in tokenizer_config.json beside
// it, else in generation_config.json.
//
// Text is UTF-8. Invalid bytes become U+FFFD; callers that count them use to_utf8_lossy first.
//
// A Tokenizer is immutable after load: all methods may be called from any thread. An Encoder belongs to one.
// SentencePiece and its protobuf stop at detail/sentencepiece_coder.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace muster::text {

namespace detail {
class Coder;
class WordMemory;
}  // namespace detail

using TokenId = std::int32_t;

// What the text of a special token ("<|endoftext|>") in a text is. A corpus must not be able to say where its
// documents end, so it is text unless asked otherwise. SentencePiece knows as_text only.
enum class Specials { as_text, as_tokens };

class Tokenizer {
 public:
  // corrupt if the file is neither kind; unsupported names what in a tokenizer.json is not done here.
  static Result<Tokenizer> load(const std::string& path);
  // The same of a file's bytes alone: a tokenizer.json then has no bos and no eos.
  static Result<Tokenizer> from_bytes(std::string file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Without bos and eos. An empty text has no tokens.
  std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::as_text) const;

  // Special tokens (bos, eos) give nothing. Ids outside [0, vocab_size) are refused. Bytes that do not form
  // UTF-8 (a generation may stop inside a character) become U+FFFD.
  Result<std::string> decode(std::span<const TokenId> ids) const;

  int vocab_size() const;  // the greatest id + 1
  // -1 where there is none.
  TokenId unk() const;
  TokenId bos() const;
  TokenId eos() const;

  // The bytes that `id` stands for inside a text: "▁the" is " the", <0x0A> is "\n", special tokens are "".
  // Precondition: 0 <= id < vocab_size().
  std::string_view bytes(TokenId id) const;

  // True if encode() puts a dummy space in front of a text.
  bool has_dummy_prefix() const;

  // Where a text may be cut: coding [0, cut(text)) and then, continued, all that follows gives the tokens of
  // the whole, whatever comes behind `text`. The last such place; 0: there is none. The bytes need not be
  // UTF-8.
  std::size_t cut(std::string_view text) const;

  // SHA-256 of the file, 64 hex digits: names the tokenizer in shards and checkpoints.
  const std::string& hash() const;
  // The file's bytes.
  const std::string& file() const;

 private:
  friend class Encoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  static Result<Tokenizer> create(std::string file, const std::string& folder);
  std::unique_ptr<const Impl> impl_;
};

// Codes text after text, and remembers the tokens of words: much faster than encode() for many short texts.
// Belongs to one thread. Memory: up to 16 MiB.
class Encoder {
 public:
  // `tokenizer` must outlive it, and stay where it is.
  explicit Encoder(const Tokenizer& tokenizer);
  Encoder(Encoder&&) noexcept;
  ~Encoder();

  // Appends to `out`. first: the text begins a document (gets the dummy space); false: it continues one, cut
  // where Tokenizer::cut() says.
  void append(std::string_view text, bool first, std::vector<TokenId>& out,
              Specials specials = Specials::as_text);

 private:
  const Tokenizer* tokenizer_;
  std::unique_ptr<detail::WordMemory> words_;
};

// Copies the file into `folder`, as tokenizer.json or tokenizer.model, with the files beside it that tell its
// special tokens.
Result<void> copy_tokenizer(const std::string& path, const std::string& folder);

}  // namespace muster::text
