#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "runner/launch/paths.h"
#include "runner/launch/surroundings.h"

namespace muster::runner {
namespace {

TEST(Paths, names_below_a_prefix) {
  EXPECT_EQ(to_string(below({"b", "p"}, "x")), "s3://b/p/x");
  EXPECT_EQ(to_string(below({"b", "p//"}, "x")), "s3://b/p/x");
  EXPECT_EQ(to_string(below({"b", ""}, "x")), "s3://b/x");
}

TEST(Paths, local_names) {
  const struct {
    const char* prefix;
    const char* key;
    const char* answer;
  } kCases[] = {
      {"in/code", "in/code/x", "x"},
      {"in/code/", "in/code/d/x", "d/x"},
      {"in/code", "in/code", "code"},        // a single object
      {"in/code", "in/code2/x", "code2/x"},  // a prefix is text, not a folder
      {"in/code", "in/code.tar", "code.tar"},
      {"", "a/b", "a/b"},
      {"a", "a", "a"},
      {"in/code/", "in/code/", ""},  // folder markers
      {"in/code", "in/code/", ""},
      {"in/", "in/d/", ""},
      {"in/", "in/../x", "the key \"in/../x\" is no path below its prefix"},
      {"in/", "in/a//x", "the key \"in/a//x\" is no path below its prefix"},
      {"in/", "in/./x", "the key \"in/./x\" is no path below its prefix"},
      {"in", "in//etc/passwd", "the key \"in//etc/passwd\" is no path below its prefix"},
      {"in", "in/..", "the key \"in/..\" is no path below its prefix"},
      {"in/", "in/a b+c%2F\xF0\x9F\x98\x80", "a b+c%2F\xF0\x9F\x98\x80"},
  };
  for (const auto& c : kCases) {
    const auto name = local_name(c.prefix, c.key);
    EXPECT_EQ(name ? *name : name.error().message, c.answer) << c.prefix << " " << c.key;
  }
  EXPECT_FALSE(local_name("in/", "in/" + std::string(256, 'a')));
  EXPECT_TRUE(local_name("in/", "in/" + std::string(255, 'a')));
}

TEST(Paths, shards_are_disjoint_and_complete) {
  std::vector<std::string> keys;
  for (int i = 0; i < 23; ++i) keys.push_back("k" + std::to_string(i * 7 % 23));
  for (const int world : {1, 2, 3, 7, 30}) {
    std::multiset<std::string> seen;
    for (int rank = 0; rank < world; ++rank) {
      const auto mine = share_of(keys, domain::Distribution::sharded_by_s3_key, rank, world);
      EXPECT_LE(mine.size(), 23U / static_cast<unsigned>(world) + 1);
      seen.insert(mine.begin(), mine.end());
    }
    EXPECT_EQ(seen, std::multiset<std::string>(keys.begin(), keys.end())) << world;
  }
  EXPECT_EQ(share_of({"b", "a", "c"}, domain::Distribution::sharded_by_s3_key, 1, 2),
            (std::vector<std::string>{"b"}));
  EXPECT_EQ(share_of({"b", "a"}, domain::Distribution::fully_replicated, 1, 2),
            (std::vector<std::string>{"a", "b"}));
}

TEST(Paths, node_paths) {
  EXPECT_EQ(node_path("/opt/ml", "/opt/ml/model"), "/opt/ml/model");
  EXPECT_EQ(node_path("/r/ml", "/opt/ml/model"), "/r/ml/model");
  EXPECT_EQ(node_path("/r/ml", "/opt/ml"), "/r/ml");
  EXPECT_EQ(node_path("/r/ml", "/opt/mlx"), "/opt/mlx");
}

domain::NodeLaunch launch_of(int rank, int world) {
  domain::NodeLaunch launch;
  launch.id = {domain::AttemptId{5}, rank, 1};
  launch.world = world;
  for (int r = 0; r < world; ++r)
    launch.hosts.push_back({domain::host_name(r), "127.77.0." + std::to_string(r + 1)});
  launch.interface = "lo";
  launch.endpoint_url = "http://127.0.0.1:9000";
  launch.workload.job_name = "demo";
  launch.workload.job_arn = "arn:demo";
  launch.workload.region = "us-east-1";
  launch.workload.program = "train";
  launch.workload.instance_type = "ml.m5.large";
  launch.workload.hyperparameters = {{"epochs", "3"}};
  launch.workload.channels.push_back({.name = "train",
                                      .s3_uri = "s3://b/x",
                                      .distribution = domain::Distribution::sharded_by_s3_key,
                                      .local_path = "/opt/ml/input/data/train",
                                      .content_type = "text/csv"});
  return launch;
}

TEST(Surroundings, training_files) {
  auto launch = launch_of(1, 11);
  launch.workload.checkpoint.s3_uri = "s3://b/ck";
  const auto files = config_files(launch);
  EXPECT_EQ(files.at("/opt/ml/input/config/hyperparameters.json"), R"({"epochs":"3"})");
  EXPECT_EQ(files.at("/opt/ml/input/config/inputdataconfig.json"),
            R"({"train":{"TrainingInputMode":"File","S3DistributionType":"ShardedByS3Key",)"
            R"("RecordWrapperType":"None","ContentType":"text/csv"}})");
  EXPECT_EQ(files.at("/opt/ml/input/config/checkpointconfig.json"),
            R"({"S3Uri":"s3://b/ck","LocalPath":"/opt/ml/checkpoints"})");
  const auto resources = json::parse_object(files.at("/opt/ml/input/config/resourceconfig.json"));
  ASSERT_TRUE(resources);
  EXPECT_EQ(json::get_string(*resources, "current_host"), "algo-2");
  EXPECT_EQ(json::get_string(*resources, "current_group_name"), "homogeneousCluster");
  EXPECT_EQ(json::get_string(*resources, "current_instance_type"), "ml.m5.large");
  EXPECT_EQ(json::get_string(*resources, "network_interface_name"), "lo");
  const auto hosts = json::string_list(*json::opt_array(*resources, "hosts"));
  ASSERT_EQ(hosts.size(), 11U);
  EXPECT_EQ(hosts[1], "algo-10");  // sorted as text
  const auto& group = json::opt_array(*resources, "instance_groups")->at(0).as_object();
  EXPECT_EQ(json::get_string(group, "instance_group_name"), "homogeneousCluster");
  EXPECT_EQ(json::string_list(*json::opt_array(group, "hosts")), hosts);
}

TEST(Surroundings, processing_files_and_folders) {
  auto launch = launch_of(0, 2);
  launch.workload.kind = domain::JobKind::processing;
  launch.workload.files = {{"/opt/ml/config/processingjobconfig.json", "{}"}};
  launch.workload.outputs.push_back(
      {.name = "o", .local_path = "/opt/ml/processing/out", .s3_uri = "s3://b/o"});
  const auto files = config_files(launch);
  EXPECT_EQ(files.size(), 2U);
  EXPECT_EQ(files.at("/opt/ml/config/resourceconfig.json"),
            R"({"current_host":"algo-1","hosts":["algo-1","algo-2"]})");
  const auto all = folders(launch);
  const std::set<std::string> set(all.begin(), all.end());
  EXPECT_TRUE(set.count("/opt/ml/processing/out") == 1 && set.count("/opt/ml/output") == 1 &&
              set.count("/opt/ml/input/data/train") == 1);
}

TEST(Surroundings, environment_precedence) {
  auto launch = launch_of(1, 2);
  launch.workload.environment = {{"MASTER_PORT", "1234"},
                                 {"TRAINING_JOB_NAME", "forged"},
                                 {"AWS_ENDPOINT_URL", "http://evil"},
                                 {"MINE", "x=y"}};
  const NodeFacts node{.bin_dir = "/usr/lib/m",
                       .home = "/opt/home",
                       .user = "nobody",
                       .credentials_uri = "http://127.77.0.2:5/credentials",
                       .credentials_token = "t"};
  const auto env = environment(launch, node);
  EXPECT_EQ(env.at("MASTER_PORT"), "1234");  // the request wins over the launcher
  EXPECT_EQ(env.at("TRAINING_JOB_NAME"), "demo");
  EXPECT_EQ(env.at("AWS_ENDPOINT_URL"), "http://127.0.0.1:9000");
  EXPECT_EQ(env.at("MINE"), "x=y");
  EXPECT_EQ(env.at("RANK") + env.at("WORLD_SIZE") + env.at("LOCAL_RANK") + env.at("LOCAL_WORLD_SIZE") +
                env.at("NODE_RANK"),
            "12011");
  EXPECT_EQ(env.at("MASTER_ADDR"), "algo-1");
  EXPECT_EQ(env.at("HOME"), "/opt/home");
  EXPECT_EQ(env.at("AWS_CONTAINER_CREDENTIALS_FULL_URI"), "http://127.77.0.2:5/credentials");
  EXPECT_EQ(env.count("AWS_ACCESS_KEY_ID"), 0U);
  EXPECT_EQ(env.at("PATH").substr(0, 11), "/usr/lib/m:");
  EXPECT_EQ(master_port({domain::AttemptId{5}, 0, 1}), master_port({domain::AttemptId{5}, 1, 2}));
}

TEST(Surroundings, command_lines) {
  using Words = std::vector<std::string>;
  NodeFacts node;
  node.bin_dir = "/b";
  auto launch = launch_of(0, 1);
  auto& work = launch.workload;
  EXPECT_EQ(command_line(launch, node), (Words{"/b/muster-train", "train"}));
  work.arguments = {"--steps", "5"};
  EXPECT_EQ(command_line(launch, node), (Words{"/b/muster-train", "--steps", "5"}));
  work.entrypoint = {"/bin/echo"};
  EXPECT_EQ(command_line(launch, node), (Words{"/bin/echo", "--steps", "5"}));
  work = {};
  work.program = "host";
  EXPECT_EQ(command_line(launch, node), (Words{"train"}));
  work.entrypoint = {"python3", "x.py"};
  EXPECT_EQ(command_line(launch, node), (Words{"python3", "x.py"}));
  work = {};
  work.kind = domain::JobKind::processing;
  work.program = "data";
  work.arguments = {"tokenize"};
  EXPECT_EQ(command_line(launch, node), (Words{"/b/muster-data", "tokenize"}));
}

}  // namespace
}  // namespace muster::runner
