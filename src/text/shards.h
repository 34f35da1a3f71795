// Tokenised shards: files of token ids with a document index, and a folder of them as one token stream.
//
// Format: docs/formats/shards-v1.md. Files are immutable once named. Ids are uint16 up to a vocabulary of
// 65,536, else uint32. Every byte is under a CRC32C; the token data in blocks, checked at the first read of
// each, so that opening a terabyte costs no pass over it. An error names the file.
//
// ShardWriter: one thread. ShardSet: read methods may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace muster::text {

inline constexpr char kShardSuffix[] = ".mts";

// What a shard says of its tokenizer. byte_lengths[id]: bytes the token stands for in a text.
struct Vocabulary {
  std::string tokenizer_hash;  // 64 hex digits
  TokenId eos = -1;
  int dummy_bytes = 1;                      // bytes of the first token of a document that are not of its text
  std::vector<std::uint16_t> byte_lengths;  // one a token: size = vocabulary size
};
Vocabulary vocabulary_of(const Tokenizer& tokenizer);

// Writes one shard: tokens to a temporary file beside `path`, and at finish() the index and the header,
// fsync, rename. A writer destroyed without finish() leaves nothing.
class ShardWriter {
 public:
  static Result<ShardWriter> create(std::string path, Vocabulary vocabulary);
  ShardWriter(ShardWriter&&) noexcept;
  ShardWriter& operator=(ShardWriter&&) noexcept;
  ~ShardWriter();

  void begin_document();
  // Tokens of the document begun last. Ids must be in the vocabulary.
  Result<void> append(std::span<const TokenId> tokens);
  // Adds to the document's count of source bytes.
  void add_source_bytes(std::uint64_t bytes);
  std::uint64_t tokens() const;

  Result<void> finish();

 private:
  struct Impl;
  explicit ShardWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct ShardInfo {
  std::string path;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;  // of source text
  int token_bytes = 2;      // 2 or 4
};

// The shards (*.mts) of one folder in order of their names, seen as one stream of tokens.
class ShardSet {
 public:
  // not_found: no shard in the folder; corrupt: a file is truncated or altered; failed_precondition: shards
  // of different tokenizers. Temporary and other files are ignored.
  static Result<ShardSet> open(const std::string& folder);
  ShardSet(ShardSet&&) noexcept;
  ShardSet& operator=(ShardSet&&) noexcept;
  ~ShardSet();

  std::uint64_t size() const;  // tokens
  std::uint64_t documents() const;
  std::uint64_t bytes() const;                // of source text
  const std::string& tokenizer_hash() const;  // 64 hex digits
  // SHA-256 of the headers and of the checksums of all blocks, in order, 64 hex digits: that of other tokens,
  // or of the same in another order, is another. No token is read for it.
  const std::string& digest() const;
  int vocab_size() const;
  TokenId eos() const;  // -1: documents are not closed by one
  const std::vector<ShardInfo>& shards() const;

  // Tokens [begin, begin + out.size()). invalid_argument past the end; corrupt if a block does not match its
  // checksum (checked once a block and process).
  Result<void> read(std::uint64_t begin, std::span<std::int32_t> out) const;
  Result<void> read(std::uint64_t begin, std::span<std::int64_t> out) const;

  // Source bytes that tokens [begin, begin + count) stand for: for bits per byte of any range. The dummy
  // space in front of a document counts nothing. Whole documents add up to document_bytes(), but for texts
  // that hold U+2581, which SentencePiece reads as a space.
  Result<std::uint64_t> bytes_in(std::uint64_t begin, std::uint64_t count) const;

  // Document d of [0, documents()): its first token, and its source bytes. It ends where the next begins.
  std::uint64_t document_begin(std::uint64_t d) const;
  std::uint64_t document_bytes(std::uint64_t d) const;

  // Appends where documents begin in [begin, begin + count), rising: for attention that stays inside a
  // document. Precondition: begin + count <= size().
  void document_begins(std::uint64_t begin, std::uint64_t count, std::vector<std::uint64_t>& out) const;

  // Reads everything once: every block against its checksum, every id against the vocabulary.
  Result<void> verify() const;

 private:
  struct Impl;
  explicit ShardSet(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace muster::text
