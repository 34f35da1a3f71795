#include "train/plan/stage.h"

namespace muster::train {

Stage::Stage(const Config& settings, const RunLayout& run, int number)
    : config(settings),
      layout(run),
      index(number),
      pp(layout.mesh.extent(Axis::pp)),
      replicas(layout.mesh.extent(Axis::replica)),
      shards(layout.mesh.extent(Axis::shard)),
      tp(layout.mesh.extent(Axis::tp)),
      owners(config.zero == 1 ? replicas : 1),
      bytes{.narrow = value(size_of(compute_dtype(settings))),
            .wide = value(size_of(wide(compute_dtype(settings))))},
      layers(layout.stages[static_cast<std::size_t>(index)]),
      micros(static_cast<double>(layout.share.count)),
      tokens(value(config.micro_batch * config.sequence)),
      sequence_parallel(config.sequence_parallel && tp > 1) {
  first = layers.begin == 0;
  last = layers.end == config.model.layers;
  const ModelPart part{.layers = layers, .tp_rank = 0, .tp = tp};
  local = local_config(config.model, part);
  const PartSize size = part_size(config.model, part);
  parameters = value(size.parameters);
  gradients = value(size.gradients);
  const ModelConfig& l = local;
  layer = value(l.width * (2 * l.query_width() + 2 * l.kv_width() + 3 * l.ffn) + 2 * l.width);
  embedding = value(l.vocab * l.width);
  head = embedding + value(l.width);
  copy = config.model.tied && last && !first ? embedding : 0;
}

}  // namespace muster::train
