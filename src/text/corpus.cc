#include "text/corpus.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

CorpusReader::CorpusReader(const std::vector<InputFile>& files, CorpusOptions options)
    : files_(files), options_(options) {}

// Reads on until the buffer holds a chunk, its first cut_ bytes; false at the end of the file.
Result<bool> CorpusReader::fill() {
  cut_ = 0;
  std::size_t searched = 0;  // bytes in front that hold no newline
  for (;;) {
    if (options_.cut_at_newlines && buffer_.size() >= options_.chunk_bytes) {
      const auto newline = std::string_view(buffer_).substr(searched).rfind('\n');
      if (newline != std::string_view::npos) {
        cut_ = searched + newline + 1;
        return true;
      }
      searched = buffer_.size();
    }
    const auto old = buffer_.size();
    if (old > options_.chunk_bytes_max) {
      return fail(ErrorCode::resource_exhausted,
                  files_[next_file_ - 1].path + ": more than " + format_bytes(options_.chunk_bytes_max) +
                      (options_.cut_at_newlines ? " without a newline" : " in one file") +
                      "; cut it into smaller pieces");
    }
    buffer_.resize(old + options_.chunk_bytes);
    const auto count = ::read(file_.get(), buffer_.data() + old, options_.chunk_bytes);
    buffer_.resize(old + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0 && errno != EINTR) return fail_errno("read " + files_[next_file_ - 1].path);
    if (count == 0) return false;
  }
  return true;
}

Result<Chunk> CorpusReader::next() {
  for (;;) {
    if (!file_) {
      if (next_file_ == files_.size()) return Chunk{};
      MUSTER_TRY(file_, open_file(files_[next_file_++].path, O_RDONLY));
      in_document_ = false;
    }
    MUSTER_TRY(const bool more, fill());
    auto chunk = cut(more ? cut_ : buffer_.size(), !more);
    if (!more) file_.reset();
    if (!chunk.parts.empty()) return chunk;
  }
}

Chunk CorpusReader::cut(std::size_t length, bool last) {
  Chunk chunk;
  chunk.file = next_file_ - 1;
  chunk.text = buffer_.substr(0, length);
  buffer_.erase(0, length);
  if (options_.split_documents) {
    split_at_blank_lines(chunk, last);
  } else {
    split_whole(chunk, last);
  }
  return chunk;
}

void CorpusReader::split_whole(Chunk& chunk, bool last) {
  if (chunk.text.empty() && !in_document_) return;
  chunk.parts.push_back({0, chunk.text.size(), !in_document_, last});
  in_document_ = !last;
}

void CorpusReader::split_at_blank_lines(Chunk& chunk, bool last) {
  const std::string_view text = chunk.text;
  std::size_t begin = 0;  // of the part that is open, when in_document_
  bool begins = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto newline = text.find('\n', at);
    const auto end = newline == std::string_view::npos ? text.size() : newline + 1;
    const bool blank = trim(text.substr(at, end - at)).empty();
    if (blank && in_document_) {
      chunk.parts.push_back({begin, at - begin, begins, true});
      in_document_ = false;
      begins = false;
    } else if (!blank && !in_document_) {
      begin = at;
      begins = true;
      in_document_ = true;
    }
    at = end;
  }
  if (in_document_) chunk.parts.push_back({begin, text.size() - begin, begins, last});
  if (last) in_document_ = false;
}

}  // namespace muster::text
