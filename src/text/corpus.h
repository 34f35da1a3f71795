// Corpus: the files of a data set, and their content in chunks that workers can code independently.
//
// A file is text, or, if its name ends in .jsonl or .ndjson or it is asked for, JSON lines: a document a
// line. Both may be compressed (.gz, .zst). A document of text is a file, or, with split_documents, a run of
// lines between blank lines. Chunks depend on the bytes and the options only. A FileReader belongs to one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/detail/byte_source.h"

namespace muster::text {

struct InputFile {
  std::string path;
  std::string name;  // below the input folder, or the path as given: unique in a list
  std::uint64_t bytes = 0;
};

// The regular files below each folder and each file given, in byte order of their names. Names that begin
// with a dot are left out. not_found when a path is missing; invalid_argument when two inputs have one name.
Result<std::vector<InputFile>> list_inputs(const std::vector<std::string>& paths);

// A piece of one document of text. Both flags are set when it is the whole document.
struct Part {
  std::size_t begin = 0;  // in Chunk::content
  std::size_t length = 0;
  bool begins = false;  // the document starts here
  bool ends = false;    // the document ends behind this part
};

// A line of JSON lines that gives no document, and why.
struct BadLine {
  std::uint64_t line = 0;  // of the file, from 1
  std::string why;
};
std::string line_too_long(std::uint64_t bytes, std::uint64_t bytes_max);

struct Chunk {
  std::string content;
  std::vector<Part> parts;          // of text
  std::uint64_t first_line = 0;     // of JSON lines: content is whole lines, this is the number of the first
  std::optional<BadLine> too_long;  // in place of content
  std::uint64_t file_bytes = 0;     // bytes of the file that it was read from
  bool empty() const { return content.empty() && parts.empty() && !too_long; }
};

struct CorpusOptions {
  bool split_documents = false;
  bool json_lines = false;  // whatever the name says
  // Where a long text may be cut: Tokenizer::cut().
  std::function<std::size_t(std::string_view)> cut;
  std::size_t chunk_bytes = 1u << 20;       // aimed at
  std::size_t chunk_bytes_max = 1u << 30;   // a text that cannot be cut before this is refused
  std::size_t line_bytes_max = 128u << 20;  // a longer line of JSON lines is a bad line
};

class FileReader {
 public:
  static Result<FileReader> open(const std::string& path, const CorpusOptions& options);

  // The next chunk; an empty one at the end. corrupt: a compressed file is damaged; resource_exhausted: a
  // text that cannot be cut.
  Result<Chunk> next();
  bool json_lines() const { return json_lines_; }

 private:
  FileReader(std::string path, const CorpusOptions& options, std::unique_ptr<detail::ByteSource> source);
  Result<bool> fill();
  Result<void> next_lines(Chunk& chunk);
  Result<void> skip_line(Chunk& chunk);
  Result<void> next_text(Chunk& chunk);
  std::size_t split_whole(std::vector<Part>& parts);
  std::size_t split_at_blank_lines(std::vector<Part>& parts);
  std::size_t cut_document(std::size_t lines_end) const;

  std::string path_;
  CorpusOptions options_;
  bool json_lines_;
  std::unique_ptr<detail::ByteSource> source_;
  std::string buffer_;        // read, not given out
  bool at_end_ = false;       // of the file: buffer_ holds the rest
  bool in_document_ = false;  // buffer_ begins inside a document
  bool mid_line_ = false;     // and behind the first characters of a line
  std::uint64_t line_ = 1;    // the number of the line that buffer_ begins with, of JSON lines
  std::uint64_t reported_ = 0;
};

}  // namespace muster::text
