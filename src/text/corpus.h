// Corpus: the text files of a data set, and their text in parts that workers can code independently.
//
// A document is a file, or, with split_documents, a run of lines between blank lines. CorpusReader hands out
// parts in order; a document larger than a part is cut behind a newline, so that no character and no token is
// cut. It belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace muster::text {

struct InputFile {
  std::string path;
  std::string name;  // below the input folder, or the path as given: unique in a list
  std::uint64_t bytes = 0;
};

// The regular files below each folder and each file given, in byte order of their names. Names that begin
// with a dot are left out. not_found when a path is missing; invalid_argument when two inputs have one name.
Result<std::vector<InputFile>> list_inputs(const std::vector<std::string>& paths);

// A piece of one document. Both flags are set when it is the whole document.
struct Part {
  std::size_t begin = 0;  // in Chunk::text
  std::size_t length = 0;
  bool begins = false;  // the document starts here
  bool ends = false;    // the document ends behind this part
};

struct Chunk {
  std::size_t file = 0;  // index into the inputs
  std::string text;
  std::vector<Part> parts;
  std::string_view view(const Part& part) const {
    return std::string_view(text).substr(part.begin, part.length);
  }
};

struct CorpusOptions {
  bool split_documents = false;
  // False for tokenizers whose pieces cross newlines: a chunk is then a whole file.
  bool cut_at_newlines = true;
  std::size_t chunk_bytes = 1u << 20;      // aimed at
  std::size_t chunk_bytes_max = 1u << 30;  // a line (or file, see above) beyond this is refused
};

class CorpusReader {
 public:
  // Precondition: `files` outlives the reader.
  CorpusReader(const std::vector<InputFile>& files, CorpusOptions options);

  // The next chunk; one without parts at the end of the corpus. A file without text gives nothing.
  Result<Chunk> next();

 private:
  Result<bool> fill();
  Chunk cut(std::size_t length, bool last);
  void split_whole(Chunk& chunk, bool last);
  void split_at_blank_lines(Chunk& chunk, bool last);

  const std::vector<InputFile>& files_;
  CorpusOptions options_;
  std::size_t next_file_ = 0;
  UniqueFd file_;
  std::string buffer_;
  std::size_t cut_ = 0;
  bool in_document_ = false;
};

}  // namespace muster::text
