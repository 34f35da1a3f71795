#include "text/detail/byte_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/file.h"

namespace muster::text::detail {
namespace {

constexpr std::size_t kInputBytes = 256u << 10;
constexpr int kZstdWindowLogMax = 27;  // 128 MiB: what `zstd` itself takes without --long

class PlainSource : public ByteSource {
 public:
  PlainSource(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}

  Result<std::size_t> read(char* to, std::size_t size) override {
    for (;;) {
      const auto count = ::read(file_.get(), to, size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return fail_errno("read " + path_);
      consumed_ += static_cast<std::uint64_t>(count);
      return static_cast<std::size_t>(count);
    }
  }
  std::uint64_t consumed() const override { return consumed_; }

 private:
  std::string path_;
  UniqueFd file_;
  std::uint64_t consumed_ = 0;
};

// What the two kinds of compression share: an input buffer, the place for messages, streams in a row.
class CompressedSource : public ByteSource {
 public:
  CompressedSource(std::string path, UniqueFd file, const char* kind)
      : path_(path), kind_(kind), input_(std::move(path), std::move(file)), buffer_(kInputBytes) {}

  Result<std::size_t> read(char* to, std::size_t size) override {
    for (;;) {
      if (at_ == end_) {
        MUSTER_TRY(end_, input_.read(buffer_.data(), buffer_.size()));
        at_ = 0;
        if (end_ == 0) {
          // A file without a byte is no compressed file, either.
          if (inside_ || input_.consumed() == 0) return broken("truncated");
          return 0;
        }
      }
      MUSTER_TRY(const auto made, inflate(to, size));
      text_bytes_ += made;
      if (made > 0) return made;
    }
  }
  std::uint64_t consumed() const override { return input_.consumed() - (end_ - at_); }

 protected:
  // Takes bytes [at_, end_) of buffer_, moves at_, sets inside_, and answers how many bytes it made.
  virtual Result<std::size_t> inflate(char* to, std::size_t size) = 0;

  tl::unexpected<Error> broken(const std::string& why) const {
    return fail(ErrorCode::corrupt, path_ + ": " + kind_ + " stream damaged at byte " +
                                        std::to_string(consumed()) + " of the file, " +
                                        std::to_string(text_bytes_) + " bytes into the text: " + why);
  }

  std::string path_;
  const char* kind_;
  PlainSource input_;
  std::vector<char> buffer_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  bool inside_ = false;  // a stream has begun and not ended
  std::uint64_t text_bytes_ = 0;
};

class GzipSource final : public CompressedSource {
 public:
  GzipSource(std::string path, UniqueFd file) : CompressedSource(std::move(path), std::move(file), "gzip") {}
  ~GzipSource() override { ::inflateEnd(&stream_); }

  Result<void> init() {
    constexpr int kGzipOnly = 15 + 16;
    if (::inflateInit2(&stream_, kGzipOnly) != Z_OK)
      return fail(ErrorCode::resource_exhausted, "zlib: out of memory");
    return {};
  }

 private:
  Result<std::size_t> inflate(char* to, std::size_t size) override {
    if (!inside_) ::inflateReset(&stream_);
    inside_ = true;
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data() + at_);
    stream_.avail_in = static_cast<uInt>(end_ - at_);
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(std::min<std::size_t>(size, 1u << 30));
    const auto room = stream_.avail_out;
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    at_ = end_ - stream_.avail_in;
    if (code == Z_STREAM_END) inside_ = false;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      return broken(stream_.msg ? stream_.msg : "zlib code " + std::to_string(code));
    }
    return room - stream_.avail_out;
  }

  z_stream stream_{};
};

class ZstdSource final : public CompressedSource {
 public:
  ZstdSource(std::string path, UniqueFd file)
      : CompressedSource(std::move(path), std::move(file), "zstd"),
        stream_(::ZSTD_createDStream(), ::ZSTD_freeDStream) {}

  Result<void> init() {
    if (!stream_) return fail(ErrorCode::resource_exhausted, "zstd: out of memory");
    ::ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kZstdWindowLogMax);
    return {};
  }

 private:
  Result<std::size_t> inflate(char* to, std::size_t size) override {
    ZSTD_inBuffer in{buffer_.data(), end_, at_};
    ZSTD_outBuffer out{to, size, 0};
    const auto left = ::ZSTD_decompressStream(stream_.get(), &out, &in);
    at_ = in.pos;
    if (::ZSTD_isError(left)) return broken(::ZSTD_getErrorName(left));
    inside_ = left != 0;
    return out.pos;
  }

  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
};

template <typename Source>
Result<std::unique_ptr<ByteSource>> compressed(const std::string& path, UniqueFd file) {
  auto source = std::make_unique<Source>(path, std::move(file));
  MUSTER_CHECK(source->init());
  return source;
}

}  // namespace

Result<std::unique_ptr<ByteSource>> ByteSource::open(const std::string& path) {
  MUSTER_TRY(auto file, open_file(path, O_RDONLY));
  if (path.ends_with(".gz")) return compressed<GzipSource>(path, std::move(file));
  if (path.ends_with(".zst") || path.ends_with(".zstd")) return compressed<ZstdSource>(path, std::move(file));
  return std::make_unique<PlainSource>(path, std::move(file));
}

std::string without_compression(const std::string& name) {
  for (const std::string_view ending : {".gz", ".zst", ".zstd"}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return name;
}

}  // namespace muster::text::detail
