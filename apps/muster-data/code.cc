// muster-data encode and decode: text to ids and back.
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/muster-data/commands.h"
#include "base/json.h"
#include "base/text.h"
#include "text/tokenizer.h"

namespace muster::data_program {
namespace {

// Calls use(line) for each line, or once for everything when `whole`.
template <typename Use>
Result<void> for_each_text(const std::string& path, bool whole, const Use& use) {
  std::ifstream file;
  if (!path.empty()) {
    file.open(path, std::ios::binary);
    if (!file) return fail_errno("open " + path);
  }
  std::istream& in = path.empty() ? std::cin : file;
  if (whole) return use(std::string(std::istreambuf_iterator<char>(in), {}));
  std::string line;
  for (std::uint64_t number = 1; std::getline(in, line); ++number) {
    auto used = use(line);
    if (!used) return tl::unexpected(used.error().with_context("line " + std::to_string(number)));
  }
  return {};
}

Result<std::vector<text::TokenId>> parse_ids(const std::string& line) {
  std::vector<text::TokenId> out;
  for (std::size_t at = 0; (at = line.find_first_not_of(" \t\r\n", at)) != std::string::npos;) {
    const auto end = std::min(line.find_first_of(" \t\r\n", at), line.size());
    const auto word = line.substr(at, end - at);
    const auto id = parse_int(word);
    if (!id || *id < 0 || *id > INT32_MAX) {
      return fail(ErrorCode::invalid_argument,
                  "\"" + clip_characters(word, 40, "...") + "\" is not a token id");
    }
    out.push_back(static_cast<text::TokenId>(*id));
    at = end;
  }
  return out;
}

}  // namespace

Result<void> encode(const CodeArguments& arguments) {
  MUSTER_TRY(const auto tokenizer, text::Tokenizer::load(arguments.tokenizer));
  text::Encoder encoder(tokenizer);
  const auto specials = arguments.special_tokens ? text::Specials::as_tokens : text::Specials::as_text;
  return for_each_text(arguments.input, !arguments.json_lines, [&](std::string text) -> Result<void> {
    if (arguments.json_lines) {
      MUSTER_TRY(const auto value, json::parse(text));
      if (!value.is_string()) return fail(ErrorCode::invalid_argument, "not a JSON string");
      text = std::string(value.get_string());
    }
    std::vector<text::TokenId> ids;
    encoder.append(text, true, ids, specials);
    std::string line;
    for (const auto id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
    std::cout << line << '\n';
    return {};
  });
}

Result<void> decode(const CodeArguments& arguments) {
  MUSTER_TRY(const auto tokenizer, text::Tokenizer::load(arguments.tokenizer));
  return for_each_text(arguments.input, !arguments.json_lines, [&](const std::string& line) -> Result<void> {
    MUSTER_TRY(const auto ids, parse_ids(line));
    MUSTER_TRY(const auto text, tokenizer.decode(ids));
    if (arguments.json_lines) {
      std::cout << json::dump(json::Value(text)) << '\n';
    } else {
      std::cout << text;
    }
    return {};
  });
}

}  // namespace muster::data_program
