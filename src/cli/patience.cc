#include "cli/patience.h"

#include <iostream>
#include <thread>

namespace muster::cli {

bool Away::wait(const Error& error) {
  if (error.code != ErrorCode::unavailable) return false;
  const auto now = boot_time();
  const bool first = !since_;
  if (first) since_ = now;
  if (now - *since_ >= patience_.longest) return false;
  if (first) {
    std::cerr << "muster: " << error.message << "\nmuster: waiting at most "
              << format_duration(patience_.longest) << " for the service to come back" << std::endl;
  }
  std::this_thread::sleep_for(patience_.pause);
  return true;
}

void Away::over() const {
  if (since_) std::cerr << "muster: the service is back" << std::endl;
}

}  // namespace muster::cli
