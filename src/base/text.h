// Small text functions that the standard library lacks. Functions without state: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

std::string_view trim(std::string_view text);          // spaces, tabs, CR, LF at both ends
std::string to_lower(std::string_view text);           // ASCII only
bool iequals(std::string_view a, std::string_view b);  // ASCII only
std::vector<std::string_view> split(std::string_view text, char separator);  // keeps empty parts
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// Whole text as a decimal number; nullopt on anything else, or out of range.
std::optional<std::int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);

// "24.0 MiB", "512 B": binary units, for people.
std::string format_bytes(std::uint64_t bytes);

// The closest of `known` to `word` within edit distance 1 + length / 4, or empty: for "did you mean".
std::string closest(std::string_view word, const std::vector<std::string>& known);

// Percent-encodes all but unreserved characters (RFC 3986); `keep` lists further ones left as they are.
std::string percent_encode(std::string_view text, std::string_view keep = "");
// nullopt on a broken escape. '+' stays '+'.
std::optional<std::string> percent_decode(std::string_view text);

bool is_utf8(std::string_view text);
// Invalid sequences become U+FFFD.
std::string to_utf8_lossy(std::string_view bytes);
// So does here what XML 1.0 cannot carry even as a reference: control characters but tab, line feed and
// carriage return, U+FFFE and U+FFFF.
std::string to_xml_lossy(std::string_view bytes);
bool is_xml(std::string_view text);  // to_xml_lossy would change nothing
// At most `characters` of UTF-8 text; invalid sequences become U+FFFD. Longer text is cut so that it fits
// with `ending` (ASCII, not longer than `characters`) behind it.
std::string clip_characters(std::string_view text, std::size_t characters, std::string_view ending = "");

}  // namespace muster
