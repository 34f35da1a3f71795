// muster-data: trains tokenizers and tokenises text into shards. Arguments and messages only; the work is in
// src/text.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "apps/arguments.h"
#include "apps/muster-data/commands.h"
#include "base/file.h"
#include "base/text.h"
#include "text/corpus.h"
#include "text/shards.h"
#include "text/tokenize.h"
#include "text/tokenizer.h"
#include "text/train_tokenizer.h"

namespace {

using muster::ErrorCode;
using muster::format_bytes;
using muster::Result;
using muster::data_program::grouped;
using muster::data_program::inputs_of;
namespace program = muster::data_program;
namespace text = muster::text;

struct TrainArguments {
  std::vector<std::string> input;
  std::string output;
  double sample_mb = 512;
  text::TrainTokenizerOptions options;
};

Result<void> train(TrainArguments arguments) {
  arguments.options.sample_bytes_max = static_cast<std::uint64_t>(arguments.sample_mb * 1e6);
  std::uint64_t bytes = 0;
  MUSTER_TRY(const auto files, inputs_of(arguments.input, bytes));
  std::printf("Training a BPE tokenizer of %s tokens on %s, %s\n",
              grouped(static_cast<std::uint64_t>(arguments.options.vocab_size)).c_str(),
              program::counted(files.size(), "file").c_str(), format_bytes(bytes).c_str());
  std::vector<std::string> paths;
  for (const auto& file : files) paths.push_back(file.path);
  const program::Stopwatch watch;
  MUSTER_TRY(const auto trained, text::train_tokenizer(paths, arguments.options));
  MUSTER_TRY(const auto tokenizer, text::Tokenizer::from_bytes(trained.model));
  MUSTER_CHECK(muster::make_directories(arguments.output));
  const auto path = program::below(arguments.output, "tokenizer.model");
  MUSTER_CHECK(muster::write_file_atomic(path, trained.model));
  if (trained.bytes > arguments.options.sample_bytes_max) {
    std::printf("Sampled %s of it (--sample-mb)\n", format_bytes(trained.bytes_sampled).c_str());
  }
  if (trained.bad_lines > 0) {
    std::printf("Warning: left out as bad: %s\n", program::counted(trained.bad_lines, "line").c_str());
  }
  if (trained.lines_repaired > 0) {
    std::printf("Warning: not UTF-8, their wrong bytes were read as U+FFFD: %s\n",
                program::counted(trained.lines_repaired, "line").c_str());
  }
  std::printf("Wrote %s: %s tokens, sha256 %s, %s\n", path.c_str(),
              grouped(static_cast<std::uint64_t>(tokenizer.vocab_size())).c_str(),
              tokenizer.hash().substr(0, 12).c_str(), program::duration(watch.seconds()).c_str());
  return {};
}

Result<void> info(const std::string& folder) {
  MUSTER_TRY(const auto set, text::ShardSet::open(folder));
  std::printf("%-48s %15s %12s %12s %8s\n", "SHARD", "TOKENS", "DOCUMENTS", "TEXT", "B/TOKEN");
  const auto row = [](const std::string& name, std::uint64_t tokens, std::uint64_t documents,
                      std::uint64_t bytes) {
    std::printf("%-48s %15s %12s %12s %8.2f\n", name.c_str(), grouped(tokens).c_str(),
                grouped(documents).c_str(), format_bytes(bytes).c_str(),
                tokens == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(tokens));
  };
  for (const auto& shard : set.shards()) {
    row(shard.path.substr(shard.path.rfind('/') + 1), shard.tokens, shard.documents, shard.bytes);
  }
  row("total of " + program::counted(set.shards().size(), "shard"), set.size(), set.documents(), set.bytes());
  std::printf("tokenizer  %s, %s tokens, %d bytes each\n", set.tokenizer_hash().c_str(),
              grouped(static_cast<std::uint64_t>(set.vocab_size())).c_str(), set.shards()[0].token_bytes);
  MUSTER_CHECK(set.verify());
  std::printf("checked    every block and every id\n");
  return {};
}

int report(const Result<void>& result) {
  if (result) return 0;
  std::fflush(stdout);
  std::fprintf(stderr, "muster-data: %s\n", result.error().message.c_str());
  if (result.error().code == ErrorCode::cancelled) return program::stopped_by_signal();
  return result.error().code == ErrorCode::invalid_argument ? 2 : 1;
}

int threads_here() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void add_json_lines(CLI::App& command, bool& json_lines, std::string& text_field, bool& skip_bad_lines) {
  command.add_flag("--json-lines", json_lines,
                   "Every file is JSON lines, not only *.jsonl and *.ndjson (.gz, .zst)");
  command.add_option("--text-field", text_field, "The member of a line's object that holds its text")
      ->capture_default_str();
  command.add_flag("--skip-bad-lines", skip_bad_lines,
                   "Leave out lines that are not JSON in UTF-8 with a text; otherwise they end the run");
}

CLI::App* add_train(CLI::App& app, TrainArguments& arguments) {
  auto* command =
      app.add_subcommand("train-tokenizer", "Train a SentencePiece BPE tokenizer on text or JSON lines");
  command->add_option("--input", arguments.input, "Folders (searched below) or files: UTF-8 text, JSON lines")
      ->required();
  add_json_lines(*command, arguments.options.json_lines, arguments.options.text_field,
                 arguments.options.skip_bad_lines);
  command->add_option("--output", arguments.output, "Folder that gets tokenizer.model")->required();
  command->add_option("--vocab-size", arguments.options.vocab_size, "Tokens")
      ->check(muster::between(text::kVocabMin, text::kVocabMax))
      ->capture_default_str();
  command
      ->add_option("--sample-mb", arguments.sample_mb,
                   "Above this much text, an even sample of the lines is used")
      ->check(muster::between(1.0, 1e6))
      ->capture_default_str();
  command->footer(
      "Conventions are Llama's: byte fallback, digits split, no normalisation; unk 0, bos 1, eos 2.\n"
      "The same files give the same tokenizer.\n\n"
      "Example:\n  muster-data train-tokenizer --input texts/ --output tokenizer/ --vocab-size 4096");
  return command;
}

void add_tokenize_input(CLI::App& command, program::TokenizeArguments& arguments) {
  auto& options = arguments.options;
  command.add_option("--input", arguments.input, "Folders (searched below) or files: UTF-8 text, JSON lines")
      ->required();
  command.add_flag("--split-documents", options.split_documents,
                   "Blank lines part documents of text; otherwise a file is one document");
  add_json_lines(command, options.json_lines, options.text_field, options.skip_bad_lines);
  command.add_option("--max-line-mb", arguments.line_mb_max, "A longer line of JSON is a bad line")
      ->check(muster::between(0.001, 4000.0))
      ->capture_default_str();
  command
      .add_option(
          "--parts", arguments.parts,
          "These sub-folders of --input, each into the sub-folder of that name of --output: train,held-out")
      ->delimiter(',');
  command.add_flag("--allow-empty", arguments.allow_empty,
                   "An input folder without files is no error (a node that got no share)");
}

CLI::App* add_tokenize(CLI::App& app, program::TokenizeArguments& arguments) {
  auto& options = arguments.options;
  options.threads = threads_here();
  auto* command = app.add_subcommand("tokenize", "Write text or JSON lines as tokenised, indexed shards");
  add_tokenize_input(*command, arguments);
  command->add_option("--tokenizer", arguments.tokenizer, "A tokenizer.model or tokenizer.json")->required();
  command->add_option("--output", arguments.output, "Folder that gets tokens-*.mts; may hold none yet")
      ->required();
  command
      ->add_option(
          "--held-out", options.held_out,
          "This share of the documents goes to held-out/ in --output, the rest to train/; 0: no such folders")
      ->check(muster::between(0.0, 1.0))
      ->capture_default_str();
  command
      ->add_option("--shard-tokens", options.shard_tokens,
                   "Start a new shard at the first document behind this")
      ->check(muster::between(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--threads", options.threads, "Workers; the output does not depend on it")
      ->check(muster::between(1, 1024))
      ->capture_default_str();
  command->footer(
      "Every document ends with the tokenizer's end token. Files may be compressed (.gz, .zst). Bytes of "
      "text that are "
      "not UTF-8 become U+FFFD and are counted.\n"
      "A document's own text decides whether it is held out: the same on every node, in any order.\n"
      "Shards are named after their first input file, so nodes with different files can share one output "
      "prefix.\n\n"
      "Example:\n  muster-data tokenize --input corpus/ --tokenizer tokenizer.json --output shards/ "
      "--held-out 0.01");
  return command;
}

void add_code_options(CLI::App& command, program::CodeArguments& arguments) {
  command.add_option("--tokenizer", arguments.tokenizer, "A tokenizer.model or tokenizer.json")->required();
  command.add_option("--input", arguments.input, "A file; without it, standard input");
  command.add_flag("--json-lines", arguments.json_lines, "Each text is a line, a JSON string");
}

CLI::App* add_encode(CLI::App& app, program::CodeArguments& arguments) {
  auto* command = app.add_subcommand("encode", "Print the token ids of a text");
  add_code_options(*command, arguments);
  command->add_flag(
      "--special-tokens", arguments.special_tokens,
      "Special tokens of a tokenizer.json (\"<|endoftext|>\") in the text are tokens, not text");
  command->footer(
      "Ids of one text are on one line.\n\nExample:\n  echo -n 'Hello world' | muster-data encode "
      "--tokenizer tokenizer.json");
  return command;
}

CLI::App* add_decode(CLI::App& app, program::CodeArguments& arguments) {
  auto* command = app.add_subcommand("decode", "Print the text of token ids");
  add_code_options(*command, arguments);
  command->footer(
      "Special tokens give no text.\n\nExample:\n  echo 9906 1917 | muster-data decode --tokenizer "
      "tokenizer.json");
  return command;
}

int run(int argc, char** argv) {
  CLI::App app("Text to tokens: trains tokenizers and writes tokenised shards for muster-train.",
               "muster-data");
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done, 1 failed, 2 wrong arguments, 128 + signal stopped.");

  TrainArguments training;
  program::TokenizeArguments tokenizing;
  const auto* train_command = add_train(app, training);
  const auto* tokenize_command = add_tokenize(app, tokenizing);
  program::CodeArguments coding;
  const auto* encode_command = add_encode(app, coding);
  const auto* decode_command = add_decode(app, coding);
  std::string folder;
  auto* info_command = app.add_subcommand("info", "Show the shards of a folder and check every byte of them");
  info_command->add_option("folder", folder, "Folder of *.mts files")->required();
  info_command->footer("Example:\n  muster-data info shards/");
  auto* version_command = app.add_subcommand("version", "Print the version");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  if (*train_command) return report(train(std::move(training)));
  if (*tokenize_command) return report(program::tokenize(tokenizing));
  if (*encode_command) return report(program::encode(coding));
  if (*decode_command) return report(program::decode(coding));
  if (*info_command) return report(info(folder));
  if (*version_command) std::printf("muster-data %s\n", MUSTER_VERSION);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {  // out of memory, an exception of CLI11 outside parse
    std::fprintf(stderr, "muster-data: %s\n", error.what());
    return 1;
  }
}
