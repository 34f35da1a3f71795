// Text from a model, one token at a time, with cached keys and values. Works on token ids; the words belong
// to text/.
//
// The same model, prompt, options, thread count and CPU kind give the same tokens. Uses the model's work
// space: not while another thread trains or evaluates it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "train/model/model.h"

namespace muster::train {

// The state of one text: keys and values of all tokens so far.
class Decoder {
 public:
  explicit Decoder(Model& model);  // must outlive this
  Decoder(Decoder&&) noexcept;
  ~Decoder();

  // Forgets everything and reads `tokens` (1 to max_sequence); answers the logits behind the last one, valid
  // until the next call.
  Result<std::span<const double>> read(std::span<const std::int64_t> tokens);

  // Appends one token; refuses when max_sequence tokens have been read.
  Result<std::span<const double>> next(std::int64_t token);

  std::int64_t length() const;

 private:
  struct Detail;
  std::unique_ptr<Detail> detail_;
};

struct GenerateOptions {
  std::int64_t tokens_max = 128;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // draw among the k likeliest; 0: among all
  std::uint64_t seed = 0;
  std::int64_t end_token = -1;  // stops here (and leaves it out); -1: none
};

// The tokens that follow `prompt`. Where the text outgrows the model's max_sequence, the older half is
// forgotten. on_token, if given, sees each token as it comes and stops the text by answering false.
Result<std::vector<std::int64_t>> generate(Model& model, std::span<const std::int64_t> prompt,
                                           const GenerateOptions& options,
                                           const std::function<bool(std::int64_t)>& on_token = {});

// One draw. Exposed for its tests: pure; `uniform` in [0, 1).
std::int64_t sample(std::span<const double> logits, double temperature, std::int64_t top_k, double uniform);

}  // namespace muster::train
