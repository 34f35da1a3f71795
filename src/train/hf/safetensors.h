// One safetensors file, the format in which Hugging Face keeps weights:
//
//   8 bytes   length of the header, little-endian
//   header    JSON: {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}
//   data      the tensors, row-major, one behind the other without gaps
//
// Reading maps the file: only pages that are looked at are read. The header is taken for hostile: nothing of
// it is believed before it is checked. A File is immutable and movable; any thread may read it. It must not
// be cut short by others while it is open. A FileWriter is for one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "train/hf/number.h"

namespace muster::train::hf {

inline constexpr std::uint64_t kHeaderBytesMax = 16u << 20;  // 100,000 tensors; a Llama of 405 B has 1,138

struct Tensor {
  std::string name;
  Number number = Number::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the beginning of the data

  std::int64_t numel() const;
};

class File {
 public:
  // corrupt: the file is cut, the header is no header, a tensor's bytes do not fit its shape, overlap, leave
  // a gap or end elsewhere than the file; unsupported: a dtype that is not F32, F16 or BF16.
  static Result<File> open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  std::span<const Tensor> tensors() const { return tensors_; }  // as they lie in the file
  std::span<const std::byte> bytes(const Tensor& tensor) const;
  std::string_view header() const;

 private:
  File() = default;
  Result<void> map();
  Result<void> parse();

  std::string path_;
  std::vector<Tensor> tensors_;
  const std::byte* data_ = nullptr;  // the mapping
  std::uint64_t size_ = 0;
  std::uint64_t data_at_ = 0;
};

// Writes a file front to back: its header, then the bytes of every tensor in order. The file has its name
// only after finish(): a crash leaves none, or the one before.
class FileWriter {
 public:
  // The tensors' places are set here.
  static Result<FileWriter> create(const std::string& path, std::vector<Tensor> tensors);
  FileWriter(FileWriter&&) noexcept = default;
  ~FileWriter();

  Result<void> append(std::span<const std::byte> bytes);
  Result<void> finish();  // asserts that all bytes are there

 private:
  FileWriter() = default;
  Result<void> write(std::string_view data);

  std::string path_;
  UniqueFd fd_;
  std::uint64_t left_ = 0;
};

}  // namespace muster::train::hf
