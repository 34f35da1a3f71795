// What is said at the start about whom jobs run as, in each combination of rights and findings.
#include "engine/local/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/text.h"

namespace muster::engine::local {
namespace {

TEST(LoopbackNetwork, IsTheDirectorysOwnAndStays) {
  const auto network = loopback_network("/srv/muster");
  EXPECT_EQ(network, loopback_network("/srv/muster"));
  EXPECT_NE(network, loopback_network("/srv/muster2"));
  std::set<std::string> networks;
  for (int i = 0; i < 100; ++i) networks.insert(loopback_network("/home/user" + std::to_string(i)));
  EXPECT_GT(networks.size(), 95U);
  for (const auto& each : networks) {
    const auto second = parse_int(split(each, '.')[1]).value_or(0);
    EXPECT_TRUE(each.starts_with("127.") && each.ends_with(".") && second >= 64) << each;
  }
}

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

UserChoice nobody() {
  return {
      .user =
          {.change = true, .uid = 65534, .gid = 65534, .groups = {}, .name = "nobody", .home = "/opt/home"},
      .in_force = "jobs run as nobody",
      .missing = {}};
}

UserChoice ourselves() {
  UserChoice choice;
  choice.user.name = "ada";
  choice.in_force = "jobs run as ada";
  return choice;
}

std::string words_of(const Machine& machine) {
  const auto text = join(machine.inventory.in_words, "\n");
  for (const auto* jargon : {"namespace", "cgroup", "capabilities", "mount"})
    EXPECT_THAT(text, Not(HasSubstr(jargon)));
  return text;
}

NodeReport made() { return {.in_force = {"mount namespace", "data directory covered"}}; }

TEST(Judge, RootWhoseJobsRunAsNobody) {
  const auto machine = judge({.root = true, .choice = nobody(), .report = made()});
  EXPECT_TRUE(machine.isolated);
  EXPECT_TRUE(machine.user.change);
  EXPECT_THAT(machine.inventory.isolation, Contains("jobs run as nobody"));
  EXPECT_THAT(machine.inventory.isolation, Contains("data directory covered"));
  EXPECT_THAT(machine.inventory.not_isolated, Not(Contains(HasSubstr("user"))));
  EXPECT_THAT(machine.inventory.not_isolated, Not(Contains(HasSubstr("files:"))));
  EXPECT_THAT(words_of(machine), HasSubstr("run as the user nobody: your files are as safe"));
  EXPECT_THAT(words_of(machine), HasSubstr("its own processes, host name and /opt/ml"));
}

TEST(Judge, ProgramsBelowAClosedFolderAreSaid) {
  auto report = made();
  report.reach = {"/root/muster/bin"};
  const auto machine = judge({.root = true, .choice = nobody(), .report = report});
  EXPECT_THAT(machine.reach, Contains("/root/muster/bin"));
  EXPECT_THAT(machine.inventory.isolation, Contains(HasSubstr("jobs see only /root/muster/bin")));
}

TEST(Judge, RootWhoseUserCannotStartThePrograms) {
  auto report = made();
  report.reach = {"/root/muster/bin"};
  report.not_startable = "/root/muster/bin/muster-train: it cannot be executed by nobody";
  auto machine = judge({.root = true, .choice = nobody(), .report = report});
  EXPECT_FALSE(machine.user.change);
  EXPECT_TRUE(machine.reach.empty());
  EXPECT_THAT(machine.inventory.isolation, Contains("jobs run as root with few capabilities"));
  EXPECT_THAT(machine.inventory.isolation, Not(Contains(HasSubstr("nobody"))));
  EXPECT_THAT(machine.inventory.not_isolated,
              Contains(HasSubstr("user nobody cannot start /root/muster/bin/muster-train")));
  EXPECT_THAT(words_of(machine), HasSubstr("run as root: they can change the files of this machine"));
  // The operator named the user: it stays, and what does not work is said.
  machine = judge({.root = true, .user_named = true, .choice = nobody(), .report = report});
  EXPECT_TRUE(machine.user.change);
  EXPECT_THAT(machine.inventory.isolation, Contains("jobs run as nobody"));
  EXPECT_THAT(machine.inventory.not_isolated, Contains(HasSubstr("built-in programs for jobs: user nobody")));
}

TEST(Judge, RootWithoutNamespaces) {
  auto report = made();
  report.error = "unshare: refused";
  report.remedy = "sysctl x";
  for (const bool named : {false, true}) {
    const auto machine = judge({.root = true, .user_named = named, .choice = nobody(), .report = report});
    EXPECT_FALSE(machine.isolated);
    EXPECT_FALSE(machine.user.change) << "its folders are below the data directory, which is closed";
    EXPECT_EQ(machine.remedy, "sysctl x");
    EXPECT_THAT(machine.inventory.isolation, testing::ElementsAre("jobs run as root with few capabilities"));
    EXPECT_EQ(machine.inventory.not_isolated[0],
              "namespaces: unshare: refused; only muster/train and muster/data run");
    EXPECT_THAT(machine.inventory.not_isolated, Contains(HasSubstr("jobs run as root and can change")));
    EXPECT_THAT(words_of(machine), HasSubstr("only muster/train and muster/data run"));
  }
  // A reason that holds with namespaces, too, is kept.
  const auto machine = judge({.root = true, .choice = as_root("[local] user is 'root'"), .report = report});
  EXPECT_THAT(machine.inventory.not_isolated, Contains(HasSubstr("[local] user is 'root'")));
}

TEST(Judge, NormalUserWithAndWithoutNamespaces) {
  for (const bool namespaces : {true, false}) {
    const auto machine = judge({.namespaces = namespaces, .choice = ourselves(), .report = made()});
    EXPECT_EQ(machine.isolated, namespaces);
    EXPECT_THAT(machine.inventory.isolation, Contains("jobs run as ada"));
    EXPECT_EQ(machine.inventory.isolation.size(), namespaces ? 3U : 1U)
        << "nothing of a node that is not made";
    EXPECT_THAT(machine.inventory.not_isolated, Not(Contains(HasSubstr("unprivileged user"))));
    EXPECT_THAT(
        machine.inventory.not_isolated,
        Contains(std::string("files: jobs run as ada, who started the service, and read and write what "
                             "ada may") +
                 (namespaces ? ", but for this data directory" : "") +
                 "; a service started as root runs them as another user"));
    EXPECT_THAT(machine.inventory.not_isolated, Contains(HasSubstr("/tmp: jobs share the machine's")));
    EXPECT_THAT(words_of(machine),
                HasSubstr("run as ada, who started the service: they can change all files"));
  }
}

TEST(Judge, LimitsThatANodeCannotEnterAreNotInForce) {
  auto report = made();
  auto machine = judge({.choice = ourselves(), .report = report, .limits = {"memory limit"}});
  EXPECT_THAT(machine.inventory.isolation, Contains("memory limit"));
  EXPECT_THAT(words_of(machine), HasSubstr("at most its share of this machine's memory"));
  report.missing = {std::string(kLimitsMissing) + "permission denied"};
  machine =
      judge({.choice = ourselves(), .report = report, .limits = {"memory limit"}, .no_limits = {"cpu"}});
  EXPECT_THAT(machine.inventory.isolation, Not(Contains("memory limit")));
  EXPECT_THAT(machine.inventory.not_isolated, Contains(report.missing[0]));
  EXPECT_THAT(machine.inventory.not_isolated, Contains("cpu"));
  EXPECT_THAT(words_of(machine), HasSubstr("A job may use up this machine's memory"));
}

}  // namespace
}  // namespace muster::engine::local
