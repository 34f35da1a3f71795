#include "text/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/crypto.h"
#include "base/text.h"

namespace muster::text {
namespace {

constexpr std::size_t kStemMax = 64;

// One chunk on its way: filled by the calling thread, coded by a worker, written by the calling thread.
struct Job {
  Chunk chunk;
  std::vector<std::vector<TokenId>> tokens;  // one list a part
  std::vector<std::uint64_t> bytes;          // of text, one a part
  std::uint64_t replaced = 0;
  bool done = false;
};

std::uint64_t count_replacements(std::string_view text) {
  std::uint64_t count = 0;
  for (auto at = text.find("\xef\xbf\xbd"); at != std::string_view::npos;
       at = text.find("\xef\xbf\xbd", at + 3))
    ++count;
  return count;
}

void code(Encoder& encoder, Job& job) {
  for (const auto& part : job.chunk.parts) {
    std::string_view text = job.chunk.view(part);
    std::string repaired;
    if (!is_utf8(text)) {
      repaired = to_utf8_lossy(text);
      job.replaced += count_replacements(repaired) - count_replacements(text);
      text = repaired;
    }
    encoder.append(text, part.begins, job.tokens.emplace_back());
    job.bytes.push_back(text.size());
  }
  job.chunk.text.clear();
}

// Workers over a bounded queue. Jobs are handed in and taken out by one thread, in order.
class Workers {
 public:
  Workers(const Tokenizer& tokenizer, int threads) : tokenizer_(tokenizer) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  std::size_t in_flight() const { return order_.size(); }

  void put(Chunk chunk) {
    order_.push_back(std::make_unique<Job>());
    order_.back()->chunk = std::move(chunk);
    const std::lock_guard lock(mutex_);
    waiting_.push_back(order_.back().get());
    wake_worker_.notify_one();
  }

  // Precondition: in_flight() > 0. Waits for the oldest job.
  std::unique_ptr<Job> take() {
    std::unique_lock lock(mutex_);
    wake_caller_.wait(lock, [&] { return order_.front()->done; });
    auto job = std::move(order_.front());
    order_.pop_front();
    return job;
  }

 private:
  void work(const std::stop_token& stop) {
    Encoder encoder(tokenizer_);
    for (;;) {
      Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        if (!wake_worker_.wait(lock, stop, [&] { return !waiting_.empty(); })) return;
        job = waiting_.front();
        waiting_.pop_front();
      }
      code(encoder, *job);
      const std::lock_guard lock(mutex_);
      job->done = true;
      wake_caller_.notify_one();
    }
  }

  const Tokenizer& tokenizer_;
  std::deque<std::unique_ptr<Job>> order_;  // the calling thread's
  std::mutex mutex_;
  std::condition_variable_any wake_worker_;
  std::condition_variable wake_caller_;
  std::deque<Job*> waiting_;           // under mutex_
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

// Appends coded chunks to shards, in order. Its shards are removed again unless finish() succeeds.
class Output {
 public:
  Output(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer, std::string folder,
         std::uint64_t shard_tokens)
      : inputs_(inputs),
        vocabulary_(vocabulary_of(tokenizer)),
        folder_(std::move(folder)),
        shard_tokens_(shard_tokens) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (finished_) return;
    for (const auto& path : report.shards) ::unlink(path.c_str());
  }

  Result<void> write(const Job& job) {
    for (std::size_t i = 0; i < job.chunk.parts.size(); ++i) {
      const auto& part = job.chunk.parts[i];
      if (part.begins) MUSTER_CHECK(begin_document(job.chunk.file));
      MUSTER_CHECK(shard_->append(job.tokens[i]));
      shard_->add_source_bytes(job.bytes[i]);
      report.tokens += job.tokens[i].size();
      report.bytes += job.bytes[i];
      if (part.ends && vocabulary_.eos >= 0) {
        MUSTER_CHECK(shard_->append(std::span(&vocabulary_.eos, 1)));
        ++report.tokens;
      }
    }
    report.replaced += job.replaced;
    return {};
  }

  Result<void> finish() {
    MUSTER_CHECK(close_shard());
    report.files_without_text = inputs_.size() - files_with_text_;
    finished_ = true;
    return {};
  }

  TokenizeReport report;

 private:
  Result<void> begin_document(std::size_t file) {
    if (file != file_ || files_with_text_ == 0) {
      ++files_with_text_;
      ordinal_ = 0;
      file_ = file;
    }
    if (shard_ && shard_->tokens() >= shard_tokens_) MUSTER_CHECK(close_shard());
    if (!shard_) {
      path_ = folder_ + "/" + shard_name(inputs_[file].name, ordinal_++);
      MUSTER_TRY(shard_, ShardWriter::create(path_, vocabulary_));
    }
    shard_->begin_document();
    ++report.documents;
    return {};
  }

  Result<void> close_shard() {
    if (!shard_) return {};
    MUSTER_CHECK(shard_->finish());
    shard_.reset();
    report.shards.push_back(path_);
    return {};
  }

  static std::string shard_name(const std::string& input, int ordinal) {
    auto stem = std::filesystem::path(input).stem().string().substr(0, kStemMax);
    for (auto& c : stem) {
      const bool plain =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
      if (!plain) c = '-';
    }
    char number[16];
    std::snprintf(number, sizeof number, "%05d", ordinal);
    return "tokens-" + stem + "-" + crypto::hex(crypto::sha256(input)).substr(0, 8) + "-" + number +
           kShardSuffix;
  }

  const std::vector<InputFile>& inputs_;
  const Vocabulary vocabulary_;
  const std::string folder_;
  const std::uint64_t shard_tokens_;
  std::optional<ShardWriter> shard_;
  std::string path_;
  std::size_t file_ = 0;
  std::uint64_t files_with_text_ = 0;
  int ordinal_ = 0;  // of shards named after file_
  bool finished_ = false;
};

Result<void> refuse_old_shards(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == kShardSuffix) {
      return fail(ErrorCode::failed_precondition, folder + " holds shards already (" +
                                                      it->path().filename().string() +
                                                      "); remove them or choose another folder");
    }
  }
  if (error) return fail_errno("list " + folder, error.value());
  return {};
}

}  // namespace

Result<TokenizeReport> tokenize(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer,
                                const std::string& folder, const TokenizeOptions& options) {
  MUSTER_CHECK(make_directories(folder));
  MUSTER_CHECK(refuse_old_shards(folder));
  CorpusReader reader(
      inputs, {.split_documents = options.split_documents, .cut_at_newlines = tokenizer.cut("a\n") == 2});
  Output output(inputs, tokenizer, folder, options.shard_tokens);
  const int threads = std::max(1, options.threads);
  Workers workers(tokenizer, threads);
  const auto window = static_cast<std::size_t>(threads) + 2;
  for (bool more = true; more || workers.in_flight() > 0;) {
    if (more && workers.in_flight() < window) {
      MUSTER_TRY(auto chunk, reader.next());
      more = !chunk.parts.empty();
      if (more) workers.put(std::move(chunk));
      continue;
    }
    MUSTER_CHECK(output.write(*workers.take()));
    if (options.progress) options.progress(output.report);
  }
  if (output.report.documents == 0) {
    return fail(ErrorCode::failed_precondition,
                "no text in " + std::to_string(inputs.size()) + " input files: there is nothing to tokenise");
  }
  MUSTER_CHECK(output.finish());
  return std::move(output.report);
}

}  // namespace muster::text
