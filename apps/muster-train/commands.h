// The commands of muster-train, one function each: arguments in, exit code out (agent.h). main.cc reads the
// command line. One thread: called once from main().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/agent/discover.h"
#include "train/hf/export.h"

namespace muster::train {

struct SourceArguments {
  std::string file;               // TOML; empty: none
  std::vector<std::string> sets;  // KEY=VALUE
  std::string job_root = "/opt/ml";
};

struct TrainArguments {
  SourceArguments source;
  std::vector<std::string> accept;
  std::string resume;  // empty: as configured
  LaunchFlags launch;
  // What an agent tells its ranks.
  std::optional<int> rank;
  int world = 1, local_rank = 0, local_world = 1, node = 0;
  std::string store, address, epoch = "0";
  std::vector<std::string> command_line;  // own arguments, for starting ranks
  std::string gemm_path;
};
int train_command(const TrainArguments& arguments);

struct ConfigArguments {
  SourceArguments source;
  bool explain = false;
};
int config_command(const ConfigArguments& arguments);

struct PlanArguments {
  SourceArguments source;
  int ranks = 1, ranks_per_node = 0;  // 0: all on one node
};
int plan_command(const PlanArguments& arguments);

struct EvalArguments {
  std::string model, data;
  std::int64_t windows = 1'000'000'000'000, batch = 4, sequence = 0;
  int threads = 0;
};
int eval_command(const EvalArguments& arguments);

struct GenerateArguments {
  std::string model, tokenizer, prompt;
  double temperature = 0.8;
  std::int64_t top_k = 0, tokens = 128;
  std::uint64_t seed = 0;
  int threads = 0;
};
int generate_command(const GenerateArguments& arguments);

struct ConvertArguments {
  std::string from, to;              // folders of checkpoints
  std::optional<std::int64_t> step;  // nullopt: the newest
  int ranks = 1;
  bool weights_only = false;
};
int ckpt_convert_command(const ConvertArguments& arguments);

struct LogitsArguments {
  std::string model, output;  // output empty: the likeliest tokens are shown
  std::vector<std::int64_t> tokens;
  bool fp64 = false;
  int threads = 0;
};
int logits_command(const LogitsArguments& arguments);

struct ExportArguments {
  std::string model, output;
  std::optional<std::int64_t> step;  // nullopt: the newest
  hf::Number number = hf::Number::bf16;
  std::uint64_t file_bytes_max = hf::WriteOptions{}.file_bytes_max;
};
int export_command(const ExportArguments& arguments);

int ckpt_ls_command(const std::string& folder);
int ckpt_verify_command(const std::string& folder);

}  // namespace muster::train
