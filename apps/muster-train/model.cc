// eval, generate, logits and export: a finished model at work, on one process.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numeric>

#include "apps/muster-train/commands.h"
#include "base/text.h"
#include "text/tokenizer.h"
#include "train/agent/agent.h"
#include "train/data/loader.h"
#include "train/generate/generate.h"
#include "train/loop/evaluate.h"
#include "train/loop/machine.h"
#include "train/loop/model_folder.h"
#include "train/loop/write_model.h"

namespace muster::train {
namespace {

void use_threads(int wanted) { set_threads(wanted > 0 ? wanted : usable_cores()); }

constexpr char kBeyond[] =
    ", although the weights are: numbers inside of the model grow beyond what its type can hold. Was its "
    "optim.lr too high? An earlier checkpoint may be sound";

Result<void> eval(const EvalArguments& arguments) {
  use_threads(arguments.threads);
  MUSTER_TRY(ModelFolder folder, ModelFolder::open(arguments.model));
  MUSTER_TRY(const auto stream, shard_stream(arguments.data));
  MUSTER_CHECK(folder.tokenizer().check(stream->tokenizer_hash(), arguments.data));
  const std::int64_t sequence = arguments.sequence > 0 ? arguments.sequence : folder.config().sequence;
  if (sequence > folder.model().max_sequence) {
    return fail(ErrorCode::invalid_argument, "--sequence " + std::to_string(sequence) +
                                                 ": the model is for texts of up to " +
                                                 std::to_string(folder.model().max_sequence) + " tokens");
  }
  MUSTER_TRY(const Loader loader,
             Loader::create(*stream, static_cast<std::uint64_t>(sequence), 0, folder.config().ignored_token));
  MUSTER_TRY(Model model, folder.load(sequence));
  Comm alone("eval", single_transport());
  const auto windows = std::min(static_cast<std::uint64_t>(arguments.windows), loader.windows()),
             rows = static_cast<std::uint64_t>(arguments.batch);
  Pipeline pipeline(model, nullptr, PipelineSchedule::gpipe);
  MUSTER_TRY(const auto evaluated,
             evaluate(pipeline, loader,
                      {.windows_max = windows,
                       .rows = rows,
                       .part = {},
                       .document_mask = folder.config().document_mask,
                       .go_on = {},
                       .say = [](const std::string& line) { std::cerr << line << "\n"; }},
                      alone));
  if (!std::isfinite(evaluated->loss)) {
    return fail(ErrorCode::failed_precondition, "the loss on " + arguments.data + " is not finite" + kBeyond);
  }
  std::printf("eval step=%lld split=%s %s\n", static_cast<long long>(folder.step()), arguments.data.c_str(),
              to_text(*evaluated).c_str());
  return {};
}

Result<void> generate_text(const GenerateArguments& arguments) {
  use_threads(arguments.threads);
  MUSTER_TRY(ModelFolder folder, ModelFolder::open(arguments.model));
  std::string path = arguments.tokenizer;
  if (path.empty()) {
    MUSTER_TRY(path, folder.tokenizer().file());
  }
  MUSTER_TRY(const auto tokenizer, text::Tokenizer::load(path));
  MUSTER_CHECK(folder.tokenizer().check(tokenizer.hash(), path));
  // In training a text begins behind the end token of the one before.
  std::vector<std::int64_t> prompt;
  if (tokenizer.eos() >= 0) prompt.push_back(tokenizer.eos());
  const auto words = tokenizer.encode(arguments.prompt);
  prompt.insert(prompt.end(), words.begin(), words.end());
  if (prompt.empty())
    return fail(ErrorCode::invalid_argument,
                "--prompt is needed: this tokenizer has no end token to begin from");
  MUSTER_TRY(Model model, folder.load(static_cast<std::int64_t>(prompt.size()) + arguments.tokens));
  MUSTER_TRY(const auto made, generate(model, prompt,
                                       {.tokens_max = arguments.tokens,
                                        .temperature = arguments.temperature,
                                        .top_k = arguments.top_k,
                                        .seed = arguments.seed,
                                        .end_token = tokenizer.eos()}));
  std::vector<text::TokenId> all(words.begin(), words.end());
  for (const std::int64_t id : made) all.push_back(static_cast<text::TokenId>(id));
  MUSTER_TRY(const std::string out, tokenizer.decode(all));
  std::cout << out << "\n";
  return {};
}

// The likeliest tokens behind the last one.
void show_likeliest(std::span<const double> logits) {
  constexpr std::size_t kShown = 5;
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto shown = std::min(kShown, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                    [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - logits[order[0]]);
  std::printf("%-8s %-12s %s\n", "TOKEN", "LOGIT", "PROBABILITY");
  for (std::size_t i = 0; i < shown; ++i) {
    const double logit = logits[order[i]];
    std::printf("%-8zu %-12.6f %.4f\n", order[i], logit, std::exp(logit - logits[order[0]]) / sum);
  }
}

// [tokens, vocab] as the one tensor of a safetensors file.
Result<void> write_logits(const std::string& path, std::span<const double> logits, std::int64_t tokens) {
  const std::vector<float> values(logits.begin(), logits.end());
  const auto vocab = static_cast<std::int64_t>(values.size()) / tokens;
  MUSTER_TRY(hf::FileWriter writer,
             hf::FileWriter::create(
                 path, {{.name = "logits", .number = hf::Number::f32, .shape = {tokens, vocab}}}));
  MUSTER_CHECK(writer.append(std::as_bytes(std::span(values))));
  return writer.finish();
}

Result<void> logits(const LogitsArguments& arguments) {
  use_threads(arguments.threads);
  const auto& tokens = arguments.tokens;
  MUSTER_TRY(ModelFolder folder, ModelFolder::open(arguments.model));
  MUSTER_TRY(Model model,
             folder.load(static_cast<std::int64_t>(tokens.size()), arguments.fp64 ? Dtype::f64 : Dtype::f32));
  const auto vocab = static_cast<std::size_t>(folder.model().vocab);
  std::vector<double> values(tokens.size() * vocab);
  MUSTER_CHECK(model.logits(
      {.tokens = tokens, .targets = {}, .rows = 1, .sequence = static_cast<std::int64_t>(tokens.size())},
      values));
  if (!std::ranges::all_of(values, [](double value) { return std::isfinite(value); }))
    return fail(ErrorCode::failed_precondition, std::string("logits are not finite") + kBeyond);
  if (arguments.output.empty()) {
    show_likeliest(std::span(values).last(vocab));
    return {};
  }
  return write_logits(arguments.output, values, static_cast<std::int64_t>(tokens.size()));
}

Result<void> write_export(const ExportArguments& arguments) {
  MUSTER_TRY(ModelFolder folder, ModelFolder::open(arguments.model, arguments.step));
  MUSTER_TRY(const hf::Written written,
             export_model(folder, arguments.output,
                          {.number = arguments.number, .file_bytes_max = arguments.file_bytes_max}));
  std::printf("export step=%lld path=%s dtype=%s parameters=%lld files=%d size=%s\n",
              static_cast<long long>(folder.step()), arguments.output.c_str(),
              std::string(hf::torch_name(arguments.number)).c_str(),
              static_cast<long long>(parameter_count(folder.model())), written.files,
              format_bytes(written.bytes).c_str());
  return {};
}

int report(const Result<void>& result) {
  if (result) return kExitDone;
  std::cerr << "muster-train: " << result.error().message << "\n";
  return exit_code(result.error());
}

}  // namespace

int eval_command(const EvalArguments& arguments) { return report(eval(arguments)); }
int generate_command(const GenerateArguments& arguments) { return report(generate_text(arguments)); }
int logits_command(const LogitsArguments& arguments) { return report(logits(arguments)); }
int export_command(const ExportArguments& arguments) { return report(write_export(arguments)); }

}  // namespace muster::train
