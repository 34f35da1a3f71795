// Which program an image name means. Pure.
//
// muster/train and muster/data are the built-in programs, muster/host is the machine's own root file system.
// The configuration table [images] maps any other name, with `*` for any run of characters, to one of these,
// so that an existing job specification runs unchanged. The longest pattern that matches wins.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace muster::api::sagemaker {

// Pattern -> "muster/train", "muster/data" or "muster/host".
using PatternTable = std::map<std::string, std::string>;

// '*' matches any run of characters, also none.
bool matches(std::string_view pattern, std::string_view text);
// The value of the longest matching pattern.
std::optional<std::string> look_up(const PatternTable& table, std::string_view text);

// "train", "data" or "host". invalid_argument names the image and the remedy.
Result<std::string> resolve_image(const PatternTable& table, std::string_view image);

}  // namespace muster::api::sagemaker
