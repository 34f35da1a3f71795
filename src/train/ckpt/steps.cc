#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/assert.h"
#include "base/file.h"
#include "base/text.h"
#include "train/ckpt/checkpoint.h"
#include "train/ckpt/manifest.h"
#include "train/comm/agree.h"

namespace muster::train {
namespace {

struct Step {
  std::int64_t number = 0;
  std::string path;
  bool finished = false;
};

// A manifest that may be there but cannot be looked at counts: who opens it then says why. Taken for one that
// is missing, the step would be passed over, and removed later.
bool has_manifest(const std::string& step) {
  if (access((step + "/" + kManifestName).c_str(), F_OK) == 0) return true;
  return errno != ENOENT && errno != ENOTDIR && errno != ELOOP;
}

// Newest first. A folder that is not there has no steps.
Result<std::vector<Step>> steps_in(const std::string& folder) {
  std::vector<Step> steps;
  std::error_code error, none;
  for (std::filesystem::directory_iterator it(folder, error), last; !error && it != last;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto number =
        name.starts_with("step-") ? parse_int(std::string_view(name).substr(5)) : std::nullopt;
    if (!number || *number < 0 || !it->is_directory(none)) continue;
    const std::string path = it->path().string();
    steps.push_back({*number, path, has_manifest(path)});
  }
  if (error && error != std::errc::no_such_file_or_directory) return fail_errno(folder, error.value());
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.number > b.number; });
  return steps;
}

// Whether a file of a step is one that a save writes, finished or not.
bool of_a_save(const std::string& name) {
  return name.starts_with("rank-") || name.starts_with("node-") || name.starts_with(kManifestName);
}

// Several nodes may remove the same step of a shared folder at once: what is gone already is well. What
// somebody else has put there stays, and the folder with it; of a link to a step elsewhere only the link
// goes.
Result<void> remove_step(const Step& step) {
  if (std::error_code none; std::filesystem::is_symlink(step.path, none)) {
    if (unlink(step.path.c_str()) != 0 && errno != ENOENT) return fail_errno("remove " + step.path);
    return {};
  }
  const std::string manifest = step.path + "/" + kManifestName;
  if (unlink(manifest.c_str()) != 0 && errno != ENOENT && errno != EISDIR)
    return fail_errno("remove " + manifest);
  std::error_code error, none;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(step.path, error), last; !error && it != last;
       it.increment(error)) {
    if (of_a_save(it->path().filename().string()) && !it->is_directory(none))
      names.push_back(it->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail_errno("remove " + step.path, error.value());
  for (const std::string& name : names) {
    if (unlink(name.c_str()) != 0 && errno != ENOENT) return fail_errno("remove " + name);
  }
  if (rmdir(step.path.c_str()) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
    return fail_errno("remove " + step.path);
  return {};
}

}  // namespace

Result<std::vector<StepEntry>> list_checkpoints(const std::string& folder, bool deep,
                                                const Progress& progress) {
  MUSTER_TRY(const auto steps, steps_in(folder));
  std::vector<StepEntry> entries;
  std::uint64_t total = 0, done = 0;
  for (const Step& step : steps) {
    StepEntry entry{.step = step.number, .path = step.path, .finished = step.finished, .problem = {}};
    if (step.finished) {
      if (const auto reader = Reader::open(step.path)) {
        entry.bytes = reader->bytes();
      } else {
        entry.problem = reader.error();
      }
    }
    total += entry.bytes;
    entries.push_back(std::move(entry));
  }
  for (StepEntry& entry : entries) {
    if (!deep || !entry.finished || entry.problem) continue;
    auto reader = Reader::open(entry.path);
    const auto look = [&](std::uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, total);
    };
    const auto checked = reader ? reader->verify(0, 1, look) : Result<void>(tl::unexpected(reader.error()));
    if (checked) continue;
    entry.problem = checked.error();
    entry.bytes = 0;
  }
  return entries;
}

namespace {

// Looks for the newest usable step; `check` says whether a finished one is, the same on all ranks.
template <typename Check>
Result<Latest> choose(const std::string& folder, OnDamage on_damage, Check check) {
  MUSTER_TRY(const auto steps, steps_in(folder));
  Latest latest;
  std::string damaged;
  for (const Step& step : steps) {
    if (!step.finished) {
      latest.notices.push_back("step " + std::to_string(step.number) +
                               " passed over: its save did not finish (it has no " + kManifestName + ")");
      continue;
    }
    auto reader = Reader::open(step.path);
    auto checked = check(reader);
    if (checked) {
      latest.reader = std::move(*reader);
      return latest;
    }
    // A lost peer, or a file that cannot be opened, says nothing of the checkpoint.
    const ErrorCode code = checked.error().code;
    if (code != ErrorCode::corrupt && code != ErrorCode::not_found) return tl::unexpected(checked.error());
    const std::string& why = checked.error().message;
    if (on_damage == OnDamage::refuse) {
      return fail(code, "the newest checkpoint in " + folder + " is damaged: " + why);
    }
    latest.notices.push_back("step " + std::to_string(step.number) + " passed over, it is damaged: " + why);
    damaged += (damaged.empty() ? "" : "; ") + why;
  }
  if (damaged.empty()) return latest;
  return fail(ErrorCode::corrupt,
              "no checkpoint in " + folder + " is whole: " + damaged +
                  ". Bring the files back, or choose another checkpoint.dir to start over");
}

template <typename T>
Result<void> outcome_of(const Result<T>& result) {
  return result ? Result<void>() : Result<void>(tl::unexpected(result.error()));
}

}  // namespace

Result<Latest> latest_checkpoint(const std::string& folder, OnDamage on_damage) {
  return choose(folder, on_damage, [&](Result<Reader>& reader) -> Result<void> {
    MUSTER_CHECK(outcome_of(reader));
    return on_damage == OnDamage::refuse ? Result<void>() : reader->verify();
  });
}

Result<Latest> latest_checkpoint(const std::string& folder, OnDamage on_damage, Comm& comm) {
  // All must look at the same steps, or they would wait for each other.
  std::string seen;
  const auto steps = steps_in(folder);
  if (steps) {
    for (const Step& step : *steps) seen += step.finished ? " " + std::to_string(step.number) : "";
  }
  MUSTER_CHECK(agree(comm, outcome_of(steps)));
  MUSTER_TRY(const auto all, comm.gather_text(seen));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == seen) continue;
    return fail(ErrorCode::failed_precondition,
                "the ranks find different checkpoints in " + folder + ": rank " +
                    std::to_string(comm.rank()) + " finished steps" + (seen.empty() ? " none" : seen) +
                    ", rank " + std::to_string(rank) + " finished steps" +
                    (all[rank].empty() ? " none" : all[rank]) + "; all nodes must see the same files");
  }
  return choose(folder, on_damage, [&](Result<Reader>& reader) {
    auto mine = outcome_of(reader);
    if (mine && on_damage == OnDamage::pass_over) mine = reader->verify(comm.rank(), comm.size());
    return agree(comm, mine);
  });
}

Result<std::vector<std::int64_t>> kept_checkpoints(const std::string& folder, const Keep& keep,
                                                   std::int64_t newest) {
  MUSTER_ASSERT(keep.last >= 1);
  MUSTER_TRY(const auto steps, steps_in(folder));
  std::vector<std::int64_t> kept;
  std::int64_t finished = 0;
  for (const Step& step : steps) {
    if (!step.finished || step.number > newest) continue;
    const bool milestone = keep.every > 0 && step.number % keep.every == 0;
    if (++finished <= keep.last || milestone) kept.push_back(step.number);
  }
  return kept;
}

Result<void> remove_checkpoints(const std::string& folder, const std::vector<std::int64_t>& kept,
                                std::int64_t newest) {
  MUSTER_TRY(const auto steps, steps_in(folder));
  for (const Step& step : steps) {
    if (step.number < newest && std::ranges::find(kept, step.number) == kept.end())
      MUSTER_CHECK(remove_step(step));
  }
  return {};
}

}  // namespace muster::train
