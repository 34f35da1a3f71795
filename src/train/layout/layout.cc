#include "train/layout/layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/assert.h"

namespace muster::train {
namespace {

std::int64_t product(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{1}, std::multiplies<>());
}

// What two boxes share, as rows: `outer` axes are stepped through, the rest of each row lies one behind the
// other in both boxes.
class Rows {
 public:
  Rows(const Slice& a, const Slice& b) : a_(a.box), b_(b.box) {
    const auto axes = a_.start.size();
    for (std::size_t i = 0; i < axes; ++i) {
      const auto begin = std::max(a_.start[i], b_.start[i]);
      const auto end = std::min(a_.start[i] + a_.length[i], b_.start[i] + b_.length[i]);
      start_.push_back(begin);
      length_.push_back(std::max<std::int64_t>(end - begin, 0));
    }
    outer_ = axes;
    while (outer_ > 0 && (outer_ == axes || same(outer_))) --outer_;
    if (outer_ > 0) {
      skip_rows(a_, a.flat);
      skip_rows(b_, b.flat);
    }
    const auto inner = std::span(length_).subspan(outer_);
    row_ = product(inner);
    if (product(length_) > 0) index_.assign(outer_, 0);
    done_ = product(length_) == 0;
  }

  bool done() const { return done_; }
  std::int64_t length() const { return row_; }
  std::int64_t in_a() const { return offset(a_); }
  std::int64_t in_b() const { return offset(b_); }

  void next() {
    for (std::size_t axis = outer_; axis-- > 0;) {
      if (++index_[axis] < length_[axis]) return;
      index_[axis] = 0;
    }
    done_ = true;
  }

 private:
  bool same(std::size_t axis) const {
    return a_.start[axis] == b_.start[axis] && a_.length[axis] == b_.length[axis];
  }

  // Leaves out the rows of the first axis that lie wholly outside `flat`.
  void skip_rows(const Box& box, Range flat) {
    const auto row = product(std::span(box.length).subspan(1));
    if (row == 0) return;
    const auto begin = std::max(start_[0], box.start[0] + flat.begin / row);
    const auto end = std::min(start_[0] + length_[0], box.start[0] + (flat.end + row - 1) / row);
    start_[0] = begin;
    length_[0] = std::max<std::int64_t>(end - begin, 0);
  }

  // Of the current row's first element in the row-major box.
  std::int64_t offset(const Box& box) const {
    std::int64_t at = 0;
    for (std::size_t axis = 0; axis < start_.size(); ++axis) {
      const auto coordinate = start_[axis] + (axis < outer_ ? index_[axis] : 0);
      at = at * box.length[axis] + coordinate - box.start[axis];
    }
    return at;
  }

  const Box& a_;
  const Box& b_;
  std::vector<std::int64_t> start_, length_;  // of what both share
  std::size_t outer_ = 0;
  std::int64_t row_ = 0;
  std::vector<std::int64_t> index_;
  bool done_ = false;
};

}  // namespace

std::vector<Range> within(std::span<const Range> pieces, Range range) {
  std::vector<Range> parts;
  for (const Range& piece : pieces) {
    const Range part{std::max(piece.begin, range.begin), std::min(piece.end, range.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

Range part_of(std::int64_t total, int part, int parts) {
  MUSTER_ASSERT(0 <= part && part < parts && total >= 0);
  const auto each = total / parts;
  const auto longer = total % parts;
  const auto begin = each * part + std::min<std::int64_t>(part, longer);
  return {begin, begin + each + (part < longer ? 1 : 0)};
}

std::int64_t Box::numel() const { return product(length); }

bool meet(const Box& a, const Box& b) {
  MUSTER_ASSERT(a.start.size() == b.start.size());
  for (std::size_t axis = 0; axis < a.start.size(); ++axis) {
    if (std::max(a.start[axis], b.start[axis]) >=
        std::min(a.start[axis] + a.length[axis], b.start[axis] + b.length[axis])) {
      return false;
    }
  }
  return true;
}

Box whole_box(std::vector<std::int64_t> shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), std::move(shape)};
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Slice whole_slice(std::string tensor, Box box) {
  const auto numel = box.numel();
  return {std::move(tensor), std::move(box), {0, numel}};
}

std::vector<Run> intersect(const Slice& a, const Slice& b) {
  std::vector<Run> runs;
  if (a.tensor != b.tensor || a.flat.size() <= 0 || b.flat.size() <= 0) return runs;
  MUSTER_ASSERT(a.box.start.size() == b.box.start.size());
  for (Rows rows(a, b); !rows.done(); rows.next()) {
    // Where the row begins, counted from the beginning of each slice.
    const auto in_a = rows.in_a() - a.flat.begin;
    const auto in_b = rows.in_b() - b.flat.begin;
    const auto skip = std::max({std::int64_t{0}, -in_a, -in_b});
    const auto end = std::min({rows.length(), a.numel() - in_a, b.numel() - in_b});
    if (skip >= end) continue;
    const Run run{in_a + skip, in_b + skip, end - skip};
    if (!runs.empty() && runs.back().a + runs.back().count == run.a &&
        runs.back().b + runs.back().count == run.b) {
      runs.back().count += run.count;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace muster::train
