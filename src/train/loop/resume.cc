#include "train/loop/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "base/time.h"
#include "train/ckpt/lock.h"
#include "train/comm/agree.h"
#include "train/data/loader.h"
#include "train/loop/checks.h"
#include "train/loop/machine.h"
#include "train/loop/pretrained.h"

namespace muster::train {
namespace {

constexpr Millis kLockPatience{10'000};  // a killed process frees its memory first, which takes time

tl::unexpected<Error> resume_failed(const Config& config, const Error& error) {
  const bool older = error.code == ErrorCode::corrupt && config.checkpoint_resume != "latest-valid";
  return fail(error.code,
              error.message + (older ? "; bring the file back, or take the newest whole one before it with "
                                       "--resume latest-valid (checkpoint.resume)"
                                     : ""));
}

Result<void> check_same_data(const CheckpointInfo& stored, const TrainerParts& parts) {
  const TokenStream& data = *parts.train;
  if (stored.tokenizer_hash != data.tokenizer_hash()) {
    return fail(ErrorCode::failed_precondition, "the checkpoint was trained with tokenizer " +
                                                    stored.tokenizer_hash + ", the data is made with " +
                                                    data.tokenizer_hash());
  }
  const json::Object now = data.description();
  const SameData same = compare_data(stored.data, now);
  if (same == SameData::no) {
    return fail(ErrorCode::failed_precondition,
                "the checkpoint was trained on other data: " + json::dump(stored.data) + ", now " +
                    json::dump(now) + "; give the folders that it was trained on");
  }
  if (same == SameData::as_counted) {
    parts.say_once("notice: the checkpoint is older than digests of the data: only its counts are compared");
  }
  return {};
}

// Every rank reads its own part; what one cannot read ends all.
Result<void> resume(const TrainerParts& parts, Reader& reader, Stepper& stepper) {
  const CheckpointInfo& stored = reader.info();
  MUSTER_CHECK(check_resume(stored.config, parts.config, parts.accepted));
  MUSTER_CHECK(check_same_data(stored, parts));
  if (stored.step > parts.config.steps) {
    return fail(ErrorCode::invalid_argument,
                "train.steps = " + std::to_string(parts.config.steps) + ", but the newest checkpoint in " +
                    parts.config.checkpoint_dir + " is of step " + std::to_string(stored.step) +
                    ": give at least as many steps, or another checkpoint.dir");
  }
  const auto read = agree(*parts.comm, stepper.restore(reader));
  if (!read) return resume_failed(parts.config, read.error());
  MUSTER_CHECK(stepper.weights_filled());
  parts.say_once("resume step=" + std::to_string(stored.step) + " samples=" + std::to_string(stored.samples) +
                 " from=" + step_folder(parts.config.checkpoint_dir, stored.step));
  if (const std::string why = not_bitwise(stored.machines, parts.machines); !why.empty())
    parts.say_once("notice: not bitwise: " + why);
  return {};
}

// The folder that `folder` is in, however it is written.
std::filesystem::path parent_of(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // it ends in a slash
  return path.parent_path();
}

// A checkpoint.dir that is not there belongs to a first run, or is mistyped. It is made where the folder that
// it lies in is there. True: it was not there, where rank 0 is.
Result<bool> make_checkpoint_dir(const TrainerParts& parts) {
  const Config& config = parts.config;
  const std::string& folder = config.checkpoint_dir;
  const auto look = [&]() -> Result<std::string> {
    std::error_code ignored;
    if (parts.writer.local_rank != 0 || std::filesystem::exists(folder, ignored)) return "";
    if (config.checkpoint_resume == "required") {
      return fail(ErrorCode::not_found,
                  "checkpoint.resume = required, but checkpoint.dir = " + folder + " is not there");
    }
    const std::string parent = parent_of(folder).string();
    if (std::filesystem::is_directory(parent, ignored)) return "new";
    return fail(ErrorCode::invalid_argument, "checkpoint.dir = " + folder + ": there is no folder " + parent +
                                                 " to make it in. Correct the path, or, if this is a new "
                                                 "run, make that folder first");
  };
  MUSTER_TRY(const auto looks, agree(*parts.comm, look()));
  const auto writable = parts.writer.local_rank == 0
                            ? check_writable("checkpoint.dir", folder, parts.comm->rank())
                            : Result<void>();
  MUSTER_CHECK(agree(*parts.comm, writable));
  return looks[0] == "new";
}

// Rank 0 takes checkpoint.dir for all: a folder that the nodes share is locked once. The run before may still
// be dying, so it waits, but not so long that the others take it for a stall.
Result<std::optional<FileLock>> take_checkpoint_dir(const TrainerParts& parts) {
  const std::string& folder = parts.config.checkpoint_dir;
  const Millis patience =
      std::min(kLockPatience, Millis(static_cast<std::int64_t>(parts.config.timeout_s * 500)));
  const auto waits = [&](const std::string& by) {
    parts.say_once("notice: checkpoint.dir = " + folder + " is in use by " + by + ": waiting up to " +
                   format_duration(patience) + " for it to end");
  };
  std::optional<FileLock> held;
  const auto take = [&]() -> Result<void> {
    if (parts.comm->rank() != 0) return {};
    auto lock = lock_checkpoints(folder, patience, waits);
    if (!lock && lock.error().code == ErrorCode::failed_precondition) {
      return fail(lock.error().code,
                  "checkpoint.dir = " + lock.error().message +
                      ": two runs in one folder would remove each other's checkpoints. Stop that one or "
                      "wait for its end, or give this one a checkpoint.dir of its own");
    }
    if (!lock) return tl::unexpected(lock.error().with_context("checkpoint.dir = " + folder));
    held = *std::move(lock);
    if (!held)
      parts.say_once("notice: the file system of checkpoint.dir = " + folder +
                     " has no locks: a second run in it would not be noticed");
    return {};
  };
  MUSTER_CHECK(agree(*parts.comm, take()));
  return held;
}

// A folder beside it with a similar name that has checkpoints: perhaps that was meant.
std::string similar_run(const std::string& folder) {
  const std::filesystem::path parent = parent_of(folder);
  const std::string own =
      std::filesystem::absolute(folder).lexically_normal().lexically_relative(parent).begin()->string();
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(parent, error), last; !error && it != last;
       it.increment(error)) {
    if (const std::string name = it->path().filename().string(); name != own) names.push_back(name);
  }
  const std::string name = closest(own, names);
  if (name.empty()) return "";
  const auto steps = kept_checkpoints(parent / name, Keep{.last = 1}, INT64_MAX);
  if (!steps || steps->empty()) return "";
  return "; " + (parent / name).string() + " has step " + std::to_string(steps->front());
}

// The newest checkpoint that counts, if there is one.
Result<std::optional<Reader>> newest_checkpoint(const TrainerParts& parts) {
  const Config& config = parts.config;
  const auto on_damage = config.checkpoint_resume == "latest-valid" ? OnDamage::pass_over : OnDamage::refuse;
  auto latest = latest_checkpoint(config.checkpoint_dir, on_damage, *parts.comm);
  if (!latest) return resume_failed(config, latest.error());
  for (const auto& notice : latest->notices) parts.say_once("checkpoint " + notice);
  return std::move(latest->reader);
}

// The same, or what is done where there is none: said aloud, as nobody should lose a run to a wrong path.
Result<std::optional<Reader>> find_checkpoint(const TrainerParts& parts, bool is_new) {
  const Config& config = parts.config;
  if (config.checkpoint_dir.empty()) return std::optional<Reader>();
  MUSTER_TRY(auto reader, newest_checkpoint(parts));
  if (reader) return reader;
  if (config.checkpoint_resume == "required") {
    return fail(
        ErrorCode::not_found,
        "checkpoint.resume = required, but there is no finished checkpoint in " + config.checkpoint_dir);
  }
  parts.say_once("notice: no checkpoint in " + config.checkpoint_dir + (is_new ? ", a new folder" : "") +
                 ": starting at step 0" +
                 (parts.comm->rank() == 0 ? similar_run(config.checkpoint_dir) : ""));
  return reader;
}

}  // namespace

Result<CheckpointDir> open_checkpoint_dir(const TrainerParts& parts) {
  const Config& config = parts.config;
  CheckpointDir dir;
  if (config.checkpoint_dir.empty()) {
    if (config.checkpoint_resume != "required") return dir;
    return fail(ErrorCode::invalid_argument, "checkpoint.resume = required, but checkpoint.dir is not set");
  }
  MUSTER_TRY(dir.is_new, make_checkpoint_dir(parts));
  MUSTER_TRY(dir.lock, take_checkpoint_dir(parts));
  return dir;
}

Result<Begin> resume_or_begin(const TrainerParts& parts, const CheckpointDir& dir, Stepper& stepper) {
  const Config& config = parts.config;
  MUSTER_TRY(auto reader, find_checkpoint(parts, dir.is_new));
  if (reader) {
    MUSTER_CHECK(resume(parts, *reader, stepper));
    return Begin::at_checkpoint;
  }
  const ParamTable& table = stepper.model().table();
  if (config.pretrained.empty()) {
    init_parameters(table, stepper.weights(), static_cast<std::uint64_t>(config.seed));
  } else {
    MUSTER_CHECK(load_pretrained(config.pretrained, parts.train->tokenizer_hash(), table, stepper.weights(),
                                 *parts.comm));
  }
  MUSTER_CHECK(stepper.weights_filled());
  return Begin::anew;
}

}  // namespace muster::train
