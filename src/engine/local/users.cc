#include "engine/local/users.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

namespace muster::engine::local {

namespace {

constexpr const char* kNodeHome = "/opt/home";

struct Account {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home;
};

template <typename Lookup>
std::optional<Account> look_up(const Lookup& lookup) {
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (lookup(&entry, buffer, &found) != 0 || found == nullptr) return std::nullopt;
  return Account{found->pw_name, found->pw_uid, found->pw_gid, found->pw_dir};
}

std::optional<Account> account(const std::string& name) {
  return look_up([&](passwd* entry, std::vector<char>& buffer, passwd** found) {
    return ::getpwnam_r(name.c_str(), entry, buffer.data(), buffer.size(), found);
  });
}

std::optional<Account> account(uid_t uid) {
  return look_up([&](passwd* entry, std::vector<char>& buffer, passwd** found) {
    return ::getpwuid_r(uid, entry, buffer.data(), buffer.size(), found);
  });
}

std::vector<gid_t> groups_of(const Account& account) {
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  if (::getgrouplist(account.name.c_str(), account.gid, groups.data(), &count) < 0) {
    groups.resize(static_cast<std::size_t>(count));
    ::getgrouplist(account.name.c_str(), account.gid, groups.data(), &count);
  }
  groups.resize(static_cast<std::size_t>(count));
  return groups;
}

JobUser job_user(const Account& account) {
  return {.change = true,
          .uid = account.uid,
          .gid = account.gid,
          .groups = groups_of(account),
          .name = account.name,
          .home = kNodeHome};
}

UserChoice as_ourselves(const Account& self) {
  const char* home = std::getenv("HOME");
  UserChoice choice;
  choice.user.uid = self.uid;
  choice.user.gid = self.gid;
  choice.user.name = self.name;
  choice.user.home = home != nullptr && *home == '/' ? home : self.home;
  choice.in_force = "jobs run as " + self.name;
  return choice;
}

}  // namespace

UserChoice as_root(const std::string& why) {
  UserChoice choice;
  choice.user.name = "root";
  choice.user.home = kNodeHome;
  choice.in_force = "jobs run as root with few capabilities";
  choice.missing =
      "an unprivileged user for jobs: " + why + "; jobs run as root and can change the machine's files";
  return choice;
}

Result<UserChoice> choose_user(const std::string& wanted) {
  if (::geteuid() != 0) {
    const auto self =
        account(::geteuid()).value_or(Account{std::to_string(::geteuid()), ::geteuid(), ::getegid(), "/"});
    if (!wanted.empty() && wanted != self.name) {
      return fail(ErrorCode::permission_denied, "[local] user is '" + wanted +
                                                    "', but only root may run jobs as " +
                                                    "somebody else and musterd runs as " + self.name +
                                                    ": leave it out, or start musterd as root");
    }
    return as_ourselves(self);
  }
  if (wanted == "root") return as_root("[local] user is 'root'");
  if (!wanted.empty()) {
    const auto found = account(wanted);
    if (!found) {
      return fail(ErrorCode::not_found, "[local] user is '" + wanted +
                                            "', and there is no such user: useradd --system " + wanted +
                                            ", or name another one");
    }
    return UserChoice{.user = job_user(*found), .in_force = "jobs run as " + wanted, .missing = {}};
  }
  auto found = account("muster");
  if (!found) found = account("nobody");
  if (!found) return as_root("there is neither a user 'muster' nor 'nobody'");
  return UserChoice{.user = job_user(*found), .in_force = "jobs run as " + found->name, .missing = {}};
}

}  // namespace muster::engine::local
