#include "runner/report/reporter.h"

#include <fcntl.h>

#include "base/file.h"
#include "base/text.h"

namespace muster::runner {
namespace {

Result<void> append_line(const std::string& path, const std::string& line) {
  MUSTER_TRY(auto file, open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0600));
  return write_all(file.get(), line + "\n");
}

}  // namespace

Reporter::Reporter(std::string file, ControlLink& link, Patience& patience, Lost lost)
    : file_(std::move(file)),
      link_(link),
      patience_(patience),
      lost_(std::move(lost)),
      thread_([this](std::stop_token stop) { run(stop); }) {}

void Reporter::send(domain::RankReport report) {
  // A full disk must not keep the report from the control plane: only a drain would miss it.
  [[maybe_unused]] const auto kept = append_line(file_, wire::encode(report));
  const std::lock_guard lock(mutex_);
  reports_.push_back(std::move(report));
  changed_.notify_all();
}

void Reporter::when_delivered(std::function<void()> delivered) {
  const std::lock_guard lock(mutex_);
  delivered_ = std::move(delivered);
  changed_.notify_all();
}

Result<void> Reporter::send_next(std::stop_token stop, const domain::RankReport& report) {
  MUSTER_TRY(const auto answer,
             patience_.repeat<domain::ReportAnswer>(stop, [&] { return link_.report(report); }));
  switch (answer) {
    case domain::ReportAnswer::applied:
    case domain::ReportAnswer::duplicate:
      return {};
    case domain::ReportAnswer::stale:
      return fail(ErrorCode::cancelled, "the launch is over");
    case domain::ReportAnswer::gap:
      break;
  }
  return fail(ErrorCode::failed_precondition,
              "the control plane misses reports before number " + std::to_string(report.number));
}

void Reporter::run(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, stop, [&] { return next_ < reports_.size() || delivered_; });
    if (stop.stop_requested()) return;
    if (next_ == reports_.size()) {
      auto delivered = std::exchange(delivered_, nullptr);
      lock.unlock();
      delivered();
      lock.lock();
      continue;
    }
    const auto report = reports_[next_];
    lock.unlock();
    auto sent = send_next(stop, report);
    if (!sent) {
      if (!stop.stop_requested()) lost_(sent.error());
      return;
    }
    lock.lock();
    ++next_;
  }
}

Result<std::vector<domain::RankReport>> read_reports(const std::string& file) {
  std::vector<domain::RankReport> out;
  const auto text = read_file(file);
  if (!text) {
    if (text.error().code == ErrorCode::not_found) return out;
    return tl::unexpected(text.error());
  }
  auto lines = split(*text, '\n');
  lines.pop_back();  // what follows the last newline
  for (const auto line : lines) {
    auto report = wire::decode_report(line);
    if (!report) return fail(ErrorCode::corrupt, file + ": " + report.error().message);
    out.push_back(*std::move(report));
  }
  return out;
}

Poller::Poller(ControlLink& link, Patience& patience, Desire desire, Reporter::Lost lost)
    : link_(link),
      patience_(patience),
      desire_(std::move(desire)),
      lost_(std::move(lost)),
      thread_([this](std::stop_token stop) { run(stop); }) {}

void Poller::run(std::stop_token stop) {
  std::uint64_t after = 0;
  while (!stop.stop_requested()) {
    const auto asked = boot_time();
    auto desired = patience_.repeat<domain::Desired>(stop, [&] { return link_.desired(after); });
    if (!desired) {
      if (!stop.stop_requested()) lost_(desired.error());
      return;
    }
    if (desired->version == after && boot_time() - asked < Millis{200}) {
      patience_.pause(stop, Millis{200});  // no long poll on the other side: do not spin
    }
    after = desired->version;
    desire_(*desired);
  }
}

}  // namespace muster::runner
