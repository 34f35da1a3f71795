// One flat, zero-filled array of fp32 or fp64, 64-byte aligned: all parameters, gradients or optimizer
// moments.
//
// Owned by whoever made it, movable, not copyable. No libtorch: collectives and checkpoints take its bytes.
// Threads may use disjoint ranges at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"
#include "train/model/params.h"

namespace muster::train {

class FlatBuffer {
 public:
  FlatBuffer() = default;
  FlatBuffer(std::int64_t numel, Dtype dtype);
  FlatBuffer(FlatBuffer&& other) noexcept { swap(other); }
  FlatBuffer& operator=(FlatBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~FlatBuffer();

  std::int64_t numel() const { return numel_; }
  Dtype dtype() const { return dtype_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }

  std::span<std::byte> bytes() { return {data_, byte_count()}; }
  std::span<const std::byte> bytes() const { return {data_, byte_count()}; }
  std::span<std::byte> bytes(Range range);
  std::span<const std::byte> bytes(Range range) const;

  // T must be the buffer's type: float or double.
  template <typename T>
  std::span<T> as() {
    check<T>();
    return {reinterpret_cast<T*>(data_), static_cast<std::size_t>(numel_)};
  }
  template <typename T>
  std::span<const T> as() const {
    check<T>();
    return {reinterpret_cast<const T*>(data_), static_cast<std::size_t>(numel_)};
  }
  template <typename T>
  std::span<T> as(Range range) {
    MUSTER_ASSERT(0 <= range.begin && range.begin <= range.end && range.end <= numel_);
    return as<T>().subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  }
  template <typename T>
  std::span<const T> as(Range range) const {
    MUSTER_ASSERT(0 <= range.begin && range.begin <= range.end && range.end <= numel_);
    return as<T>().subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  }

  void fill_zero();

 private:
  template <typename T>
  void check() const {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    MUSTER_ASSERT((dtype_ == Dtype::f32 && sizeof(T) == 4) || (dtype_ == Dtype::f64 && sizeof(T) == 8));
  }
  std::size_t byte_count() const { return static_cast<std::size_t>(numel_ * size_of(dtype_)); }
  void swap(FlatBuffer& other) noexcept;

  std::byte* data_ = nullptr;
  std::int64_t numel_ = 0;
  Dtype dtype_ = Dtype::f32;
};

}  // namespace muster::train
