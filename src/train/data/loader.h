// Batches out of a token stream.
//
// Window k is tokens [kS, kS + S]: S inputs and the S targets that follow them; of a mixture, the windows of
// its parts are numbered on, and none crosses from one to the next. A global step takes the next `batch`
// samples of the Sampler (of a mixture: of its part's); part p of n takes a run of batch / n of them, cut in
// micro-batches. So n parts with one micro-batch each see the same micro-batches as one part with n.
//
// Read methods may be called from any thread if the stream's may.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "train/data/sampler.h"

namespace muster::train {

// What a loader needs of a stream of tokens. shard_stream() makes one of a folder of shards.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual std::uint64_t size() const = 0;  // tokens
  // Tokens [begin, begin + out.size()), an error if the stream has not all of them, or a file cannot be read.
  virtual Result<void> read(std::uint64_t begin, std::span<std::int64_t> out) const = 0;
  // Bytes of text that tokens [begin, begin + count) stand for.
  virtual Result<std::uint64_t> bytes_in(std::uint64_t begin, std::uint64_t count) const = 0;
  virtual int vocab_size() const = 0;
  virtual const std::string& tokenizer_hash() const = 0;
  // Appends where documents begin in [begin, begin + count), rising.
  virtual void document_begins(std::uint64_t begin, std::uint64_t count,
                               std::vector<std::uint64_t>& out) const = 0;
  // What windows do not cross, and the share of the samples that each part gets. One part: no mixture.
  struct Part {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
    double weight = 1;
    std::string name;  // for messages
  };
  virtual std::vector<Part> parts() const { return {{0, size(), 1, "the data"}}; }
  // What identifies the content: two streams with the same description give the same windows. For the tokens
  // and their order stands "digest" (of shards: ShardSet::digest()).
  virtual json::Object description() const = 0;
};

// What `stored`, the description in a checkpoint, says of the data of this run, whose description is `now`.
enum class SameData {
  yes,
  as_counted,  // so many tokens, documents and bytes; the checkpoint is older than digests
  no,
};
SameData compare_data(const json::Object& stored, const json::Object& now);

// The shards (*.mts) of a folder. not_found names the folder.
Result<std::unique_ptr<TokenStream>> shard_stream(const std::string& folder);

struct WeightedFolder {
  std::string folder;
  std::optional<double> weight;  // > 0; the shares are weights over their sum; nullopt: its tokens
};
// Several folders of shards, drawn from by weight (a folder with more weight than data comes round sooner).
// One folder is shard_stream(). failed_precondition: other tokenizers.
Result<std::unique_ptr<TokenStream>> mixture_stream(const std::vector<WeightedFolder>& folders);

// data.train and data.mixture: folders with commas between, and their weights likewise; no weights: as many
// as the tokens they have. invalid_argument: there is no folder, an empty name among them, not as many
// weights as folders, or one that is not within Mixture's limits.
Result<std::unique_ptr<TokenStream>> open_tokens(const std::string& folders, const std::string& weights);

struct Samples {
  std::vector<std::int64_t> tokens;                        // [rows, sequence]
  std::vector<std::int64_t> targets;                       // [rows, sequence]
  std::vector<std::vector<std::int64_t>> document_begins;  // of each row: places in it, rising
  std::uint64_t rows = 0;
};

class Loader {
 public:
  // Targets equal to `ignored_token` (padding) take no part in the loss: they become -1; -1: none do.
  // invalid_argument: the stream, or a part of it, is shorter than one window; ignored_token is not in its
  // vocabulary; a part's weight is beyond the limits of a Mixture. `stream` must outlive the loader.
  static Result<Loader> create(const TokenStream& stream, std::uint64_t sequence, std::uint64_t seed,
                               std::int64_t ignored_token = -1);

  std::uint64_t windows() const { return first_window_.back(); }  // of all parts
  std::uint64_t sequence() const { return sequence_; }

  // Samples [first, first + rows) of the shuffled, endless order.
  Result<void> samples(std::uint64_t first, std::uint64_t rows, Samples& out) const;
  // Windows [first, first + rows) in the order of the stream.
  Result<void> windows_in_order(std::uint64_t first, std::uint64_t rows, Samples& out) const;
  // Bytes of text that the targets of window k stand for, those ignored aside.
  Result<std::uint64_t> target_bytes(std::uint64_t window) const;

 private:
  Loader(const TokenStream& stream, std::uint64_t sequence, std::int64_t ignored_token)
      : stream_(&stream), sequence_(sequence), ignored_token_(ignored_token) {}
  std::uint64_t window_of(std::uint64_t sample) const;
  std::uint64_t begin_of(std::uint64_t window) const;
  Result<void> put(std::uint64_t window, std::uint64_t row, Samples& out) const;
  void resize(std::uint64_t rows, Samples& out) const;

  const TokenStream* stream_;
  std::uint64_t sequence_;
  std::vector<Sampler> samplers_;                  // one a part
  std::vector<std::uint64_t> begins_;              // of the parts in the stream
  std::vector<std::uint64_t> first_window_ = {0};  // of the parts; then the number of all
  std::optional<Mixture> mixture_;                 // of several parts
  std::int64_t ignored_token_;
};

// The share of one part in the global batch, in micro-batches of `micro` samples.
struct BatchPart {
  std::uint64_t first = 0;  // sample, counted from the step's first
  std::uint64_t micro = 0;
  std::uint64_t count = 0;  // of micro-batches
};
inline constexpr std::uint64_t kMicroBatchesMost = 1 << 16;  // on a rank, which holds the tokens of all
// invalid_argument unless batch is a multiple of parts * micro, of which the message gives those below and
// above, and at most kMicroBatchesMost times that.
Result<BatchPart> split_batch(std::uint64_t batch, std::uint64_t micro, int parts, int part);

}  // namespace muster::train
