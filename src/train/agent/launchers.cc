#include "train/agent/launchers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/crypto.h"
#include "base/text.h"

namespace muster::train {
namespace {

// A port that all processes of one start agree on without talking: below the ephemeral ones.
std::uint16_t port_of(std::string_view start) {
  return static_cast<std::uint16_t>(20'000 + crypto::crc32c(start) % 12'000);
}

// "2(x3),1": tasks on each node.
std::optional<std::vector<int>> tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  for (auto part : split(text, ',')) {
    int nodes = 1;
    if (const auto times = part.find("(x"); times != std::string_view::npos && part.ends_with(')')) {
      const auto count = parse_int(part.substr(times + 2, part.size() - times - 3));
      if (!count || *count < 1 || *count > 1'000'000) return std::nullopt;
      nodes = static_cast<int>(*count);
      part = part.substr(0, times);
    }
    const auto count = parse_int(part);
    if (!count || *count < 1 || *count > 1'000'000) return std::nullopt;
    tasks.insert(tasks.end(), static_cast<std::size_t>(nodes), static_cast<int>(*count));
  }
  return tasks;
}

Result<Launched> checked(Launched launched) {
  const auto place = launched.rank_name + "=" + std::to_string(launched.rank) + " of " + launched.size_name +
                     "=" + std::to_string(launched.size);
  if (launched.rank >= launched.size || launched.local_rank >= launched.local_size) {
    return fail(ErrorCode::invalid_argument, place + ", " + std::to_string(launched.local_rank) + " of " +
                                                 std::to_string(launched.local_size) +
                                                 " on its node: a rank must be below its size");
  }
  if (launched.size % launched.local_size != 0 ||
      launched.rank % launched.local_size != launched.local_rank) {
    return fail(ErrorCode::invalid_argument,
                place + " is number " + std::to_string(launched.local_rank) + " of " +
                    std::to_string(launched.local_size) +
                    " on its node: every node needs as many ranks, and ranks one after the other (srun: "
                    "--ntasks-per-node=N --distribution=block; mpirun: --map-by ppr:N:node)");
  }
  return launched;
}

Result<std::optional<Launched>> read_mpi(const Variables& variables, std::string by,
                                         const std::array<const char*, 4>& names) {
  std::array<int, 4> values{};
  MUSTER_TRY(const auto size, variable_int(variables, names[1], 1));
  if (size.value_or(1) == 1) return std::optional<Launched>();
  for (std::size_t i = 0; i < names.size(); ++i) {
    MUSTER_TRY(const auto value, variable_int(variables, names[i], i % 2 == 0 ? 0 : 1));
    if (!value) {
      return fail(ErrorCode::invalid_argument, std::string(names[1]) + "=" + std::to_string(*size) +
                                                   ", but " + names[i] +
                                                   " is not set: with this launcher start one process a node "
                                                   "and give --nodes, --node-rank and --master");
    }
    values[i] = *value;
  }
  Launched launched{.by = std::move(by),
                    .rank = values[0],
                    .size = values[1],
                    .local_rank = values[2],
                    .local_size = values[3],
                    .rank_name = names[0],
                    .size_name = names[1],
                    .local_size_name = names[3],
                    .epoch = variables("PMIX_NAMESPACE").value_or("")};
  if (launched.nodes() == 1 && !launched.epoch.empty())
    launched.master = Endpoint{"127.0.0.1", port_of(launched.epoch)};
  MUSTER_TRY(launched, checked(std::move(launched)));
  return std::optional(std::move(launched));
}

Result<std::optional<Launched>> read_slurm(const Variables& variables) {
  MUSTER_TRY(const auto size, variable_int(variables, "SLURM_STEP_NUM_TASKS", 1));
  if (size.value_or(1) == 1) return std::optional<Launched>();
  MUSTER_TRY(const auto rank, variable_int(variables, "SLURM_PROCID", 0));
  MUSTER_TRY(const auto local, variable_int(variables, "SLURM_LOCALID", 0));
  const auto text = variables("SLURM_STEP_TASKS_PER_NODE").value_or("");
  const auto tasks = tasks_per_node(text);
  if (!rank || !local || !tasks) {
    return fail(ErrorCode::invalid_argument,
                "SLURM_STEP_NUM_TASKS=" + std::to_string(*size) +
                    ", but SLURM_PROCID, SLURM_LOCALID or SLURM_STEP_TASKS_PER_NODE (\"" + text +
                    "\") is not as srun sets it");
  }
  if (std::ranges::adjacent_find(*tasks, std::not_equal_to<>()) != tasks->end()) {
    return fail(ErrorCode::invalid_argument, "SLURM_STEP_TASKS_PER_NODE=" + text +
                                                 ": every node needs as many tasks; give srun "
                                                 "--ntasks-per-node=N");
  }
  Launched launched{.by = "srun",
                    .rank = *rank,
                    .size = *size,
                    .local_rank = *local,
                    .local_size = tasks->front(),
                    .rank_name = "SLURM_PROCID",
                    .size_name = "SLURM_STEP_NUM_TASKS",
                    .local_size_name = "SLURM_STEP_TASKS_PER_NODE",
                    .epoch = variables("SLURM_JOB_ID").value_or("") + "." +
                             variables("SLURM_STEP_ID").value_or("") + "." +
                             variables("SLURM_RESTART_COUNT").value_or("0")};
  MUSTER_TRY(launched, checked(std::move(launched)));
  const std::string host = first_host(variables("SLURM_STEP_NODELIST").value_or(""));
  if (launched.nodes() == 1) launched.master = Endpoint{"127.0.0.1", port_of(launched.epoch)};
  if (launched.nodes() > 1 && !host.empty()) launched.master = Endpoint{host, port_of(launched.epoch)};
  return std::optional(std::move(launched));
}

}  // namespace

Result<std::optional<int>> variable_int(const Variables& variables, std::string_view name, int minimum) {
  const auto text = variables(name);
  if (!text) return std::optional<int>();
  const auto value = parse_int(*text);
  if (!value || *value < minimum || *value > 1'000'000) {
    return fail(ErrorCode::invalid_argument, "environment variable " + std::string(name) + "=" + *text +
                                                 ": a whole number of at least " + std::to_string(minimum) +
                                                 " is needed");
  }
  return std::optional<int>(static_cast<int>(*value));
}

std::string first_host(std::string_view nodelist) {
  std::string host;
  for (std::size_t i = 0; i < nodelist.size() && nodelist[i] != ','; ++i) {
    if (nodelist[i] != '[') {
      host += nodelist[i];
      continue;
    }
    const auto close = nodelist.find(']', i);
    if (close == std::string_view::npos) return "";
    const auto inside = nodelist.substr(i + 1, close - i - 1);
    host += inside.substr(0, inside.find_first_of(",-"));
    i = close;
  }
  return host;
}

// mpirun starts its own helpers by srun inside of an allocation, and their variables reach the ranks: so
// MPI's come first, and then Slurm's are not looked at. PMI_SIZE alone is srun --mpi=pmi2.
Result<std::optional<Launched>> read_launcher(const Variables& variables) {
  MUSTER_TRY(auto open_mpi, read_mpi(variables, "mpirun",
                                     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}));
  if (open_mpi) return open_mpi;
  if (!variables("SLURM_STEP_NUM_TASKS") || variables("MPI_LOCALNRANKS")) {
    MUSTER_TRY(auto hydra, read_mpi(variables, "mpiexec",
                                    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}));
    if (hydra) return hydra;
  }
  return read_slurm(variables);
}

}  // namespace muster::train
