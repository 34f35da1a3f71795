// Codecs of reports, commands and log batches.
#include "wire/runner/messages.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/text.h"
#include "wire/runner/fields.h"

namespace muster::wire {
namespace {

constexpr std::size_t kLineBytesMax = 256 << 10;  // as telemetry keeps them
constexpr std::size_t kLinesMax = 10'000;

tl::unexpected<Error> bad_line(std::size_t index, std::string_view what) {
  return fail(ErrorCode::invalid_argument,
              "log batch: line " + std::to_string(index) + " " + std::string(what));
}

Result<Line> decode_line(const json::Value& value, std::size_t index) {
  constexpr std::string_view kForm = "must be [time ms, text] or [time ms, null, base64]";
  const auto* parts = value.if_array();
  if (parts == nullptr || parts->size() < 2 || !(*parts)[0].is_int64()) return bad_line(index, kForm);
  Line line;
  line.time.unix_ms = (*parts)[0].get_int64();
  if (parts->size() == 2 && (*parts)[1].is_string()) {
    line.text = std::string(json::view((*parts)[1].get_string()));
  } else if (parts->size() == 3 && (*parts)[1].is_null() && (*parts)[2].is_string()) {
    auto bytes = crypto::base64_decode(json::view((*parts)[2].get_string()));
    if (!bytes) return bad_line(index, "is not base64");
    line.text = *std::move(bytes);
  } else {
    return bad_line(index, kForm);
  }
  if (line.text.size() > kLineBytesMax) {
    return bad_line(index, "has " + std::to_string(line.text.size()) + " bytes, at most " +
                               std::to_string(kLineBytesMax) + " are allowed");
  }
  return line;
}

}  // namespace

std::string encode(const domain::RankReport& report) {
  json::Object out{{"launch", domain::to_string(report.launch)},
                   {"number", report.number},
                   {"phase", domain::to_string(report.phase)},
                   {"message", to_utf8_lossy(report.message)}};
  if (report.exit) {
    json::Object exit{{"signal", report.exit->signal},
                      {"cause", domain::to_string(report.exit->cause)},
                      {"reason", to_utf8_lossy(report.exit->reason)},
                      {"message", to_utf8_lossy(report.exit->message)}};
    if (report.exit->exit_code) exit["exit_code"] = *report.exit->exit_code;
    out["exit"] = std::move(exit);
  }
  return json::dump(out);
}

Result<domain::RankReport> decode_report(std::string_view text) {
  MUSTER_TRY(const auto object, json::parse_object(text));
  Fields in(object);
  domain::RankReport report;
  const auto launch = in.text("launch");
  if (const auto parsed = domain::parse_launch_id(launch)) {
    report.launch = *parsed;
  } else {
    in.wrong("launch", "is not a launch id such as a12-r0-i1: \"" + launch + "\"");
  }
  report.number = static_cast<std::uint64_t>(in.integer("number", 1, INT64_MAX));
  report.phase = in.word("phase", domain::parse_rank_phase);
  report.message = in.maybe_text("message");
  in.maybe_object("exit", [&](Fields& inner) {
    auto& exit = report.exit.emplace();
    if (const auto code = inner.maybe_integer("exit_code", 0, 255)) exit.exit_code = static_cast<int>(*code);
    exit.signal = static_cast<int>(inner.integer("signal", 0, 64));
    exit.cause = inner.word("cause", domain::parse_cause);
    exit.reason = inner.maybe_text("reason");
    exit.message = inner.maybe_text("message");
  });
  if (report.phase == domain::RankPhase::starting || report.phase == domain::RankPhase::lost) {
    in.wrong("phase",
             "is never reported by a runner: \"" + std::string(domain::to_string(report.phase)) + "\"");
  }
  if (in.error()) return tl::unexpected(in.error()->with_context("report"));
  return report;
}

std::string encode(const domain::Desired& desired) {
  return json::dump(json::Object{{"target", domain::to_string(desired.target)},
                                 {"stop", desired.stop},
                                 {"stop_cause", domain::to_string(desired.stop_cause)},
                                 {"grace_ms", desired.grace.count()},
                                 {"version", desired.version}});
}

Result<domain::Desired> decode_desired(std::string_view text) {
  MUSTER_TRY(const auto object, json::parse_object(text));
  Fields in(object);
  domain::Desired desired;
  desired.target = in.word("target", domain::parse_target);
  desired.stop = in.boolean("stop");
  desired.stop_cause = in.word("stop_cause", domain::parse_cause);
  desired.grace = in.millis("grace_ms");
  desired.version = in.count("version");
  if (in.error()) return tl::unexpected(in.error()->with_context("desired state"));
  return desired;
}

std::string encode(const LogBatch& batch) {
  json::Array lines;
  lines.reserve(batch.lines.size());
  for (const auto& line : batch.lines) {
    if (is_utf8(line.text)) {
      lines.emplace_back(json::Array{line.time.unix_ms, line.text});
    } else {
      lines.emplace_back(json::Array{line.time.unix_ms, nullptr, crypto::base64(line.text)});
    }
  }
  return json::dump(json::Object{{"first_sequence", batch.first_sequence}, {"lines", std::move(lines)}});
}

Result<LogBatch> decode_log_batch(std::string_view text) {
  MUSTER_TRY(const auto object, json::parse_object(text));
  Fields in(object);
  LogBatch batch;
  batch.first_sequence = in.count("first_sequence");
  if (in.error()) return tl::unexpected(in.error()->with_context("log batch"));
  const auto* lines = json::opt_array(object, "lines");
  if (lines == nullptr) return fail(ErrorCode::invalid_argument, "log batch: member lines must be a list");
  if (lines->size() > kLinesMax) {
    return fail(ErrorCode::invalid_argument, "log batch: " + std::to_string(lines->size()) +
                                                 " lines, at most " + std::to_string(kLinesMax) +
                                                 " are allowed in one batch");
  }
  batch.lines.reserve(lines->size());
  for (const auto& value : *lines) {
    MUSTER_TRY(auto line, decode_line(value, batch.lines.size()));
    batch.lines.push_back(std::move(line));
  }
  return batch;
}

}  // namespace muster::wire
