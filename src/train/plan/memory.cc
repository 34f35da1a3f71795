#include "train/plan/memory.h"

#include <algorithm>
#include <cmath>

#include "train/plan/stage.h"

namespace muster::train {
namespace {

constexpr double kLogitBytes = 64.0 * (1 << 20);  // detail::Head::logit_bytes_max

// Elements that the blocks keep of one token, by ModelOptions::activation_checkpointing
// (model/detail/blocks.h).
struct PerToken {
  double kept = 0;       // a layer, whole tokens
  double cheap = 0;      // of that, what selective checkpointing drops
  double rows = 0;       // a layer, of a token whose row of the stream is here
  double kept_wide = 0;  // as `kept`, of the wide type
  double rows_wide = 0;  // as `rows`
  double work = 0;       // of one block at a time
  double work_wide = 0;  // likewise
  double left = 0;       // the widest left operand of a product
  double right = 0;      // the widest right one that is an activation
};

PerToken per_token(const ModelConfig& l, bool sequence_parallel) {
  const double w = value(l.width), hd = value(l.query_width()), f = value(l.ffn);
  const double qkv = value(l.query_width() + 2 * l.kv_width());
  const double repeated = l.heads == l.kv_heads ? 0 : 2 * hd;
  PerToken t;
  t.cheap = repeated + f + (sequence_parallel ? 2 * w : 0);  // normed inputs gathered, or in `rows`
  t.kept = qkv + hd + 2 * f + t.cheap;                       // mixed, gate | up
  t.kept_wide = value(l.heads);                              // logsumexp
  t.rows = 4 * w;                                            // middle, output; normed, twice
  t.rows_wide = 2;                                           // rstd
  t.work = 2 * w + std::max(2 * f, qkv) + std::max(f, hd) + 2 * w;
  t.work_wide = 3 * hd;  // the gradients of q, k, v
  t.left = std::max({2 * f, qkv, w});
  t.right = std::max({w, hd, f});
  return t;
}

// Elements of the embedding or the head, where the stage has one of them.
double vocabulary_matrix(const Stage& s) { return s.first || s.last ? s.embedding : 0; }

// What stands from step to step: parameters, gradients, optimizer, save.
void add_state(const Stage& s, MemoryPlan& m) {
  const auto [narrow, wide] = s.bytes;
  m.parameters = narrow * s.parameters / s.shards;
  m.gradients = wide * s.gradients / s.shards;
  m.optimizer = (s.bytes.mixed() ? 3 : 2) * wide * ((s.parameters - s.copy) / s.shards / s.owners);
  if (s.shards > 1) {  // the largest units at work at once
    const double unit = std::max({s.layer, s.last ? s.head : 0, s.first ? s.embedding : 0});
    m.parameters += narrow * unit;
    m.gradients += wide * unit;
  }
  if (s.config.model.tied && s.pp > 1 && s.first)  // the head's gradient, from the last stage
    m.gradients += wide * s.embedding / s.shards / s.owners;
  if (!s.config.checkpoint_dir.empty()) m.save = 3 * wide * (s.parameters - s.copy) / s.shards / s.replicas;
}

// What the forwards in flight keep for their backwards.
double activations(const Stage& s, const PerToken& t) {
  const auto [narrow, wide] = s.bytes;
  const int slots = in_flight_max(s.layout.schedule, s.index, s.pp, static_cast<int>(s.layout.share.count));
  const double rows = s.sequence_parallel ? std::ceil(s.tokens / s.tp) : s.tokens;
  const double w = value(s.local.width), layers = value(s.layers.size());
  const double layer =
      narrow * (t.kept * s.tokens + t.rows * rows) + wide * (t.kept_wide * s.tokens + t.rows_wide * rows);
  const double cheap = narrow * (t.cheap * s.tokens + 2 * w * rows);
  double slot = 0, once = 0;  // of each micro-batch in flight; of one layer at a time
  switch (s.layout.activation_checkpointing) {
    case ActivationCheckpointing::none:
      slot = layers * layer;
      break;
    case ActivationCheckpointing::selective:
      slot = layers * (layer - cheap);
      once = cheap;
      break;
    case ActivationCheckpointing::full:
      slot = layers * narrow * w * rows;
      once = layer;
      break;
  }
  slot += narrow * 2 * w * rows;  // the stream into the first layer, and its gradient
  return slots * slot + once;
}

// What is used anew by each block, and by the head.
double work(const Stage& s, const PerToken& t) {
  const auto [narrow, wide] = s.bytes;
  const double w = value(s.local.width), query = value(s.local.query_width());
  const double largest_matrix = std::max(
      {w * 2 * value(s.local.ffn), vocabulary_matrix(s), w * (query + 2 * value(s.local.kv_width()))});
  const bool adds = s.micros > 1 && s.shards == 1;  // a product stands apart before it is added
  const double logits = wide * s.tokens * value(s.local.vocab);
  const bool chunks = s.last && logits > kLogitBytes;  // the head adds, too
  double product = adds ? largest_matrix : chunks ? s.embedding : 0;
  double bytes = (narrow * t.work + wide * t.work_wide) * s.tokens;
  if (s.bytes.mixed()) {  // operands are widened, and results stand in fp32 before they are rounded
    bytes += wide * (t.left * s.tokens + std::max(largest_matrix, t.right * s.tokens));
    if (s.last) bytes += wide * s.embedding;
    bytes += wide * 6 * query * s.tokens;  // in attention
    product = std::max(product, t.left * s.tokens);
  }
  bytes += wide * product;
  bytes += 2.0 * sizeof(std::int64_t) * s.tokens * s.micros;  // ids and targets of the whole step
  if (s.last) bytes += std::min(kLogitBytes, logits) + narrow * 2 * w * s.tokens;
  return bytes;
}

// The parts of the others, of the largest sum over ranks.
double messages(const Stage& s) {
  const auto [narrow, wide] = s.bytes;
  const double units = s.shards > 1 ? spread(s.shards) * wide * std::max(s.layer, s.embedding) : 0;
  const double run = s.config.zero == 1 ? std::max(s.layer, vocabulary_matrix(s)) : s.gradients;
  const double gradients = spread(s.replicas) * wide * run / s.shards;
  const double stream = s.tp > 1 ? spread(s.tp) * narrow * s.tokens * value(s.local.width) : 0;
  return std::max({units, gradients, stream});
}

}  // namespace

MemoryPlan memory_plan(const Stage& stage) {
  const PerToken each = per_token(stage.local, stage.sequence_parallel);
  MemoryPlan memory;
  add_state(stage, memory);
  memory.activations = activations(stage, each);
  memory.work = work(stage, each);
  memory.messages = messages(stage);
  return memory;
}

}  // namespace muster::train
