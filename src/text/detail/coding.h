// A chunk of a corpus into tokens: what the workers of tokenize() do. Pure but for the Encoder, which belongs
// to the calling thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/corpus.h"
#include "text/tokenizer.h"

namespace muster::text::detail {

struct CodingOptions {
  std::string text_field = "text";  // of an object of JSON lines
  std::size_t line_bytes_max = 128u << 20;
  double held_out = 0;
};

// A document, or a piece of a long one.
struct Piece {
  std::size_t tokens = 0;   // so many of Coded::tokens, one piece behind the other
  std::uint64_t bytes = 0;  // of text
  bool begins = false;
  bool ends = false;
  bool held_out = false;  // decided where the document begins, and only said there
};

struct Coded {
  std::vector<TokenId> tokens;
  std::vector<Piece> pieces;
  std::uint64_t file_bytes = 0;
  std::uint64_t replaced = 0;         // U+FFFD in place of bytes that are not UTF-8
  std::uint64_t empty_documents = 0;  // lines whose text is empty
  std::vector<BadLine> bad_lines;
};

// Calls use(text) for the documents of a chunk of JSON lines, empty ones too; lines without one go to `bad`.
void for_each_document(const Chunk& chunk, const CodingOptions& options, std::vector<BadLine>& bad,
                       const std::function<void(const std::string&)>& use);

Coded code(const Chunk& chunk, bool json_lines, const CodingOptions& options, Encoder& encoder);

// Whether a document belongs to the held-out share: a number in [0, 1) made of its first 256 KiB is below it.
// So neither order nor place nor number of the documents matters, and the same text is always on the same
// side.
bool is_held_out(std::string_view text, double share);

}  // namespace muster::text::detail
