#include "train/mesh/mesh.h"

#include <algorithm>
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

namespace {

std::string divisors(int number) {
  std::string text;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  }
  return text;
}

}  // namespace

Result<Mesh> Mesh::create(int world, MeshShape shape) {
  if (world < 1)
    return fail(ErrorCode::invalid_argument,
                "a world of " + std::to_string(world) + " ranks: at least 1 is needed");
  std::array<int, 4> extents = {shape.pp, shape.replica, shape.shard, shape.tp};
  long long of_one = 1;  // ranks of one replica
  for (Axis axis : kAxes) {
    const int extent = extents[static_cast<std::size_t>(axis)];
    if (axis == Axis::replica && extent == 0) continue;
    const std::string name = "mesh." + std::string(to_string(axis)) + " = " + std::to_string(extent);
    if (extent < 1) return fail(ErrorCode::invalid_argument, name + ": at least 1 is needed");
    if (axis == Axis::replica) continue;
    if (extent > world) {
      return fail(ErrorCode::invalid_argument,
                  name + ": there " + (world == 1 ? "is 1 rank" : "are " + std::to_string(world) + " ranks") +
                      "; possible are " + divisors(world) +
                      ", or another number of ranks (nodes x run.nproc)");
    }
    of_one *= extent;  // at most world^3
  }
  auto& replica = extents[static_cast<std::size_t>(Axis::replica)];
  if (replica == 0) replica = static_cast<int>(std::max(1LL, world / of_one));
  if (of_one > world || of_one * replica != world) {
    const std::string fits = world % of_one == 0
                                 ? "mesh.replica = " + std::to_string(world / of_one) + " would fit"
                                 : std::to_string(of_one) +
                                       " ranks make one replica, so the ranks must be a "
                                       "multiple of that, or mesh.pp x mesh.shard x mesh.tp a "
                                       "divisor of them: " +
                                       divisors(world);
    // The product of all four may be beyond any integer.
    const std::string places = of_one > world ? "one replica has " + std::to_string(of_one)
                                              : "the mesh has " + std::to_string(of_one * replica);
    return fail(ErrorCode::invalid_argument,
                places + " places, the world " + std::to_string(world) + " ranks; " + fits);
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

Result<int> Mesh::shards_on_node(int node_ranks) const {
  const int shard = extent(Axis::shard), tp = extent(Axis::tp), group = shard * tp;
  if (node_ranks % group == 0) return shard;
  if (node_ranks % tp == 0 && group % node_ranks == 0) return node_ranks / tp;
  return fail(ErrorCode::invalid_argument,
              "mesh.shard x mesh.tp = " + std::to_string(shard) + " x " + std::to_string(tp) +
                  " ranks do not tile nodes of " + std::to_string(node_ranks) +
                  ": one must be a multiple of the other, and the node of mesh.tp");
}

int Mesh::batch_index(int rank) const {
  return coordinate(Axis::replica, rank) * extent(Axis::shard) + coordinate(Axis::shard, rank);
}

}  // namespace muster::train
