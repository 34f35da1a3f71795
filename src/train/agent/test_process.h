// Programs that tests start and watch. One thread.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time.h"
#include "train/agent/process.h"

namespace muster::train {

// spawn(); a failure of the test if it cannot be started.
inline Child start_program(const std::vector<std::string>& argv,
                           const std::vector<std::pair<std::string, std::string>>& variables = {}) {
  auto child = spawn(argv, variables);
  if (child) return *std::move(child);
  ADD_FAILURE() << child.error().message;
  return {};
}

// Reads until `text` has come or the stream ends; no text: all of it.
inline std::string read_until(const UniqueFd& fd, std::string_view text) {
  std::string got;
  char byte = 0;
  while ((text.empty() || got.find(text) == std::string::npos) && read(fd.get(), &byte, 1) == 1) got += byte;
  return got;
}

struct Finished {
  int code = 0;  // exit code, or 128 + signal
  std::string out, err;
  Millis took{};  // from finish() on
};

// What it still writes, stdout first, and how it ends.
inline Finished finish(const Child& child) {
  const auto begin = boot_time();
  Finished finished;
  finished.out = read_until(child.out, "");
  finished.err = read_until(child.err, "");
  finished.code = wait_child(child).code;
  finished.took = boot_time() - begin;
  return finished;
}

}  // namespace muster::train
