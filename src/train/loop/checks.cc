#include "train/loop/checks.h"

#include <unistd.h>

#include "base/crypto.h"
#include "base/file.h"
#include "train/comm/agree.h"
#include "train/data/loader.h"

namespace muster::train {
namespace {

// What every rank must agree on before the first step.
std::string fingerprint(const TrainerParts& parts) {
  json::Object values = to_json(parts.config);
  for (const char* key : {"model.from", "data.train", "data.validation", "data.tokenizer", "output.dir",
                          "checkpoint.dir", "log.metrics", "run.threads"}) {
    values.erase(key);  // may be other paths on other nodes
  }
  values["node_ranks"] = parts.node_ranks;
  values["--accept"] = json::Array(parts.accepted.begin(), parts.accepted.end());
  values["data"] = parts.train->description();
  values["held_out"] = parts.validation != nullptr ? parts.validation->description() : json::Object{};
  return json::dump(values);
}

Result<void> check_tokenizer(const std::string& path, const std::string& hash) {
  if (path.empty()) return {};
  MUSTER_TRY(const std::string model, read_file(path));
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
    return fail(ErrorCode::failed_precondition, "the ranks do not run the same thing" + differences);
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
  const auto check = [&]() -> Result<void> {
    if (comm.rank() != 0 || config.output_dir.empty()) return {};
    MUSTER_CHECK(check_writable("output.dir", config.output_dir, 0));
    return check_tokenizer(config.tokenizer, parts.train->tokenizer_hash());
  };
  return agree(comm, check());
}

}  // namespace muster::train
