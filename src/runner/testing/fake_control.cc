#include "runner/testing/fake_control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "base/text.h"

namespace muster::runner::testing {
namespace {

using domain::RankPhase;
using domain::Target;

constexpr std::string_view kGroup = "jobs";

net::Response json_response(int status, std::string body) {
  net::Response response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

FakeControl::FakeControl(int world) : world_(world) { start(); }
FakeControl::~FakeControl() { stop(); }

void FakeControl::start() {
  net::ServerOptions options;
  options.port = port_;
  options.handler_threads = 4;
  auto server = net::Server::start(options, *this);
  ASSERT_TRUE(server) << server.error().message;
  server_ = *std::move(server);
  port_ = server_->port();
}

void FakeControl::stop() {
  if (server_) server_->stop(Millis{100});
  server_.reset();
  const std::lock_guard lock(mutex_);
  polls_.clear();
}

std::variant<net::Route, net::Response> FakeControl::route(const net::RequestHead& head) {
  const auto parts = split(head.path, '/');  // "", api, v1, runner, <launch>, <action>
  if (parts.size() != 6 || head.headers.get("Authorization") != "Bearer secret") {
    return json_response(401, "who are you");
  }
  const auto launch = domain::parse_launch_id(parts[4]);
  if (!launch) return json_response(401, "no launch");
  const int rank = launch->rank;
  const std::lock_guard lock(mutex_);
  if (stale_) return json_response(410, "over");
  net::Route route;
  if (parts[5] == "reports") {
    route.handle = [this, rank](net::Request& request) { return take_report(rank, request.body); };
  } else if (parts[5] == "logs") {
    route.body_max = 8 << 20;
    route.handle = [this, rank](net::Request& request) { return take_logs(rank, request.body); };
  } else if (parts[5] == "credentials") {
    route.handle = [this](net::Request&) {
      const std::lock_guard inner(mutex_);
      ++credentials_served;
      return json_response(
          200,
          R"({"AccessKeyId":"AK","SecretAccessKey":"SK","Token":"T","Expiration":"2099-01-01T00:00:00Z"})");
    };
  } else {
    const auto after = static_cast<std::uint64_t>(parse_int(head.query.substr(6)).value_or(0));
    route.handle_later = [this, rank, after](net::Request, net::Responder respond) {
      const std::lock_guard inner(mutex_);
      polls_.push_back({rank, after, std::move(respond)});
      changed();
    };
  }
  return route;
}

domain::Desired FakeControl::desired(int rank) {
  const auto all = [&](RankPhase phase, int from) {
    for (int other = from; other < world_; ++other) {
      if (ranks_[other].reports.empty() || ranks_[other].reports.back().phase < phase) return false;
    }
    return true;
  };
  domain::Desired out;
  if (all(RankPhase::uploaded, 0))
    out.target = Target::exit;
  else if (all(RankPhase::exited, 0) && (rank > 0 || all(RankPhase::uploaded, 1)))
    out.target = Target::upload;
  else if (all(RankPhase::ready, 0) && !hold_)
    out.target = Target::run;
  out.stop = stop_;
  out.stop_cause = stop_cause_;
  out.grace = grace_;
  // Being held is a word of its own, so that a test can see it heard.
  const bool held = hold_ && all(RankPhase::ready, 0);
  out.version = 1 + static_cast<std::uint64_t>(out.target) * 4 + (held ? 2 : 0) + (stop_ ? 1 : 0);
  return out;
}

void FakeControl::changed() {
  std::vector<Poll> rest;
  for (auto& poll : polls_) {
    if (stale_) {
      poll.respond(json_response(410, "over"));
      continue;
    }
    const auto want = desired(poll.rank);
    if (want.version == poll.after) {
      rest.push_back(std::move(poll));
      continue;
    }
    if (want.target == Target::run) run_sent_ns = now_ns();
    poll.respond(json_response(200, wire::encode(want)));
  }
  polls_ = std::move(rest);
  changed_.notify_all();
}

net::Response FakeControl::take_report(int rank, const std::string& body) {
  const auto report = wire::decode_report(body);
  if (!report) return json_response(400, report.error().message);
  const std::lock_guard lock(mutex_);
  auto& all = ranks_[rank].reports;
  if (report->number <= all.size()) return json_response(200, R"({"answer":"duplicate"})");
  if (report->number != all.size() + 1) return json_response(200, R"({"answer":"gap"})");
  all.push_back(*report);
  changed();
  return json_response(200, R"({"answer":"applied"})");
}

net::Response FakeControl::take_logs(int rank, const std::string& body) {
  const auto batch = wire::decode_log_batch(body);
  if (!batch) return json_response(400, batch.error().message);
  const std::lock_guard lock(mutex_);
  if (refuse_logs_) {
    ++refusals_;
    changed_.notify_all();
    return json_response(400, "no logs today");
  }
  std::vector<ports::LogLine> lines;
  for (const auto& line : batch->lines) {
    if (first_line_ns == 0 && line.text.substr(0, 7) != "muster:") first_line_ns = now_ns();
    lines.push_back({line.time, line.text});
  }
  const auto stream = domain::host_name(rank);
  EXPECT_TRUE(logs_->create(kGroup, stream, Time{1}));
  const auto before = logs_->append(kGroup, stream, std::nullopt, {}, Time{1});
  const auto next = logs_->append(kGroup, stream, batch->first_sequence, lines, Time{1});
  if (!before || !next) return json_response(500, "the log store is broken");
  if (*next > *before && !lines.empty()) {  // not one of the past, sent again
    auto& last = ranks_[rank].last_line;
    EXPECT_LE(last, lines.back().time);
    last = lines.back().time;
  }
  changed_.notify_all();
  return json_response(200, "{\"next_sequence\":" + std::to_string(*next) + "}");
}

bool FakeControl::wait_until_heard(int rank) {
  return wait([&] {
    const auto version = desired(rank).version;
    return std::any_of(polls_.begin(), polls_.end(),
                       [&](const Poll& poll) { return poll.rank == rank && poll.after == version; });
  });
}

std::vector<domain::RankReport> FakeControl::reports(int rank) {
  const std::lock_guard lock(mutex_);
  return ranks_[rank].reports;
}

std::vector<wire::Line> FakeControl::lines(int rank) {
  const std::lock_guard lock(mutex_);
  return lines_of(rank);
}

std::vector<wire::Line> FakeControl::lines_of(int rank) {
  std::vector<wire::Line> out;
  const auto page =
      logs_->read(kGroup, domain::host_name(rank), {.events_max = SIZE_MAX, .bytes_max = SIZE_MAX});
  if (!page) return out;
  for (const auto& event : page->events) out.push_back({event.time, event.text});
  return out;
}

std::string FakeControl::text(int rank) {
  std::string out;
  for (const auto& line : lines(rank)) out += line.text + "\n";
  return out;
}

std::string FakeControl::phases(int rank) {
  std::string out;
  for (const auto& report : reports(rank)) {
    if (report.phase == domain::RankPhase::preparing) continue;
    out += (out.empty() ? "" : " ") + std::string(to_string(report.phase));
  }
  return out;
}

domain::RankExit FakeControl::exit_of(int rank) {
  const auto all = reports(rank);
  return all.empty() || !all.back().exit ? domain::RankExit{} : *all.back().exit;
}

void FakeControl::request_stop(domain::Cause cause, Millis grace) {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  stop_cause_ = cause;
  grace_ = grace;
  changed();
}

void FakeControl::make_stale() {
  const std::lock_guard lock(mutex_);
  stale_ = true;
  changed();
}

void FakeControl::hold_barrier(bool hold) {
  const std::lock_guard lock(mutex_);
  hold_ = hold;
  changed();
}

void FakeControl::refuse_logs() {
  const std::lock_guard lock(mutex_);
  refuse_logs_ = true;
}

void FakeControl::lose_logs() {
  const std::lock_guard lock(mutex_);
  logs_ = telemetry::make_memory_log_store();
}

bool FakeControl::wait(const std::function<bool()>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(20), condition);
}

bool FakeControl::wait_for_phase(RankPhase phase, int rank) {
  return wait([&] { return !ranks_[rank].reports.empty() && ranks_[rank].reports.back().phase >= phase; });
}

bool FakeControl::wait_for_line(const std::string& text, int rank) {
  return wait([&] {
    for (const auto& line : lines_of(rank)) {
      if (line.text == text) return true;
    }
    return false;
  });
}

bool FakeControl::wait_for_refusals(int count) {
  return wait([&] { return refusals_ >= count; });
}

}  // namespace muster::runner::testing
