#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "engine/local/sandbox.h"

namespace muster::engine::local {

namespace {

// What a command that runs as root keeps: changing owners and users of files and processes that are its own
// business. Not among them: mounts (it could uncover the data directory), tracing (the runner holds its
// credential), modules, raw devices, the clock.
constexpr unsigned kKept[] = {CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_FOWNER,           CAP_FSETID,  CAP_KILL,
                              CAP_SETGID, CAP_SETUID,       CAP_NET_BIND_SERVICE, CAP_SYS_NICE};

bool is_kept(unsigned capability) noexcept {
  for (const auto kept : kKept) {
    if (kept == capability) return true;
  }
  return false;
}

// Shrinks the bounding set: exec() of a root process then grants no more than what is kept.
int drop_capabilities() noexcept {
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  for (unsigned capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    if (is_kept(capability)) continue;
    // EPERM: without CAP_SETPCAP nothing can be dropped, and a process without it that is not root gains
    // nothing by exec either.
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && ::geteuid() == 0) return errno;
  }
  return 0;
}

void be_killed_first() noexcept {
  const int fd = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (::write(fd, "500", 3) != 3) {
    // A preference, not a promise.
  }
  ::close(fd);
}

}  // namespace

int become_job(const JobUser& user) noexcept {
  be_killed_first();
  if (const int refused = drop_capabilities(); refused != 0) return refused;
  if (user.change) {
    // Raw calls: the C library's would try to take the other threads along, which this child does not have.
    if (::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) != 0) return errno;
    if (::syscall(SYS_setresgid, user.gid, user.gid, user.gid) != 0) return errno;
    if (::syscall(SYS_setresuid, user.uid, user.uid, user.uid) != 0) return errno;
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  return ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0 ? 0 : errno;
}

Result<void> give_to_job(const JobUser& user, const std::string& path) {
  if (!user.change) return {};
  const auto give = [&](const std::string& what) -> Result<void> {
    if (::lchown(what.c_str(), user.uid, user.gid) == 0) return {};
    return fail_errno("cannot give " + what + " to user " + user.name);
  };
  MUSTER_CHECK(give(path));
  std::error_code error;
  namespace fs = std::filesystem;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    MUSTER_CHECK(give(it->path().native()));
  }
  if (error) return fail(ErrorCode::io, "cannot walk through " + path + ": " + error.message());
  return {};
}

}  // namespace muster::engine::local
