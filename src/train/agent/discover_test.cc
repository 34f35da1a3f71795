#include "train/agent/discover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "base/text.h"

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
    {"no master", "nodes=2 node=1", "", "", "--nodes 2 needs --master HOST:PORT"},
    {"bad master", "nodes=2 node=1 master=host", "", "", "--master host: expected HOST:PORT"},
    {"node too high", "nodes=2 node=2 master=a:1", "", "", "node 2 of 2"},
    {"no ranks", "nproc=0", "", "", "--nproc 0: at least 1"},
    {"mpirun", "", "OMPI_COMM_WORLD_SIZE=4", "", "OMPI_COMM_WORLD_SIZE=4: started by a launcher"},
    {"mpirun, one process", "", "OMPI_COMM_WORLD_SIZE=1", "", "node 0/1"},
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

}  // namespace
}  // namespace muster::train
