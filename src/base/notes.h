// Lines for the operator's log, at most one a minute of the same text.
//
// Libraries that have something to say take a Note; the program gives them a Notes over its log. Whoever says
// the same thing many times keeps what changes (counts, times) out of the text. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/time.h"

namespace muster {

// Takes one line of text, without its end. May be empty; must not block.
using Note = std::function<void(std::string_view line)>;

class Notes {
 public:
  using Monotonic = std::function<Millis()>;
  explicit Notes(Note sink, Monotonic monotonic = boot_time);

  // Passes the text on, control characters as spaces, unless it was within kQuiet; then it is counted, and
  // the next line of the same text says how often. Of more than kTextsMax texts in kQuiet the later ones are
  // counted only.
  void say(std::string_view text);

  static constexpr Millis kQuiet{60'000};
  static constexpr std::size_t kTextsMax = 256;
  static constexpr std::size_t kTextBytesMax = 2'000;

 private:
  struct Said {
    Millis at{0};
    int held_back = 0;
  };

  Note sink_;
  Monotonic monotonic_;
  std::mutex mutex_;
  std::map<std::string, Said> said_;
  int left_out_ = 0;
};

}  // namespace muster
