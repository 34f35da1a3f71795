#include "train/agent/discover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "base/text.h"
#include "train/agent/launchers.h"

namespace muster::train {
namespace {

// One line: flags and variables in, place or error out.
struct Case {
  const char* name;
  const char* flags;      // nproc=2 nodes=2 node=1 master=a:1
  const char* variables;  // NAME=value ...
  const char* resources;
  const char* expected;  // part of the description or of the error
};

constexpr char kTwoHosts[] =
    R"({"current_host":"algo-2","hosts":["algo-1","algo-2"],"network_interface_name":"lo"})";
constexpr char kOneHost[] = R"({"current_host":"algo-1","hosts":["algo-1"]})";
constexpr char kRunner[] =
    "MASTER_ADDR=algo-1 MASTER_PORT=7000 WORLD_SIZE=2 RANK=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=1";
constexpr char kTorchrun[] =
    "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 WORLD_SIZE=4 RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 "
    "TORCHELASTIC_RUN_ID=run7 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True";
const std::string kTorchrunInNode = std::string(kTorchrun) + " NODE_RANK=1";

constexpr char kMpi[] =
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
    "PMIX_NAMESPACE=prterun-host-1@1";
constexpr char kMpiNodes[] =
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
const std::string kMpiMaster = std::string(kMpiNodes) + " MASTER_ADDR=b MASTER_PORT=9";
const std::string kMpiInSlurm = std::string(kMpiNodes) +
                                " SLURM_STEP_NUM_TASKS=9 SLURM_PROCID=8 SLURM_LOCALID=0 "
                                "SLURM_STEP_TASKS_PER_NODE=1(x9)";
constexpr char kMpiAgents[] =
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1";
constexpr char kSlurm[] =
    "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2) "
    "SLURM_STEP_NODELIST=node[07-08] SLURM_JOB_ID=12 SLURM_STEP_ID=3";
const std::string kSlurmPmi = std::string(kSlurm) + " PMI_RANK=3 PMI_SIZE=4";
const std::string kSlurmRank = std::string(kSlurm) + " RANK=1 WORLD_SIZE=4";
const std::string kSlurmByHand =
    std::string(kSlurm) + " RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=9";
const std::string kTorchrunInSlurm = std::string(kTorchrun) + " " + kSlurm;
constexpr char kSlurmAgents[] =
    "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=1(x2) "
    "SLURM_STEP_NODELIST=node[07-08] SLURM_JOB_ID=12 SLURM_STEP_ID=3";
const std::string kSlurmRunner = std::string(kSlurmAgents) + " " + kRunner;

const Case kCases[] = {
    {"alone", "", "", "", "node 0/1 ranks 1 master 127.0.0.1:0"},
    {"alone with ranks", "nproc=3", "", "", "node 0/1 ranks 3 master 127.0.0.1:0"},
    {"flags", "nproc=2 nodes=2 node=1 master=10.0.0.1:77", "", "", "node 1/2 ranks 2 master 10.0.0.1:77"},
    {"torchrun", "", kTorchrun, "", "rank 3/4 local 1/2 node 1 store 10.0.0.1:29500 epoch run7/2 host 0"},
    {"torchrun in a node of Muster", "", kTorchrunInNode.c_str(), kTwoHosts, "rank 3/4 local 1/2"},
    {"variables without an agent's store", "",
     "MASTER_ADDR=a MASTER_PORT=9 WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", "",
     "rank 0/2 local 0/2 node 0 "
     "store a:9 epoch /0 host 1"},
    {"runner", "", kRunner, "", "node 1/2 ranks 1 master algo-1:7000"},
    {"runner and resources agree", "", kRunner, kTwoHosts,
     "node 1/2 ranks 1 master algo-1:7000 address algo-2"},
    {"runner, more ranks wanted", "nproc=2", kRunner, kTwoHosts, "node 1/2 ranks 2 master algo-1:7000"},
    {"resources", "", "", kTwoHosts, "node 1/2 ranks 1 master algo-1:7777 address algo-2"},
    {"resources of one host", "", "", kOneHost, "node 0/1 ranks 1 master 127.0.0.1:0 address 127.0.0.1"},

    {"flags against resources", "nodes=3 node=0 master=a:1", "", kTwoHosts,
     "number of nodes: --nodes says 3, resourceconfig.json says 2"},
    {"flag against file", "node=0", "", kTwoHosts,
     "number of this node: --node-rank says 0, resourceconfig.json says 1"},
    {"runner against resources", "", kRunner, kOneHost,
     "number of nodes: WORLD_SIZE / LOCAL_WORLD_SIZE says 2, resourceconfig.json says 1"},
    {"ranks disagree", "nproc=3", "MASTER_ADDR=a MASTER_PORT=9 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 NODE_RANK=0",
     "", "--nproc says 3, LOCAL_WORLD_SIZE says 2"},
    {"torchrun and flags", "nproc=2", kTorchrun, "", "started by torchrun as rank 3 of 4"},
    {"rank out of range", "",
     "MASTER_ADDR=a MASTER_PORT=9 WORLD_SIZE=2 RANK=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", "",
     "RANK=2 of WORLD_SIZE=2"},
    {"no number", "", "WORLD_SIZE=two", "", "WORLD_SIZE=two"},
    {"no master", "nodes=2 node=1", "", "", "2 nodes (--nodes) need --master HOST:PORT"},
    {"bad master", "nodes=2 node=1 master=host", "", "", "--master host: expected HOST:PORT"},
    {"node too high", "nodes=2 node=2 master=a:1", "", "", "node 2 of 2"},
    {"no ranks", "nproc=0", "", "", "--nproc 0: a number from 1 to 1024 is needed"},
    {"too many ranks", "nproc=1025", "", "", "--nproc 1025: a number from 1 to 1024 is needed"},
    {"too many nodes", "nodes=65537", "", "", "65537 nodes (--nodes): at most 65536"},
    {"mpirun, one process", "", "OMPI_COMM_WORLD_SIZE=1", "", "node 0/1"},
    {"mpirun on one node", "", kMpi, "",
     "rank 3/4 local 3/4 node 0 store 127.0.0.1:23105 epoch prterun-host-1@1 host 0"},
    {"mpirun on nodes", "master=a:1", kMpiNodes, "", "rank 3/4 local 1/2 node 1 store a:1"},
    {"mpirun on nodes, variables", "", kMpiMaster.c_str(), "", "rank 3/4 local 1/2 node 1 store b:9"},
    {"mpirun does not say where", "", kMpiNodes, "", "started by mpirun as rank 3 of 4, which does not tell"},
    {"mpirun, a process a node", "nproc=2 master=a:1", kMpiAgents, "", "node 3/4 ranks 2 master a:1"},
    {"mpirun, half of it", "", "OMPI_COMM_WORLD_SIZE=4", "", "OMPI_COMM_WORLD_RANK is not set"},
    {"mpirun inside of srun", "master=a:1", kMpiInSlurm.c_str(), "", "rank 3/4 local 1/2 node 1 store a:1"},
    {"hydra", "master=a:1", "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "",
     "rank 1/2 local 1/2 node 0 store a:1 epoch  host 0"},
    {"pmi without more", "", "PMI_RANK=1 PMI_SIZE=2", "", "MPI_LOCALRANKID is not set"},

    {"srun on one node", "",
     "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2 "
     "SLURM_JOB_ID=7 SLURM_STEP_ID=0",
     "", "rank 0/2 local 0/2 node 0 store 127.0.0.1:"},
    {"srun on nodes", "", kSlurm, "", "rank 3/4 local 1/2 node 1 store node07:"},
    {"srun, epoch and host", "master=a:1", kSlurm, "", "store a:1 epoch 12.3.0 host 0"},
    {"srun with pmi2", "master=a:1", kSlurmPmi.c_str(), "", "rank 3/4 local 1/2 node 1 store a:1"},
    {"srun, a task a node", "nproc=4", kSlurmAgents, "", "node 1/2 ranks 4 master node07:"},
    {"srun, one task", "nproc=2", "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", "", "node 0/1 ranks 2"},
    {"in a batch script", "", "SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_JOB_ID=7", "", "node 0/1 ranks 1"},
    {"srun and --nproc agree", "nproc=2", kSlurm, "", "rank 3/4 local 1/2"},
    {"srun against --nproc", "nproc=3", kSlurm, "",
     "ranks on a node: --nproc says 3, SLURM_STEP_TASKS_PER_NODE says 2"},
    {"srun against --nodes", "nodes=4", kSlurm, "", "number of nodes: --nodes says 4, srun says 2"},
    {"srun against --node-rank", "node=0", kSlurm, "",
     "number of this node: --node-rank says 0, srun says 1"},
    {"srun against RANK", "", kSlurmRank.c_str(), "",
     "number of this rank: RANK says 1, SLURM_PROCID says 3"},
    {"srun and all by hand", "", kSlurmByHand.c_str(), "",
     "number of this rank: RANK says 1, SLURM_PROCID says 3"},
    {"torchrun in an srun", "", kTorchrunInSlurm.c_str(), "",
     "rank 3/4 local 1/2 node 1 store 10.0.0.1:29500"},
    {"srun against resources", "", kSlurmAgents, kOneHost,
     "number of nodes: SLURM_STEP_NUM_TASKS says 2, resourceconfig.json says 1"},
    {"srun and runner agree", "", kSlurmRunner.c_str(), kTwoHosts, "node 1/2 ranks 1 master algo-1:7000"},
    {"srun, uneven", "",
     "SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2,1", "",
     "SLURM_STEP_TASKS_PER_NODE=2,1: every node needs as many tasks"},
    {"srun, round robin", "",
     "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2(x2)", "",
     "SLURM_PROCID=1 of SLURM_STEP_NUM_TASKS=4 is number 0 of 2 on its node"},
    {"srun, broken", "",
     "SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2(x", "",
     "is not as srun sets it"},
    {"stranger in the file", "", "", R"({"current_host":"x","hosts":["algo-1"]})",
     "current_host \"x\" is not one of its 1"},
    {"broken file", "", "", "{", "resourceconfig.json"},
};

LaunchFlags parse_flags(const std::string& text) {
  LaunchFlags flags;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto name = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
    if (name == "nproc") flags.nproc = static_cast<int>(*parse_int(value));
    if (name == "nodes") flags.nodes = static_cast<int>(*parse_int(value));
    if (name == "node") flags.node_rank = static_cast<int>(*parse_int(value));
    if (name == "master") flags.master = value;
  }
  return flags;
}

std::string describe(const Result<Place>& place) {
  if (!place) return "error: " + place.error().message;
  std::ostringstream out;
  if (const auto& r = place->rank) {
    out << "rank " << r->rank << "/" << r->world << " local " << r->local_rank << "/" << r->local_world
        << " node " << r->node << " store " << r->store_host << ":" << r->store_port << " epoch " << r->epoch
        << " host " << r->host_store;
  } else {
    const NodePlace& n = place->node;
    out << "node " << n.node << "/" << n.nodes << " ranks " << n.ranks << " master " << n.master_host << ":"
        << n.master_port << " address " << n.address;
  }
  return out.str();
}

TEST(Discover, Table) {
  for (const Case& c : kCases) {
    std::map<std::string, std::string, std::less<>> variables;
    std::istringstream words(c.variables);
    for (std::string word; words >> word;)
      variables[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    const auto place = discover(
        parse_flags(c.flags),
        [&](std::string_view name) -> std::optional<std::string> {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        c.resources);
    EXPECT_THAT(describe(place), testing::HasSubstr(c.expected)) << c.name;
  }
}

TEST(Launchers, FirstHostOfASlurmList) {
  for (const auto& [list, host] : std::map<std::string, std::string>{{"node[001-004,7],login", "node001"},
                                                                     {"a,b", "a"},
                                                                     {"n7", "n7"},
                                                                     {"r[2,4]n[3-5]x", "r2n3x"},
                                                                     {"", ""},
                                                                     {"n[1-", ""}}) {
    EXPECT_EQ(first_host(list), host) << list;
  }
}

}  // namespace
}  // namespace muster::train
