// Coder of a tokenizer.json: byte-level BPE, or BPE on spaces written as U+2581.
#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "base/assert.h"
#include "text/detail/bpe.h"
#include "text/detail/coder.h"
#include "text/detail/tokenizer_json.h"
#include "text/detail/unicode.h"

namespace muster::text::detail {
namespace {

constexpr char32_t kSpaceMarkCode = 0x2581;

// Byte-level BPE writes each byte as a printable character: itself where it is one, else from U+0100 on (the
// alphabet of GPT-2).
std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    out[byte] = printable ? static_cast<char32_t>(byte) : next++;
  }
  return out;
}

// The bytes that a token of byte-level BPE is written for; nullopt if it has other characters.
std::optional<std::string> from_alphabet(std::string_view token) {
  static const auto bytes_of = [] {
    std::array<int, 0x144> out{};
    out.fill(-1);
    const auto alphabet = byte_alphabet();
    for (int byte = 0; byte < 256; ++byte) out[alphabet[static_cast<std::size_t>(byte)]] = byte;
    return out;
  }();
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const auto c = char_at(token, at);
    if (c.code >= bytes_of.size() || bytes_of[c.code] < 0) return std::nullopt;
    out += static_cast<char>(bytes_of[c.code]);
    at += c.length;
  }
  return out;
}

std::string byte_token(std::size_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + '>';
}

class BpeCoder final : public Coder {
 public:
  explicit BpeCoder(TokenizerJson json)
      : byte_level_(json.pre_tokenizer.byte_level),
        fuse_unk_(json.fuse_unk),
        ignore_merges_(json.ignore_merges),
        scanners_(json.pre_tokenizer.scanners),
        merges_(json.merges.size()),
        added_(json.added) {
    dummy_prefix = json.prefix;
    unk = json.unk;
    std::uint32_t rank = 0;
    for (const auto& merge : json.merges) merges_.add(merge.left, merge.right, {rank++, merge.result});
    bytes.reserve(json.tokens.size());
    for (const auto& token : json.tokens) bytes.push_back(bytes_of(token, json.byte_fallback));
    byte_ids_.fill(-1);
    for (const auto& [text, id] : json.ids) read_symbol(text, id, json.byte_fallback);
    for (const auto& token : added_.all()) {
      bytes[static_cast<std::size_t>(token.id)] = token.special ? "" : token.content;
    }
    splits_ = byte_level_ ? scanners_can_be_cut() : spaced_words_are_apart(json);
  }

  // Text that would be lost without a word. SmolLM2's vocabulary lacks a few control characters and the first
  // bytes of private planes, and no unk_token stands for them: `tokenizers` drops these, and so do we.
  Result<void> check_complete(bool byte_fallback) const {
    for (std::size_t byte = 0; byte < 0xf5; ++byte) {
      const bool occurs = byte != 0xc0 && byte != 0xc1;
      const bool matters = byte == '\n' || (byte >= ' ' && byte < 0xf1 && byte != 0x7f);
      if (occurs && byte_ids_[byte] < 0 && (byte_fallback || (byte_level_ && unk < 0 && matters))) {
        return fail(ErrorCode::unsupported, "model.vocab has no token for the byte " + std::to_string(byte) +
                                                (byte_fallback ? ", which byte_fallback needs"
                                                               : ", and no unk_token: text would be lost"));
      }
    }
    if (!byte_level_ && !byte_fallback && unk < 0) {
      return fail(ErrorCode::unsupported,
                  "neither byte_fallback nor unk_token: text outside the vocabulary would be lost");
    }
    return {};
  }

  void encode(std::string_view text, bool first, Specials specials, WordMemory& words,
              std::vector<TokenId>& out) const override {
    if (!added_.any(specials)) return encode_segment(text, first, words, out);
    for (const auto& segment : added_.split(text, specials)) {
      if (segment.token >= 0) {
        out.push_back(segment.token);
      } else {
        encode_segment(text.substr(segment.begin, segment.end - segment.begin), first || segment.begin > 0,
                       words, out);
      }
    }
  }

  std::size_t cut(std::string_view text) const override {
    if (!splits_) return 0;
    if (!byte_level_) return spaced_word_cut(text);
    for (auto at = text.size(); at > 0; --at) {
      if (splits_before_space(text, at)) return at;
    }
    return 0;
  }

 private:
  std::string bytes_of(const std::string& token, bool byte_fallback) const {
    if (byte_level_) return from_alphabet(token).value_or(token);
    if (byte_fallback && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) {
      const auto byte = static_cast<std::size_t>(std::stoul(token.substr(3, 2), nullptr, 16));
      if (token == byte_token(byte)) return std::string(1, static_cast<char>(byte));
    }
    std::string buffer;
    return std::string(without_marks(token, buffer));
  }

  // Notes what a symbol of one byte or character, or a whole word, is coded as.
  void read_symbol(const std::string& text, TokenId id, bool byte_fallback) {
    const auto& meaning = bytes[static_cast<std::size_t>(id)];
    if (byte_level_) {
      const auto coded = from_alphabet(text);
      if (!coded) return;
      if (coded->size() == 1) byte_ids_[static_cast<unsigned char>((*coded)[0])] = id;
      if (ignore_merges_) whole_words_.emplace(*coded, id);
      return;
    }
    if (byte_fallback && meaning.size() == 1 && text == byte_token(static_cast<unsigned char>(meaning[0]))) {
      byte_ids_[static_cast<unsigned char>(meaning[0])] = id;
    }
    if (const auto c = char_at(text, 0); c.length == text.size()) char_ids_.emplace(c.code, id);
    if (ignore_merges_) whole_words_.emplace(text, id);
  }

  // No added token spans a place between a letter or number and white space.
  bool scanners_can_be_cut() const {
    return !scanners_.empty() &&
           std::none_of(added_.all().begin(), added_.all().end(), [](const AddedToken& token) {
             if (token.special) return false;
             const auto padded = token.content + (token.rstrip ? " " : "");
             for (std::size_t at = 1; at < padded.size(); ++at) {
               if (splits_before_space(padded, at)) return true;
             }
             return false;
           });
  }

  // Nothing that merges make crosses the border of a spaced word, nor does an unknown or added token.
  bool spaced_words_are_apart(const TokenizerJson& json) const {
    if (ignore_merges_ || !char_ids_.contains(kSpaceMarkCode)) return false;
    if (fuse_unk_ && !json.byte_fallback && !char_ids_.contains('\n')) return false;
    for (const auto& merge : json.merges) {
      if (crosses_spaced_words(bytes[static_cast<std::size_t>(merge.result)])) return false;
    }
    return std::none_of(added_.all().begin(), added_.all().end(), [](const AddedToken& token) {
      return !token.special &&
             (token.lstrip || token.rstrip || token.content.find_first_of(" \n") != std::string::npos);
    });
  }

  void encode_segment(std::string_view text, bool first, WordMemory& words, std::vector<TokenId>& out) const {
    if (byte_level_) {
      const auto code = [&](std::string_view word) { encode_word(word, false, words, out); };
      return for_each_word(scanners_.data(), scanners_.data() + scanners_.size(), text, code);
    }
    std::string buffer;
    text = without_marks(text, buffer);
    for (bool prefix = first && dummy_prefix; !text.empty(); prefix = false) {
      const auto word = text.substr(0, splits_ ? spaced_word(text) : text.size());
      encode_word(word, prefix, words, out);
      text.remove_prefix(word.size());
    }
  }

  void encode_word(std::string_view word, bool prefix, WordMemory& words, std::vector<TokenId>& out) const {
    const bool may_be_known = !prefix && word.size() <= WordMemory::kWordBytesMax;
    std::size_t count = 0;
    if (const auto* ids = may_be_known ? words.find(word, count) : nullptr) {
      out.insert(out.end(), ids, ids + count);
      return;
    }
    auto& ids = words.scratch.ids;
    ids.clear();
    if (const auto whole = whole_word(word, prefix); whole >= 0) {
      ids.push_back(whole);
    } else {
      read_symbols(word, prefix, ids);
      merges_.merge(words.scratch);
    }
    out.insert(out.end(), ids.begin(), ids.end());
    if (may_be_known) words.keep(word, ids);
  }

  TokenId whole_word(std::string_view word, bool prefix) const {
    if (!ignore_merges_) return -1;
    std::string text(word);
    if (!byte_level_) {
      text = prefix ? kSpaceMark : "";
      for (const char c : word) c == ' ' ? text += kSpaceMark : text += c;
    }
    const auto it = whole_words_.find(text);
    return it == whole_words_.end() ? -1 : it->second;
  }

  void read_symbols(std::string_view word, bool prefix, std::vector<TokenId>& ids) const {
    bool unknown = false;  // one waits, to be joined with the next if fuse_unk
    const auto put = [&](TokenId id) {
      if (unknown && (id >= 0 || !fuse_unk_)) ids.push_back(unk);
      unknown = id < 0 && unk >= 0;
      if (id >= 0) ids.push_back(id);
    };
    if (byte_level_) {
      for (const char c : word) put(byte_ids_[static_cast<unsigned char>(c)]);
    } else {
      if (prefix) put(id_of_char(kSpaceMarkCode));
      for (std::size_t at = 0; at < word.size();) {
        const auto c = char_at(word, at);
        const auto id = id_of_char(c.code == ' ' ? kSpaceMarkCode : c.code);
        // All 256 are there, or none.
        if (id < 0 && byte_ids_[0] >= 0) {
          const auto text = c.code == ' ' ? kSpaceMark : word.substr(at, c.length);
          for (const char byte : text) put(byte_ids_[static_cast<unsigned char>(byte)]);
        } else {
          put(id);
        }
        at += c.length;
      }
    }
    if (unknown) ids.push_back(unk);
  }

  TokenId id_of_char(char32_t code) const {
    const auto it = char_ids_.find(code);
    return it == char_ids_.end() ? -1 : it->second;
  }

  const bool byte_level_;
  const bool fuse_unk_;
  const bool ignore_merges_;
  const std::vector<Scanner> scanners_;
  Merges merges_;
  const AddedTokens added_;
  bool splits_ = false;                                   // words are apart: see cut()
  std::array<TokenId, 256> byte_ids_{};                   // byte level: symbols; else: byte fallback
  std::unordered_map<char32_t, TokenId> char_ids_;        // not byte level: symbols
  std::unordered_map<std::string, TokenId> whole_words_;  // with ignore_merges_
};

}  // namespace

Result<std::unique_ptr<Coder>> bpe_coder(std::string_view json, const std::string& folder) {
  MUSTER_TRY(auto parsed, parse_tokenizer_json(json));
  SpecialIds special;
  if (!folder.empty()) {
    MUSTER_TRY(special, find_special_ids(folder, parsed));
  }
  const bool byte_fallback = parsed.byte_fallback;
  auto coder = std::make_unique<BpeCoder>(std::move(parsed));
  MUSTER_CHECK(coder->check_complete(byte_fallback));
  coder->bos = special.bos;
  coder->eos = special.eos;
  return coder;
}

}  // namespace muster::text::detail
