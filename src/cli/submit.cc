#include "cli/submit.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iostream>
#include <thread>

#include "base/crypto.h"
#include "base/s3_uri.h"
#include "base/text.h"
#include "cli/jobs.h"
#include "cli/patience.h"
#include "cli/step_line.h"
#include "data/s3/transfer.h"

namespace muster::cli {
namespace {

constexpr std::chrono::milliseconds kWatchPoll{250};

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// Where progress goes: with --output json standard output holds the one object.
std::ostream& about_the_run(const Common& common) { return common.as_json ? std::cerr : std::cout; }

Result<void> upload(const Common& common, Session& session, const Upload& upload) {
  auto& out = about_the_run(common);
  const bool terminal = is_terminal() && !common.as_json;
  MUSTER_TRY(const auto target, parse_s3_uri(upload.s3_uri));
  data::s3::UploadOptions options;
  if (terminal) {
    options.progress = [&](const data::s3::Progress& progress) {
      out << "\r\033[K" << pad("Uploading", 12) << upload.local_path << "  " << progress.files << "/"
          << progress.files_total << " files  " << format_bytes(progress.bytes) << std::flush;
    };
  }
  data::s3::Report report;
  if (std::filesystem::is_directory(upload.local_path)) {
    MUSTER_TRY(report,
               data::s3::upload_tree(*session.s3, upload.local_path, target.bucket, target.key, options));
  } else {
    const auto name = std::filesystem::path(upload.local_path).filename().string();
    MUSTER_TRY(const auto etag, data::s3::upload_file(*session.s3, upload.local_path,
                                                      {target.bucket, target.key + "/" + name}, options));
    report.files = 1;
    report.bytes = std::filesystem::file_size(upload.local_path);
  }
  if (terminal) out << "\r\033[K";
  out << pad("Uploaded", 12) << upload.local_path << "  " << report.files
      << (report.files == 1 ? " file  " : " files  ") << format_bytes(report.bytes) << std::endl;
  for (const auto& [path, why] : report.refused)
    std::cerr << "muster: left out " << path << ": " << why.message << "\n";
  return {};
}

// Prints what changes: a line a status, and progress while the command runs.
class Watcher {
 public:
  Watcher(Session& session, std::string name, const Common& common, bool show_logs)
      : session_(session),
        name_(std::move(name)),
        as_json_(common.as_json),
        show_logs_(show_logs),
        terminal_(is_terminal() && !as_json_),
        out_(about_the_run(common)) {}

  int run() {
    for (;;) {
      const auto job = patiently({}, [&] { return find_job(session_.client, name_); });
      if (!job) return print_error(job.error());
      if (!reader_) reader_.emplace(session_.client, job->training, name_);
      const auto logged =
          patiently({}, [&] { return reader_->read([&](const auto& line) { show_line(line); }); });
      if (!logged) return print_error(logged.error());
      show_statuses(*job);
      if (job->over()) return finish(*job);
      std::this_thread::sleep_for(kWatchPoll);
    }
  }

 private:
  void clear_line() {
    if (live_) out_ << "\r\033[K";
    live_ = false;
  }

  void show_statuses(const JobFacts& job) {
    const auto* transitions = json::opt_array(job.raw, "SecondaryStatusTransitions");
    if (transitions == nullptr) {  // processing jobs have no secondary status
      if (job.status != last_status_) clear_line(), out_ << pad(job.status, 12) << std::endl;
      last_status_ = job.status;
      return;
    }
    for (; shown_ < transitions->size(); ++shown_) {
      const auto& transition = (*transitions)[shown_].as_object();
      clear_line();
      out_ << pad(json::opt_string(transition, "Status").value_or(""), 12)
           << json::opt_string(transition, "StatusMessage").value_or("") << std::endl;
    }
  }

  void show_line(const LogReader::Line& line) {
    if (line.host != "algo-1") return;
    if (show_logs_ || line.text.rfind("eval ", 0) == 0) {
      clear_line();
      out_ << pad("", 12) << line.text << std::endl;
    } else if (const auto step = parse_step(line.text)) {
      show_step_line(*step);
    }
  }

  // On a terminal one line that moves; elsewhere a line at every twentieth of the way.
  void show_step_line(const StepLine& step) {
    if (terminal_) {
      out_ << "\r\033[K" << pad("Training", 12) << show_step(step, terminal_) << std::flush;
      live_ = true;
      return;
    }
    const auto twentieth = static_cast<int>(step.step * 20 / step.steps);
    if (twentieth == last_twentieth_) return;
    last_twentieth_ = twentieth;
    out_ << pad("", 12) << show_step(step, terminal_) << std::endl;
  }

  int finish(const JobFacts& job) {
    clear_line();
    if (!job.failure.empty()) out_ << pad("Reason", 12) << job.failure << "\n";
    if (job.status == "Completed" && !job.artifacts.empty())
      out_ << pad("Model", 12) << job.artifacts << "\n";
    out_.flush();
    if (as_json_) print_json(job.raw);
    return exit_code_of(job);
  }

  Session& session_;
  std::string name_;
  bool as_json_;
  bool show_logs_;
  bool terminal_;
  std::ostream& out_;
  std::optional<LogReader> reader_;
  std::size_t shown_ = 0;
  std::string last_status_;
  int last_twentieth_ = -1;
  bool live_ = false;
};

std::atomic<const std::string*> interrupt_words = nullptr;

// While it lives, Ctrl-C says `words` on standard error before it ends the process, as it would without this.
// Where SIGINT is ignored, as for a command in the background of a script, it stays so. One at a time.
class InterruptNotice {
 public:
  explicit InterruptNotice(std::string words) : words_(std::move(words)) {
    interrupt_words = &words_;
    ::sigaction(SIGINT, nullptr, &before_);
    if (before_.sa_handler == SIG_IGN) return;
    struct sigaction action {};
    action.sa_handler = say;
    action.sa_flags = SA_RESETHAND;
    ::sigaction(SIGINT, &action, nullptr);
  }
  ~InterruptNotice() {
    ::sigaction(SIGINT, &before_, nullptr);
    interrupt_words = nullptr;
  }
  InterruptNotice(const InterruptNotice&) = delete;
  InterruptNotice& operator=(const InterruptNotice&) = delete;

 private:
  static void say(int signal) {
    const std::string& words = *interrupt_words.load();
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, words.data(), words.size());
    ::raise(signal);  // it is held until this returns; its handler is the default again
  }

  const std::string words_;
  struct sigaction before_ {};
};

// A name that is taken is refused before anything is uploaded for it, in the words of the service.
Result<void> check_name_is_free(Client& client, bool training, const std::string& name) {
  const auto job = describe_job(client, training, name);
  if (!job && job.error().code != ErrorCode::not_found) return tl::unexpected(job.error());
  if (!job) return {};
  return fail(ErrorCode::already_exists, std::string(training ? "training" : "processing") + " job " + name +
                                             " exists already: choose another name");
}

}  // namespace

int watch_job(const Common& common, Session& session, const std::string& name, bool show_logs) {
  const auto command = command_of(common.data);
  const InterruptNotice notice((is_terminal() ? "\n" : "") + std::string("muster: the job goes on: ") +
                               command + " logs " + name + " -f; stop it with: " + command + " stop " + name +
                               "\n");
  return Watcher(session, name, common, show_logs).run();
}

int submit_file(const Common& common, const SubmitOptions& options) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  RequestDefaults defaults;
  defaults.account = session->account;
  defaults.bucket = session->bucket;
  defaults.name_suffix = to_lower(crypto::random_token(4));
  auto prepared = prepare_request(options.file, options.kind, defaults);
  if (!prepared) return print_error(prepared.error());
  const bool training = options.kind == RequestKind::training;
  if (!prepared->uploads.empty()) {
    const auto checked = check_name_is_free(session->client, training, prepared->job_name);
    if (!checked) return print_error(checked.error());
  }
  if (prepared->needs_bucket) {
    if (auto made = ensure_bucket(*session); !made) return print_error(made.error());
  }
  for (const auto& one : prepared->uploads) {
    if (auto uploaded = upload(common, *session, one); !uploaded) return print_error(uploaded.error());
  }
  const auto answer =
      session->client.sagemaker(training ? "CreateTrainingJob" : "CreateProcessingJob", prepared->request);
  if (!answer) return print_error(answer.error());
  if (common.as_json && !options.watch) {
    print_json(*answer);
    return kOk;
  }
  about_the_run(common) << pad("Submitted", 12) << prepared->job_name << "    " << command_of(common.data)
                        << " logs " << prepared->job_name << " -f" << std::endl;
  return options.watch ? watch_job(common, *session, prepared->job_name, options.show_logs) : int{kOk};
}

}  // namespace muster::cli
