#include "train/loop/resume.h"

#include "train/comm/agree.h"
#include "train/loop/pretrained.h"

namespace muster::train {
namespace {

tl::unexpected<Error> resume_failed(const Config& config, const Error& error) {
  const bool older = error.code == ErrorCode::corrupt && config.checkpoint_resume != "latest-valid";
  return fail(error.code,
              error.message + (older ? "; bring the file back, or take the newest whole one before it with "
                                       "--resume latest-valid (checkpoint.resume)"
                                     : ""));
}

Result<void> check_same_data(const CheckpointInfo& stored, const TokenStream& data) {
  if (stored.tokenizer_hash != data.tokenizer_hash()) {
    return fail(ErrorCode::failed_precondition, "the checkpoint was trained with tokenizer " +
                                                    stored.tokenizer_hash + ", the data is made with " +
                                                    data.tokenizer_hash());
  }
  if (stored.data != data.description()) {
    return fail(ErrorCode::failed_precondition,
                "the checkpoint was trained on other data: " + json::dump(stored.data) + ", now " +
                    json::dump(data.description()));
  }
  return {};
}

// Every rank reads its own part; what one cannot read ends all.
Result<void> resume(const TrainerParts& parts, Reader& reader, Stepper& stepper) {
  const CheckpointInfo& stored = reader.info();
  MUSTER_CHECK(check_resume(stored.config, parts.config, parts.accepted));
  MUSTER_CHECK(check_same_data(stored, *parts.train));
  const auto read = agree(*parts.comm, stepper.restore(reader));
  if (!read) return resume_failed(parts.config, read.error());
  MUSTER_CHECK(stepper.weights_filled());
  parts.say_once("resume step=" + std::to_string(stored.step) + " samples=" + std::to_string(stored.samples) +
                 " from=" + step_folder(parts.config.checkpoint_dir, stored.step));
  if (stored.machine != parts.machine) {
    parts.say_once("notice: not bitwise: the checkpoint is of " + json::dump(stored.machine) + ", this is " +
                   json::dump(parts.machine));
  }
  return {};
}

// The newest checkpoint that counts, if there is one.
Result<std::optional<Reader>> newest_checkpoint(const TrainerParts& parts) {
  const Config& config = parts.config;
  if (config.checkpoint_dir.empty()) return std::optional<Reader>();
  const auto on_damage = config.checkpoint_resume == "latest-valid" ? OnDamage::pass_over : OnDamage::refuse;
  auto latest = latest_checkpoint(config.checkpoint_dir, on_damage, *parts.comm);
  if (!latest) return resume_failed(config, latest.error());
  for (const auto& notice : latest->notices) parts.say_once("checkpoint " + notice);
  return std::move(latest->reader);
}

}  // namespace

Result<Begin> resume_or_begin(const TrainerParts& parts, Stepper& stepper) {
  const Config& config = parts.config;
  MUSTER_TRY(auto reader, newest_checkpoint(parts));
  if (reader) {
    MUSTER_CHECK(resume(parts, *reader, stepper));
    return Begin::at_checkpoint;
  }
  if (config.checkpoint_resume == "required") {
    return fail(ErrorCode::not_found,
                "checkpoint.resume = required, but there is no finished checkpoint in \"" +
                    config.checkpoint_dir + "\"");
  }
  if (!config.checkpoint_dir.empty())
    parts.say_once("checkpoint none in " + config.checkpoint_dir + ": starting at step 0");
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
