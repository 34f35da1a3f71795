#include "text/detail/pipeline.h"

#include <algorithm>

namespace muster::text::detail {
namespace {

constexpr std::size_t kReadersMax = 8;
constexpr std::size_t kReadAhead = 2;  // chunks of a file whose turn has not come

}  // namespace

Pipeline::Pipeline(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer, CorpusOptions corpus,
                   CodingOptions coding, int threads)
    : inputs_(inputs),
      tokenizer_(tokenizer),
      corpus_(std::move(corpus)),
      coding_(std::move(coding)),
      threads_count_(static_cast<std::size_t>(threads)) {
  const auto readers = std::min({threads_count_, kReadersMax, std::max<std::size_t>(1, inputs.size())});
  for (std::size_t i = 0; i < readers; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { read(stop); });
  }
  for (std::size_t i = 0; i < threads_count_; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { code_chunks(stop); });
  }
}

Pipeline::~Pipeline() {
  for (auto& thread : threads_) thread.request_stop();
}

std::size_t Pipeline::room(const Lane& lane) const {
  return &lane == &lanes_.front() ? threads_count_ + 2 : kReadAhead;
}

void Pipeline::read(const std::stop_token& stop) {
  for (;;) {
    Lane* lane = nullptr;
    std::size_t file = 0;
    {
      std::unique_lock lock(mutex_);
      const auto may_open = [&] {
        return next_file_ == inputs_.size() || lanes_.size() < 2 * threads_count_;
      };
      if (!wake_readers_.wait(lock, stop, may_open) || next_file_ == inputs_.size()) return;
      file = next_file_++;
      lane = &lanes_.emplace_back();
    }
    read_file(*lane, file, stop);
    if (stop.stop_requested()) return;
  }
}

void Pipeline::read_file(Lane& lane, std::size_t file, const std::stop_token& stop) {
  auto reader = FileReader::open(inputs_[file].path, corpus_);
  std::optional<Error> error;
  if (!reader) error = reader.error();
  while (!error) {
    auto chunk = reader->next();
    if (!chunk) {
      error = chunk.error();
      break;
    }
    if (chunk->empty()) break;
    std::unique_lock lock(mutex_);
    if (!wake_readers_.wait(lock, stop, [&] { return lane.items.size() < room(lane); })) return;
    lane.items.push_back(std::make_unique<Item>());
    lane.items.back()->chunk = *std::move(chunk);
    lane.items.back()->json_lines = reader->json_lines();
    waiting_.push_back(lane.items.back().get());
    wake_workers_.notify_one();
  }
  const std::lock_guard lock(mutex_);
  lane.error = std::move(error);
  lane.ended = true;
  wake_caller_.notify_one();
}

void Pipeline::code_chunks(const std::stop_token& stop) {
  Encoder encoder(tokenizer_);
  for (;;) {
    Item* item = nullptr;
    {
      std::unique_lock lock(mutex_);
      if (!wake_workers_.wait(lock, stop, [&] { return !waiting_.empty(); })) return;
      item = waiting_.front();
      waiting_.pop_front();
    }
    item->coded = code(item->chunk, item->json_lines, coding_, encoder);
    item->chunk = {};
    const std::lock_guard lock(mutex_);
    item->done = true;
    wake_caller_.notify_one();
  }
}

Result<std::optional<Pipeline::Output>> Pipeline::next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (front_ == inputs_.size()) return std::nullopt;
    wake_caller_.wait(lock, [&] {
      if (lanes_.empty()) return false;
      const auto& lane = lanes_.front();
      return lane.items.empty() ? lane.ended : lane.items.front()->done;
    });
    auto& lane = lanes_.front();
    if (!lane.items.empty()) {
      Output out{front_, std::move(lane.items.front()->coded)};
      lane.items.pop_front();
      wake_readers_.notify_all();
      return out;
    }
    if (lane.error) return tl::unexpected(*lane.error);
    lanes_.pop_front();
    ++front_;
    wake_readers_.notify_all();
  }
}

}  // namespace muster::text::detail
