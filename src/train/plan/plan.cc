#include "train/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/text.h"
#include "train/model/flops.h"
#include "train/pipeline/schedule.h"
#include "train/shard/placement.h"

namespace muster::train {
namespace {

constexpr double kLogitBytes = 64.0 * (1 << 20);  // detail::Head::logit_bytes_max

double value(std::int64_t count) { return static_cast<double>(count); }

// The share of a total that one of n ranks sends when all gather, or when each gets a part of the sum.
double spread(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

// What one stage computes with, on the tensor-parallel rank that has most.
struct Part {
  ModelConfig local;
  ModelPart part;
  PartSize size;
  double layer = 0, embedding = 0, head = 0;  // elements of the units
  bool first = false, last = false;
};

Part part_of_stage(const Config& config, Range layers, int tp) {
  Part p;
  p.part = {.layers = layers, .tp_rank = 0, .tp = tp};
  p.local = local_config(config.model, p.part);
  p.size = part_size(config.model, p.part);
  p.first = layers.begin == 0;
  p.last = layers.end == config.model.layers;
  const ModelConfig& l = p.local;
  p.layer = value(l.width * (2 * l.query_width() + 2 * l.kv_width() + 3 * l.ffn) + 2 * l.width);
  p.embedding = value(l.vocab * l.width);
  p.head = p.embedding + value(l.width);
  return p;
}

// Bytes of an element.
struct Bytes {
  double narrow = 0;  // parameters and activations
  double wide = 0;    // gradients, optimizer state, statistics and logits
  bool mixed() const { return narrow != wide; }
  explicit Bytes(Dtype dtype)
      : narrow(static_cast<double>(size_of(dtype))), wide(static_cast<double>(size_of(train::wide(dtype)))) {}
};

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

MemoryPlan memory_of(const Config& config, const RunLayout& layout, const Part& p, int stage, Bytes b) {
  const Mesh& mesh = layout.mesh;
  const int shards = mesh.extent(Axis::shard), replicas = mesh.extent(Axis::replica);
  const double parameters = value(p.size.parameters), gradients = value(p.size.gradients);
  MemoryPlan m;
  // A tied embedding's copy on the last stage is updated and written by the first.
  const double copy = config.model.tied && p.last && !p.first ? p.embedding : 0;
  const double owned = (parameters - copy) / shards / (config.zero == 1 ? replicas : 1);
  m.parameters = b.narrow * parameters / shards;
  m.gradients = b.wide * gradients / shards;
  m.optimizer = (b.mixed() ? 3 : 2) * b.wide * owned;
  if (shards > 1) {  // the largest units at work at once
    const double head = p.last ? p.head : 0, embedding = p.first ? p.embedding : 0;
    const double unit = std::max({p.layer, head, embedding});
    m.parameters += b.narrow * unit;
    m.gradients += b.wide * unit;
  }
  const int micros = static_cast<int>(layout.share.count);
  const int slots = in_flight_max(layout.schedule, stage, mesh.extent(Axis::pp), micros);
  const double tokens = value(config.micro_batch * config.sequence);
  const int tp = mesh.extent(Axis::tp);
  const bool cut_rows = config.sequence_parallel && tp > 1;
  const double rows = cut_rows ? std::ceil(tokens / tp) : tokens, w = value(p.local.width);
  const PerToken t = per_token(p.local, cut_rows);
  const double layers = value(p.part.layers.size());
  const double cheap = b.narrow * (t.cheap * tokens + 2 * w * rows);
  const double layer =
      b.narrow * (t.kept * tokens + t.rows * rows) + b.wide * (t.kept_wide * tokens + t.rows_wide * rows);
  double slot = layers * layer, once = 0;
  if (config.activation_checkpointing == "full") {
    slot = layers * b.narrow * w * rows;
    once = layer;
  } else if (config.activation_checkpointing == "selective") {
    slot = layers * (layer - cheap);
    once = cheap;
  }
  slot += b.narrow * 2 * w * rows;  // the stream into the first layer, and its gradient
  m.activations = slots * slot + once;
  const double largest_matrix = std::max({w * 2 * value(p.local.ffn), p.first || p.last ? p.embedding : 0.0,
                                          w * value(p.local.query_width() + 2 * p.local.kv_width())});
  const bool adds = micros > 1 && shards == 1;  // a product stands apart before it is added
  const double logits = b.wide * tokens * value(p.local.vocab);
  const bool chunks = p.last && logits > kLogitBytes;  // the head adds, too
  double product = adds ? largest_matrix : chunks ? p.embedding : 0;
  m.work = (b.narrow * t.work + b.wide * t.work_wide) * tokens;
  if (b.mixed()) {  // operands are widened, and results stand in fp32 before they are rounded
    m.work += b.wide * (t.left * tokens + std::max(largest_matrix, t.right * tokens));
    if (p.last) m.work += b.wide * p.embedding;
    m.work += b.wide * 6 * value(p.local.query_width()) * tokens;  // in attention
    product = std::max(product, t.left * tokens);
  }
  m.work += b.wide * product;
  m.work += 2.0 * sizeof(std::int64_t) * tokens * micros;  // ids and targets of the whole step
  if (p.last) m.work += std::min(kLogitBytes, logits) + b.narrow * 2 * w * tokens;
  const double of_units = shards > 1 ? spread(shards) * b.wide * std::max(p.layer, p.embedding) : 0;
  const double of_gradients =
      spread(replicas) * b.wide *
      (config.zero == 1 ? std::max(p.layer, p.first || p.last ? p.embedding : 0.0) : gradients) / shards;
  m.messages = std::max({of_units, of_gradients, tp > 1 ? spread(tp) * b.narrow * tokens * w : 0.0});
  if (config.model.tied && mesh.extent(Axis::pp) > 1 && p.first)  // the head's gradient, from the last stage
    m.gradients += b.wide * p.embedding / shards / (config.zero == 1 ? replicas : 1);
  if (!config.checkpoint_dir.empty()) m.save = 3 * b.wide * (parameters - copy) / shards / replicas;
  return m;
}

TrafficPlan traffic_of(const Config& config, const RunLayout& layout, const Part& p, int node_ranks,
                       Bytes b) {
  const Mesh& mesh = layout.mesh;
  const int shards = mesh.extent(Axis::shard), replicas = mesh.extent(Axis::replica),
            tp = mesh.extent(Axis::tp), pp = mesh.extent(Axis::pp);
  const double micros = value(static_cast<std::int64_t>(layout.share.count));
  const double tokens = value(config.micro_batch * config.sequence), w = value(p.local.width);
  const double layers = value(p.part.layers.size());
  TrafficPlan t;
  // Of each block the output is summed over the ranks, and the gradient of its input: 4 times T x W, as a sum
  // is a reduce-scatter and a gather. Under sequence parallelism these two are apart, and what is gathered
  // forward is gathered again where it is not kept.
  const bool cut_rows = config.sequence_parallel && tp > 1;
  const double again = config.activation_checkpointing == "full"                    ? (cut_rows ? 3 : 2)
                       : config.activation_checkpointing == "selective" && cut_rows ? 2
                                                                                    : 0;
  const double times = layers * (8 + again) + (p.first ? 2 : 0) + (p.last ? 2 : 0);
  t.tensor = micros * b.narrow * tokens * w * spread(tp) * times;
  if (p.last) t.tensor += micros * tokens * 3 * sizeof(double) * (tp - 1);  // of the softmax
  const double rows = config.sequence_parallel ? tokens / tp : tokens;
  t.pipeline = pp == 1 ? 0 : micros * b.narrow * rows * w * ((p.first ? 0 : 1) + (p.last ? 0 : 1));
  const double parameters = value(p.size.parameters), gradients = value(p.size.gradients);
  const double extra = value(p.size.gradients - p.size.parameters);  // a tied head's values are gathered, too
  const double gathered = micros * b.narrow * spread(shards) *
                          (2 * (parameters + extra) - (p.last ? p.head : 0) - (p.first ? p.embedding : 0));
  const double scattered = micros * b.wide * spread(shards) * gradients;
  t.shard = gathered + scattered;
  if (node_ranks > 0) {
    const auto local = mesh.shards_on_node(node_ranks);
    const double here = local ? *local : 1;
    // In two levels each rank sends its part to one rank of each other node; a reduce-scatter to all of them.
    const bool two_levels = local && *local > 1 && *local < shards && config.gather != "flat";
    t.across = (two_levels ? gathered * (shards / here - 1) / (shards - 1)
                           : gathered * (shards - here) / std::max(1, shards - 1)) +
               scattered * (shards - here) / std::max(1, shards - 1);
  }
  t.replica = spread(replicas) *
              (b.wide * gradients + (config.zero == 1 ? b.narrow * parameters : b.wide * gradients)) / shards;
  if (config.model.tied && pp > 1 && (p.first || p.last))
    t.tied = (p.first ? b.narrow : b.wide) * p.embedding / shards / (config.zero == 1 ? replicas : 1);
  return t;
}

// To three digits: 2.13 GiB, 34.5 MiB, 512 KiB.
std::string amount(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; bytes >= 1023.5 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f %s",
                unit == 0 || bytes >= 99.95 ? 0
                : bytes >= 9.995            ? 1
                                            : 2,
                bytes, kUnits[unit]);
  return text;
}

std::string millions(std::int64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, count < 1'000'000'000 ? "%.1f M" : "%.2f B",
                static_cast<double>(count) / (count < 1'000'000'000 ? 1e6 : 1e9));
  return text;
}

}  // namespace

Result<std::vector<Range>> stage_layers(const Config& config, int stages) {
  const ModelConfig& model = config.model;
  if (config.stage_layers.empty()) {
    const FlopPerToken flop = flop_per_token(model, config.sequence);
    const std::vector<double> costs(static_cast<std::size_t>(model.layers), flop.layer);
    return balance_layers(costs, 0, flop.head, stages);
  }
  std::vector<Range> ranges;
  std::int64_t end = 0;
  bool valid = true;
  for (const auto& part : split(config.stage_layers, ',')) {
    const auto count = parse_int(trim(part));
    valid = valid && count && *count >= 1 && *count <= model.layers - end;
    if (!valid) break;
    ranges.push_back({end, end + *count});
    end += *count;
  }
  if (valid && static_cast<int>(ranges.size()) == stages && end == model.layers) return ranges;
  return fail(ErrorCode::invalid_argument,
              "mesh.stage_layers = " + config.stage_layers + ": " + std::to_string(stages) +
                  " whole numbers of at least 1, with commas between, are needed, that add up to the " +
                  std::to_string(model.layers) + " layers (mesh.pp is " + std::to_string(stages) + ")");
}

Result<RunLayout> run_layout(const Config& config, int ranks) {
  MUSTER_TRY(const Mesh mesh, Mesh::create(ranks, config.mesh));
  MUSTER_CHECK(check_tensor_parallel(config.model, mesh.extent(Axis::tp)));
  MUSTER_TRY(auto stages, stage_layers(config, mesh.extent(Axis::pp)));
  MUSTER_TRY(const BatchPart share,
             split_batch(static_cast<std::uint64_t>(config.batch),
                         static_cast<std::uint64_t>(config.micro_batch), mesh.batch_size(), 0));
  for (const Range& layers : stages) {
    const int tp = mesh.extent(Axis::tp), shards = mesh.extent(Axis::shard);
    if (!config.sequence_parallel || same_norm_pieces(config.model, layers, tp, shards)) continue;
    return fail(ErrorCode::invalid_argument,
                "mesh.sequence_parallel with mesh.shard = " + std::to_string(shards) + ": " +
                    std::to_string(tp) +
                    " cuts do not divide model.ffn = " + std::to_string(config.model.ffn) +
                    " and model.vocab = " + std::to_string(config.model.vocab) +
                    ", and so many shards cut the norms of each in other places; choose sizes that mesh.tp "
                    "divides, fewer shards, or mesh.sequence_parallel = false");
  }
  MUSTER_TRY(const PipelineSchedule schedule, parse_schedule(config.schedule));
  return RunLayout{mesh, std::move(stages), share, schedule};
}

Result<Plan> make_plan(const Config& config, int ranks, int node_ranks, Dtype dtype) {
  MUSTER_TRY(RunLayout layout, run_layout(config, ranks));
  Plan plan{.layout = std::move(layout)};
  const int tp = plan.layout.mesh.extent(Axis::tp);
  const FlopPerToken flop = flop_per_token(config.model, config.sequence);
  StageCosts costs;
  for (std::size_t i = 0; i < plan.layout.stages.size(); ++i) {
    const Part part = part_of_stage(config, plan.layout.stages[i], tp);
    plan.stages.push_back({.layers = part.part.layers,
                           .parameters = part.size.parameters,
                           .memory = memory_of(config, plan.layout, part, static_cast<int>(i), Bytes(dtype)),
                           .traffic = traffic_of(config, plan.layout, part, node_ranks, Bytes(dtype))});
    const double cost = value(part.part.layers.size()) * flop.layer + (part.last ? flop.head : 0);
    // The head's forward runs with the backward.
    costs.forward.push_back(value(part.part.layers.size()) * flop.layer / 3);
    costs.backward.push_back(cost - costs.forward.back());
  }
  plan.bubble = bubble(plan.layout.schedule, static_cast<int>(plan.layout.share.count), costs);
  plan.flop_per_step = flop.whole * value(config.batch * config.sequence);
  return plan;
}

std::string what_takes_most(const MemoryPlan& m) {
  const std::pair<double, const char*> parts[] = {
      {m.parameters + m.gradients,
       "parameters and gradients: choose a smaller model, or a larger mesh.shard, mesh.tp or mesh.pp"},
      {m.optimizer, "the optimizer's state: set mesh.zero = 1 or a larger mesh.shard"},
      {m.activations,
       "activations: set train.activation_checkpointing = full or a smaller train.micro_batch"}};
  const auto& largest = *std::ranges::max_element(parts, {}, [](const auto& part) { return part.first; });
  return "Most of it, " + amount(largest.first) + " a rank, is for " + largest.second;
}

Result<void> check_memory(const Plan& plan, std::span<const SharedMemory> memories) {
  const Mesh& mesh = plan.layout.mesh;
  const auto plan_of = [&](int rank) -> const MemoryPlan& {
    return plan.stages[static_cast<std::size_t>(mesh.coordinate(Axis::pp, rank))].memory;
  };
  for (const SharedMemory& memory : memories) {
    double needed = 0;
    const MemoryPlan* most = nullptr;
    for (const int rank : memory.ranks) {
      const MemoryPlan& one = plan_of(rank);
      needed += one.total();
      if (most == nullptr || one.total() > most->total()) most = &one;
    }
    if (needed <= memory.bytes) continue;
    const std::string first = "rank " + std::to_string(memory.ranks.front());
    return fail(
        ErrorCode::resource_exhausted,
        (memory.ranks.size() == 1 ? first + " needs " + amount(needed) + "; its " + memory.name + " has "
                                  : "the " + std::to_string(memory.ranks.size()) + " ranks that share the " +
                                        memory.name + " of " + first + " need together " + amount(needed) +
                                        ", up to " + amount(most->total()) + " each; it has ") +
            amount(memory.bytes) + ". " + what_takes_most(*most));
  }
  return {};
}

std::string to_text(const Plan& plan, const Config& config) {
  const Mesh& mesh = plan.layout.mesh;
  char line[512];
  std::string out;
  const auto add = [&](const char* pattern, auto... args) {
    std::snprintf(line, sizeof line, pattern, args...);
    out += line;
  };
  add("model       %s parameters, %lld layers of width %lld, vocabulary %lld\n",
      millions(parameter_count(config.model)).c_str(), static_cast<long long>(config.model.layers),
      static_cast<long long>(config.model.width), static_cast<long long>(config.model.vocab));
  add("ranks       %d = pp %d x replica %d x shard %d x tp %d\n", mesh.world(), mesh.extent(Axis::pp),
      mesh.extent(Axis::replica), mesh.extent(Axis::shard), mesh.extent(Axis::tp));
  add("a step      %lld windows of %lld tokens, %llu micro-batches of %lld on each rank, %.3g FLOP in all\n",
      static_cast<long long>(config.batch), static_cast<long long>(config.sequence),
      static_cast<unsigned long long>(plan.layout.share.count), static_cast<long long>(config.micro_batch),
      plan.flop_per_step);
  if (plan.stages.size() > 1)
    add("pipeline    %s, stages wait %.1f %% of the time\n", config.schedule.c_str(), 100 * plan.bubble);
  out +=
      "\nmemory of a rank\n"
      "stage  layers     parameters   gradients   optimizer  activations       work   messages       "
      "save      total\n";
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& s = plan.stages[i];
    const MemoryPlan& m = s.memory;
    const std::string layers = std::to_string(s.layers.begin) + "-" + std::to_string(s.layers.end - 1);
    add("%5zu  %-9s %11s %11s %11s %12s %10s %10s %10s %10s\n", i, layers.c_str(),
        amount(m.parameters).c_str(), amount(m.gradients).c_str(), amount(m.optimizer).c_str(),
        amount(m.activations).c_str(), amount(m.work).c_str(), amount(m.messages).c_str(),
        amount(m.save).c_str(), amount(m.total()).c_str());
  }
  out +=
      "\nsent by a rank in a step\n"
      "stage      tensor    pipeline       shard  (leaves node)     replica        tied       total\n";
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const TrafficPlan& t = plan.stages[i].traffic;
    add("%5zu  %10s  %10s  %10s  %13s  %10s  %10s  %10s\n", i, amount(t.tensor).c_str(),
        amount(t.pipeline).c_str(), amount(t.shard).c_str(), amount(t.across).c_str(),
        amount(t.replica).c_str(), amount(t.tied).c_str(), amount(t.total()).c_str());
  }
  return out;
}

}  // namespace muster::train
