#include "text/detail/plain_text.h"

namespace muster::text::detail {

Result<PlainText> PlainText::open(const std::string& path, bool json_lines, const CodingOptions& options) {
  const auto anywhere = [](std::string_view text) { return text.size(); };
  MUSTER_TRY(auto reader, FileReader::open(path, {.json_lines = json_lines,
                                                  .cut = anywhere,
                                                  .line_bytes_max = options.line_bytes_max}));
  return PlainText(path, std::move(reader), options);
}

Result<bool> PlainText::read(std::string& out) {
  MUSTER_TRY(const auto chunk, reader_.next());
  if (!reader_.json_lines()) {
    out += chunk.content;
    return !chunk.empty();
  }
  std::vector<BadLine> bad;
  for_each_document(chunk, options_, bad, [&](const std::string& text) { (out += text) += '\n'; });
  bad_lines += bad.size();
  if (!bad.empty() && !skip_bad_lines) {
    return fail(ErrorCode::corrupt, path_ + " line " + std::to_string(bad[0].line) + ": " + bad[0].why +
                                        "; mend it, or leave such lines out (--skip-bad-lines)");
  }
  return !chunk.empty();
}

}  // namespace muster::text::detail
