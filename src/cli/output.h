// What the command line prints: tables for people, one JSON object for programs, errors with an exit code.
//
// Tables go to standard output, everything about the run itself (progress, errors) to standard error only
// when it is not the result. No colour, no control codes unless standard output is a terminal. One thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"

namespace muster::cli {

// Documented in `muster --help` and docs/guides/command-line.md.
enum ExitCode : int {
  kOk = 0,
  kFailed = 1,       // the operation failed
  kUsage = 2,        // the command line was wrong, or names a file that is not there or not right
  kNotFound = 3,     // no such job, bucket, object or service
  kRefused = 4,      // the service refused the request; `down`: jobs run; `up`: it runs otherwise
  kUnavailable = 5,  // the service does not answer
  kJobFailed = 10,   // the job that was waited for ended Failed
  kJobStopped = 11,  // ... Stopped
  kJobRuns = 12,     // ... had not ended within --timeout
};
// invalid_argument is what the command line itself finds wrong; what the service refuses is
// failed_precondition (client.h).
int exit_code_of(const Error& error);

// "muster: message" on standard error; answers the exit code.
int print_error(const Error& error);

bool is_terminal();  // of standard output

// Columns padded to their widest cell, two spaces between; the first row is the heading.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// One object, pretty-printed.
void print_json(const json::Object& object);

// "2026-11-29 17:04:05", local time; "-" for none.
std::string local_time(std::optional<double> unix_seconds);

// "███████░░░░░" of `width` cells for part / whole.
std::string bar(double fraction, int width);

}  // namespace muster::cli
