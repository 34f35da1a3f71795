// Helpers of the tests of object stores: bodies from text, objects as text, and a look at the disk. One
// thread.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ports/object_store.h"

namespace muster::objectstore {

class TextSource final : public ports::ByteSource {
 public:
  explicit TextSource(std::string text) : text_(std::move(text)) {}
  Result<std::size_t> read(std::span<char> buffer) override {
    if (given_ >= fail_after) return fail(ErrorCode::unavailable, "the other side went away");
    const auto count = std::min({buffer.size(), text_.size() - given_, std::size_t{100'000}});
    std::memcpy(buffer.data(), text_.data() + given_, count);
    given_ += count;
    return count;
  }
  Result<std::vector<ports::ExpectedDigest>> trailing_digests() override { return trailing; }
  std::size_t given() const { return given_; }

  std::vector<ports::ExpectedDigest> trailing;
  std::size_t fail_after = SIZE_MAX;

 private:
  std::string text_;
  std::size_t given_ = 0;
};

// "<error>" when a piece cannot be read.
inline std::string read_all(const ports::OpenObject& object) {
  std::string out;
  for (std::size_t i = 0; i < object.piece_count(); ++i) {
    const auto piece = object.piece(i);
    if (!piece) return "<" + piece.error().message + ">";
    const auto at = out.size();
    out.resize(at + piece->length);
    if (::pread(piece->file->get(), out.data() + at, piece->length, static_cast<off_t>(piece->offset)) !=
        static_cast<ssize_t>(piece->length)) {
      return "<short>";
    }
  }
  return out;
}

inline std::string read_object(ports::ObjectStore& store, std::string_view bucket, std::string_view key) {
  const auto object = store.get(bucket, key);
  return object ? read_all(**object) : "<" + object.error().error.message + ">";
}

inline std::vector<std::string> keys_of(const ports::ListPage& page) {
  std::vector<std::string> keys;
  for (const auto& object : page.objects) keys.push_back(object.key);
  return keys;
}

inline std::size_t content_files(const std::string& directory) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() && entry.path().filename().string().size() == 16) ++count;
  }
  return count;
}

// Removal happens behind the answers; true when `count` files are left within 10 s.
inline bool wait_for_content_files(const std::string& directory, std::size_t count) {
  for (int i = 0; i < 1000; ++i) {
    std::size_t now = SIZE_MAX;
    try {
      now = content_files(directory);
    } catch (const std::filesystem::filesystem_error&) {  // a file went while it was listed
    }
    if (now == count) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace muster::objectstore
