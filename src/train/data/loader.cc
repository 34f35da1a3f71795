#include "train/data/loader.h"

#include <algorithm>

#include "text/shards.h"

namespace muster::train {
namespace {

class ShardStream final : public TokenStream {
 public:
  explicit ShardStream(text::ShardSet shards) : shards_(std::move(shards)) {}

  std::uint64_t size() const override { return shards_.size(); }
  Result<void> read(std::uint64_t begin, std::span<std::int64_t> out) const override {
    return shards_.read(begin, out);
  }
  Result<std::uint64_t> bytes_in(std::uint64_t begin, std::uint64_t count) const override {
    return shards_.bytes_in(begin, count);
  }
  int vocab_size() const override { return shards_.vocab_size(); }
  const std::string& tokenizer_hash() const override { return shards_.tokenizer_hash(); }
  json::Object description() const override {
    return {{"tokens", shards_.size()},
            {"documents", shards_.documents()},
            {"bytes", shards_.bytes()},
            {"tokenizer", shards_.tokenizer_hash()}};
  }

 private:
  text::ShardSet shards_;
};

}  // namespace

Result<std::unique_ptr<TokenStream>> shard_stream(const std::string& folder) {
  auto shards = text::ShardSet::open(folder);
  if (!shards) return tl::unexpected(shards.error().with_context("tokens of " + folder));
  return std::make_unique<ShardStream>(*std::move(shards));
}

Result<Loader> Loader::create(const TokenStream& stream, std::uint64_t sequence, std::uint64_t seed,
                              std::int64_t ignored_token) {
  const std::uint64_t windows = stream.size() == 0 ? 0 : (stream.size() - 1) / sequence;
  if (windows == 0) {
    return fail(ErrorCode::invalid_argument, "the data has " + std::to_string(stream.size()) +
                                                 " tokens, one window of " + std::to_string(sequence) +
                                                 " needs " + std::to_string(sequence + 1) +
                                                 ": give more text or a smaller train.sequence");
  }
  return Loader(stream, sequence, Sampler(windows, seed), ignored_token);
}

void Loader::resize(std::uint64_t rows, Samples& out) const {
  out.rows = rows;
  out.tokens.resize(rows * sequence_);
  out.targets.resize(rows * sequence_);
}

// The tokens of the window, then the one target that is not among them.
Result<void> Loader::put(std::uint64_t window, std::uint64_t row, Samples& out) const {
  const auto tokens = std::span(out.tokens).subspan(row * sequence_, sequence_);
  const auto targets = std::span(out.targets).subspan(row * sequence_, sequence_);
  MUSTER_CHECK(stream_->read(window * sequence_, tokens));
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  MUSTER_CHECK(stream_->read((window + 1) * sequence_, targets.last(1)));
  if (ignored_token_ >= 0) std::ranges::replace(targets, ignored_token_, std::int64_t{-1});
  return {};
}

Result<void> Loader::samples(std::uint64_t first, std::uint64_t rows, Samples& out) const {
  resize(rows, out);
  for (std::uint64_t row = 0; row < rows; ++row) MUSTER_CHECK(put(sampler_.window(first + row), row, out));
  return {};
}

Result<void> Loader::windows_in_order(std::uint64_t first, std::uint64_t rows, Samples& out) const {
  resize(rows, out);
  for (std::uint64_t row = 0; row < rows; ++row) MUSTER_CHECK(put(first + row, row, out));
  return {};
}

Result<std::uint64_t> Loader::target_bytes(std::uint64_t window) const {
  const std::uint64_t first = window * sequence_ + 1;
  if (ignored_token_ < 0) return stream_->bytes_in(first, sequence_);
  std::vector<std::int64_t> targets(sequence_);
  MUSTER_CHECK(stream_->read(first, targets));
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < sequence_; ++i) {
    if (targets[i] == ignored_token_) continue;
    MUSTER_TRY(const std::uint64_t of_one, stream_->bytes_in(first + i, 1));
    bytes += of_one;
  }
  return bytes;
}

Result<BatchPart> split_batch(std::uint64_t batch, std::uint64_t micro, int parts, int part) {
  const std::uint64_t unit = micro * static_cast<std::uint64_t>(parts);
  if (batch % unit != 0 || batch == 0) {
    const std::uint64_t nearest = std::max<std::uint64_t>(1, (batch + unit / 2) / unit) * unit;
    return fail(ErrorCode::invalid_argument,
                "train.batch = " + std::to_string(batch) +
                    " is not a multiple of train.micro_batch = " + std::to_string(micro) + " times " +
                    std::to_string(parts) + " ranks; the nearest is " + std::to_string(nearest));
  }
  const std::uint64_t share = batch / static_cast<std::uint64_t>(parts);
  return BatchPart{.first = share * static_cast<std::uint64_t>(part), .micro = micro, .count = share / micro};
}

}  // namespace muster::train
