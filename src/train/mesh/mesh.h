// The mesh: which rank stands where, and which ranks work together along an axis.
//
// Row-major over (pp, replica, shard, tp), tp fastest. The batch is split over replica x shard. Axes are a
// list, so that one more (context parallel, cp, is reserved) changes no caller. Nothing durable depends on
// ranks: checkpoints and data positions are the same for every mesh.
//
// Pure values; any thread.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace muster::train {

enum class Axis { pp, replica, shard, tp };
inline constexpr std::array<Axis, 4> kAxes = {Axis::pp, Axis::replica, Axis::shard, Axis::tp};
std::string_view to_string(Axis axis);

// Extent per axis, in the order of kAxes. 0 for replica: whatever is left of the world.
struct MeshShape {
  int pp = 1;
  int replica = 0;
  int shard = 1;
  int tp = 1;
};

class Mesh {
 public:
  // invalid_argument: an extent below 1, or the extents do not multiply to `world`; the message names replica
  // counts that would fit.
  static Result<Mesh> create(int world, MeshShape shape = {});

  int world() const;
  int extent(Axis axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  // Where `rank` stands along `axis`. Precondition: 0 <= rank < world().
  int coordinate(Axis axis, int rank) const;
  // The ranks that differ from `rank` only along `axis`, itself included, in order of that coordinate.
  std::vector<int> group(Axis axis, int rank) const;

  // The batch is cut in batch_size() parts; `rank` computes part batch_index(rank).
  int batch_size() const { return extent(Axis::replica) * extent(Axis::shard); }
  int batch_index(int rank) const;

  // How many ranks of one shard group are on a node of `node_ranks` ranks (consecutive, as agents number
  // them): what a gather in two levels is cut by. invalid_argument: shard x tp ranks do not tile the nodes.
  Result<int> shards_on_node(int node_ranks) const;

 private:
  explicit Mesh(std::array<int, 4> extents) : extents_(extents) {}
  int stride(Axis axis) const;
  std::array<int, 4> extents_;
};

}  // namespace muster::train
