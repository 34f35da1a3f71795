#include "text/corpus.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"

namespace muster::text {
namespace fs = std::filesystem;

namespace {

Result<void> list_folder(const std::string& folder, std::vector<InputFile>& out) {
  std::error_code error;
  auto it = fs::recursive_directory_iterator(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (it->path().filename().string().starts_with('.')) {
      it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(error)) continue;
    const auto size = it->file_size(error);
    if (error) break;
    out.push_back({it->path().string(), it->path().lexically_relative(folder).generic_string(), size});
  }
  if (error) return fail_errno("list " + folder, error.value());
  return {};
}

}  // namespace

Result<std::vector<InputFile>> list_inputs(const std::vector<std::string>& paths) {
  std::vector<InputFile> out;
  for (const auto& path : paths) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (!fs::exists(status)) return fail(ErrorCode::not_found, "input " + path + " does not exist");
    if (fs::is_directory(status)) {
      MUSTER_CHECK(list_folder(path, out));
    } else {
      const auto size = fs::file_size(path, error);
      if (error)
        return fail(ErrorCode::invalid_argument, "input " + path + " is neither a folder nor a regular file");
      out.push_back({path, path, size});
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(out.begin(), out.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != out.end()) {
    return fail(ErrorCode::invalid_argument, "two inputs have the name " + twice->name + ": " + twice->path +
                                                 " and " + std::next(twice)->path + "; give each once");
  }
  return out;
}

FileReader::FileReader(std::string path, const CorpusOptions& options,
                       std::unique_ptr<detail::ByteSource> source)
    : path_(std::move(path)), options_(options), source_(std::move(source)) {
  const auto name = detail::without_compression(path_);
  json_lines_ = options.json_lines || name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

Result<FileReader> FileReader::open(const std::string& path, const CorpusOptions& options) {
  MUSTER_TRY(auto source, detail::ByteSource::open(path));
  return FileReader(path, options, std::move(source));
}

// Reads on, up to a chunk more; false at the end of the file.
Result<bool> FileReader::fill() {
  if (at_end_) return false;
  const auto wanted = buffer_.size() + options_.chunk_bytes;
  auto size = buffer_.size();
  buffer_.resize(wanted);
  while (size < wanted && !at_end_) {
    const auto count = source_->read(buffer_.data() + size, wanted - size);
    if (!count) return tl::unexpected(count.error());
    size += *count;
    at_end_ = *count == 0;
  }
  buffer_.resize(size);
  return !at_end_;
}

Result<Chunk> FileReader::next() {
  Chunk chunk;
  if (json_lines_) {
    MUSTER_CHECK(next_lines(chunk));
  } else {
    MUSTER_CHECK(next_text(chunk));
  }
  chunk.file_bytes = source_->consumed() - reported_;
  reported_ = source_->consumed();
  return chunk;
}

// ---- JSON lines

std::string line_too_long(std::uint64_t bytes, std::uint64_t bytes_max) {
  return "it has " + format_bytes(bytes) + ", the limit is " + format_bytes(bytes_max);
}

Result<void> FileReader::next_lines(Chunk& chunk) {
  chunk.first_line = line_;
  while (chunk.empty()) {
    if (buffer_.size() < options_.chunk_bytes) MUSTER_CHECK(fill());
    if (buffer_.empty()) return {};
    auto end = buffer_.rfind('\n') + 1;  // npos + 1: 0
    if (end == 0 && at_end_) end = buffer_.size();
    if (end == 0 && buffer_.size() > options_.line_bytes_max) {
      MUSTER_CHECK(skip_line(chunk));
    } else if (end == 0) {
      MUSTER_CHECK(fill());
    } else {
      chunk.content = buffer_.substr(0, end);
      buffer_.erase(0, end);
      line_ += static_cast<std::uint64_t>(std::count(chunk.content.begin(), chunk.content.end(), '\n'));
    }
  }
  return {};
}

// Leaves out the line that the buffer begins with and has no end of.
Result<void> FileReader::skip_line(Chunk& chunk) {
  std::uint64_t length = 0;
  for (;;) {
    const auto newline = buffer_.find('\n');
    if (newline != std::string::npos || at_end_) {
      const auto end = std::min(newline, buffer_.size());
      length += end;
      buffer_.erase(0, std::min(end + 1, buffer_.size()));
      break;
    }
    length += buffer_.size();
    buffer_.clear();
    MUSTER_CHECK(fill());
  }
  chunk.too_long = BadLine{line_++, line_too_long(length, options_.line_bytes_max)};
  return {};
}

// ---- text

Result<void> FileReader::next_text(Chunk& chunk) {
  for (;;) {
    if (buffer_.size() < options_.chunk_bytes) MUSTER_CHECK(fill());
    const auto used = options_.split_documents ? split_at_blank_lines(chunk.parts) : split_whole(chunk.parts);
    chunk.content = buffer_.substr(0, used);
    buffer_.erase(0, used);
    if (!chunk.parts.empty() || (at_end_ && buffer_.empty())) break;
    if (used > 0) continue;  // blank lines
    if (buffer_.size() > options_.chunk_bytes_max) {
      return fail(
          ErrorCode::resource_exhausted,
          path_ + ": more than " + format_bytes(options_.chunk_bytes_max) +
              " of text without a place where this tokenizer lets it be cut; cut it into smaller files");
    }
    MUSTER_CHECK(fill());
  }
  if (chunk.parts.empty()) chunk.content.clear();
  return {};
}

// Both answer how many bytes of the buffer are in the parts or between them; 0: more must be read first.

std::size_t FileReader::split_whole(std::vector<Part>& parts) {
  const auto used = at_end_ ? buffer_.size() : cut_document(buffer_.size());
  if (used == 0 && !(at_end_ && in_document_)) return 0;
  parts.push_back({0, used, !in_document_, at_end_});
  in_document_ = !at_end_;
  return used;
}

// A document that is not complete stays in the buffer, unless it fills it.
std::size_t FileReader::split_at_blank_lines(std::vector<Part>& parts) {
  const std::string_view text = buffer_;
  std::size_t begin = 0;  // of the document that is open
  bool open = in_document_;
  bool begins = false;
  bool mid_line = mid_line_;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto newline = text.find('\n', at);
    if (newline == std::string_view::npos && !at_end_) break;
    const auto end = newline == std::string_view::npos ? text.size() : newline + 1;
    const bool blank = !mid_line && trim(text.substr(at, end - at)).empty();
    mid_line = false;
    if (blank && open) {
      parts.push_back({begin, at - begin, begins, true});
      open = begins = false;
    } else if (!blank && !open) {
      begin = at;
      open = begins = true;
    }
    at = end;
  }
  if (open && !at_end_ && begin == 0) {
    const auto used = cut_document(at);
    if (used == 0) return 0;
    parts.push_back({0, used, begins, false});
    in_document_ = true;
    mid_line_ = text[used - 1] != '\n';
    return used;
  }
  const auto used = !open ? at : at_end_ ? text.size() : begin;
  if (open && at_end_) parts.push_back({begin, text.size() - begin, begins, true});
  if (used > 0 || at_end_) in_document_ = mid_line_ = false;
  return used;
}

// Where the document that fills the buffer may be cut, not before the middle of a chunk; 0: nowhere. Lines
// are complete up to `lines_end`: behind it could be a blank line, which ends the document.
std::size_t FileReader::cut_document(std::size_t lines_end) const {
  const std::string_view text = buffer_;
  const auto low = options_.chunk_bytes / 2;
  if (!options_.cut) return 0;
  if (const auto used = options_.cut(text.substr(0, lines_end)); used >= std::max<std::size_t>(low, 1))
    return used;
  const auto used = options_.cut(text);
  const bool blank = used > lines_end && trim(text.substr(lines_end, used - lines_end)).empty();
  return used < std::max<std::size_t>(low, 1) || blank ? 0 : used;
}

}  // namespace muster::text
