#include "train/shard/data_parallel.h"

#include "base/assert.h"
#include "train/model/model.h"
#include "train/optim/gradient_norm.h"

namespace muster::train {
namespace {

// Between the two ranks of a tied embedding: the first stage is rank 0.
Result<void> send_tied(Comm& tied, const FlatBuffer& from, std::span<const Range> pieces) {
  std::vector<Send> sends;
  for (const Range& piece : pieces) sends.push_back({.to = 1 - tied.rank(), .data = from.bytes(piece)});
  return tied.exchange(sends, {});
}

Result<void> receive_tied(Comm& tied, FlatBuffer& into, std::span<const Range> pieces) {
  std::vector<Receive> receives;
  for (const Range& piece : pieces) receives.push_back({.from = 1 - tied.rank(), .data = into.bytes(piece)});
  return tied.exchange({}, receives);
}

}  // namespace

DataParallel::DataParallel(const ParamTable& table, const ShardPlace& place, const ReplicaGroups& groups)
    : table_(table), groups_(groups), placement_(table, place), zero_(place.zero && place.replicas > 1) {
  MUSTER_ASSERT(groups.shard->size() == place.shards && groups.replica->size() == place.replicas);
}

template <typename T>
Result<void> DataParallel::reduce(FlatBuffer& gradients) {
  if (!zero_) return groups_.replica->all_reduce<T>(gradients.as<T>());
  for (const SharedRun& run : placement_.replicated())
    MUSTER_CHECK(groups_.replica->reduce_scatter<T>(gradients.as<T>(run.range), run.parts));
  return {};
}

// own + head's, as fold_tied_gradient() adds them on one stage.
template <typename T>
Result<void> DataParallel::fold_tied(FlatBuffer& gradients) {
  const auto& pieces = placement_.tied();
  if (groups_.tied->rank() == 1) return send_tied(*groups_.tied, gradients, pieces);
  if (head_.pieces().size() != pieces.size()) head_ = FlatBuffer(pieces, gradients.dtype());
  MUSTER_CHECK(receive_tied(*groups_.tied, head_, pieces));
  for (const Range& piece : pieces) {
    const auto own = gradients.as<T>(piece);
    const auto more = head_.as<T>(piece);
    for (std::size_t i = 0; i < own.size(); ++i) own[i] += more[i];
  }
  return {};
}

Result<void> DataParallel::reduce(FlatBuffer& gradients) {
  const bool single = gradients.dtype() == Dtype::f32;
  MUSTER_CHECK(single ? reduce<float>(gradients) : reduce<double>(gradients));
  fold_tied_gradient(table_, gradients, placement_.owned());
  if (groups_.tied == nullptr) return {};
  return single ? fold_tied<float>(gradients) : fold_tied<double>(gradients);
}

Result<std::vector<double>> DataParallel::squares(const FlatBuffer& gradients) {
  auto sums = block_squares(table_, gradients, placement_.owned());
  MUSTER_CHECK(groups_.shard->all_reduce<double>(sums));
  if (zero_) MUSTER_CHECK(groups_.replica->all_reduce<double>(sums));
  return sums;
}

Result<void> DataParallel::gather(FlatBuffer& parameters) {
  if (groups_.tied != nullptr) {
    const auto& pieces = placement_.tied();
    MUSTER_CHECK(groups_.tied->rank() == 0 ? send_tied(*groups_.tied, parameters, pieces)
                                           : receive_tied(*groups_.tied, parameters, pieces));
  }
  if (!zero_) return {};
  const auto width = static_cast<std::size_t>(size_of(parameters.dtype()));
  const auto runs = std::span(placement_.replicated()).first(placement_.parameter_runs());
  for (const SharedRun& run : runs)
    MUSTER_CHECK(groups_.replica->all_gather(parameters.bytes(run.range), run.parts, width));
  return {};
}

}  // namespace muster::train
