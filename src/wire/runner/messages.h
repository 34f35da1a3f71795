// JSON of the runner protocol and of the launch file. docs/formats/runner-protocol.md.
//
// Routes, all below /api/v1/runner/<launch id>, with `Authorization: Bearer <runner token>`:
//   POST reports             RankReport -> {"answer": "applied" | "duplicate" | "gap"}; 410: stale
//   GET  commands?after=N    long poll, <= 25 s -> Desired; 410: stale
//   POST logs                {first_sequence, lines: [[time ms, text], ...]} -> {next_sequence}
//   GET  credentials         -> the JSON of AWS_CONTAINER_CREDENTIALS_FULL_URI
// Lines that are not UTF-8 travel as [time ms, null, base64]. Functions without state: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "domain/launch.h"
#include "domain/report.h"

namespace muster::wire {

std::string encode(const domain::RankReport& report);
Result<domain::RankReport> decode_report(std::string_view json);

std::string encode(const domain::Desired& desired);
Result<domain::Desired> decode_desired(std::string_view json);

std::string encode(const domain::NodeLaunch& launch);
Result<domain::NodeLaunch> decode_node_launch(std::string_view json);

std::string encode(const domain::Workload& workload);
Result<domain::Workload> decode_workload(std::string_view json);

// One line on its way to the log store.
struct Line {
  Time time;
  std::string text;  // raw bytes
};
struct LogBatch {
  std::uint64_t first_sequence = 0;
  std::vector<Line> lines;
};
std::string encode(const LogBatch& batch);
Result<LogBatch> decode_log_batch(std::string_view json);

}  // namespace muster::wire
