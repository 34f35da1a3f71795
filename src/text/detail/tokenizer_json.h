// What a tokenizer.json says, as far as it is done here. Reading it is the one place that knows the format.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "text/detail/added_tokens.h"
#include "text/detail/words.h"

namespace muster::text::detail {

struct TokenizerJson {
  // Of the model, with the added tokens.
  std::unordered_map<std::string, TokenId> ids;
  std::vector<std::string> tokens;  // by id; empty: none has it
  struct Merge {
    TokenId left, right, result;
  };
  std::vector<Merge> merges;  // in order of rank
  TokenId unk = -1;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;

  PreTokenizer pre_tokenizer;
  // Else (not byte level) spaces are written as U+2581, with one more in front of a text:
  bool prefix = false;
  std::vector<AddedToken> added;
};

// corrupt: not what the format says; unsupported: names what is not done here, and what is.
Result<TokenizerJson> parse_tokenizer_json(std::string_view text);

struct SpecialIds {
  TokenId bos = -1;
  TokenId eos = -1;
};
// From tokenizer_config.json (bos_token, eos_token), else generation_config.json (bos_token_id, eos_token_id;
// the first of a list) in `folder`. Files that are not there say nothing.
Result<SpecialIds> find_special_ids(const std::string& folder, const TokenizerJson& tokenizer);

inline constexpr const char* kSpecialFiles[] = {"tokenizer_config.json", "generation_config.json"};

}  // namespace muster::text::detail
