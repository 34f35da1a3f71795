#include "text/detail/words.h"

#include <string>

#include "base/text.h"
#include "text/detail/unicode.h"

namespace muster::text::detail {
namespace {

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char kSupported[] =
    "ByteLevel (add_prefix_space false), alone or last in a Sequence behind Digits or a Split (Isolated) by "
    "the "
    "pattern of GPT-2, Llama 3 or Qwen 2; or none";

// The end of the run of characters of one kind that begins at `at`.
std::size_t run_end(std::string_view text, std::size_t at, CharKind kind) {
  while (at < text.size()) {
    const auto c = char_at(text, at);
    if (kind_of(c.code) != kind) break;
    at += c.length;
  }
  return at;
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd in front of `text`; 0: none. U+017F is an s to a regular
// expression that ignores case.
std::size_t contraction(std::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto lower = [&](std::size_t at) {
    const char c = at < text.size() ? text[at] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = lower(2);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) {
    return 3;
  }
  return any_case && text.substr(1).starts_with("\xc5\xbf") ? 3 : 0;
}

// \s+(?!\S)|\s+ : white space without its last character where another character follows.
std::size_t space_run(std::string_view text) {
  const auto end = run_end(text, 0, CharKind::space);
  if (end == text.size()) return end;
  auto last = end - 1;
  while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
  return last > 0 ? last : end;
}

std::size_t modern_word(std::string_view text, int digits_max) {
  if (const auto length = contraction(text, true)) return length;
  const auto first = char_at(text, 0);
  const auto kind = kind_of(first.code);
  const bool is_newline = first.code == '\n' || first.code == '\r';
  if (kind == CharKind::letter) return run_end(text, first.length, CharKind::letter);
  if (kind == CharKind::number) {
    auto end = first.length;
    for (int count = 1; count < digits_max && end < text.size(); ++count) {
      const auto next = char_at(text, end);
      if (kind_of(next.code) != CharKind::number) break;
      end += next.length;
    }
    return end;
  }
  if (!is_newline) {
    const auto end = run_end(text, first.length, CharKind::letter);
    if (end > first.length) return end;
  }
  const std::size_t begin = first.code == ' ' ? 1 : 0;
  if (auto end = run_end(text, begin, CharKind::other); end > begin) {
    while (end < text.size() && (text[end] == '\n' || text[end] == '\r')) ++end;
    return end;
  }
  const auto newline = text.substr(0, run_end(text, 0, CharKind::space)).find_last_of("\r\n");
  return newline == std::string_view::npos ? space_run(text) : newline + 1;
}

tl::unexpected<Error> unsupported(const std::string& what) {
  return fail(ErrorCode::unsupported,
              "pre_tokenizer " + what + " is not supported; supported: " + std::string(kSupported));
}

Result<Scanner> split_scanner(const json::Object& object) {
  const auto* pattern = json::opt_object(object, "pattern");
  const auto regex = pattern ? json::opt_string(*pattern, "Regex") : std::nullopt;
  if (!regex) return unsupported("Split by a string");
  const auto behavior = json::opt_string(object, "behavior").value_or("");
  if (behavior != "Isolated" || json::opt_bool(object, "invert").value_or(false)) {
    return unsupported("Split with behavior " + behavior + " or invert");
  }
  if (*regex == kGpt2) return gpt2_word;
  if (*regex == kLlama3) return llama3_word;
  if (*regex == kQwen2) return qwen2_word;
  return unsupported("Split by the pattern " + *regex);
}

Result<void> add_stage(const json::Value& value, PreTokenizer& out) {
  if (!value.is_object()) return fail(ErrorCode::corrupt, "pre_tokenizer is not an object");
  const auto& object = value.get_object();
  const auto type = json::opt_string(object, "type").value_or("without type");
  if (out.byte_level) return unsupported(type + " behind ByteLevel");
  if (type == "Sequence") {
    const auto* stages = json::opt_array(object, "pretokenizers");
    if (stages == nullptr) return fail(ErrorCode::corrupt, "pre_tokenizer Sequence has no pretokenizers");
    for (const auto& stage : *stages) MUSTER_CHECK(add_stage(stage, out));
    return {};
  }
  if (type == "Digits") {
    out.scanners.push_back(json::opt_bool(object, "individual_digits").value_or(false) ? single_digit
                                                                                       : digit_run);
    return {};
  }
  if (type == "Split") {
    MUSTER_TRY(const auto scanner, split_scanner(object));
    out.scanners.push_back(scanner);
    return {};
  }
  if (type != "ByteLevel") return unsupported(type);
  if (json::opt_bool(object, "add_prefix_space").value_or(true)) {
    return unsupported("ByteLevel with add_prefix_space");
  }
  out.byte_level = true;
  if (json::opt_bool(object, "use_regex").value_or(true)) out.scanners.push_back(gpt2_word);
  return {};
}

}  // namespace

std::size_t gpt2_word(std::string_view text) {
  if (const auto length = contraction(text, false)) return length;
  const std::size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const auto kind = kind_of(char_at(text, begin).code);
  return kind == CharKind::space ? space_run(text) : run_end(text, begin, kind);
}

std::size_t llama3_word(std::string_view text) { return modern_word(text, 3); }
std::size_t qwen2_word(std::string_view text) { return modern_word(text, 1); }

std::size_t single_digit(std::string_view text) {
  const auto first = char_at(text, 0);
  return kind_of(first.code) == CharKind::number ? first.length : digit_run(text);
}

std::size_t digit_run(std::string_view text) {
  const bool numbers = kind_of(char_at(text, 0).code) == CharKind::number;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto c = char_at(text, at);
    if ((kind_of(c.code) == CharKind::number) != numbers) break;
    at += c.length;
  }
  return at;
}

Result<PreTokenizer> parse_pre_tokenizer(const json::Value& value) {
  PreTokenizer out;
  if (value.is_null()) return out;
  MUSTER_CHECK(add_stage(value, out));
  if (!out.byte_level) return unsupported("without ByteLevel");
  return out;
}

bool splits_before_space(std::string_view text, std::size_t at) {
  if (at == 0 || at >= text.size()) return false;
  const char c = text[at];
  if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return false;
  auto last = at - 1;
  while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
  if (!is_utf8(text.substr(last, at - last))) return false;
  const auto kind = kind_of(char_at(text, last).code);
  return kind == CharKind::letter || kind == CharKind::number;
}

}  // namespace muster::text::detail
