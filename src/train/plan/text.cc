#include "train/plan/text.h"

#include "train/formatted.h"

namespace muster::train {
namespace {

std::string millions(std::int64_t count) {
  return formatted(count < 1'000'000'000 ? "%.1f M" : "%.2f B",
                   static_cast<double>(count) / (count < 1'000'000'000 ? 1e6 : 1e9));
}

}  // namespace

std::string amount(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; bytes >= 1023.5 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return formatted("%.*f %s", unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2, bytes, kUnits[unit]);
}

std::string to_text(const Plan& plan, const Config& config) {
  const Mesh& mesh = plan.layout.mesh;
  std::string out;
  const auto add = [&](const char* pattern, auto... args) { out += formatted(pattern, args...); };
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
  if (config.checkpoint_dir.empty()) out += "without checkpoints: checkpoint.dir is empty\n";
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
