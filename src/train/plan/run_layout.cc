#include "train/plan/run_layout.h"

#include "base/text.h"
#include "train/model/flops.h"
#include "train/shard/placement.h"

namespace muster::train {
namespace {

// The layers of each of `stages` stages: config.stage_layers, or balanced by the cost of layers and head.
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

}  // namespace

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
  MUSTER_TRY(const auto checkpointing, parse_activation_checkpointing(config.activation_checkpointing));
  return RunLayout{mesh, std::move(stages), share, schedule, checkpointing};
}

}  // namespace muster::train
