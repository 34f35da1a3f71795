#include "train/loop/checks.h"

#include <unistd.h>

#include <filesystem>

#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"
#include "train/comm/agree.h"
#include "train/data/loader.h"
#include "train/loop/write_model.h"

namespace muster::train {
namespace {

// What every rank must agree on before the first step.
std::string fingerprint(const TrainerParts& parts) {
  const Config& config = parts.config;
  json::Object values = to_json(config);
  // May be others on other nodes. Of the data what they hold counts; two are used by rank 0 alone.
  for (const char* key : {"data.train", "data.validation", "data.tokenizer", "log.metrics", "run.threads"})
    values.erase(key);
  // So may these, but whether they are set decides which collectives a rank calls.
  for (const auto& [key, path] :
       {std::pair{"model.from", &config.pretrained}, std::pair{"checkpoint.dir", &config.checkpoint_dir},
        std::pair{"output.dir", &config.output_dir}})
    values[key] = path->empty() ? "not set" : "set";
  values["node_ranks"] = parts.node_ranks;
  values["--accept"] = json::Array(parts.accepted.begin(), parts.accepted.end());
  values["data"] = parts.train->description();
  values["held_out"] = parts.validation != nullptr ? parts.validation->description() : json::Object{};
  return json::dump(values);
}

// However a path is written: without symlinks, as far as it is there, and without a slash at its end.
std::filesystem::path plain(const std::string& path) {
  std::error_code error;
  auto canonical = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  if (error) canonical = std::filesystem::absolute(path).lexically_normal();
  return canonical.has_filename() ? canonical : canonical.parent_path();
}

// Whether `path` is a step of `folder`, or lies in one.
bool in_step_of(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const std::string first = path.lexically_relative(folder).begin()->string();
  return first.starts_with("step-") && parse_int(std::string_view(first).substr(5)).has_value();
}

// The finished model replaces what steps its folder has, and checkpoints make room among theirs. output.dir
// must be there.
Result<void> check_apart(const std::string& output, const std::string& checkpoints) {
  if (checkpoints.empty()) return {};
  const auto model = plain(output), steps = plain(checkpoints);
  std::error_code ignored;
  const bool same = model == steps || std::filesystem::equivalent(model, steps, ignored);
  if (!same && !in_step_of(model, steps) && !in_step_of(steps, model)) return {};
  return fail(ErrorCode::invalid_argument,
              "output.dir = " + output + " and checkpoint.dir = " + checkpoints +
                  (same ? " are one folder" : " lie in a step of one another") +
                  ": the finished model would replace the checkpoints; give it a "
                  "folder of its own");
}

Result<void> check_tokenizer(const std::string& path, const std::string& hash) {
  if (path.empty()) return {};
  MUSTER_TRY(const std::string model, read_regular_file(path));
  const auto own = crypto::hex(crypto::sha256(model));
  if (own == hash) return {};
  return fail(ErrorCode::failed_precondition,
              "data.tokenizer = " + path + " is tokenizer " + own + ", data.train is made with " + hash +
                  "; give the tokenizer.model that muster-data tokenize used");
}

}  // namespace

Result<void> check_agreement(const TrainerParts& parts) {
  MUSTER_TRY(const auto all, parts.comm->gather_text(fingerprint(parts)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    MUSTER_TRY(const json::Object first, json::parse_object(all[0]));
    MUSTER_TRY(const json::Object other, json::parse_object(all[rank]));
    std::string differences;
    for (const auto& [key, value] : first) {
      const auto* there = other.if_contains(key);
      if (there != nullptr && *there == value) continue;
      differences += "; " + std::string(key) + " is " + json::dump(value) + " on rank 0, " +
                     (there != nullptr ? json::dump(*there) : "absent") + " on rank " + std::to_string(rank);
    }
    return fail(ErrorCode::failed_precondition, "the ranks do not run the same thing" + differences +
                                                    "; start every node with the same settings");
  }
  return {};
}

Result<void> check_writable(const std::string& key, const std::string& folder, int rank) {
  const auto named = [&](const Error& error) {
    return tl::unexpected(error.with_context(key + " = " + folder));
  };
  if (const auto made = make_directories(folder); !made) return named(made.error());
  const std::string probe = folder + "/.writable-" + std::to_string(rank);
  if (const auto written = write_file_atomic(probe, ""); !written) return named(written.error());
  ::unlink(probe.c_str());
  return {};
}

Result<void> check_ends(const TrainerParts& parts) {
  const Config& config = parts.config;
  Comm& comm = *parts.comm;
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(config.output_dir, ignored);
  const auto check = [&]() -> Result<void> {
    if (comm.rank() != 0 || config.output_dir.empty()) return {};
    MUSTER_CHECK(check_writable("output.dir", config.output_dir, 0));
    MUSTER_CHECK(check_apart(config.output_dir, config.checkpoint_dir));
    MUSTER_CHECK(check_replaceable(config.output_dir));
    return check_tokenizer(config.tokenizer, parts.train->tokenizer_hash());
  };
  const auto checked = check();
  // A run that ends without a model leaves no empty folder.
  if (comm.rank() == 0 && !config.output_dir.empty() && !was_there) ::rmdir(config.output_dir.c_str());
  return agree(comm, checked);
}

}  // namespace muster::train
