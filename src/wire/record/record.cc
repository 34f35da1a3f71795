#include "wire/record/record.h"

#include <utility>

#include "base/crypto.h"
#include "base/json.h"
#include "base/text.h"
#include "wire/runner/fields.h"
#include "wire/runner/messages.h"

namespace muster::wire {
namespace {

constexpr std::int64_t kIntMax = INT32_MAX;

template <typename T>
json::Value or_null(const std::optional<T>& value) {
  return value ? json::Value(*value) : json::Value(nullptr);
}
json::Value or_null(const std::optional<Time>& value) {
  return value ? json::Value(value->unix_ms) : json::Value(nullptr);
}

// What programs say is bytes; JSON text is not.
std::string text(const std::string& bytes) { return to_utf8_lossy(bytes); }

struct Encode {
  json::Object operator()(const domain::Counters& counters) const {
    return {{"next_job", counters.next_job},
            {"next_attempt", counters.next_attempt},
            {"next_outbox", counters.next_outbox},
            {"last_time", counters.last_time.unix_ms}};
  }

  json::Object operator()(const domain::Job& job) const {
    json::Object out{{"id", job.id.value},
                     {"kind", to_string(job.kind)},
                     {"name", job.name},
                     {"nodes", job.nodes},
                     {"max_runtime_ms", job.max_runtime.count()},
                     {"grace_ms", job.grace.count()},
                     {"retries", job.retries},
                     {"created", job.created.unix_ms},
                     {"modified", job.modified.unix_ms},
                     {"started", or_null(job.started)},
                     {"ended", or_null(job.ended)},
                     {"phase", to_string(job.phase)},
                     {"attempt", job.attempt.value},
                     {"attempts", job.attempts},
                     {"ran_ms", job.ran.count()}};
    if (job.stop) {
      out["stop"] = json::Object{{"cause", to_string(job.stop->cause)},
                                 {"requested", job.stop->requested.unix_ms},
                                 {"grace_ms", job.stop->grace.count()},
                                 {"reason", text(job.stop->reason)},
                                 {"exit_code", or_null(job.stop->exit_code)}};
    }
    if (job.end) {
      out["end"] = json::Object{{"outcome", to_string(job.end->outcome)},
                                {"cause", to_string(job.end->cause)},
                                {"reason", text(job.end->reason)},
                                {"exit_code", or_null(job.end->exit_code)},
                                {"exit_message", text(job.end->exit_message)}};
    }
    json::Array history;
    for (const auto& entry : job.history) {
      history.push_back(json::Object{{"at", entry.at.unix_ms},
                                     {"phase", to_string(entry.phase)},
                                     {"stopping", entry.stopping},
                                     {"attempt", entry.attempt},
                                     {"message", text(entry.message)}});
    }
    out["history"] = std::move(history);
    return out;
  }

  json::Object operator()(const domain::Attempt& attempt) const {
    json::Array ranks;
    for (const auto& rank : attempt.ranks) {
      json::Object entry{{"node", rank.node},
                         {"incarnation", rank.incarnation},
                         {"phase", to_string(rank.phase)},
                         {"reports", rank.reports}};
      if (rank.exit) {
        entry["exit"] = json::Object{{"exit_code", or_null(rank.exit->exit_code)},
                                     {"signal", rank.exit->signal},
                                     {"cause", to_string(rank.exit->cause)},
                                     {"reason", text(rank.exit->reason)},
                                     {"message", text(rank.exit->message)}};
      }
      ranks.push_back(std::move(entry));
    }
    return {{"id", attempt.id.value},
            {"job", attempt.job.value},
            {"number", attempt.number},
            {"created", attempt.created.unix_ms},
            {"started", or_null(attempt.started)},
            {"ran_ms", attempt.ran.count()},
            {"ranks", std::move(ranks)}};
  }

  json::Object operator()(const domain::JobRequest& request) const {
    return {{"job", request.job.value}, {"request", request.request}, {"workload", encode(request.workload)}};
  }

  json::Object operator()(const domain::Outbox& outbox) const {
    return {{"sequence", outbox.sequence}, {"kind", outbox.kind}, {"body", outbox.body}};
  }

  json::Object operator()(const domain::AccessKey& key) const {
    return {{"id", key.id},
            {"sealed_secret", crypto::base64(key.sealed_secret)},
            {"user", key.user},
            {"created", key.created.unix_ms}};
  }
};

std::optional<Time> maybe_time(Fields& in, std::string_view name) {
  const auto value = in.maybe_integer(name, INT64_MIN, INT64_MAX);
  return value ? std::optional<Time>(Time{*value}) : std::nullopt;
}

std::optional<int> maybe_int(Fields& in, std::string_view name) {
  const auto value = in.maybe_integer(name, 0, kIntMax);
  return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
}

int small(Fields& in, std::string_view name, std::int64_t min) {
  return static_cast<int>(in.integer(name, min, kIntMax));
}

domain::Counters decode_counters(Fields& in) {
  return {.next_job = in.count("next_job"),
          .next_attempt = in.count("next_attempt"),
          .next_outbox = in.count("next_outbox"),
          .last_time = in.time("last_time")};
}

domain::Job decode_job(Fields& in) {
  domain::Job job;
  job.id = {in.count("id")};
  job.kind = in.word("kind", domain::parse_job_kind);
  job.name = in.text("name");
  job.nodes = small(in, "nodes", 1);
  job.max_runtime = in.millis("max_runtime_ms");
  job.grace = in.millis("grace_ms");
  job.retries = small(in, "retries", 0);
  job.created = in.time("created");
  job.modified = in.time("modified");
  job.started = maybe_time(in, "started");
  job.ended = maybe_time(in, "ended");
  job.phase = in.word("phase", domain::parse_phase);
  job.attempt = {in.count("attempt")};
  job.attempts = small(in, "attempts", 0);
  job.ran = in.millis("ran_ms");
  in.maybe_object("stop", [&](Fields& inner) {
    auto& stop = job.stop.emplace();
    stop.cause = inner.word("cause", domain::parse_cause);
    stop.requested = inner.time("requested");
    stop.grace = inner.millis("grace_ms");
    stop.reason = inner.text("reason");
    stop.exit_code = maybe_int(inner, "exit_code");
  });
  in.maybe_object("end", [&](Fields& inner) {
    auto& end = job.end.emplace();
    end.outcome = inner.word("outcome", domain::parse_outcome);
    end.cause = inner.word("cause", domain::parse_cause);
    end.reason = inner.text("reason");
    end.exit_code = maybe_int(inner, "exit_code");
    end.exit_message = inner.text("exit_message");
  });
  in.objects("history", [&](Fields& inner) {
    job.history.push_back({inner.time("at"), inner.word("phase", domain::parse_phase),
                           inner.boolean("stopping"), small(inner, "attempt", 1), inner.text("message")});
  });
  if (job.phase == domain::Phase::ended && !job.end) in.wrong("end", "is missing though the phase is ended");
  return job;
}

domain::Attempt decode_attempt(Fields& in) {
  domain::Attempt attempt;
  attempt.id = {in.count("id")};
  attempt.job = {in.count("job")};
  attempt.number = small(in, "number", 1);
  attempt.created = in.time("created");
  attempt.started = maybe_time(in, "started");
  attempt.ran = Millis{in.maybe_integer("ran_ms", 0, INT64_MAX).value_or(0)};
  in.objects("ranks", [&](Fields& inner) {
    auto& rank = attempt.ranks.emplace_back();
    rank.node = inner.text("node");
    rank.incarnation = small(inner, "incarnation", 1);
    rank.phase = inner.word("phase", domain::parse_rank_phase);
    rank.reports = inner.count("reports");
    inner.maybe_object("exit", [&](Fields& fields) {
      auto& exit = rank.exit.emplace();
      exit.exit_code = maybe_int(fields, "exit_code");
      exit.signal = small(fields, "signal", 0);
      exit.cause = fields.word("cause", domain::parse_cause);
      exit.reason = fields.text("reason");
      exit.message = fields.text("message");
    });
  });
  if (attempt.ranks.empty()) in.wrong("ranks", "is empty");
  return attempt;
}

domain::JobRequest decode_request(Fields& in) {
  domain::JobRequest request;
  request.job = {in.count("job")};
  request.request = in.text("request");
  auto workload = decode_workload(in.text("workload"));
  if (workload) {
    request.workload = *std::move(workload);
  } else {
    in.wrong("workload", "cannot be read: " + workload.error().message);
  }
  return request;
}

domain::AccessKey decode_access_key(Fields& in) {
  domain::AccessKey key;
  key.id = in.text("id");
  const auto sealed = crypto::base64_decode(in.text("sealed_secret"));
  if (!sealed) in.wrong("sealed_secret", "is not base64");
  key.sealed_secret = sealed.value_or("");
  key.user = in.text("user");
  key.created = in.time("created");
  return key;
}

domain::Record decode_body(domain::RecordKind kind, Fields& in) {
  switch (kind) {
    case domain::RecordKind::counters:
      return decode_counters(in);
    case domain::RecordKind::job:
      return decode_job(in);
    case domain::RecordKind::attempt:
      return decode_attempt(in);
    case domain::RecordKind::request:
      return decode_request(in);
    case domain::RecordKind::outbox:
      return domain::Outbox{
          .sequence = in.count("sequence"), .kind = in.text("kind"), .body = in.text("body")};
    case domain::RecordKind::access_key:
      return decode_access_key(in);
  }
  in.wrong("kind", "is unknown: " + std::to_string(static_cast<int>(kind)));
  return domain::Counters{};
}

}  // namespace

std::string encode_record(const domain::Record& record) {
  return json::dump(std::visit([](const auto& value) { return Encode{}(value); }, record));
}

Result<domain::Record> decode_record(domain::RecordKind kind, int version, std::string_view body) {
  const auto what = "record of kind " + std::to_string(static_cast<int>(kind));
  if (version != kRecordVersion) {
    return fail(ErrorCode::unsupported, what + " has version " + std::to_string(version) +
                                            ", this program reads " + std::to_string(kRecordVersion) +
                                            ": use the newer muster that wrote it");
  }
  auto object = json::parse_object(body);
  if (!object) return fail(ErrorCode::corrupt, what + ": " + object.error().message);
  Fields in(*object);
  auto record = decode_body(kind, in);
  if (in.error()) return fail(ErrorCode::corrupt, what + ": " + in.error()->message);
  return record;
}

}  // namespace muster::wire
