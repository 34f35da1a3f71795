#include "text/tokenize.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "text/detail/pipeline.h"
#include "text/detail/shard_series.h"

namespace muster::text {
namespace {

using detail::Coded;
using detail::ShardSeries;

// Coded chunks into shards, in order, and the counts of all.
class Writing {
 public:
  Writing(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer, const std::string& folder,
          const TokenizeOptions& options)
      : inputs_(inputs), options_(options) {
    const auto vocabulary = vocabulary_of(tokenizer);
    const bool splits = options.held_out > 0;
    train_.emplace(splits ? folder + "/train" : folder, vocabulary, options.shard_tokens);
    if (splits) held_out_.emplace(folder + "/held-out", vocabulary, options.shard_tokens);
    ends_documents_ = vocabulary.eos >= 0;
  }

  Result<void> begin() {
    MUSTER_CHECK(train_->begin());
    return held_out_ ? held_out_->begin() : Result<void>{};
  }

  Result<void> write(std::size_t file, const Coded& coded) {
    report.file_bytes += coded.file_bytes;
    report.replaced += coded.replaced;
    report.empty_documents += coded.empty_documents;
    MUSTER_CHECK(note_bad_lines(file, coded));
    auto tokens = std::span(coded.tokens);
    for (const auto& piece : coded.pieces) {
      MUSTER_CHECK(write_piece(file, piece, tokens.first(piece.tokens)));
      tokens = tokens.subspan(piece.tokens);
    }
    return {};
  }

  Result<void> finish() {
    if (report.bad_lines > 0 && !options_.skip_bad_lines) return refuse_bad_lines();
    if (report.documents == 0) return refuse_no_text();
    MUSTER_CHECK(train_->finish());
    if (held_out_) MUSTER_CHECK(held_out_->finish());
    for (const auto* series : {&train_, &held_out_}) {
      if (!*series) continue;
      report.shards.insert(report.shards.end(), (*series)->paths().begin(), (*series)->paths().end());
    }
    report.files_without_text = inputs_.size() - files_with_text_;
    return {};
  }

  TokenizeReport report;

 private:
  Result<void> write_piece(std::size_t file, const detail::Piece& piece, std::span<const TokenId> tokens) {
    if (piece.begins) {
      into_held_out_ = piece.held_out;
      ++report.documents;
      report.held_out_documents += into_held_out_ ? 1 : 0;
      if (last_file_ != file) ++files_with_text_;
      last_file_ = file;
      MUSTER_CHECK(series().begin_document(inputs_[file].name));
    }
    MUSTER_CHECK(series().append(tokens, piece.bytes));
    if (piece.ends) MUSTER_CHECK(series().end_document());
    const auto count = tokens.size() + (piece.ends && ends_documents_ ? 1 : 0);
    report.tokens += count;
    report.held_out_tokens += into_held_out_ ? count : 0;
    report.bytes += piece.bytes;
    return {};
  }

  Result<void> note_bad_lines(std::size_t file, const Coded& coded) {
    report.bad_lines += coded.bad_lines.size();
    for (const auto& bad : coded.bad_lines) {
      if (report.first_bad_lines.size() == kBadLinesShown) break;
      report.first_bad_lines.push_back(inputs_[file].path + " line " + std::to_string(bad.line) + ": " +
                                       bad.why);
    }
    if (report.bad_lines < kBadLinesShown || options_.skip_bad_lines) return {};
    return refuse_bad_lines();
  }

  tl::unexpected<Error> refuse_bad_lines() const {
    const bool all = report.bad_lines < kBadLinesShown;
    return fail(ErrorCode::corrupt,
                std::to_string(report.bad_lines) +
                    (!all                    ? " bad lines and perhaps more; the first:\n  "
                     : report.bad_lines == 1 ? " bad line:\n  "
                                             : " bad lines:\n  ") +
                    join(report.first_bad_lines, "\n  ") +
                    "\nNo shard was written. Mend them, or leave them out (--skip-bad-lines)");
  }

  tl::unexpected<Error> refuse_no_text() const {
    const auto counted = [](std::uint64_t count, const char* noun) {
      return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
    };
    std::string message =
        "no text in " + counted(inputs_.size(), "input file") + ": there is nothing to tokenise";
    if (report.empty_documents > 0)
      message += "; " + counted(report.empty_documents, "line") + " with an empty text";
    if (report.bad_lines > 0) {
      message += "; " + counted(report.bad_lines, "bad line") +
                 " left out (--skip-bad-lines), the first:\n  " + report.first_bad_lines.front();
    }
    return fail(ErrorCode::failed_precondition, message);
  }

  ShardSeries& series() { return into_held_out_ ? *held_out_ : *train_; }

  const std::vector<InputFile>& inputs_;
  const TokenizeOptions& options_;
  std::optional<ShardSeries> train_;
  std::optional<ShardSeries> held_out_;
  bool ends_documents_ = true;
  bool into_held_out_ = false;  // the document that is being written
  std::optional<std::size_t> last_file_;
  std::uint64_t files_with_text_ = 0;
};

}  // namespace

Result<TokenizeReport> tokenize(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer,
                                const std::string& folder, const TokenizeOptions& options) {
  Writing writing(inputs, tokenizer, folder, options);
  MUSTER_CHECK(writing.begin());
  detail::Pipeline pipeline(inputs, tokenizer,
                            {.split_documents = options.split_documents,
                             .json_lines = options.json_lines,
                             .cut = [&](std::string_view text) { return tokenizer.cut(text); },
                             .line_bytes_max = options.line_bytes_max},
                            {.text_field = options.text_field,
                             .line_bytes_max = options.line_bytes_max,
                             .held_out = options.held_out},
                            std::max(1, options.threads));
  for (;;) {
    MUSTER_TRY(const auto output, pipeline.next());
    if (!output) break;
    MUSTER_CHECK(writing.write(output->file, output->coded));
    if (options.progress && !options.progress(writing.report)) {
      return fail(ErrorCode::cancelled, "stopped; no shard is left in " + folder);
    }
  }
  MUSTER_CHECK(writing.finish());
  return std::move(writing.report);
}

}  // namespace muster::text
