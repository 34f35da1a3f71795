// Elements of a flat layout (ParamTable), of one type: parameters, gradients or optimizer moments, all of
// them or the pieces of them that a rank holds. Zero-filled at first, 64-byte aligned; the pieces stand one
// behind the other. Ranges are given in the layout's coordinates, whatever is held.
//
// Owned by whoever made it, movable, not copyable. No libtorch: collectives and checkpoints take its bytes.
// Threads may use disjoint ranges at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/assert.h"
#include "train/model/params.h"

namespace muster::train {

class FlatBuffer {
 public:
  FlatBuffer() = default;
  FlatBuffer(std::int64_t numel, Dtype dtype) : FlatBuffer(std::vector<Range>{{0, numel}}, dtype) {}
  // Pieces in order, without overlap.
  FlatBuffer(std::vector<Range> pieces, Dtype dtype);
  FlatBuffer(FlatBuffer&& other) noexcept { swap(other); }
  FlatBuffer& operator=(FlatBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~FlatBuffer();

  std::span<const Range> pieces() const { return pieces_; }
  std::int64_t numel() const { return numel_; }  // held
  Dtype dtype() const { return dtype_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }

  // Everything held.
  std::span<std::byte> bytes() { return {data_, byte_count()}; }
  std::span<const std::byte> bytes() const { return {data_, byte_count()}; }
  // A range must lie in one piece, or be empty.
  std::span<std::byte> bytes(Range range);
  std::span<const std::byte> bytes(Range range) const;

  // T must be the buffer's type: float, double or BFloat16.
  template <typename T>
  std::span<T> as() {
    check<T>();
    return {reinterpret_cast<T*>(data_), static_cast<std::size_t>(numel_)};
  }
  template <typename T>
  std::span<const T> as() const {
    return const_cast<FlatBuffer*>(this)->as<T>();
  }
  template <typename T>
  std::span<T> as(Range range) {
    return as<T>().subspan(offset_of(range), static_cast<std::size_t>(range.size()));
  }
  template <typename T>
  std::span<const T> as(Range range) const {
    return const_cast<FlatBuffer*>(this)->as<T>(range);
  }

 private:
  template <typename T>
  void check() const {
    MUSTER_ASSERT(dtype_ == dtype_of<T>);
  }
  std::size_t byte_count() const { return static_cast<std::size_t>(numel_ * size_of(dtype_)); }
  std::size_t offset_of(Range range) const;  // in elements, of the first
  void swap(FlatBuffer& other) noexcept;

  std::vector<Range> pieces_;
  std::vector<std::int64_t> offsets_;  // of each piece in the buffer
  std::byte* data_ = nullptr;
  std::int64_t numel_ = 0;
  Dtype dtype_ = Dtype::f32;
};

}  // namespace muster::train
