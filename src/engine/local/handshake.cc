#include "engine/local/handshake.h"

#include <fcntl.h>

#include <cstdlib>

#include "base/json.h"
#include "engine/local/run_folder.h"

namespace muster::engine::local {

std::string encode(const NodeReport& report) {
  return json::dump(json::Object{{"error", report.error},
                                 {"remedy", report.remedy},
                                 {"in_force", json::from_string_list(report.in_force)},
                                 {"missing", json::from_string_list(report.missing)},
                                 {"reach", json::from_string_list(report.reach)},
                                 {"not_startable", report.not_startable}});
}

Result<NodeReport> decode_node_report(std::string_view text) {
  MUSTER_TRY(const auto object, json::parse_object(text));
  NodeReport report;
  MUSTER_TRY(report.error, json::get_string(object, "error"));
  MUSTER_TRY(report.remedy, json::get_string(object, "remedy"));
  MUSTER_TRY(report.not_startable, json::get_string(object, "not_startable"));
  const auto* in_force = json::opt_array(object, "in_force");
  const auto* missing = json::opt_array(object, "missing");
  const auto* reach = json::opt_array(object, "reach");
  if (in_force == nullptr || missing == nullptr || reach == nullptr)
    return fail(ErrorCode::corrupt, "a node report without its lists");
  report.in_force = json::string_list(*in_force);
  report.missing = json::string_list(*missing);
  report.reach = json::string_list(*reach);
  return report;
}

Handshake Handshake::from_environment() {
  Handshake handshake;
  if (std::getenv(kFdsVariable) == nullptr) return handshake;
  ::unsetenv(kFdsVariable);
  for (const int fd : {kLockFd, kReportFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  handshake.lock_ = UniqueFd(kLockFd);
  handshake.report_ = UniqueFd(kReportFd);
  return handshake;
}

Result<UniqueFd> Handshake::lock(const std::string& folder) {
  if (lock_) return std::move(lock_);
  return take_lock(folder);
}

void Handshake::send(const NodeReport& report) {
  if (!report_) return;
  // If nobody listens any more, musterd was restarted: it finds the runner by its lock.
  static_cast<void>(write_all(report_.get(), encode(report)));
  report_.reset();
}

}  // namespace muster::engine::local
