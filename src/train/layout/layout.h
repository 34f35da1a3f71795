// Which part of a global tensor lies where.
//
// A Slice is a piece of one global tensor: a box of it in global coordinates, and of the box's elements in
// row-major order those in `flat`. Tensor parallelism cuts boxes, sharding cuts `flat`; so whatever a rank
// holds of a tensor, under any layout, is one slice. Initialisation, sharding, checkpoints, import, export
// and resharding all speak of slices, and none of them knows who holds the rest.
//
// Global tensors are Hugging Face's (train/model/params.h). Pure values; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::train {

// The elements [begin, end) of something flat.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `part` of `total` elements cut in `parts`; the parts differ by at most one element, the first are the
// longer ones. Parts may be empty. Precondition: 0 <= part < parts.
Range part_of(std::int64_t total, int part, int parts);

// The parts of `range` that lie in `pieces`, which are in order and do not overlap.
std::vector<Range> within(std::span<const Range> pieces, Range range);

struct Box {
  std::vector<std::int64_t> start;   // per axis of the tensor
  std::vector<std::int64_t> length;  // as many
  std::int64_t numel() const;        // 1 without axes
  bool operator==(const Box&) const = default;
};

// Whether two boxes of one tensor share an element.
bool meet(const Box& a, const Box& b);

Box whole_box(std::vector<std::int64_t> shape);

// "[512, 64]", for messages.
std::string shape_text(std::span<const std::int64_t> shape);

struct Slice {
  std::string tensor;
  Box box;
  Range flat;  // within [0, box.numel()); empty slices are legal
  std::int64_t numel() const { return flat.size(); }
  bool operator==(const Slice&) const = default;
};

// All of a box.
Slice whole_slice(std::string tensor, Box box);

// `count` elements that two slices share: they lie one behind the other in both, from element `a` of the
// first and element `b` of the second (counted from the beginning of each slice).
struct Run {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t count = 0;
  bool operator==(const Run&) const = default;
};

// What two slices share, in the order of the tensor, in as few runs as there are. None if they are of
// different tensors. Precondition: of one tensor they have the same number of axes.
// Cost: the number of rows (of all but the last axis on which the boxes differ) in both slices.
std::vector<Run> intersect(const Slice& a, const Slice& b);

}  // namespace muster::train
