#include "text/tokenizer.h"

#include <fcntl.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"

namespace muster::text {
namespace {

constexpr std::uint64_t kModelBytesMax = 256u << 20;
constexpr int kVocabMin = 300;
constexpr int kVocabMax = 1'000'000;
// Longer lines are cut for training; SentencePiece would drop them.
constexpr std::size_t kLineBytesMax = 1u << 16;
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";      // U+2581, SentencePiece's space
constexpr std::string_view kUnknownText = " \xe2\x81\x87 ";  // U+2047, how SentencePiece prints an unknown

// Protobuf joins the parts of a message that is given twice and the last scalar wins. So these bytes behind a
// serialized ModelProto set normalizer_spec (field 3) . add_dummy_prefix (field 3) to false.
constexpr std::string_view kNoDummyPrefix("\x1a\x02\x18\x00", 4);

// SentencePiece's message without the place in its source and the condition: "./src/a.cc(1) [x == y] text".
std::string message_of(const sentencepiece::util::Status& status) {
  const std::string_view message = status.message();
  const auto bracket = message.find("] ");
  return std::string(trim(message.starts_with("./") && bracket != std::string_view::npos
                              ? message.substr(bracket + 2)
                              : message));
}

std::string piece_bytes(const sentencepiece::SentencePieceProcessor& processor, int id) {
  if (processor.IsControl(id)) return {};
  if (processor.IsUnknown(id)) return std::string(kUnknownText);
  const std::string& piece = processor.IdToPiece(id);
  if (processor.IsByte(id)) {  // <0xHH>
    MUSTER_ASSERT(piece.size() == 6);
    return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  }
  std::string out;
  for (std::size_t at = 0; at < piece.size();) {
    if (piece.compare(at, kSpaceMark.size(), kSpaceMark) == 0) {
      out += ' ';
      at += kSpaceMark.size();
    } else {
      out += piece[at++];
    }
  }
  return out;
}

void encode_with(const sentencepiece::SentencePieceProcessor& processor, std::string_view text,
                 std::vector<TokenId>& out) {
  std::vector<int> ids;
  const auto status = processor.Encode(text, &ids);
  MUSTER_ASSERT(status.ok());  // fails only for a processor that is not loaded
  out.insert(out.end(), ids.begin(), ids.end());
}

// SentencePiece codes about 0.4 MB/s and keeps 100 bytes a character. So a text is coded word by word, where
// a word ends where no piece can cross, and a word seen before is not coded again: 15 times faster on prose.
constexpr std::size_t kWordBytesMax = 1u << 20;    // a longer one is cut at a character's border
constexpr std::size_t kCachedWordBytesMax = 64;    // longer ones hardly come twice
constexpr std::size_t kCachedWordsMax = 1u << 18;  // then the memory of words starts again

// The end of the first word of `text`: around a newline, and in front of a space behind another character.
std::size_t word_end(std::string_view text) {
  const auto limit = std::min(text.size(), kWordBytesMax);
  if (text[0] == '\n') return 1;
  for (std::size_t at = 1; at < limit; ++at) {
    if (text[at] == '\n' || (text[at] == ' ' && text[at - 1] != ' ')) return at;
  }
  if (limit == text.size()) return limit;
  auto at = limit;
  while (at > limit - 4 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

// True if word_end could cut the piece: it holds a newline beside other characters, or a space behind another
// character.
bool crosses_words(std::string_view piece) {
  for (std::size_t at = 1; at < piece.size(); ++at) {
    if (piece[at] == '\n' || piece[at - 1] == '\n' || (piece[at] == ' ' && piece[at - 1] != ' ')) return true;
  }
  return false;
}

}  // namespace

struct Tokenizer::Impl {
  std::string model;
  std::string hash;
  sentencepiece::SentencePieceProcessor begin;      // as the model says: with its dummy space
  sentencepiece::SentencePieceProcessor continued;  // the same without it
  bool has_continued = false;
  bool dummy_prefix = false;
  bool splits = false;
  std::vector<std::string> bytes;

  // Precondition: splits. The ids of a word seen before are taken from where they lie in `out`.
  void encode_words(std::string_view text, bool first, std::vector<TokenId>& out) const {
    struct Range {
      std::size_t begin = 0;
      std::size_t end = 0;
    };
    std::unordered_map<std::string_view, Range> seen;
    for (; !text.empty(); first = false) {
      const auto word = text.substr(0, word_end(text));
      text.remove_prefix(word.size());
      if (first || word.size() > kCachedWordBytesMax) {
        encode_with(first ? begin : continued, word, out);
        continue;
      }
      if (seen.size() == kCachedWordsMax) seen.clear();
      const auto [it, is_new] = seen.try_emplace(word);
      auto& range = it->second;
      if (is_new) {
        range.begin = out.size();
        encode_with(continued, word, out);
        range.end = out.size();
      } else {
        for (auto at = range.begin; at < range.end; ++at) out.push_back(out[at]);
      }
    }
  }

  // No piece crosses the border of a word, nothing is normalised, and on texts that would show another
  // difference (trimming, joined spaces or unknowns, spaces as suffixes) two parts are the same as the whole.
  bool probe_splits() const {
    if (!has_continued) return false;
    for (std::size_t id = 0; id < bytes.size(); ++id) {
      if (!begin.IsUnknown(static_cast<int>(id)) && crosses_words(bytes[id])) return false;
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
      encode_with(begin, text, whole);
      encode_with(begin, head, parts);
      encode_with(continued, tail, parts);
      if (whole != parts || decode(whole) != text) return false;
    }
    return true;
  }

  // Precondition: ids in the vocabulary.
  std::string decode(std::span<const TokenId> ids) const {
    std::string out;
    bool first = true;
    for (const auto id : ids) {
      std::string_view piece = bytes[static_cast<std::size_t>(id)];
      if (piece.empty()) continue;
      if (first && dummy_prefix && piece.front() == ' ' && !begin.IsUnknown(id)) piece.remove_prefix(1);
      first = false;
      out += piece;
    }
    return is_utf8(out) ? out : to_utf8_lossy(out);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  MUSTER_TRY(auto model, read_file(path, kModelBytesMax));
  auto tokenizer = from_bytes(std::move(model));
  if (!tokenizer) return tl::unexpected(tokenizer.error().with_context(path));
  return tokenizer;
}

Result<Tokenizer> Tokenizer::from_bytes(std::string model) {
  if (model.empty())
    return fail(ErrorCode::corrupt, "the tokenizer file is empty; a SentencePiece model is expected");
  auto impl = std::make_unique<Impl>();
  if (const auto status = impl->begin.LoadFromSerializedProto(model); !status.ok()) {
    return fail(ErrorCode::corrupt, "not a SentencePiece model (a tokenizer.model is expected)");
  }
  // Models with self-test samples refuse to load with another prefix; they are then coded whole.
  impl->has_continued = impl->continued.LoadFromSerializedProto(model + std::string(kNoDummyPrefix)).ok();
  impl->hash = crypto::hex(crypto::sha256(model));
  impl->model = std::move(model);
  const int size = impl->begin.GetPieceSize();
  impl->bytes.reserve(static_cast<std::size_t>(size));
  for (int id = 0; id < size; ++id) impl->bytes.push_back(piece_bytes(impl->begin, id));
  std::vector<TokenId> ids;
  encode_with(impl->begin, "a", ids);
  impl->dummy_prefix = !ids.empty() && impl->bytes[static_cast<std::size_t>(ids[0])].starts_with(' ');
  impl->splits = impl->probe_splits();
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> out;
  encode_append(text, true, out);
  return out;
}

void Tokenizer::encode_append(std::string_view text, bool first, std::vector<TokenId>& out) const {
  std::string repaired;
  if (!is_utf8(text)) {
    repaired = to_utf8_lossy(text);
    text = repaired;
  }
  if (text.empty()) return;
  if (impl_->splits) return impl_->encode_words(text, first, out);
  encode_with(first || !impl_->has_continued ? impl_->begin : impl_->continued, text, out);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids) const {
  for (const auto id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return fail(ErrorCode::invalid_argument, "token id " + std::to_string(id) +
                                                   " is outside the vocabulary of " +
                                                   std::to_string(vocab_size()) + " ids");
    }
  }
  return impl_->decode(ids);
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->bytes.size()); }
TokenId Tokenizer::unk() const { return impl_->begin.unk_id(); }
TokenId Tokenizer::bos() const { return impl_->begin.bos_id(); }
TokenId Tokenizer::eos() const { return impl_->begin.eos_id(); }
std::string_view Tokenizer::bytes(TokenId id) const {
  MUSTER_ASSERT(id >= 0 && id < vocab_size());
  return impl_->bytes[static_cast<std::size_t>(id)];
}
bool Tokenizer::has_dummy_prefix() const { return impl_->dummy_prefix; }
bool Tokenizer::splits_at_newlines() const { return impl_->splits; }
const std::string& Tokenizer::hash() const { return impl_->hash; }
const std::string& Tokenizer::model() const { return impl_->model; }

namespace {

// Feeds SentencePiece the lines of files, one at a time, sampled evenly when there is more than wanted.
// A line above kLineBytesMax is cut, at a space where there is one.
class LineSource final : public sentencepiece::SentenceIterator {
 public:
  LineSource(const std::vector<std::string>& files, double keep, TrainedTokenizer& counts)
      : files_(files), keep_(keep), counts_(counts) {
    advance();
  }
  bool done() const override { return done_; }
  void Next() override { advance(); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  const Result<void>& result() const { return result_; }

 private:
  void advance() {
    while (next_line()) {
      counts_.bytes += line_.size() + 1;
      credit_ += keep_ * static_cast<double>(line_.size());
      if (credit_ < static_cast<double>(line_.size())) continue;
      credit_ -= static_cast<double>(line_.size());
      repair();
      if (line_.empty()) continue;
      ++counts_.lines;
      counts_.bytes_sampled += line_.size();
      return;
    }
    done_ = true;
  }

  void repair() {
    if (is_utf8(line_)) return;
    ++counts_.lines_repaired;
    line_ = to_utf8_lossy(line_);
  }

  // The next line or piece of a long line, without its newline; false at the end of the last file.
  bool next_line() {
    for (;;) {
      const auto end = buffer_.find('\n', at_);
      if (end != std::string::npos && end - at_ <= kLineBytesMax) {
        line_.assign(buffer_, at_, end - at_);
        at_ = end + 1;
        return true;
      }
      if (buffer_.size() - at_ > kLineBytesMax) {
        const auto length = cut(std::string_view(buffer_).substr(at_, kLineBytesMax));
        line_.assign(buffer_, at_, length);
        at_ += length;
        return true;
      }
      if (fill()) continue;
      if (!result_) return false;
      if (at_ < buffer_.size()) {  // a last line without a newline
        line_.assign(buffer_, at_);
        at_ = buffer_.size();
        return true;
      }
      if (!open_next()) return false;
    }
  }

  // Length of the part of a long line that comes first: up to a space, else to a character's border.
  static std::size_t cut(std::string_view text) {
    if (const auto space = text.rfind(' '); space != std::string_view::npos && space > 0) return space;
    auto length = text.size();
    while (length > text.size() - 4 && (static_cast<unsigned char>(text[length - 1]) & 0xc0) == 0x80)
      --length;
    return length - 1;
  }

  bool fill() {
    if (!file_) return false;
    buffer_.erase(0, at_);
    at_ = 0;
    const auto old = buffer_.size();
    buffer_.resize(old + (1u << 20));
    for (;;) {
      const auto count = ::read(file_.get(), buffer_.data() + old, buffer_.size() - old);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) result_ = fail_errno("read " + files_[next_ - 1]);
      buffer_.resize(old + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
      return count > 0;
    }
  }

  bool open_next() {
    if (next_ == files_.size()) return false;
    auto file = open_file(files_[next_++], O_RDONLY);
    if (!file) {
      result_ = tl::unexpected(file.error());
      return false;
    }
    file_ = std::move(*file);
    return true;
  }

  const std::vector<std::string>& files_;
  const double keep_;
  TrainedTokenizer& counts_;
  std::size_t next_ = 0;
  UniqueFd file_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::string line_;
  double credit_ = 0;
  bool done_ = false;
  Result<void> result_;
};

// num_threads stays at SentencePiece's default: it is written into the model, so another number would give
// the same tokenizer another hash.
std::unordered_map<std::string, std::string> llama_conventions(int vocab_size) {
  return {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"character_coverage", "0.99995"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"max_sentence_length", std::to_string(kLineBytesMax * 4)},  // a repaired line may grow threefold
      {"minloglevel", "2"},
  };
}

}  // namespace

Result<TrainedTokenizer> train_tokenizer(const std::vector<std::string>& files,
                                         const TrainTokenizerOptions& options) {
  if (options.vocab_size < kVocabMin || options.vocab_size > kVocabMax) {
    return fail(ErrorCode::invalid_argument, "vocabulary size " + std::to_string(options.vocab_size) +
                                                 " is outside " + std::to_string(kVocabMin) + " .. " +
                                                 std::to_string(kVocabMax));
  }
  std::uint64_t total = 0;
  for (const auto& file : files) {
    struct stat info {};
    if (::stat(file.c_str(), &info) != 0) return fail_errno("stat " + file);
    total += static_cast<std::uint64_t>(info.st_size);
  }
  const double keep = total <= options.sample_bytes_max
                          ? 1.0
                          : static_cast<double>(options.sample_bytes_max) / static_cast<double>(total);
  TrainedTokenizer out;
  LineSource lines(files, keep, out);
  if (lines.result() && lines.done()) {
    return fail(ErrorCode::failed_precondition, "no text in " + std::to_string(files.size()) +
                                                    " input files: there is nothing to train a tokenizer on");
  }
  const auto status =
      sentencepiece::SentencePieceTrainer::Train(llama_conventions(options.vocab_size), &lines, &out.model);
  if (!lines.result()) return tl::unexpected(lines.result().error());
  if (!status.ok()) {
    return fail(ErrorCode::invalid_argument, "a vocabulary of " + std::to_string(options.vocab_size) +
                                                 " cannot be trained on " + format_bytes(out.bytes_sampled) +
                                                 " of text: " + message_of(status));
  }
  return out;
}

}  // namespace muster::text
