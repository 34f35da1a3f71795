// Moves what a command prints into lines with a time. One thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "runner/supervise/command.h"
#include "runner/supervise/lines.h"

namespace muster::runner {

class OutputPump {
 public:
  // `line` is called from the pump's thread for every line, `pause` when nothing more is ready now: after a
  // burst, and at the end. Both outlive the pump.
  using Line = std::function<void(std::string_view line)>;
  OutputPump(Command& command, Line line, std::function<void()> pause);
  ~OutputPump();

  // Returns when both streams have ended and every line was passed on, after `wait` in any case (a process
  // that could not be killed holds them open).
  void finish(Millis wait);

  // After finish(): the last lines of stderr, or of everything when stderr was silent.
  std::string tail() const { return (errors_.empty() ? all_ : errors_).text(); }

 private:
  void run();
  bool read(UniqueFd& stream, LineSplitter& splitter, bool error);

  UniqueFd out_;
  UniqueFd err_;
  UniqueFd stop_;  // eventfd
  Line line_;
  std::function<void()> pause_;
  LineSplitter out_lines_;
  LineSplitter err_lines_;
  Tail all_;
  Tail errors_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::jthread thread_;
};

}  // namespace muster::runner
