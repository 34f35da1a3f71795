#include "runner/supervise/pump.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/assert.h"

namespace muster::runner {
namespace {
constexpr std::size_t kReadBytes = 64 << 10;
}  // namespace

OutputPump::OutputPump(Command& command, Line line, std::function<void()> pause)
    : out_(std::move(command.out)),
      err_(std::move(command.err)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      line_(std::move(line)),
      pause_(std::move(pause)),
      thread_([this] { run(); }) {
  MUSTER_ASSERT(stop_);
}

OutputPump::~OutputPump() { finish(Millis{0}); }

void OutputPump::finish(Millis wait) {
  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, wait, [this] { return end_; })) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto count = ::write(stop_.get(), &one, sizeof one);
    ended_.wait(lock, [this] { return end_; });
  }
}

// false: nothing more to read now, or ended (then the stream is closed).
bool OutputPump::read(UniqueFd& stream, LineSplitter& splitter, bool error) {
  if (!stream) return false;
  char buffer[kReadBytes];
  const auto count = ::read(stream.get(), buffer, sizeof buffer);
  if (count < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN) stream.reset();
    return false;
  }
  if (count == 0) {
    stream.reset();
    return false;
  }
  splitter.feed(std::string_view(buffer, static_cast<std::size_t>(count)), [&](std::string_view line) {
    (error ? errors_ : all_).add(line);
    line_(line);
  });
  return static_cast<std::size_t>(count) == sizeof buffer;
}

void OutputPump::run() {
  while (out_ || err_) {
    std::array<pollfd, 3> wait{{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (::poll(wait.data(), wait.size(), -1) < 0 && errno != EINTR) break;
    // One after the other, so that neither stream can hold back the other.
    const bool more_out = wait[0].revents != 0 && read(out_, out_lines_, false);
    const bool more_err = wait[1].revents != 0 && read(err_, err_lines_, true);
    if (!more_out && !more_err) pause_();
    if (wait[2].revents != 0 && !more_out && !more_err) break;
  }
  const auto last = [&](Tail& tail) {
    return [&](std::string_view line) {
      tail.add(line);
      line_(line);
    };
  };
  out_lines_.finish(last(all_));
  err_lines_.finish(last(errors_));
  pause_();
  const std::lock_guard lock(mutex_);
  end_ = true;
  ended_.notify_all();
}

}  // namespace muster::runner
