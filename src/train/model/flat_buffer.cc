#include "train/model/flat_buffer.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

namespace muster::train {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

FlatBuffer::FlatBuffer(std::int64_t numel, Dtype dtype) : numel_(numel), dtype_(dtype) {
  MUSTER_ASSERT(numel >= 0);
  const std::size_t size = byte_count();
  const std::size_t alignment = size >= kHugePage ? kHugePage : kAlignment;
  data_ = static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}));
  if (size >= kHugePage)
    ::madvise(data_, size, MADV_HUGEPAGE);  // only a hint: fewer page faults and TLB misses
  fill_zero();
}

FlatBuffer::~FlatBuffer() {
  if (data_ == nullptr) return;
  const std::size_t alignment = byte_count() >= kHugePage ? kHugePage : kAlignment;
  ::operator delete (data_, std::align_val_t{alignment});
}

std::span<std::byte> FlatBuffer::bytes(Range range) {
  MUSTER_ASSERT(0 <= range.begin && range.begin <= range.end && range.end <= numel_);
  const auto size = static_cast<std::size_t>(size_of(dtype_));
  return bytes().subspan(static_cast<std::size_t>(range.begin) * size,
                         static_cast<std::size_t>(range.size()) * size);
}

std::span<const std::byte> FlatBuffer::bytes(Range range) const {
  return const_cast<FlatBuffer*>(this)->bytes(range);
}

void FlatBuffer::fill_zero() {
  if (data_ != nullptr) std::memset(data_, 0, byte_count());
}

void FlatBuffer::swap(FlatBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(numel_, other.numel_);
  std::swap(dtype_, other.dtype_);
}

}  // namespace muster::train
