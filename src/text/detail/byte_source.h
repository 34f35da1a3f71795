// The bytes of a corpus file, decompressed on the way: *.gz (zlib) and *.zst, *.zstd (libzstd), also of
// several members or frames one behind the other; every other file as it is. Belongs to one thread. Memory:
// under 1 MiB and the window of the stream (zstd: at most 128 MiB).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"

namespace muster::text::detail {

class ByteSource {
 public:
  static Result<std::unique_ptr<ByteSource>> open(const std::string& path);
  virtual ~ByteSource() = default;

  // Fills at most `size` bytes; 0: the end. corrupt names the file and the place in it where a compressed
  // stream is damaged, or ends too early.
  virtual Result<std::size_t> read(char* to, std::size_t size) = 0;
  // Bytes of the file that have been read from disk.
  virtual std::uint64_t consumed() const = 0;
};

// "a/b.jsonl" of "a/b.jsonl.gz": the name without the ending of its compression.
std::string without_compression(const std::string& name);

}  // namespace muster::text::detail
