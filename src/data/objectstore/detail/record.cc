#include "data/objectstore/detail/record.h"

#include <cstring>

#include "base/text.h"

namespace muster::objectstore {
namespace {

// Names of our own begin with ':', which no header name does.
constexpr std::string_view kChecksumKind = ":checksum";
constexpr std::string_view kChecksumValue = ":value";
constexpr std::string_view kComposite = ":composite";
constexpr std::string_view kFullObject = ":full-object";
constexpr std::string_view kParts = ":parts";
constexpr std::string_view kUpload = ":upload";

template <typename Word>
void put_word(std::string& out, Word value) {
  for (std::size_t i = 0; i < sizeof(Word); ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

template <typename Word>
Word get_word(std::string_view bytes) {
  Word value = 0;
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    value |= static_cast<Word>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

void put_pair(std::string& out, std::string_view name, std::string_view value) {
  put_word(out, static_cast<std::uint32_t>(name.size()));
  out += name;
  put_word(out, static_cast<std::uint32_t>(value.size()));
  out += value;
}

// Takes one length-prefixed string off the front; false when there is not enough.
bool take(std::string_view& rest, std::string_view& out) {
  if (rest.size() < 4) return false;
  const auto length = get_word<std::uint32_t>(rest);
  if (rest.size() - 4 < length) return false;
  out = rest.substr(4, length);
  rest.remove_prefix(4 + length);
  return true;
}

}  // namespace

std::string pack_pieces(const std::vector<Piece>& pieces) {
  std::string out;
  out.reserve(pieces.size() * 16);
  for (const auto& piece : pieces) {
    put_word(out, static_cast<std::uint64_t>(piece.blob));
    put_word(out, piece.length);
  }
  return out;
}

Result<std::vector<Piece>> unpack_pieces(std::string_view packed) {
  if (packed.size() % 16 != 0) {
    return fail(ErrorCode::corrupt, "a list of pieces has " + std::to_string(packed.size()) +
                                        " bytes, which is not a multiple of 16");
  }
  std::vector<Piece> pieces;
  pieces.reserve(packed.size() / 16);
  for (; !packed.empty(); packed.remove_prefix(16)) {
    pieces.push_back({.blob = static_cast<std::int64_t>(get_word<std::uint64_t>(packed)),
                      .length = get_word<std::uint64_t>(packed.substr(8))});
  }
  return pieces;
}

std::string pack_extra(const Extra& extra) {
  std::string out;
  if (extra.checksum) {
    put_pair(out, kChecksumKind, crypto::to_string(extra.checksum->kind));
    put_pair(out, kChecksumValue, extra.checksum->value);
    if (extra.checksum->composite) put_pair(out, kComposite, "1");
  }
  if (extra.full_object_checksum) put_pair(out, kFullObject, "1");
  if (extra.parts > 0) put_pair(out, kParts, std::to_string(extra.parts));
  if (!extra.upload.empty()) put_pair(out, kUpload, extra.upload);
  for (const auto& [name, value] : extra.attributes) put_pair(out, name, value);
  return out;
}

Result<Extra> unpack_extra(std::string_view packed) {
  Extra extra;
  while (!packed.empty()) {
    std::string_view name;
    std::string_view value;
    if (!take(packed, name) || !take(packed, value)) {
      return fail(ErrorCode::corrupt, "the attributes of an object are cut short");
    }
    if (name == kChecksumKind) {
      const auto kind = crypto::parse_digest(value);
      if (!kind) return fail(ErrorCode::corrupt, "unknown checksum " + std::string(value) + " of an object");
      extra.checksum.emplace().kind = *kind;
    } else if (name == kChecksumValue && extra.checksum) {
      extra.checksum->value = value;
    } else if (name == kComposite && extra.checksum) {
      extra.checksum->composite = true;
    } else if (name == kFullObject) {
      extra.full_object_checksum = true;
    } else if (name == kParts) {
      extra.parts = static_cast<std::uint32_t>(parse_int(value).value_or(0));
    } else if (name == kUpload) {
      extra.upload = value;
    } else {
      extra.attributes.emplace_back(name, value);
    }
  }
  return extra;
}

}  // namespace muster::objectstore
