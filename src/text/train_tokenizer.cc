#include "text/train_tokenizer.h"

#include <sentencepiece_trainer.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/text.h"
#include "text/detail/plain_text.h"

namespace muster::text {
namespace {

// Longer lines are cut for training; SentencePiece would drop them.
constexpr std::size_t kLineBytesMax = 1u << 16;

// SentencePiece's message without the place in its source and the condition: "./src/a.cc(1) [x == y] text".
std::string message_of(const sentencepiece::util::Status& status) {
  const std::string_view message = status.message();
  const auto bracket = message.find("] ");
  return std::string(trim(message.starts_with("./") && bracket != std::string_view::npos
                              ? message.substr(bracket + 2)
                              : message));
}

Result<detail::PlainText> open_text(const std::string& path, const TrainTokenizerOptions& options) {
  auto text = detail::PlainText::open(path, options.json_lines, {.text_field = options.text_field});
  if (text) text->skip_bad_lines = options.skip_bad_lines;
  return text;
}

// The bytes of text in a file: its size, or where that says nothing, by reading it.
Result<std::uint64_t> text_bytes(const std::string& path, const TrainTokenizerOptions& options) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail_errno("stat " + path);
  MUSTER_TRY(auto text, open_text(path, options));
  if (text.is_file_itself()) return static_cast<std::uint64_t>(info.st_size);
  std::uint64_t bytes = 0;
  for (std::string some;; some.clear()) {
    MUSTER_TRY(const bool more, text.read(some));
    if (!more) return bytes;
    bytes += some.size();
  }
}

// Feeds SentencePiece the lines of files, one at a time, sampled evenly when there is more than wanted.
// A line above kLineBytesMax is cut, at a space where there is one.
class LineSource final : public sentencepiece::SentenceIterator {
 public:
  LineSource(const std::vector<std::string>& files, double keep, const TrainTokenizerOptions& options,
             TrainedTokenizer& counts)
      : files_(files), keep_(keep), options_(options), counts_(counts) {
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
    if (!text_) return false;
    buffer_.erase(0, at_);
    at_ = 0;
    const auto more = text_->read(buffer_);
    if (!more) result_ = tl::unexpected(more.error());
    return more.value_or(false);
  }

  bool open_next() {
    if (text_) counts_.bad_lines += text_->bad_lines;
    text_.reset();
    if (next_ == files_.size()) return false;
    auto text = open_text(files_[next_++], options_);
    if (!text) {
      result_ = tl::unexpected(text.error());
      return false;
    }
    text_.emplace(*std::move(text));
    return true;
  }

  const std::vector<std::string>& files_;
  const double keep_;
  const TrainTokenizerOptions& options_;
  TrainedTokenizer& counts_;
  std::size_t next_ = 0;
  std::optional<detail::PlainText> text_;
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
    MUSTER_TRY(const auto bytes, text_bytes(file, options));
    total += bytes;
  }
  const double keep = total <= options.sample_bytes_max
                          ? 1.0
                          : static_cast<double>(options.sample_bytes_max) / static_cast<double>(total);
  TrainedTokenizer out;
  LineSource lines(files, keep, options, out);
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
