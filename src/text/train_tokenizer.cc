#include "text/train_tokenizer.h"

#include <fcntl.h>
#include <sentencepiece_trainer.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <unordered_map>

#include "base/file.h"
#include "base/text.h"

namespace muster::text {
namespace {

constexpr int kVocabMin = 300;
constexpr int kVocabMax = 1'000'000;
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
