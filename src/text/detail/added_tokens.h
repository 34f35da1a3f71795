// The added tokens of a tokenizer.json: texts that are tokens wherever they stand, before anything else.
//
// As in `tokenizers`: at each place the longest token wins; those that are not "normalized" are looked for
// first, the others in what is left. Immutable: any thread.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace muster::text::detail {

struct AddedToken {
  std::string content;  // not empty
  TokenId id = -1;
  bool special = false;
  bool normalized = false;
  bool lstrip = false;  // takes the white space in front of it along
  bool rstrip = false;  // and behind it
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  const std::vector<AddedToken>& all() const { return tokens_; }

  // A run of text that has no token in it, or one token.
  struct Segment {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId token = -1;
  };
  // The segments of `text` (valid UTF-8) in order; none is empty but those of tokens.
  std::vector<Segment> split(std::string_view text, Specials specials) const;
  // False: split() answers the whole text.
  bool any(Specials specials) const {
    return specials == Specials::as_tokens ? !tokens_.empty() : any_plain_;
  }

 private:
  struct Pass {
    std::vector<AddedToken> tokens;                    // by first byte, longer ones first
    std::array<std::uint32_t, 257> first_with_byte{};  // into tokens
    bool any_plain = false;
    const AddedToken* match(std::string_view text, std::size_t at) const;
    void split(std::string_view text, Segment segment, Specials specials, std::vector<Segment>& out) const;
  };

  std::vector<AddedToken> tokens_;
  std::array<Pass, 2> passes_;
  bool any_plain_ = false;  // a token that is not special
};

}  // namespace muster::text::detail
