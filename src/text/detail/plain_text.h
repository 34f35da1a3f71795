// The text of a corpus file as one stream, whatever it is: text as it is, documents of JSON lines with a
// newline behind each. For what looks at lines of text, not at documents. Belongs to one thread.
#pragma once

#include <string>

#include "text/corpus.h"
#include "text/detail/coding.h"

namespace muster::text::detail {

class PlainText {
 public:
  static Result<PlainText> open(const std::string& path, bool json_lines, const CodingOptions& options);

  // Appends some more to `out`; false: nothing is left. corrupt: a bad line (file, line, why), unless they
  // are skipped.
  Result<bool> read(std::string& out);

  // True if it reads the bytes of the file as they are.
  bool is_file_itself() const { return !reader_.json_lines() && without_compression(path_) == path_; }

  bool skip_bad_lines = false;
  std::uint64_t bad_lines = 0;  // skipped

 private:
  PlainText(std::string path, FileReader reader, const CodingOptions& options)
      : path_(std::move(path)), reader_(std::move(reader)), options_(options) {}

  std::string path_;
  FileReader reader_;
  CodingOptions options_;
};

}  // namespace muster::text::detail
