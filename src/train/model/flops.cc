#include "train/model/flops.h"

namespace muster::train {

FlopPerToken flop_per_token(const ModelConfig& c, std::int64_t sequence) {
  const auto matrix = static_cast<double>(c.width * (2 * c.query_width() + 2 * c.kv_width() + 3 * c.ffn));
  FlopPerToken flop;
  flop.layer = 6 * matrix + 12.0 * static_cast<double>(c.query_width() * sequence);
  flop.head = 6.0 * static_cast<double>(c.vocab * c.width);
  flop.whole = static_cast<double>(c.layers) * flop.layer + flop.head;
  return flop;
}

}  // namespace muster::train
