#include "train/model/flat_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace muster::train {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

FlatBuffer::FlatBuffer(std::vector<Range> pieces, Dtype dtype) : pieces_(std::move(pieces)), dtype_(dtype) {
  std::int64_t end = 0;
  for (const Range& piece : pieces_) {
    MUSTER_ASSERT(piece.begin >= end && piece.end >= piece.begin);
    end = piece.end;
    offsets_.push_back(numel_);
    numel_ += piece.size();
  }
  const std::size_t size = byte_count();
  const std::size_t alignment = size >= kHugePage ? kHugePage : kAlignment;
  data_ = static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}));
  if (size >= kHugePage)
    ::madvise(data_, size, MADV_HUGEPAGE);  // only a hint: fewer page faults and TLB misses
  std::memset(data_, 0, size);
}

FlatBuffer::~FlatBuffer() {
  if (data_ == nullptr) return;
  const std::size_t alignment = byte_count() >= kHugePage ? kHugePage : kAlignment;
  ::operator delete (data_, std::align_val_t{alignment});
}

std::size_t FlatBuffer::offset_of(Range range) const {
  MUSTER_ASSERT(range.begin <= range.end);
  if (range.begin == range.end) return 0;
  const auto behind = std::ranges::upper_bound(pieces_, range.begin, {}, &Range::begin);
  MUSTER_ASSERT(behind != pieces_.begin() && range.end <= std::prev(behind)->end);
  const auto piece = static_cast<std::size_t>(behind - pieces_.begin()) - 1;
  return static_cast<std::size_t>(offsets_[piece] + range.begin - pieces_[piece].begin);
}

std::span<std::byte> FlatBuffer::bytes(Range range) {
  const auto size = static_cast<std::size_t>(size_of(dtype_));
  return bytes().subspan(offset_of(range) * size, static_cast<std::size_t>(range.size()) * size);
}

std::span<const std::byte> FlatBuffer::bytes(Range range) const {
  return const_cast<FlatBuffer*>(this)->bytes(range);
}

void FlatBuffer::swap(FlatBuffer& other) noexcept {
  std::swap(pieces_, other.pieces_);
  std::swap(offsets_, other.offsets_);
  std::swap(data_, other.data_);
  std::swap(numel_, other.numel_);
  std::swap(dtype_, other.dtype_);
}

}  // namespace muster::train
