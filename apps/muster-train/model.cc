// eval and generate: a finished model at work, on one process.

#include <cstdio>
#include <iostream>

#include "apps/muster-train/commands.h"
#include "text/tokenizer.h"
#include "train/agent/agent.h"
#include "train/data/loader.h"
#include "train/generate/generate.h"
#include "train/loop/evaluate.h"
#include "train/loop/machine.h"
#include "train/loop/state.h"

namespace muster::train {
namespace {

Result<void> eval(const EvalArguments& arguments) {
  set_threads(arguments.threads > 0 ? arguments.threads : usable_cores());
  MUSTER_TRY(LoadedModel loaded, load_model(arguments.model));
  MUSTER_TRY(const auto stream, shard_stream(arguments.data));
  if (stream->tokenizer_hash() != loaded.tokenizer_hash) {
    return fail(ErrorCode::failed_precondition, "the model was trained with tokenizer " +
                                                    loaded.tokenizer_hash + ", " + arguments.data +
                                                    " is made with " + stream->tokenizer_hash());
  }
  MUSTER_TRY(const Loader loader,
             Loader::create(*stream, static_cast<std::uint64_t>(loaded.config.sequence), 0));
  Comm alone("eval", single_transport());
  MUSTER_TRY(const Evaluation e, evaluate(loaded.model, loader, static_cast<std::uint64_t>(arguments.windows),
                                          static_cast<std::uint64_t>(arguments.batch), alone));
  std::printf("eval step=%lld split=%s loss=%.4f bits_per_byte=%.4f tokens=%lld bytes=%llu\n",
              static_cast<long long>(loaded.step), arguments.data.c_str(), e.loss, e.bits_per_byte,
              static_cast<long long>(e.tokens), static_cast<unsigned long long>(e.bytes));
  return {};
}

Result<void> generate_text(const GenerateArguments& arguments) {
  set_threads(arguments.threads > 0 ? arguments.threads : usable_cores());
  MUSTER_TRY(LoadedModel loaded, load_model(arguments.model));
  const std::string path =
      arguments.tokenizer.empty() ? arguments.model + "/tokenizer.model" : arguments.tokenizer;
  auto tokenizer = text::Tokenizer::load(path);
  if (!tokenizer) {
    return tl::unexpected(tokenizer.error().with_context(
        "tokenizer (a folder of checkpoints has none: give --tokenizer FILE)"));
  }
  if (tokenizer->hash() != loaded.tokenizer_hash) {
    return fail(ErrorCode::failed_precondition, "the model was trained with tokenizer " +
                                                    loaded.tokenizer_hash + ", " + path + " is " +
                                                    tokenizer->hash());
  }
  // In training a text begins behind the end token of the one before.
  std::vector<std::int64_t> prompt;
  if (tokenizer->eos() >= 0) prompt.push_back(tokenizer->eos());
  const auto words = tokenizer->encode(arguments.prompt);
  prompt.insert(prompt.end(), words.begin(), words.end());
  if (prompt.empty())
    return fail(ErrorCode::invalid_argument,
                "--prompt is needed: this tokenizer has no end token to begin from");
  MUSTER_TRY(const auto made, generate(loaded.model, prompt,
                                       {.tokens_max = arguments.tokens,
                                        .temperature = arguments.temperature,
                                        .top_k = arguments.top_k,
                                        .seed = arguments.seed,
                                        .end_token = tokenizer->eos()}));
  std::vector<text::TokenId> all(words.begin(), words.end());
  for (const std::int64_t id : made) all.push_back(static_cast<text::TokenId>(id));
  MUSTER_TRY(const std::string out, tokenizer->decode(all));
  std::cout << out << "\n";
  return {};
}

int report(const Result<void>& result) {
  if (result) return kExitDone;
  std::cerr << "muster-train: " << result.error().message << "\n";
  return kExitFailed;
}

}  // namespace

int eval_command(const EvalArguments& arguments) { return report(eval(arguments)); }
int generate_command(const GenerateArguments& arguments) { return report(generate_text(arguments)); }

}  // namespace muster::train
