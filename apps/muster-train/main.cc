// muster-train: trains, evaluates and samples Llama-class language models. Arguments and help only; see
// commands.h and src/train.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>

#include "apps/arguments.h"
#include "apps/muster-train/commands.h"
#include "base/error.h"
#include "base/text.h"
#include "train/agent/agent.h"
#include "train/ckpt/convert.h"
#include "train/determinism.h"

namespace muster::train {
namespace {

constexpr char kModelHelp[] =
    "Folder that training wrote (output.dir or checkpoint.dir), or a Hugging Face model";

constexpr std::int64_t kCountMax = 1'000'000'000'000;  // of steps, windows, candidates

constexpr char kExitCodes[] =
    "Exit codes: 0 done; 1 failed; 2 wrong arguments or configuration; 69 another rank was lost; 75 saved "
    "and\n"
    "stopped by SIGTERM before the last step (0 in a job of Muster): start again to go on. A killed rank: "
    "128 + "
    "signal.\n";

void add_source(CLI::App& app, SourceArguments& source) {
  app.add_option("file", source.file, "Configuration (TOML); every key may also be given by --set")
      ->type_name("FILE.toml");
  app.add_option("--set", source.sets, "Set one key, for example --set train.steps=400; the last one wins")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--job-root", source.job_root,
                 "Where a job's files are; used if input/config/hyperparameters.json is there")
      ->type_name("DIR")
      ->capture_default_str();
}

void add_train(CLI::App& app, TrainArguments& arguments) {
  auto* train = app.add_subcommand("train", "Train a model, on one node or several");
  add_source(*train, arguments.source);
  train
      ->add_option("--accept", arguments.accept,
                   "Resume although these keys have changed (trajectory keys only)")
      ->type_name("KEY,KEY,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  train
      ->add_option("--resume", arguments.resume,
                   "What to go on from; the same as --set checkpoint.resume=. latest-valid passes over "
                   "damaged checkpoints")
      ->type_name("auto|required|latest-valid")
      ->check(CLI::IsMember({"auto", "required", "latest-valid"}));
  train->add_option("--nproc", arguments.launch.nproc, "Ranks on this node [1]")->type_name("N");
  train->add_option("--nodes", arguments.launch.nodes, "Nodes in all; the command is started once on each")
      ->type_name("N");
  train->add_option("--node-rank", arguments.launch.node_rank, "Number of this node, from 0")->type_name("K");
  train->add_option("--master", arguments.launch.master, "Address of node 0 and a free port there")
      ->type_name("HOST:PORT");
  train->footer(
      std::string("Keys and their defaults: muster-train config --explain\n"
                  "In a job everything comes from /opt/ml: hyperparameters are keys, channels named train,\n"
                  "validation and tokenizer are the data. Under torchrun the process is a rank.\n") +
      kExitCodes +
      "\nExample:\n"
      "  muster-train train --nproc 2 --set data.train=shards/ --set data.validation=held-out/ \\\n"
      "    --set checkpoint.dir=ckpt/ --set output.dir=model/ --set train.steps=400");
  const std::string internal;  // options without a group are not shown in the help
  train->add_option("--rank", arguments.rank)->group(internal);
  train->add_option("--world", arguments.world)->group(internal);
  train->add_option("--local-rank", arguments.local_rank)->group(internal);
  train->add_option("--local-world", arguments.local_world)->group(internal);
  train->add_option("--node", arguments.node)->group(internal);
  train->add_option("--store", arguments.store)->group(internal);
  train->add_option("--address", arguments.address)->group(internal);
  train->add_option("--epoch", arguments.epoch)->group(internal);
}

void add_model_commands(CLI::App& app, EvalArguments& eval, GenerateArguments& generate) {
  auto* e = app.add_subcommand("eval", "Loss and bits per byte of a model on held-out shards");
  e->add_option("--model", eval.model, kModelHelp)->required()->type_name("DIR");
  e->add_option("--data", eval.data, "Folder of token shards")->required()->type_name("DIR");
  e->add_option("--windows", eval.windows, "Windows at most [all]")
      ->check(between(std::int64_t{1}, kCountMax))
      ->type_name("N");
  e->add_option("--sequence", eval.sequence,
                "Tokens of a window [that of the training; for a Hugging Face model at most 512]")
      ->check(between(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N");
  e->add_option("--batch", eval.batch, "Windows a forward pass")
      ->check(between(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  e->add_option("--threads", eval.threads, "Threads [all cores]")->check(between(0, 1024));
  e->footer("Example:\n  muster-train eval --model model/ --data held-out/");

  auto* g = app.add_subcommand("generate", "Write text with a model");
  g->add_option("--model", generate.model, kModelHelp)->required()->type_name("DIR");
  g->add_option("--prompt", generate.prompt, "Text to go on from [none]")->type_name("TEXT");
  g->add_option("--temperature", generate.temperature, "0: always the likeliest token")
      ->check(between(0.0, 100.0))
      ->capture_default_str();
  g->add_option("--top-k", generate.top_k, "Draw among the k likeliest tokens; 0: among all")
      ->check(between(std::int64_t{0}, kCountMax))
      ->capture_default_str();
  g->add_option("--seed", generate.seed, "The same seed gives the same text")->capture_default_str();
  g->add_option("--tokens", generate.tokens, "Tokens at most")
      ->check(between(1, 1 << 20))
      ->capture_default_str();
  g->add_option("--tokenizer", generate.tokenizer,
                "tokenizer.json or tokenizer.model [the one in the model's folder]")
      ->type_name("FILE");
  g->add_option("--threads", generate.threads, "Threads [all cores]")->check(between(0, 1024));
  g->footer(
      "Example:\n  muster-train generate --model model/ --prompt \"In the beginning\" --temperature 0.7 "
      "--seed 1");
}

void add_plan(CLI::App& app, PlanArguments& arguments) {
  auto* plan = app.add_subcommand(
      "plan", "Memory, bytes sent and waiting of a run, before it is started; nothing is allocated");
  add_source(*plan, arguments.source);
  plan->add_option("--ranks", arguments.ranks, "Ranks in all")
      ->check(between(1, 1 << 20))
      ->capture_default_str()
      ->type_name("N");
  plan->add_option("--ranks-per-node", arguments.ranks_per_node, "Ranks on each node [all]")
      ->check(between(1, 1 << 20))
      ->type_name("N");
  plan->footer(
      "Example:\n  muster-train plan --ranks 128 --ranks-per-node 8 --set model.preset=llama-70b \\\n"
      "    --set mesh.tp=8 --set mesh.pp=4 --set mesh.shard=4 --set train.batch=64 --set "
      "train.micro_batch=1");
}

struct CkptCommands {
  CLI::App *ls, *verify, *convert, *exporting;
};

// What export and ckpt export share: all but how the two folders are given.
void add_export_options(CLI::App& app, ExportArguments& arguments) {
  app.add_option("--step", arguments.step, "Which checkpoint of the folder [the newest]")
      ->check(between(std::int64_t{0}, kCountMax))
      ->type_name("N");
  app.add_option("--dtype", arguments.number, "bf16, fp16 or fp32 [bf16]")
      ->transform(CLI::CheckedTransformer(
                      std::map<std::string, hf::Number>{
                          {"fp32", hf::Number::f32}, {"fp16", hf::Number::f16}, {"bf16", hf::Number::bf16}},
                      CLI::ignore_case)
                      .description(""))
      ->type_name("TYPE");
  app.add_option("--max-shard-size", arguments.file_bytes_max, "Larger models become several files [5GB]")
      ->transform(size_between(1000, 1'000'000'000'000'000))
      ->type_name("SIZE");
}

constexpr char kExportHelp[] =
    "Weights are rounded to the nearest number of the type; one that would become infinite is refused.\n\n";

CkptCommands add_ckpt(CLI::App& app, std::string& ls_folder, std::string& verify_folder,
                      ConvertArguments& convert, ExportArguments& exported) {
  auto* ckpt = app.add_subcommand("ckpt", "Look at checkpoints, or write one in another form");
  ckpt->require_subcommand(1);
  auto* ls = ckpt->add_subcommand("ls", "List the checkpoints of a folder");
  ls->add_option("folder", ls_folder)->required()->type_name("DIR");
  ls->footer("Example:\n  muster-train ckpt ls ckpt/");
  auto* verify = ckpt->add_subcommand(
      "verify", "Check every byte of the tensors; exit code 1 if a finished step is damaged");
  verify->add_option("folder", verify_folder)->required()->type_name("DIR");
  verify->footer("Example:\n  muster-train ckpt verify ckpt/");
  auto* c =
      ckpt->add_subcommand("convert", "Rewrite a checkpoint as one file, or as N, checking every block");
  c->add_option("from", convert.from, "Folder of checkpoints")->required()->type_name("DIR");
  c->add_option("to", convert.to, "Folder for the result; made if need be")->required()->type_name("DIR");
  c->add_option("--step", convert.step, "Which one [the newest]")
      ->check(between(std::int64_t{0}, kCountMax))
      ->type_name("N");
  c->add_option("--ranks", convert.ranks, "Files to cut it into")
      ->check(between(1, kConvertRanksMax))
      ->capture_default_str()
      ->type_name("N");
  c->add_flag("--weights-only", convert.weights_only,
              "Drop the optimizer's state: no training resumes from it");
  c->footer("Example:\n  muster-train ckpt convert ckpt/ slim/ --step 400 --weights-only");
  auto* x = ckpt->add_subcommand("export", "Write a checkpoint as a Hugging Face folder; the same as export");
  x->add_option("from", exported.model, kModelHelp)->required()->type_name("DIR");
  x->add_option("to", exported.output, "Folder to make")->required()->type_name("DIR");
  add_export_options(*x, exported);
  x->footer(std::string(kExportHelp) + "Example:\n  muster-train ckpt export ckpt/ hf/ --step 400");
  return {ls, verify, c, x};
}

// CLI11 itself would pass over an empty id and clamp one that is too large.
std::vector<std::int64_t> token_ids(const std::vector<std::string>& words) {
  const auto limits = between(std::int64_t{0}, std::int64_t{std::numeric_limits<std::int32_t>::max()});
  std::vector<std::int64_t> ids;
  for (const std::string& word : words) {
    for (const std::string_view part : split(word, ',')) {
      std::string id(part);
      if (const auto problem = limits(id); !problem.empty())
        throw CLI::ValidationError("--tokens", problem + (id == word ? "" : ", in " + word));
      CLI::detail::lexical_cast(id, ids.emplace_back());
    }
  }
  return ids;
}

void add_exchange_commands(CLI::App& app, LogitsArguments& logits, ExportArguments& arguments) {
  auto* x = app.add_subcommand("export", "Write a model as a Hugging Face folder; the same as ckpt export");
  x->add_option("--model", arguments.model, kModelHelp)->required()->type_name("DIR");
  x->add_option("--output", arguments.output, "Folder to make")->required()->type_name("DIR");
  add_export_options(*x, arguments);
  x->footer(std::string(kExportHelp) +
            "Example:\n  muster-train export --model model/ --output hf/ --dtype bf16");

  auto* l = app.add_subcommand("logits", "What a model answers to token ids");
  l->add_option("--model", logits.model, kModelHelp)->required()->type_name("DIR");
  l->add_option_function<std::vector<std::string>>(
       "--tokens", [&logits](const auto& words) { logits.tokens = token_ids(words); }, "Token ids")
      ->required()
      ->type_name("ID,ID,...");
  l->add_option("--output", logits.output,
                "Write the logits of every position, [tokens, vocabulary], as safetensors "
                "[show the likeliest next tokens]")
      ->type_name("FILE");
  l->add_flag("--fp64", logits.fp64, "Compute in fp64 instead of fp32");
  l->add_option("--threads", logits.threads, "Threads [all cores]")->check(between(0, 1024));
  l->footer("Example:\n  muster-train logits --model model/ --tokens 1,306,4658");
}

int run(int argc, char** argv, const std::string& gemm_path) {
  // `muster-train --nproc 2 ...` and `muster-train run.toml` mean train.
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty()) {
    const std::string& first = words.front();
    const bool help = first == "--help" || first == "-h" || first == "--version";
    if ((first.starts_with("--") && !help) || first.ends_with(".toml")) words.insert(words.begin(), "train");
  }
  CLI::App app("Trains, evaluates and samples Llama-class language models.", "muster-train");
  app.require_subcommand(1);
  app.footer(std::string("Help of a command: muster-train COMMAND --help\n") + kExitCodes);
  TrainArguments train;
  ConfigArguments config;
  PlanArguments plan;
  EvalArguments eval;
  GenerateArguments generate;
  ConvertArguments convert;
  LogitsArguments logits;
  ExportArguments exported;
  std::string ls_folder, verify_folder;
  add_train(app, train);
  add_model_commands(app, eval, generate);
  add_exchange_commands(app, logits, exported);
  auto* c = app.add_subcommand("config", "Show the configuration that train would use");
  add_source(*c, config.source);
  c->add_flag("--explain", config.explain, "With class, source and meaning of every key");
  c->footer(
      "identity keys may not change when a run is resumed, trajectory keys only with --accept, operational\n"
      "keys are free.\n\nExample:\n  muster-train config --explain run.toml --set train.steps=100");
  add_plan(app, plan);
  const auto ckpt = add_ckpt(app, ls_folder, verify_folder, convert, exported);
  auto* version = app.add_subcommand("version", "Print the version");

  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 wants them
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  train.command_line = words;
  if (!train.resume.empty()) train.source.sets.push_back("checkpoint.resume=" + train.resume);
  train.gemm_path = gemm_path;
  if (app.got_subcommand("train")) return train_command(train);
  if (app.got_subcommand("eval")) return eval_command(eval);
  if (app.got_subcommand("generate")) return generate_command(generate);
  if (app.got_subcommand("logits")) return logits_command(logits);
  if (app.got_subcommand("export")) return export_command(exported);
  if (*c) return config_command(config);
  if (app.got_subcommand("plan")) return plan_command(plan);
  if (*ckpt.ls) return ckpt_ls_command(ls_folder);
  if (*ckpt.verify) return ckpt_verify_command(verify_folder);
  if (*ckpt.convert) return ckpt_convert_command(convert);
  if (*ckpt.exporting) return export_command(exported);
  if (*version) std::printf("muster-train %s\n", MUSTER_VERSION);
  return kExitDone;
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  // Before any tensor, any thread.
  const std::string gemm_path = muster::train::fix_gemm_path();
  try {
    return muster::train::run(argc, argv, gemm_path);
  } catch (const std::exception& error) {  // out of memory, a tensor library's exception
    std::fprintf(stderr, "muster-train: %s\n", error.what());
    return muster::train::kExitFailed;
  }
}
