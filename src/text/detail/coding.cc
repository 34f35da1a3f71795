#include "text/detail/coding.h"

#include <algorithm>
#include <cstring>

#include "base/crypto.h"
#include "base/json.h"
#include "base/text.h"

namespace muster::text::detail {
namespace {

constexpr std::size_t kHashedBytes = 256u << 10;  // a piece that begins a long document has more
constexpr std::string_view kReplacement = "\xef\xbf\xbd";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::uint64_t count_replacements(std::string_view text) {
  std::uint64_t count = 0;
  for (auto at = text.find(kReplacement); at != std::string_view::npos; at = text.find(kReplacement, at + 3))
    ++count;
  return count;
}

// The document of a line, or why there is none.
Result<std::string> text_of_line(std::string_view line, const CodingOptions& options) {
  if (line.size() > options.line_bytes_max) {
    return fail(ErrorCode::invalid_argument, line_too_long(line.size(), options.line_bytes_max));
  }
  if (!is_utf8(line)) return fail(ErrorCode::invalid_argument, "it is not UTF-8");
  MUSTER_TRY(const auto value, json::parse(line));
  if (!value.is_object()) return fail(ErrorCode::invalid_argument, "it is no JSON object");
  const auto* field = value.get_object().if_contains(options.text_field);
  if (field == nullptr)
    return fail(ErrorCode::invalid_argument, "it has no field \"" + options.text_field + "\"");
  if (!field->is_string())
    return fail(ErrorCode::invalid_argument, "field \"" + options.text_field + "\" is no string");
  return std::string(json::view(field->get_string()));
}

class Coding {
 public:
  Coding(const CodingOptions& options, Encoder& encoder) : options_(options), encoder_(encoder) {}

  void add(std::string_view text, bool begins, bool ends) {
    const auto before = out.tokens.size();
    encoder_.append(text, begins, out.tokens);
    const bool held_out = begins && options_.held_out > 0 && is_held_out(text, options_.held_out);
    out.pieces.push_back({out.tokens.size() - before, text.size(), begins, ends, held_out});
  }

  void add_part(std::string_view text, const Part& part) {
    if (is_utf8(text)) return add(text, part.begins, part.ends);
    const auto repaired = to_utf8_lossy(text);
    out.replaced += count_replacements(repaired) - count_replacements(text);
    add(repaired, part.begins, part.ends);
  }

  void add_document(const std::string& text) {
    if (text.empty()) {
      ++out.empty_documents;
    } else {
      add(text, true, true);
    }
  }

  Coded out;

 private:
  const CodingOptions& options_;
  Encoder& encoder_;
};

}  // namespace

void for_each_document(const Chunk& chunk, const CodingOptions& options, std::vector<BadLine>& bad,
                       const std::function<void(const std::string&)>& use) {
  const std::string_view content = chunk.content;
  auto number = chunk.first_line;
  for (std::size_t at = 0; at < content.size(); ++number) {
    const auto end = std::min(content.find('\n', at), content.size());
    auto line = content.substr(at, end - at);
    at = end + 1;
    if (number == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
    if (trim(line).empty()) continue;
    const auto text = text_of_line(line, options);
    if (text) {
      use(*text);
    } else {
      bad.push_back({number, text.error().message});
    }
  }
  if (chunk.too_long) bad.push_back(*chunk.too_long);
}

Coded code(const Chunk& chunk, bool json_lines, const CodingOptions& options, Encoder& encoder) {
  Coding coding(options, encoder);
  if (json_lines) {
    for_each_document(chunk, options, coding.out.bad_lines,
                      [&](const std::string& text) { coding.add_document(text); });
  } else {
    for (const auto& part : chunk.parts) {
      coding.add_part(std::string_view(chunk.content).substr(part.begin, part.length), part);
    }
  }
  coding.out.file_bytes = chunk.file_bytes;
  return std::move(coding.out);
}

bool is_held_out(std::string_view text, double share) {
  const auto digest = crypto::sha256(text.substr(0, kHashedBytes));
  std::uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof number);
  return static_cast<double>(number >> 11) * 0x1.0p-53 < share;
}

}  // namespace muster::text::detail
