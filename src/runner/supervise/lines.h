// Lines out of the bytes that a command prints, and the last few of them. Pure; one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace muster::runner {

inline constexpr std::size_t kLineBytesMax = 256 << 10;

// Cuts a stream of any bytes at newlines, and lines of more than kLineBytesMax into pieces of that size. The
// last line needs no newline; an empty stream has no line.
class LineSplitter {
 public:
  // Calls line(std::string_view) for each line that is complete now.
  template <typename Line>
  void feed(std::string_view bytes, Line&& line) {
    while (!bytes.empty()) {
      const auto newline = bytes.find('\n');
      auto piece = bytes.substr(0, newline);
      bytes.remove_prefix(newline == std::string_view::npos ? bytes.size() : newline + 1);
      while (partial_.size() + piece.size() > kLineBytesMax) {
        const auto room = kLineBytesMax - partial_.size();
        partial_.append(piece.substr(0, room));
        piece.remove_prefix(room);
        line(std::string_view(partial_));
        partial_.clear();
      }
      if (newline == std::string_view::npos) {
        partial_.append(piece);
      } else if (partial_.empty()) {
        line(piece);
      } else {
        partial_.append(piece);
        line(std::string_view(partial_));
        partial_.clear();
      }
    }
  }
  template <typename Line>
  void finish(Line&& line) {
    if (!partial_.empty()) line(std::string_view(partial_));
    partial_.clear();
  }

 private:
  std::string partial_;
};

// The last `lines` lines, each cut to its first kTailLineBytes bytes. Blank lines are left out.
class Tail {
 public:
  explicit Tail(std::size_t lines = 20) : lines_(lines) {}
  void add(std::string_view line);
  bool empty() const { return kept_.empty(); }
  std::string text() const;  // joined by newlines

 private:
  std::size_t lines_;
  std::deque<std::string> kept_;
};

}  // namespace muster::runner
