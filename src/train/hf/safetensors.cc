#include "train/hf/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "base/json.h"

namespace muster::train::hf {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kAlignment = 64;  // of the data in files written here; the format asks for 8
constexpr char kMetadata[] = "__metadata__";

std::string partial(const std::string& path) { return path + ".partial"; }

tl::unexpected<Error> corrupt(std::string what) { return fail(ErrorCode::corrupt, std::move(what)); }

// shape[0] * shape[1] * ... * element bytes, if that is a number of bytes at all.
std::optional<std::uint64_t> byte_count(const Tensor& tensor) {
  auto bytes = static_cast<std::uint64_t>(size_of(tensor.number));
  for (const std::int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<Tensor> parse_tensor(std::string_view name, const json::Object& object) {
  Tensor tensor{.name = std::string(name), .shape = {}};
  const auto named = [&](const std::string& what) { return corrupt("tensor " + tensor.name + ": " + what); };
  const auto dtype = json::opt_string(object, "dtype");
  const auto* shape = json::opt_array(object, "shape");
  const auto* offsets = json::opt_array(object, "data_offsets");
  if (!dtype || shape == nullptr || offsets == nullptr || offsets->size() != 2) {
    return named("dtype, shape and data_offsets [begin, end] are needed");
  }
  const auto number = number_of(*dtype);
  if (!number) {
    return fail(ErrorCode::unsupported,
                "tensor " + tensor.name + " has dtype " + *dtype + "; F32, F16 and BF16 are read");
  }
  tensor.number = *number;
  for (const auto& extent : *shape) {
    if (!extent.is_int64() || extent.as_int64() < 0) return named("shape " + json::dump(*shape));
    tensor.shape.push_back(extent.as_int64());
  }
  for (const auto& offset : *offsets) {
    if (!offset.is_int64() || offset.as_int64() < 0) return named("data_offsets " + json::dump(*offsets));
  }
  tensor.begin = static_cast<std::uint64_t>(offsets->at(0).as_int64());
  tensor.end = static_cast<std::uint64_t>(offsets->at(1).as_int64());
  const auto bytes = byte_count(tensor);
  if (!bytes || tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
    return named("data_offsets " + json::dump(*offsets) + " do not hold shape " + json::dump(*shape) +
                 " of " + *dtype);
  }
  return tensor;
}

// Every byte of the data belongs to one tensor.
Result<void> check_cover(std::span<const Tensor> tensors, std::uint64_t data_bytes) {
  std::uint64_t next = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.begin != next) {
      return corrupt("tensor " + tensor.name + " begins at byte " + std::to_string(tensor.begin) +
                     " of the data, " +
                     (tensor.begin < next ? "inside of the one before, which" : "the one before") +
                     " ends at " + std::to_string(next));
    }
    next = tensor.end;
  }
  if (next == data_bytes) return {};
  return corrupt("the header describes " + std::to_string(next) + " bytes of data, the file has " +
                 std::to_string(data_bytes) + (data_bytes < next ? ": truncated" : ""));
}

std::string header_of(std::vector<Tensor>& tensors) {
  json::Object header{{kMetadata, json::Object{{"format", "pt"}}}};  // without it transformers refuses
  std::uint64_t at = 0;
  for (Tensor& tensor : tensors) {
    tensor.begin = at;
    at = tensor.end = at + byte_count(tensor).value();
    header[tensor.name] = json::Object{{"dtype", safetensors_name(tensor.number)},
                                       {"shape", json::Array(tensor.shape.begin(), tensor.shape.end())},
                                       {"data_offsets", json::Array{tensor.begin, tensor.end}}};
  }
  std::string text = json::dump(header);
  while ((text.size() + kLengthBytes) % kAlignment != 0) text += ' ';
  std::uint64_t length = text.size();
  std::string out(kLengthBytes, '\0');
  std::memcpy(out.data(), &length, kLengthBytes);
  return out + text;
}

}  // namespace

std::int64_t Tensor::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

Result<File> File::open(const std::string& path) {
  File file;
  file.path_ = path;
  auto done = file.map();
  if (done) done = file.parse();
  if (!done) return tl::unexpected(done.error().with_context(path));
  return file;
}

Result<void> File::map() {
  MUSTER_CHECK(check_regular(path_));
  MUSTER_TRY(const UniqueFd fd, open_file(path_, O_RDONLY));
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return fail_errno("stat");
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (size_ < kLengthBytes) return corrupt("has " + std::to_string(size_) + " bytes: no safetensors file");
  void* at = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return fail_errno("mmap");
  data_ = static_cast<const std::byte*>(at);
  return {};
}

Result<void> File::parse() {
  std::uint64_t length = 0;
  std::memcpy(&length, data_, kLengthBytes);
  if (length > kHeaderBytesMax) {
    return corrupt("its header is said to have " + std::to_string(length) + " bytes, at most " +
                   std::to_string(kHeaderBytesMax) + " are read: no safetensors file");
  }
  if (length > size_ - kLengthBytes) {
    return corrupt("its header has " + std::to_string(length) + " bytes, the file " + std::to_string(size_) +
                   ": truncated");
  }
  data_at_ = kLengthBytes + length;
  auto parsed = json::parse_object(header());
  if (!parsed) return corrupt("header: " + parsed.error().message);
  for (const auto& [name, value] : *parsed) {
    if (name == kMetadata) continue;
    if (!value.is_object()) return corrupt("header: " + std::string(name) + " is no object");
    MUSTER_TRY(Tensor tensor, parse_tensor(name, value.as_object()));
    tensors_.push_back(std::move(tensor));
  }
  std::ranges::sort(tensors_, [](const Tensor& a, const Tensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  return check_cover(tensors_, size_ - data_at_);
}

File::File(File&& other) noexcept { *this = std::move(other); }

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(tensors_, other.tensors_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(data_at_, other.data_at_);
  return *this;
}

File::~File() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

std::span<const std::byte> File::bytes(const Tensor& tensor) const {
  return {data_ + data_at_ + tensor.begin, tensor.end - tensor.begin};
}

std::string_view File::header() const {
  return {reinterpret_cast<const char*>(data_) + kLengthBytes, data_at_ - kLengthBytes};
}

Result<FileWriter> FileWriter::create(const std::string& path, std::vector<Tensor> tensors) {
  const std::string header = header_of(tensors);
  FileWriter writer;
  writer.path_ = path;
  writer.left_ = tensors.empty() ? 0 : tensors.back().end;
  MUSTER_TRY(writer.fd_, open_file(partial(path), O_WRONLY | O_CREAT | O_TRUNC));
  MUSTER_CHECK(writer.write(header));
  return writer;
}

FileWriter::~FileWriter() {
  if (fd_) unlink(partial(path_).c_str());
}

Result<void> FileWriter::append(std::span<const std::byte> bytes) {
  MUSTER_ASSERT(bytes.size() <= left_);
  left_ -= bytes.size();
  return write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Result<void> FileWriter::write(std::string_view data) {
  auto written = write_all(fd_.get(), data);
  if (!written) return tl::unexpected(written.error().with_context(path_));
  return {};
}

Result<void> FileWriter::finish() {
  MUSTER_ASSERT(left_ == 0);
  if (fsync(fd_.get()) != 0) return fail_errno("fsync " + path_);
  if (std::rename(partial(path_).c_str(), path_.c_str()) != 0) return fail_errno("rename to " + path_);
  fd_.reset();
  return sync_directory(std::filesystem::path(path_).parent_path().string());
}

}  // namespace muster::train::hf
