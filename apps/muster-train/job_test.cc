// muster-train in a job: /opt/ml, hyperparameters, and what becomes the reason of a failure.
#include <signal.h>

#include "apps/muster-train/test_program.h"
#include "train/comm/gloo/gloo.h"

namespace muster::train {
namespace {

// Two nodes as Muster's runner starts them, on two loopback addresses, with everything under a job's root.
class Job : public Program {
 protected:
  void make_node(const std::string& root, int node, const std::string& hyperparameters) const {
    fs::create_directories(root + "/input/config");
    fs::create_directories(root + "/input/data");
    fs::create_directory_symlink(shared("train"), root + "/input/data/train");
    fs::create_directory_symlink(shared("held-out"), root + "/input/data/validation");
    fs::create_directory_symlink(shared("tokenizer"), root + "/input/data/tokenizer");
    ASSERT_TRUE(write_file_atomic(root + "/input/config/hyperparameters.json", hyperparameters));
    const std::string host = "127.0.0." + std::to_string(node + 1);
    ASSERT_TRUE(write_file_atomic(root + "/input/config/resourceconfig.json",
                                  R"({"current_host":")" + host + R"(","hosts":["127.0.0.1","127.0.0.2"]})"));
  }
  static Environment node_variables(int node, int port) {
    const std::string rank = std::to_string(node);
    return {{"TRAINING_JOB_NAME", "demo"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)},
            {"WORLD_SIZE", "2"},
            {"RANK", rank},
            {"LOCAL_RANK", "0"},
            {"LOCAL_WORLD_SIZE", "1"},
            {"NODE_RANK", rank}};
  }
  static int free_port() {
    auto listener = listen_for_store("127.0.0.1", 0);
    auto store = start_store("127.0.0.1", *std::move(listener));
    return (*store)->port();
  }
};

constexpr char kHyperparameters[] =
    R"({"model.preset":"\"tiny\"","train.sequence":"16","train.batch":"4","train.micro_batch":"2","run.threads":"1",
        "train.steps":"12","checkpoint.every":"5","optim.lr":"0.01","sagemaker_job_name":"\"x\""})";

TEST_F(Job, TwoNodesTrainFromOptMl) {
  const TempDir roots;
  const int port = free_port();
  std::vector<Child> nodes;
  for (int node : {0, 1}) {
    const std::string root = roots / std::to_string(node);
    make_node(root, node, kHyperparameters);
    nodes.push_back(start({"train", "--job-root", root}, node_variables(node, port)));
  }
  const auto first = finish(nodes[0]), second = finish(nodes[1]);
  ASSERT_EQ(first.code, 0) << first.out << first.err;
  ASSERT_EQ(second.code, 0) << second.out << second.err;
  EXPECT_THAT(first.out, HasSubstr("start ranks=2 "));
  EXPECT_THAT(first.out, HasSubstr("done step=12/12"));
  EXPECT_THAT(first.err, HasSubstr("notice: hyperparameter sagemaker_job_name is ignored"));
  EXPECT_EQ(second.out, "");
  EXPECT_TRUE(fs::exists(roots / "0/model/config.json"));
  EXPECT_TRUE(fs::exists(roots / "0/model/tokenizer.model"));
  EXPECT_FALSE(fs::exists(roots / "1/model"));
  // Each node holds its own share; together they are the checkpoint, as the bucket brings them together.
  EXPECT_THAT(finish(start({"ckpt", "verify", roots / "0/checkpoints"})).out,
              HasSubstr("rank-1.bin is missing"));
  for (const char* step : {"step-10", "step-12"}) {
    fs::copy(roots / "1/checkpoints" + "/" + step, roots / "0/checkpoints" + "/" + step,
             fs::copy_options::recursive | fs::copy_options::skip_existing);
  }
  const auto verified = finish(start({"ckpt", "verify", roots / "0/checkpoints"}));
  EXPECT_EQ(verified.code, 0) << verified.out;
  EXPECT_THAT(finish(start({"generate", "--model", roots / "0/model", "--tokens", "5"})).code, 0);
}

// It is still reading its data, and the other node never comes.
TEST_F(Job, AStopBeforeTheRanksStartIsAStop) {
  const TempDir root;
  make_node(root.path(), 0, kHyperparameters);
  const Child node = start({"train", "--job-root", root.path()}, node_variables(0, free_port()));
  read_until(node.err, "notice: hyperparameter");
  kill(node.pid, SIGTERM);
  const auto run = finish(node);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("stopped without saving: asked to stop while starting\n"));
  EXPECT_FALSE(fs::exists(root / "output/failure"));
}

TEST_F(Job, FailuresBecomeTheReason) {
  const TempDir roots;
  const std::string root = roots / "0";
  make_node(root, 0, R"({"train.stepz": "3"})");
  const auto unknown = finish(start({"train", "--job-root", root}));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(*read_file(root + "/output/failure"),
              HasSubstr("hyperparameters.json: unknown key train.stepz; did you mean train.steps?"));

  ASSERT_TRUE(
      write_file_atomic(root + "/input/config/resourceconfig.json", R"({"current_host":"h","hosts":["h"]})"));
  ASSERT_TRUE(
      write_file_atomic(root + "/input/config/hyperparameters.json", R"({"data.train": "/no/such/folder"})"));
  const auto missing = finish(start({"train", "--job-root", root}));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(*read_file(root + "/output/failure"),
              HasSubstr("rank 0 ended with exit code 1: muster-train: rank 0: tokens of /no/such/folder"));

  const std::string resources = root + "/input/config/resourceconfig.json";
  fs::remove(resources);
  fs::create_directory(resources);
  EXPECT_EQ(finish(start({"train", "--job-root", root})).code, 2);
  EXPECT_THAT(*read_file(root + "/output/failure"), HasSubstr(resources));
}

}  // namespace
}  // namespace muster::train
