#include <sentencepiece_processor.h>

#include <algorithm>
#include <initializer_list>

#include "base/assert.h"
#include "base/text.h"
#include "text/detail/coder.h"

namespace muster::text::detail {
namespace {

constexpr std::string_view kUnknownText = " \xe2\x81\x87 ";  // U+2047, how SentencePiece prints an unknown
constexpr std::size_t kWordBytesMax = 1u << 20;              // a longer one is cut at a character's border

// Protobuf joins the parts of a message that is given twice and the last scalar wins. So these bytes behind a
// serialized ModelProto set normalizer_spec (field 3) . add_dummy_prefix (field 3) to false.
constexpr std::string_view kNoDummyPrefix("\x1a\x02\x18\x00", 4);

using Processor = sentencepiece::SentencePieceProcessor;

std::string piece_bytes(const Processor& processor, int id) {
  if (processor.IsControl(id)) return {};
  if (processor.IsUnknown(id)) return std::string(kUnknownText);
  const std::string& piece = processor.IdToPiece(id);
  if (processor.IsByte(id)) {  // <0xHH>
    MUSTER_ASSERT(piece.size() == 6);
    return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  }
  std::string buffer;
  return std::string(without_marks(piece, buffer));
}

void encode_with(const Processor& processor, std::string_view text, std::vector<TokenId>& out) {
  std::vector<int> ids;
  const auto status = processor.Encode(text, &ids);
  MUSTER_ASSERT(status.ok());  // fails only for a processor that is not loaded
  out.insert(out.end(), ids.begin(), ids.end());
}

// SentencePiece codes about 0.4 MB/s and keeps 100 bytes a character. So a text is coded word by word, where
// a word ends where no piece can cross, and a word seen before is not coded again.
class SentencePieceCoder final : public Coder {
 public:
  Result<void> load(const std::string& model) {
    if (const auto status = begin_.LoadFromSerializedProto(model); !status.ok()) {
      return fail(ErrorCode::corrupt, "neither a SentencePiece model (tokenizer.model) nor a tokenizer.json");
    }
    // Models with self-test samples refuse to load with another prefix; they are then coded whole.
    has_continued_ = continued_.LoadFromSerializedProto(model + std::string(kNoDummyPrefix)).ok();
    const int size = begin_.GetPieceSize();
    bytes.reserve(static_cast<std::size_t>(size));
    for (int id = 0; id < size; ++id) bytes.push_back(piece_bytes(begin_, id));
    unk = begin_.unk_id();
    bos = begin_.bos_id();
    eos = begin_.eos_id();
    std::vector<TokenId> ids;
    encode_with(begin_, "a", ids);
    dummy_prefix = !ids.empty() && bytes[static_cast<std::size_t>(ids[0])].starts_with(' ');
    splits_ = probe_splits();
    return {};
  }

  void encode(std::string_view text, bool first, Specials, WordMemory& words,
              std::vector<TokenId>& out) const override {
    if (!splits_) return encode_with(first || !has_continued_ ? begin_ : continued_, text, out);
    std::string buffer;
    text = without_marks(text, buffer);
    for (; !text.empty(); first = false) {
      const auto word = limited(text.substr(0, spaced_word(text)));
      text.remove_prefix(word.size());
      if (first) {
        encode_with(begin_, word, out);
        continue;
      }
      std::size_t count = 0;
      if (const auto* ids = words.find(word, count)) {
        out.insert(out.end(), ids, ids + count);
        continue;
      }
      const auto before = out.size();
      encode_with(continued_, word, out);
      words.keep(word, std::span(out).subspan(before));
    }
  }

  std::size_t cut(std::string_view text) const override { return splits_ ? spaced_word_cut(text) : 0; }

 private:
  // A word of memory that SentencePiece can bear.
  static std::string_view limited(std::string_view word) {
    if (word.size() <= kWordBytesMax) return word;
    auto length = kWordBytesMax;
    while ((static_cast<unsigned char>(word[length]) & 0xc0) == 0x80) --length;
    return word.substr(0, length);
  }

  // No piece crosses the border of a word, nothing is normalised, and on texts that would show another
  // difference (trimming, joined spaces or unknowns, spaces as suffixes) two parts are the same as the whole.
  bool probe_splits() const {
    if (!has_continued_) return false;
    for (std::size_t id = 0; id < bytes.size(); ++id) {
      if (!begin_.IsUnknown(static_cast<int>(id)) && crosses_spaced_words(bytes[id])) return false;
    }
    for (const auto& [head, tail] : std::initializer_list<std::pair<std::string_view, std::string_view>>{
             {"a\n", "b"},
             {"a", "\n"},
             {" a  ", "\n"},
             {"\n", "  b \n"},
             {"\n", "\n\n"},
             {"a \n\n", " b"},
             {"a", "  b"},
             {"\xe6\xbc\xa2\n", "\xe6\xbc\xa2"},
             {"\xe6\xbc\xa2", " \xe6\xbc\xa2"},
             {"\t\n\r\n", " 1\n"},
             {"a", " "},
             // circled 1, ligature fi, ring A, wide A, wide space: every standard normalisation changes them
             {"\xe2\x91\xa0\xef\xac\x81\xc3\x85\xef\xbc\xa1\xe3\x80\x80", " B"}}) {
      const auto text = std::string(head).append(tail);
      std::vector<TokenId> whole;
      std::vector<TokenId> parts;
      encode_with(begin_, text, whole);
      encode_with(begin_, head, parts);
      encode_with(continued_, tail, parts);
      if (whole != parts || text_of(whole) != text) return false;
    }
    return true;
  }

  std::string text_of(const std::vector<TokenId>& ids) const {
    std::string out;
    for (const auto id : ids) out += bytes[static_cast<std::size_t>(id)];
    return dummy_prefix && out.starts_with(' ') ? out.substr(1) : out;
  }

  Processor begin_;      // as the model says: with its dummy space
  Processor continued_;  // the same without it
  bool has_continued_ = false;
  bool splits_ = false;
};

}  // namespace

Result<std::unique_ptr<Coder>> sentencepiece_coder(const std::string& model) {
  auto coder = std::make_unique<SentencePieceCoder>();
  MUSTER_CHECK(coder->load(model));
  return coder;
}

}  // namespace muster::text::detail
