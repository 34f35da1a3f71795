#include "train/data/loader.h"

#include <algorithm>

#include "base/text.h"
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
  void document_begins(std::uint64_t begin, std::uint64_t count,
                       std::vector<std::uint64_t>& out) const override {
    shards_.document_begins(begin, count, out);
  }
  int vocab_size() const override { return shards_.vocab_size(); }
  const std::string& tokenizer_hash() const override { return shards_.tokenizer_hash(); }
  json::Object description() const override {
    return {{"tokens", shards_.size()},
            {"documents", shards_.documents()},
            {"bytes", shards_.bytes()},
            {"tokenizer", shards_.tokenizer_hash()},
            {"digest", shards_.digest()}};
  }

 private:
  text::ShardSet shards_;
};

// Streams one behind the other.
class MixtureStream final : public TokenStream {
 public:
  Result<void> add(std::unique_ptr<TokenStream> stream, const WeightedFolder& folder) {
    if (!streams_.empty() && stream->tokenizer_hash() != tokenizer_hash()) {
      return fail(ErrorCode::failed_precondition, "the shards of " + parts_[0].name +
                                                      " are made with tokenizer " + tokenizer_hash() +
                                                      ", those of " + folder.folder + " with " +
                                                      stream->tokenizer_hash() + "; a mixture needs one");
    }
    parts_.push_back(
        {size(), stream->size(), folder.weight.value_or(static_cast<double>(stream->size())), folder.folder});
    streams_.push_back(std::move(stream));
    return {};
  }

  std::uint64_t size() const override {
    return parts_.empty() ? 0 : parts_.back().begin + parts_.back().size;
  }
  Result<void> read(std::uint64_t begin, std::span<std::int64_t> out) const override {
    return for_range(
        begin, out.size(),
        [&](const TokenStream& stream, const Part&, std::uint64_t at, std::uint64_t count) -> Result<void> {
          MUSTER_CHECK(stream.read(at, out.first(count)));
          out = out.subspan(count);
          return {};
        });
  }
  Result<std::uint64_t> bytes_in(std::uint64_t begin, std::uint64_t count) const override {
    std::uint64_t bytes = 0;
    MUSTER_CHECK(for_range(
        begin, count,
        [&](const TokenStream& stream, const Part&, std::uint64_t at, std::uint64_t n) -> Result<void> {
          MUSTER_TRY(const auto some, stream.bytes_in(at, n));
          bytes += some;
          return {};
        }));
    return bytes;
  }
  void document_begins(std::uint64_t begin, std::uint64_t count,
                       std::vector<std::uint64_t>& out) const override {
    // Nothing in it can fail.
    (void)for_range(
        begin, count,
        [&](const TokenStream& stream, const Part& part, std::uint64_t at, std::uint64_t n) -> Result<void> {
          const auto before = out.size();
          stream.document_begins(at, n, out);
          for (auto i = before; i < out.size(); ++i) out[i] += part.begin;
          return {};
        });
  }
  int vocab_size() const override { return streams_[0]->vocab_size(); }
  const std::string& tokenizer_hash() const override { return streams_[0]->tokenizer_hash(); }
  std::vector<Part> parts() const override { return parts_; }
  json::Object description() const override {
    json::Array list;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      auto one = streams_[i]->description();
      one["weight"] = parts_[i].weight;
      list.push_back(std::move(one));
    }
    return {{"mixture", std::move(list)}, {"tokenizer", tokenizer_hash()}};
  }

 private:
  // Calls use(stream, part, begin in the stream, count) for each part of [begin, begin + count).
  template <typename Use>
  Result<void> for_range(std::uint64_t begin, std::uint64_t count, const Use& use) const {
    for (std::size_t i = 0; i < parts_.size() && count > 0; ++i) {
      const auto& part = parts_[i];
      if (begin >= part.begin + part.size) continue;
      const auto n = std::min(count, part.begin + part.size - begin);
      MUSTER_CHECK(use(*streams_[i], part, begin - part.begin, n));
      begin += n;
      count -= n;
    }
    if (count > 0) return fail(ErrorCode::invalid_argument, "a read past the end of the mixture");
    return {};
  }

  std::vector<std::unique_ptr<TokenStream>> streams_;
  std::vector<Part> parts_;
};

// A description as it was before there were digests.
json::Object without_digests(json::Object description) {
  description.erase("digest");
  if (auto* mixture = description.if_contains("mixture"); mixture != nullptr && mixture->is_array()) {
    for (json::Value& part : mixture->as_array()) {
      if (part.is_object()) part.as_object().erase("digest");
    }
  }
  return description;
}

}  // namespace

SameData compare_data(const json::Object& stored, const json::Object& now) {
  if (stored == now) return SameData::yes;
  return stored == without_digests(now) ? SameData::as_counted : SameData::no;
}

Result<std::unique_ptr<TokenStream>> shard_stream(const std::string& folder) {
  auto shards = text::ShardSet::open(folder);
  if (!shards) return tl::unexpected(shards.error().with_context("tokens of " + folder));
  return std::make_unique<ShardStream>(*std::move(shards));
}

Result<std::unique_ptr<TokenStream>> mixture_stream(const std::vector<WeightedFolder>& folders) {
  if (folders.size() == 1) return shard_stream(folders[0].folder);
  if (folders.empty()) return fail(ErrorCode::invalid_argument, "a mixture of no folders");
  auto out = std::make_unique<MixtureStream>();
  for (const auto& folder : folders) {
    MUSTER_TRY(auto stream, shard_stream(folder.folder));
    MUSTER_CHECK(out->add(std::move(stream), folder));
  }
  return out;
}

Result<std::unique_ptr<TokenStream>> open_tokens(const std::string& folders, const std::string& weights) {
  if (trim(folders).empty()) {
    return fail(
        ErrorCode::invalid_argument,
        "data.train is not set: give --set data.train=FOLDER, a folder of token shards (muster-data tokenize "
        "makes them), or in a job a channel named train");
  }
  const auto names = split(folders, ',');
  const auto given = weights.empty() ? std::vector<std::string_view>() : split(weights, ',');
  if (!given.empty() && given.size() != names.size()) {
    return fail(ErrorCode::invalid_argument, "data.mixture has " + std::to_string(given.size()) +
                                                 " weights, data.train " + std::to_string(names.size()) +
                                                 " folders: give one weight for each");
  }
  std::vector<WeightedFolder> list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (trim(names[i]).empty()) {
      return fail(ErrorCode::invalid_argument, "data.train = " + folders + ": name " + std::to_string(i + 1) +
                                                   " of " + std::to_string(names.size()) +
                                                   " is empty; give folders with one comma between");
    }
    list.push_back({.folder = std::string(trim(names[i])), .weight = {}});
    if (given.empty()) continue;
    const auto weight = parse_double(trim(given[i]));
    if (!weight || !Mixture::can_weigh(*weight)) {
      return fail(ErrorCode::invalid_argument,
                  "data.mixture = " + weights + ": weight " + std::to_string(i + 1) + " is \"" +
                      std::string(trim(given[i])) + "\"; " + Mixture::wanted_weight());
    }
    list.back().weight = weight;
  }
  return mixture_stream(list);
}

Result<Loader> Loader::create(const TokenStream& stream, std::uint64_t sequence, std::uint64_t seed,
                              std::int64_t ignored_token) {
  if (ignored_token >= stream.vocab_size()) {
    return fail(ErrorCode::invalid_argument, "data.ignored_token = " + std::to_string(ignored_token) +
                                                 " is no token of the data, whose vocabulary has " +
                                                 std::to_string(stream.vocab_size()) + " (ids 0 to " +
                                                 std::to_string(stream.vocab_size() - 1) +
                                                 "); give the id of its padding, or -1 for none");
  }
  Loader loader(stream, sequence, ignored_token);
  std::vector<double> weights;
  for (const auto& part : stream.parts()) {
    const std::uint64_t windows = part.size == 0 ? 0 : (part.size - 1) / sequence;
    if (windows == 0) {
      return fail(ErrorCode::invalid_argument, part.name + " has " + std::to_string(part.size) +
                                                   " tokens, one window of " + std::to_string(sequence) +
                                                   " needs " + std::to_string(sequence + 1) +
                                                   ": give more text or a smaller train.sequence");
    }
    // The first part's order is that of the part alone.
    loader.samplers_.emplace_back(windows, seed + 0x9e3779b97f4a7c15ULL * loader.samplers_.size());
    loader.begins_.push_back(part.begin);
    loader.first_window_.push_back(loader.first_window_.back() + windows);
    weights.push_back(part.weight);
  }
  if (weights.size() > 1) {
    MUSTER_TRY(loader.mixture_, Mixture::create(weights, seed));
  }
  return loader;
}

std::uint64_t Loader::window_of(std::uint64_t sample) const {
  if (!mixture_) return samplers_[0].window(sample);
  const auto draw = mixture_->draw(sample);
  return first_window_[draw.source] + samplers_[draw.source].window(draw.index);
}

// The first token of a window in the stream.
std::uint64_t Loader::begin_of(std::uint64_t window) const {
  const auto part = static_cast<std::size_t>(
      std::upper_bound(first_window_.begin(), first_window_.end(), window) - first_window_.begin() - 1);
  return begins_[part] + (window - first_window_[part]) * sequence_;
}

void Loader::resize(std::uint64_t rows, Samples& out) const {
  out.rows = rows;
  out.tokens.resize(rows * sequence_);
  out.targets.resize(rows * sequence_);
  out.document_begins.assign(rows, {});
}

// The tokens of the window, then the one target that is not among them.
Result<void> Loader::put(std::uint64_t window, std::uint64_t row, Samples& out) const {
  const auto tokens = std::span(out.tokens).subspan(row * sequence_, sequence_);
  const auto targets = std::span(out.targets).subspan(row * sequence_, sequence_);
  const auto begin = begin_of(window);
  MUSTER_CHECK(stream_->read(begin, tokens));
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  MUSTER_CHECK(stream_->read(begin + sequence_, targets.last(1)));
  if (ignored_token_ >= 0) std::ranges::replace(targets, ignored_token_, std::int64_t{-1});
  std::vector<std::uint64_t> documents;
  stream_->document_begins(begin, sequence_, documents);
  for (const auto at : documents) out.document_begins[row].push_back(static_cast<std::int64_t>(at - begin));
  return {};
}

Result<void> Loader::samples(std::uint64_t first, std::uint64_t rows, Samples& out) const {
  resize(rows, out);
  for (std::uint64_t row = 0; row < rows; ++row) MUSTER_CHECK(put(window_of(first + row), row, out));
  return {};
}

Result<void> Loader::windows_in_order(std::uint64_t first, std::uint64_t rows, Samples& out) const {
  resize(rows, out);
  for (std::uint64_t row = 0; row < rows; ++row) MUSTER_CHECK(put(first + row, row, out));
  return {};
}

Result<std::uint64_t> Loader::target_bytes(std::uint64_t window) const {
  const std::uint64_t first = begin_of(window) + 1;
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
    const std::uint64_t above = (batch / unit + 1) * unit, below = above - unit;
    const std::string ranks =
        parts == 1 ? "1 rank takes" : "each of the " + std::to_string(parts) + " ranks that share it takes";
    return fail(
        ErrorCode::invalid_argument,
        "train.batch = " + std::to_string(batch) + ": " + ranks +
            " whole micro-batches of train.micro_batch = " + std::to_string(micro) +
            " windows, so it must be a multiple of " + std::to_string(unit) +
            (below > 0 ? "; " + std::to_string(below) + " and " + std::to_string(above) + " are the nearest"
                       : "; " + std::to_string(above) + " is the least") +
            (micro > 1 ? ", or change train.micro_batch" : ""));
  }
  const std::uint64_t count = batch / unit;
  if (count > kMicroBatchesMost) {
    return fail(ErrorCode::invalid_argument,
                "train.batch = " + std::to_string(batch) + " is " + std::to_string(count) +
                    " micro-batches of train.micro_batch = " + std::to_string(micro) +
                    " on each rank; at most " + std::to_string(kMicroBatchesMost) +
                    " can be: lower it, or raise train.micro_batch or the number of ranks");
  }
  return BatchPart{.first = count * micro * static_cast<std::uint64_t>(part), .micro = micro, .count = count};
}

}  // namespace muster::train
