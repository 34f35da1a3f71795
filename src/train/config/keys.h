// The table of keys, bound to the members of one Config. Internal to config. Any thread; a Config is changed
// by one thread at a time.
#pragma once

#include <limits>

#include "train/config/config.h"

namespace muster::train {

struct Key {
  std::string name;
  KeyClass key_class;
  std::string help;
  std::variant<std::int64_t*, double*, bool*, std::string*, int*> target;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // of a string
};

std::vector<Key> keys_of(Config& config);

// Sets the key's member; the error names key, value, what is allowed.
Result<void> assign(const Key& key, const std::variant<std::string, Scalar>& value);
// What it may be: "1 to 1024", "fp32, bf16"; empty: any string, true or false. Every number has limits.
std::string range_of(const Key& key);
Scalar value_of(const Key& key);
std::string text_of(const Scalar& value);

}  // namespace muster::train
