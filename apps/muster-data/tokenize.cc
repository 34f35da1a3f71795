// muster-data tokenize: a corpus into shards, with progress.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/muster-data/commands.h"
#include "base/file.h"
#include "base/text.h"
#include "base/time.h"
#include "text/tokenizer.h"

namespace muster::data_program {
namespace {

volatile sig_atomic_t caught_signal = 0;

void on_signal(int number) { caught_signal = number; }

// SIGINT and SIGTERM are noted, so that nothing half-written stays; a second one ends the program at once.
void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// On a terminal one line that is written again; elsewhere a plain line every ten seconds.
class Progress {
 public:
  explicit Progress(std::uint64_t total) : total_(total) {}

  void show(const text::TokenizeReport& report) {
    if (last_.seconds() < (terminal_ ? 0.2 : 10.0)) return;
    last_ = {};
    const auto seconds = watch_.seconds();
    const double share =
        total_ == 0 ? 1.0
                    : std::min(1.0, static_cast<double>(report.file_bytes) / static_cast<double>(total_));
    const double left = share > 0 ? seconds / share - seconds : 0;
    std::printf("%sTokenising %3.0f %%  %s of %s  %s tokens  %.1f MB/s of text  left %s%s",
                terminal_ ? "\r" : "", 100 * share, format_bytes(report.file_bytes).c_str(),
                format_bytes(total_).c_str(), grouped(report.tokens).c_str(),
                megabytes(report.bytes) / seconds, duration(left).c_str(), terminal_ ? "\x1b[K" : "\n");
    std::fflush(stdout);
  }

  void clear() const {
    if (terminal_) std::printf("\r\x1b[K");
  }

 private:
  std::uint64_t total_;
  bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  Stopwatch watch_;
  Stopwatch last_;
};

void warn(const text::TokenizeReport& report) {
  if (report.replaced > 0) {
    std::printf("Warning: the text is not all UTF-8; %s U+FFFD were written in place of wrong bytes\n",
                grouped(report.replaced).c_str());
  }
  if (report.files_without_text > 0) {
    std::printf("Warning: left out, without text: %s\n", counted(report.files_without_text, "file").c_str());
  }
  if (report.empty_documents > 0) {
    std::printf("Warning: left out, with an empty text: %s\n",
                counted(report.empty_documents, "line").c_str());
  }
  if (report.bad_lines > 0) {
    std::printf("Warning: left out as bad: %s%s\n", counted(report.bad_lines, "line").c_str(),
                report.bad_lines > report.first_bad_lines.size() ? "; the first:" : ":");
    for (const auto& line : report.first_bad_lines) std::printf("  %s\n", line.c_str());
  }
}

void summarize(const text::TokenizeReport& report, const std::string& output, double seconds) {
  const auto held_out =
      report.held_out_documents == 0 ? "" : " (" + grouped(report.held_out_documents) + " held out)";
  std::printf("Wrote %s to %s: %s%s, %s, %.2f bytes per token, %s, %.1f MB/s\n",
              counted(report.shards.size(), "shard").c_str(), output.c_str(),
              counted(report.documents, "document").c_str(), held_out.c_str(),
              counted(report.tokens, "token").c_str(),
              static_cast<double>(report.bytes) / static_cast<double>(report.tokens),
              duration(seconds).c_str(), megabytes(report.bytes) / seconds);
}

Result<void> tokenize_one(TokenizeArguments arguments) {
  std::uint64_t bytes = 0;
  auto files = inputs_of(arguments.input, bytes);
  if (!files && arguments.allow_empty && files.error().code == ErrorCode::failed_precondition) {
    MUSTER_CHECK(make_directories(arguments.output));
    std::printf("No input file: nothing to tokenise\n");
    return {};
  }
  if (!files) return tl::unexpected(files.error());
  MUSTER_TRY(const auto tokenizer, text::Tokenizer::load(arguments.tokenizer));
  std::printf("Tokenising %s, %s, with %s (%s tokens, sha256 %s) on %s\n",
              counted(files->size(), "file").c_str(), format_bytes(bytes).c_str(),
              arguments.tokenizer.c_str(),
              grouped(static_cast<std::uint64_t>(tokenizer.vocab_size())).c_str(),
              tokenizer.hash().substr(0, 12).c_str(),
              counted(static_cast<std::uint64_t>(arguments.options.threads), "thread").c_str());
  if (tokenizer.eos() < 0) {
    std::printf(
        "Warning: no end token is known (tokenizer_config.json beside a tokenizer.json names it); documents "
        "follow each other without one\n");
  }
  std::fflush(stdout);
  const Stopwatch watch;
  Progress progress(bytes);
  arguments.options.line_bytes_max = static_cast<std::size_t>(arguments.line_mb_max * 1e6);
  arguments.options.progress = [&](const text::TokenizeReport& report) {
    progress.show(report);
    return caught_signal == 0;
  };
  const auto report = text::tokenize(*files, tokenizer, arguments.output, arguments.options);
  progress.clear();
  if (!report) return tl::unexpected(report.error());
  warn(*report);
  summarize(*report, arguments.output, watch.seconds());
  return {};
}

}  // namespace

std::string grouped(std::uint64_t value) {
  auto digits = std::to_string(value);
  for (auto at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string counted(std::uint64_t value, std::string_view noun) {
  return grouped(value) + " " + std::string(noun) + (value == 1 ? "" : "s");
}

std::string duration(double seconds) {
  return format_duration(Millis{static_cast<std::int64_t>(seconds * 1000)});
}

std::string below(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

Result<std::vector<text::InputFile>> inputs_of(const std::vector<std::string>& paths, std::uint64_t& bytes) {
  MUSTER_TRY(auto files, text::list_inputs(paths));
  bytes = 0;
  for (const auto& file : files) bytes += file.bytes;
  if (files.empty()) {
    return fail(ErrorCode::failed_precondition,
                "no file in " + join(paths, ", ") + " (names that begin with a dot are left out)");
  }
  return files;
}

int stopped_by_signal() { return 128 + caught_signal; }

// Each part is a sub-folder of the input and becomes one of the output.
Result<void> tokenize(TokenizeArguments arguments) {
  catch_signals();
  if (arguments.parts.empty()) return tokenize_one(std::move(arguments));
  if (arguments.options.held_out > 0) {
    return fail(ErrorCode::invalid_argument,
                "--parts takes parts that are there, --held-out makes them: give one of the two");
  }
  if (arguments.input.size() != 1) {
    return fail(ErrorCode::invalid_argument,
                "--parts needs one --input folder, " + std::to_string(arguments.input.size()) + " are given");
  }
  for (const auto& part : arguments.parts) {
    if (part.empty() || part.front() == '.' || part.find('/') != std::string::npos) {
      return fail(ErrorCode::invalid_argument, "--parts: \"" + part + "\" is not the name of a sub-folder");
    }
    auto one = arguments;
    one.input = {below(arguments.input[0], part)};
    one.output = below(arguments.output, part);
    std::printf("%s: ", part.c_str());
    // A node whose share has nothing of this part has no such folder, either.
    if (arguments.allow_empty && !std::filesystem::exists(one.input[0])) one.input.clear();
    MUSTER_CHECK(tokenize_one(std::move(one)));
  }
  return {};
}

}  // namespace muster::data_program
