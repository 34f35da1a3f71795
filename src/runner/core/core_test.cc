// Plays scenarios.txt, and tries the wording of exit reasons.
#include "runner/core/core.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>

#include "base/file.h"
#include "base/text.h"

namespace muster::runner::core {
namespace {

// key=value or key="value" or a bare "value" (key empty); a quoted value ends at a quote before a blank or
// the end, so that it may hold quotes.
struct Words {
  std::vector<std::string> bare;
  std::map<std::string, std::string> named;
  std::string quoted;
};

Words parse_words(std::string_view line) {
  Words out;
  while (!line.empty()) {
    if (line.front() == ' ') {
      line.remove_prefix(1);
      continue;
    }
    std::string key;
    const auto stop = line.find_first_of(" =\"");
    if (stop != std::string_view::npos && line[stop] == '=') {
      key = std::string(line.substr(0, stop));
      line.remove_prefix(stop + 1);
    }
    std::string value;
    bool quote = false;
    if (!line.empty() && line.front() == '"') {
      quote = true;
      auto end = line.find('"', 1);
      while (end != std::string_view::npos && end + 1 < line.size() && line[end + 1] != ' ')
        end = line.find('"', end + 1);
      // A quoted text may hold `"x" y`: without a key it reaches to the last quote of the line.
      if (key.empty()) end = line.rfind('"');
      value = std::string(line.substr(1, end - 1));
      line.remove_prefix(end + 1);
    } else {
      const auto end = line.find(' ');
      value = std::string(line.substr(0, end));
      line.remove_prefix(std::min(value.size(), line.size()));
    }
    if (!key.empty()) {
      out.named[key] = value;
    } else if (quote) {
      out.quoted = value;
    } else {
      out.bare.push_back(value);
    }
  }
  return out;
}

std::optional<Failure> failure_of(const Words& words) {
  const auto found = words.named.find("failure");
  if (found == words.named.end()) return std::nullopt;
  return Failure{domain::parse_cause(found->second).value(), words.quoted};
}

Input parse_desire(const Words& words) {
  input::Desire desire;
  desire.desired.target = domain::parse_target(words.bare.at(1)).value();
  desire.desired.version = static_cast<std::uint64_t>(parse_int(words.bare.at(2).substr(1)).value());
  if (words.named.count("stop") != 0) {
    desire.desired.stop = true;
    desire.desired.stop_cause = domain::parse_cause(words.named.at("stop")).value();
    desire.desired.grace = Millis{parse_int(words.named.at("grace")).value()};
  }
  return desire;
}

Input parse_exited(const Words& words) {
  input::Exited exited;
  const auto named = [&](const char* key) {
    const auto found = words.named.find(key);
    return found == words.named.end() ? std::string() : found->second;
  };
  if (words.bare.size() > 1) exited.exit_code = static_cast<int>(parse_int(words.bare.at(1)).value());
  if (words.named.count("signal") != 0) exited.signal = static_cast<int>(parse_int(named("signal")).value());
  exited.failure_file = named("failure");
  exited.tail = named("tail");
  exited.message_file = named("message");
  return exited;
}

Input parse_input(std::string_view line) {
  const auto words = parse_words(line);
  const auto& verb = words.bare.at(0);
  if (verb == "begin") return input::Begin{};
  if (verb == "desire") return parse_desire(words);
  if (verb == "staged") return input::Staged{failure_of(words) ? "" : words.quoted, failure_of(words)};
  if (verb == "started") return input::Started{};
  if (verb == "not-started") return input::NotStarted{words.quoted};
  if (verb == "exited") return parse_exited(words);
  if (verb == "uploaded") return input::Uploaded{failure_of(words) ? "" : words.quoted, failure_of(words)};
  if (verb == "logs-delivered") return input::LogsDelivered{words.quoted};
  if (verb == "reports-delivered") return input::ReportsDelivered{};
  if (verb == "stale") return input::Stale{};
  if (verb == "gave-up") return input::GaveUp{words.quoted};
  if (verb == "terminate") return input::Terminate{};
  EXPECT_EQ(verb, "timer") << "unknown input: " << line;
  for (const auto timer : {Timer::preparing, Timer::kill, Timer::limit, Timer::leave}) {
    if (to_string(timer) == words.bare.at(1)) return input::TimerFired{timer};
  }
  ADD_FAILURE() << "unknown timer: " << line;
  return input::Begin{};
}

struct Print {
  std::string operator()(const action::Stage&) const { return "stage"; }
  std::string operator()(const action::CancelTransfers&) const { return "cancel-transfers"; }
  std::string operator()(const action::Start&) const { return "start"; }
  std::string operator()(const action::Signal& a) const {
    return std::string("signal SIG") + ::sigabbrev_np(a.number);
  }
  std::string operator()(const action::Upload&) const { return "upload"; }
  std::string operator()(const action::Log& a) const { return "log \"" + a.text + "\""; }
  std::string operator()(const action::DeliverLogs&) const { return "deliver-logs"; }
  std::string operator()(const action::DeliverReports&) const { return "deliver-reports"; }
  std::string operator()(const action::SetTimer& a) const {
    return "set " + std::string(to_string(a.timer)) + " " + std::to_string(a.after.count());
  }
  std::string operator()(const action::ClearTimer& a) const {
    return "clear " + std::string(to_string(a.timer));
  }
  std::string operator()(const action::Exit& a) const { return "exit " + std::to_string(a.code); }
  std::string operator()(const action::Report& a) const {
    const auto& r = a.report;
    auto out = "report " + std::to_string(r.number) + " " + std::string(domain::to_string(r.phase));
    if (!r.message.empty()) out += " \"" + r.message + "\"";
    if (!r.exit) return out;
    if (r.exit->exit_code) out += " code=" + std::to_string(*r.exit->exit_code);
    if (r.exit->signal != 0) out += " signal=" + std::to_string(r.exit->signal);
    out += " cause=" + std::string(domain::to_string(r.exit->cause));
    if (!r.exit->reason.empty()) out += " reason=\"" + r.exit->reason + "\"";
    if (!r.exit->message.empty()) out += " message=\"" + r.exit->message + "\"";
    return out;
  }
};

TEST(Core, scenarios) {
  const auto text = read_file(std::string(MUSTER_SOURCE_DIR) + "/src/runner/core/scenarios.txt");
  ASSERT_TRUE(text);
  std::optional<Core> core;
  std::vector<std::string> pending;  // actions not yet expected
  std::string title;
  int scenarios = 0;
  int number = 0;
  const auto nothing_left = [&] {
    for (const auto& action : pending) ADD_FAILURE() << title << ", before line " << number << ": " << action;
    pending.clear();
  };
  for (const auto line : split(*text, '\n')) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    if (line.substr(0, 3) == "== ") {
      nothing_left();
      title = std::string(line.substr(3));
      core.emplace(Config{
          .launch = {domain::AttemptId{1}, 0, 1}, .max_runtime = Millis{60'000}, .grace = Millis{3'000}});
      ++scenarios;
    } else if (line.front() == ' ') {
      ASSERT_FALSE(pending.empty()) << title << ", line " << number << ": missing: " << line;
      EXPECT_EQ(pending.front(), trim(line)) << title << ", line " << number;
      pending.erase(pending.begin());
    } else {
      nothing_left();
      for (const auto& action : core->handle(parse_input(line)))
        pending.push_back(std::visit(Print{}, action));
    }
  }
  nothing_left();
  EXPECT_GE(scenarios, 20);
}

TEST(Core, reasons_are_bounded_and_utf8) {
  input::Exited exited;
  exited.exit_code = 1;
  exited.failure_file = std::string(2000, 'x');
  EXPECT_EQ(exit_reason(exited).size(), 1024U);
  std::string wide;
  for (int i = 0; i < 2000; ++i) wide += "ü";
  exited.failure_file = wide;
  EXPECT_EQ(exit_reason(exited).size(), 2048U);  // 1,024 characters
  exited.failure_file = "\xff\xfe";
  EXPECT_EQ(exit_reason(exited), "\xEF\xBF\xBD\xEF\xBF\xBD");
  exited.failure_file = " \n";
  exited.tail = "first " + std::string(3000, 'y') + " last";
  const auto reason = exit_reason(exited);
  EXPECT_LE(reason.size(), 1024U);
  EXPECT_EQ(reason.substr(0, 13), "exit code 1: ");
  EXPECT_EQ(reason.substr(reason.size() - 5), " last");
  exited.exit_code.reset();
  exited.signal = SIGSEGV;
  exited.tail.clear();
  EXPECT_EQ(exit_reason(exited), "killed by signal 11 (SIGSEGV)");
  exited.exit_code = 0;
  EXPECT_EQ(exit_reason(exited), "");
}

}  // namespace
}  // namespace muster::runner::core
