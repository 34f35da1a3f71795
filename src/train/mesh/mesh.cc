#include "train/mesh/mesh.h"

#include <string>

#include "base/assert.h"

namespace muster::train {

std::string_view to_string(Axis axis) {
  switch (axis) {
    case Axis::pp:
      return "pp";
    case Axis::replica:
      return "replica";
    case Axis::shard:
      return "shard";
    case Axis::tp:
      return "tp";
  }
  return "?";
}

Result<Mesh> Mesh::create(int world, MeshShape shape) {
  if (world < 1)
    return fail(ErrorCode::invalid_argument,
                "a world of " + std::to_string(world) + " ranks: at least 1 is needed");
  std::array<int, 4> extents = {shape.pp, shape.replica, shape.shard, shape.tp};
  long long others = 1;
  for (Axis axis : kAxes) {
    const int extent = extents[static_cast<std::size_t>(axis)];
    if (axis == Axis::replica && extent == 0) continue;
    const std::string name = "mesh." + std::string(to_string(axis)) + " = " + std::to_string(extent);
    if (extent < 1) return fail(ErrorCode::invalid_argument, name + ": at least 1 is needed");
    if ((axis == Axis::pp || axis == Axis::shard) && extent > 1) {
      return fail(
          ErrorCode::unsupported,
          name + ": this version has data (mesh.replica) and tensor parallelism (mesh.tp); set it to 1");
    }
    others *= extent;
  }
  auto& replica = extents[static_cast<std::size_t>(Axis::replica)];
  if (replica == 0) {
    replica = static_cast<int>(world / others);
    others *= replica;
  }
  if (others != world) {
    return fail(ErrorCode::invalid_argument, "the mesh has " + std::to_string(others) +
                                                 " places, the world " + std::to_string(world) +
                                                 " ranks; leave mesh.replica out to take what is there, and "
                                                 "let the other extents divide the ranks");
  }
  return Mesh(extents);
}

int Mesh::world() const {
  int product = 1;
  for (int extent : extents_) product *= extent;
  return product;
}

int Mesh::stride(Axis axis) const {
  int product = 1;
  for (auto i = static_cast<std::size_t>(axis) + 1; i < extents_.size(); ++i) product *= extents_[i];
  return product;
}

int Mesh::coordinate(Axis axis, int rank) const {
  MUSTER_ASSERT(rank >= 0 && rank < world());
  return rank / stride(axis) % extent(axis);
}

std::vector<int> Mesh::group(Axis axis, int rank) const {
  const int first = rank - coordinate(axis, rank) * stride(axis);
  std::vector<int> ranks;
  for (int i = 0; i < extent(axis); ++i) ranks.push_back(first + i * stride(axis));
  return ranks;
}

std::vector<int> Mesh::batch_group(int rank) const {
  std::vector<int> ranks;
  for (const int replica : group(Axis::replica, rank)) {
    for (const int shard : group(Axis::shard, replica - coordinate(Axis::shard, rank) * stride(Axis::shard)))
      ranks.push_back(shard);
  }
  return ranks;
}

int Mesh::batch_index(int rank) const {
  return coordinate(Axis::replica, rank) * extent(Axis::shard) + coordinate(Axis::shard, rank);
}

}  // namespace muster::train
