#include "runner/work.h"

#include <fcntl.h>
#include <netdb.h>

#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "runner/launch/paths.h"
#include "runner/launch/surroundings.h"
#include "runner/transfer/upload.h"

namespace muster::runner {
namespace {

// The runner has more rights than the job, so it touches nothing outside of the job's own folder.
Result<void> check_path(std::string_view what, std::string_view path) {
  constexpr std::string_view kOptMl = "/opt/ml";
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::invalid_argument,
                std::string(what) + ": the path \"" + std::string(path) + "\" " + std::string(why));
  };
  if (path != kOptMl && path.substr(0, kOptMl.size() + 1) != "/opt/ml/") return bad("is not below /opt/ml");
  for (const auto part : split(path.substr(1), '/')) {
    if (part == ".." || part == ".") return bad("has a component \"" + std::string(part) + "\"");
  }
  return {};
}

std::unique_ptr<CheckpointSync> make_sync(Objects& objects, const WorkContext& context, S3Location store,
                                          const std::string& path, int world) {
  CheckpointOptions options;
  options.store = std::move(store);
  options.folder = node_path(context.opt_ml, path);
  options.world = world;
  options.log = context.log;
  return std::make_unique<CheckpointSync>(objects, std::move(options));
}

}  // namespace

Work::Work(WorkContext context, Objects& objects) : context_(std::move(context)), objects_(objects) {}

std::string Work::place(std::string_view path) const { return node_path(context_.opt_ml, path); }

Result<void> Work::check_paths() const {
  const auto& work = context_.launch.workload;
  for (const auto& channel : work.channels)
    MUSTER_CHECK(check_path("channel \"" + channel.name + "\"", channel.local_path));
  for (const auto& output : work.outputs)
    MUSTER_CHECK(check_path("output \"" + output.name + "\"", output.local_path));
  for (const auto& [path, content] : work.files) MUSTER_CHECK(check_path("file", path));
  return check_path("checkpoint", work.checkpoint.local_path);
}

Result<void> Work::check_names() const {
  if (!context_.names_resolve) return {};
  for (const auto& host : context_.launch.hosts) {
    addrinfo* found = nullptr;
    const int code = ::getaddrinfo(host.name.c_str(), nullptr, nullptr, &found);
    if (code != 0) {
      return fail(ErrorCode::internal, "the host name " + host.name + " does not resolve on " +
                                           context_.launch.node + ": " + ::gai_strerror(code));
    }
    ::freeaddrinfo(found);
  }
  return {};
}

Result<void> Work::write_files() const {
  for (const auto& folder : folders(context_.launch)) MUSTER_CHECK(make_directories(place(folder)));
  for (const auto& [path, content] : config_files(context_.launch)) {
    const auto where = place(path);
    MUSTER_CHECK(make_directories(where.substr(0, where.rfind('/'))));
    MUSTER_TRY(auto file, open_file(where, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    auto written = write_all(file.get(), content);
    if (!written) return tl::unexpected(written.error().with_context(where));
  }
  return {};
}

tl::expected<std::string, core::Failure> Work::prepare(std::stop_token stop) {
  const auto& launch = context_.launch;
  const auto& work = launch.workload;
  const auto run = [&]() -> Result<std::string> {
    MUSTER_CHECK(check_paths());
    MUSTER_CHECK(check_names());
    MUSTER_CHECK(write_files());
    Transferred total;
    for (const auto& channel : work.channels) {
      MUSTER_TRY(const auto staged, stage_channel(objects_, channel, launch.id.rank, launch.world,
                                                  place(channel.local_path), stop));
      total.files += staged.files;
      total.bytes += staged.bytes;
    }
    std::string message = work.channels.empty() ? "" : "staged " + describe(total);
    if (!work.checkpoint.s3_uri.empty()) {
      MUSTER_TRY(auto store, parse_s3_uri(work.checkpoint.s3_uri));
      checkpoint_ = make_sync(objects_, context_, std::move(store), work.checkpoint.local_path, launch.world);
      MUSTER_TRY(const auto restored, checkpoint_->restore(stop));
      if (restored.files > 0) {
        message += (message.empty() ? "" : "; ") + ("restored checkpoints: " + describe(restored));
      }
      syncs_.push_back({checkpoint_.get(), {}});
    }
    for (const auto& output : work.outputs) {
      if (!output.continuous || output.form != domain::Output::Form::raw) continue;
      MUSTER_TRY(auto store, parse_s3_uri(output.s3_uri));
      outputs_.push_back(make_sync(objects_, context_, std::move(store), output.local_path, 1));
      syncs_.push_back({outputs_.back().get(), {}});
    }
    if (context_.give) MUSTER_CHECK(context_.give(context_.opt_ml));
    return message;
  };
  auto done = run();
  if (!done) return tl::unexpected(failure_of(done.error()));
  return *std::move(done);
}

void Work::scan(std::stop_token stop) {
  for (auto& [copy, error] : syncs_) {
    const auto done = copy->scan(stop);
    if (done) {
      error.clear();
    } else if (!stop.stop_requested() && done.error().message != error) {
      error = done.error().message;
      context_.log("muster: not uploaded yet, will be tried again: " + error);
    }
  }
}

tl::expected<std::string, core::Failure> Work::finish(std::stop_token stop) {
  const auto& launch = context_.launch;
  std::vector<std::string> said;
  std::optional<Error> failed;
  const auto fails = [&](const Error& error) {
    if (failed) context_.log("muster: " + error.message);
    if (!failed) failed = error;
  };
  if (checkpoint_) {
    if (const auto done = checkpoint_->finish(stop); !done) fails(done.error());
  }
  UploadContext upload;
  upload.rank = launch.id.rank;
  upload.world = launch.world;
  upload.attempt_created = launch.attempt_created;
  upload.opt_ml = context_.opt_ml;
  upload.scratch = context_.scratch;
  upload.log = context_.log;
  for (const auto& output : launch.workload.outputs) {
    if (stop.stop_requested()) break;
    const auto amount = upload_output(objects_, output, upload, stop);
    if (!amount) fails(amount.error());
    if (amount) said.push_back(output.name + ": " + describe(*amount));
  }
  if (!failed && stop.stop_requested()) failed = Error{ErrorCode::cancelled, "the upload was given up"};
  if (failed) return tl::unexpected(failure_of(*failed));
  return said.empty() ? std::string() : "uploaded " + join(said, ", ");
}

}  // namespace muster::runner
