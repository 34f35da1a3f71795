#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "base/rng.h"
#include "runner/transfer/archive.h"
#include "runner/transfer/checkpoint.h"
#include "runner/transfer/fake_objects.h"
#include "runner/transfer/stage.h"
#include "runner/transfer/upload.h"

namespace muster::runner {
namespace {

namespace fs = std::filesystem;

const std::stop_token kNever;

void put(const std::string& path, const std::string& content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

// "a=1 d/b=2" of all files below a folder.
std::string listing(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto name = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink())
      files[name] = "->" + fs::read_symlink(entry.path()).string();
    else if (entry.is_regular_file())
      files[name] = read_file(entry.path().string()).value();
  }
  std::string out;
  for (const auto& [name, content] : files) out += (out.empty() ? "" : " ") + name + "=" + content;
  return out;
}

std::string untar(const std::string& archive, const std::string& folder) {
  fs::create_directories(folder);
  const auto command = "tar -xf '" + archive + "' -C '" + folder + "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0);
  return listing(folder);
}

TEST(Stage, replicated_and_sharded) {
  FakeObjects store;
  for (const auto* key : {"in/train/a", "in/train/d/b", "in/train/c", "in/trainer/x", "in/train/d/"})
    store.objects[key] = key[9];
  TempDir folder;
  domain::Channel channel{.name = "train", .s3_uri = "s3://b/in/train/"};
  const auto staged = stage_channel(store, channel, 0, 2, folder / "all", kNever);
  ASSERT_TRUE(staged) << staged.error().message;
  EXPECT_EQ(describe(*staged), "3 B in 3 files");
  EXPECT_EQ(listing(folder / "all"), "a=a c=c d/b=d");
  channel.distribution = domain::Distribution::sharded_by_s3_key;
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(stage_channel(store, channel, rank, 4, folder / std::to_string(rank), kNever));
  }
  EXPECT_EQ(listing(folder / "0") + "|" + listing(folder / "1") + "|" + listing(folder / "2") + "|" +
                listing(folder / "3"),
            "a=a|c=c|d/b=d|");  // an empty share is fine
}

TEST(Stage, failures_say_what_and_whose) {
  FakeObjects store;
  TempDir folder;
  const auto reason = [&](const char* uri) {
    const auto staged = stage_channel(store, {.name = "train", .s3_uri = uri}, 0, 1, folder / "x", kNever);
    if (staged) return std::string("staged");
    const auto failure = failure_of(staged.error());
    return std::string(domain::to_string(failure.cause)) + ": " + failure.reason;
  };
  EXPECT_EQ(reason("s3://b/none/"), "program: channel \"train\": no object under s3://b/none/");
  EXPECT_EQ(reason("s3://c/x"), "program: channel \"train\": no bucket c");
  EXPECT_EQ(reason("file:///etc"),
            "program: channel \"train\": \"file:///etc\" must begin with s3:// (s3://BUCKET/KEY)");
  store.objects["in/../../etc/passwd"] = "evil";
  EXPECT_EQ(reason("s3://b/in/"),
            "program: channel \"train\": the key \"in/../../etc/passwd\" is no path below its prefix");
  store.objects = {{"p/abc", "1"}, {"p/abc/d", "2"}};
  const auto conflict = reason("s3://b/p/");
  EXPECT_NE(conflict.find("/abc"), std::string::npos) << conflict;
  EXPECT_EQ(conflict.substr(0, 8), "program:");
  store.broken = Error{ErrorCode::unavailable, "connection refused"};
  EXPECT_EQ(reason("s3://b/in/"), "infrastructure: channel \"train\": connection refused");
}

TEST(Stage, a_full_disk_is_said_before_anything_is_written) {
  class Huge final : public Objects {
   public:
    Result<std::vector<ObjectInfo>> list(const S3Location&) override {
      return std::vector<ObjectInfo>{{"in/x", 1ULL << 60, {}, ""}};
    }
    Result<void> download(const std::string&, const std::vector<Download>&, const std::string&,
                          std::stop_token) override {
      ADD_FAILURE() << "must not be tried";
      return {};
    }
    Result<void> upload(const std::string&, const S3Location&, std::stop_token) override { return {}; }
    Result<void> remove(const S3Location&) override { return {}; }
  } store;
  TempDir folder;
  const auto staged = stage_channel(store, {.name = "t", .s3_uri = "s3://b/in"}, 0, 1, folder / "x", kNever);
  ASSERT_FALSE(staged);
  EXPECT_NE(staged.error().message.find("disk is full"), std::string::npos) << staged.error().message;
}

TEST(Archive, real_tar_reads_it) {
  TempDir folder;
  const auto root = folder / "model";
  const auto longer = std::string(120, 'n') + "/" + std::string(200, 'm');
  put(root + "/a b", "1");
  put(root + "/d/täglich", "2");
  put(root + "/" + longer, "3");
  put(root + "/\xff\xfe", "4");
  fs::create_directories(root + "/empty");
  fs::create_symlink("a b", root + "/link");
  ::chmod((root + "/a b").c_str(), 0750);
  ::mkfifo((root + "/pipe").c_str(), 0600);
  auto writer = ArchiveWriter::create(folder / "m.tar.gz", true);
  ASSERT_TRUE(writer) << writer.error().message;
  std::string skipped;
  const auto tree = Tree::open(root);
  ASSERT_TRUE(tree);
  ASSERT_TRUE(writer->add_tree(
      *tree, kNever, [&](const std::string& name, const std::string& why) { skipped += name + " " + why; }));
  ASSERT_TRUE(writer->finish());
  EXPECT_EQ(skipped, "pipe is a socket, pipe or device");
  EXPECT_EQ(writer->files(), 4U);
  EXPECT_EQ(untar(folder / "m.tar.gz", folder / "out"),
            "a b=1 d/täglich=2 link=->a b " + longer + "=3 \xff\xfe=4");
  EXPECT_TRUE(fs::is_directory(folder / "out/empty"));
  struct stat info {};
  ::stat((folder / "out/a b").c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777U, 0750U);
}

TEST(Tree, links_do_not_lead_out) {
  TempDir folder;
  put(folder / "secret", "key");
  put(folder / "t/in", "1");
  fs::create_symlink("../secret", folder / "t/out");
  fs::create_symlink("in", folder / "t/inner");
  fs::create_directory_symlink(".", folder / "t/loop");
  ::mkfifo((folder / "t/fifo").c_str(), 0600);
  const auto tree = Tree::open(folder / "t");
  ASSERT_TRUE(tree);
  EXPECT_FALSE(tree->open_file("out"));
  EXPECT_TRUE(tree->open_file("inner"));
  EXPECT_FALSE(tree->open_file("fifo"));
  EXPECT_FALSE(tree->open_file("../secret"));
  EXPECT_EQ(read_small(*tree, "in", 100), "1");
  EXPECT_EQ(read_small(*tree, "out", 100), "");
  EXPECT_EQ(tree->list()->size(), 5U);
  fs::create_directory_symlink(folder / "t", folder / "alias");
  EXPECT_FALSE(Tree::open(folder / "alias"));
}

UploadContext context_of(TempDir& folder, int rank, int world, std::vector<std::string>* log) {
  UploadContext context;
  context.rank = rank;
  context.world = world;
  context.attempt_created = Time{1000};
  context.opt_ml = folder / ("ml" + std::to_string(rank));
  context.scratch = folder.path();
  context.log = [log](std::string line) { log->push_back(std::move(line)); };
  return context;
}

domain::Output model_archive() {
  return {.name = "model",
          .local_path = "/opt/ml/model",
          .s3_uri = "s3://b/o/model.tar.gz",
          .form = domain::Output::Form::tar_gz,
          .merged = true};
}

TEST(Upload, one_archive_of_all_ranks) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  const auto model = model_archive();
  put(folder / "ml0/model/same", "0");
  put(folder / "ml0/model/zero", "0");
  put(folder / "ml1/model/same", "1");
  put(folder / "ml1/model/d/one", "1");
  fs::create_directories(folder / "ml2/model");
  for (const int rank : {2, 1, 0}) {
    const auto done = upload_output(store, model, context_of(folder, rank, 3, &log), kNever);
    ASSERT_TRUE(done) << done.error().message;
  }
  ASSERT_EQ(store.objects.size(), 1U);  // the parts are gone
  put(folder / "got", store.objects.at("o/model.tar.gz"));
  EXPECT_EQ(untar(folder / "got", folder / "out"), "d/one=1 same=1 zero=0");
  ASSERT_EQ(log.size(), 1U);
  EXPECT_EQ(log[0],
            "muster: output \"model\": same is left out: it came from a node of higher rank too, and the "
            "last one wins");
  EXPECT_FALSE(fs::exists(folder / "model.archive"));
}

TEST(Upload, an_empty_or_missing_model_makes_an_empty_archive) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  const auto model = model_archive();
  ASSERT_TRUE(upload_output(store, model, context_of(folder, 0, 1, &log), kNever));
  put(folder / "got", store.objects.at("o/model.tar.gz"));
  EXPECT_EQ(untar(folder / "got", folder / "out"), "");
  ASSERT_EQ(log.size(), 1U);
}

TEST(Upload, raw_files_links_and_conflicts) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  put(folder / "secret", "key");
  put(folder / "ml1/processing/out/a", "1");
  put(folder / "ml1/processing/out/d/b", "2");
  fs::create_symlink("a", folder / "ml1/processing/out/inner");
  fs::create_symlink("../../../secret", folder / "ml1/processing/out/outer");
  store.objects["o/a"] = "old";
  store.modified["o/a"] = Time{1001};  // of another node of this attempt
  const domain::Output out{.name = "out", .local_path = "/opt/ml/processing/out", .s3_uri = "s3://b/o"};
  const auto done = upload_output(store, out, context_of(folder, 1, 2, &log), kNever);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->files, 3U);
  EXPECT_EQ(store.objects,
            (std::map<std::string, std::string>{{"o/a", "1"}, {"o/d/b", "2"}, {"o/inner", "1"}}));
  ASSERT_EQ(log.size(), 2U);
  EXPECT_EQ(log[0],
            "muster: output \"out\": s3://b/o/a was written by another node too; this node's file wins");
  EXPECT_EQ(log[1], "muster: output \"out\": outer is left out: it is a link to no file of this folder");
}

TEST(Upload, failure_names_output_and_place) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  put(folder / "ml0/model/a", "1");
  const domain::Output model{.name = "model", .local_path = "/opt/ml/model", .s3_uri = "s3://nobucket/o"};
  const auto done = upload_output(store, model, context_of(folder, 0, 1, &log), kNever);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message,
            "cannot upload \"model\" to s3://nobucket/o: s3://nobucket/o/a: no bucket nobucket");
}

// 20 folders of 250 characters: made step by step, since no system call takes such a path.
std::string too_long_a_path(const std::string& root) {
  const std::string step(250, 'd');
  std::string path;
  UniqueFd folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(::mkdirat(folder.get(), step.c_str(), 0700), 0);
    folder = UniqueFd(::openat(folder.get(), step.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    path += step + "/";
  }
  const UniqueFd file(::openat(folder.get(), "weights", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_TRUE(file);
  return path + "weights";
}

TEST(Upload, a_file_that_cannot_be_read_is_named_with_the_remedy) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  const auto model = model_archive();
  fs::create_directories(folder / "ml0/model");
  const auto path = too_long_a_path(folder / "ml0/model");
  const auto done = upload_output(store, model, context_of(folder, 0, 1, &log), kNever);
  ASSERT_FALSE(done);
  const auto& message = done.error().message;
  EXPECT_NE(message.find("model: cannot read ddd"), std::string::npos) << message;
  EXPECT_NE(message.find("d/weights: its path has " + std::to_string(path.size()) +
                         " bytes, at most 4095 can be opened; write to a shorter path"),
            std::string::npos)
      << message;
  EXPECT_LT(message.size(), 900U) << "the remedy must fit into a failure reason";
  EXPECT_EQ(failure_of(done.error()).cause, domain::Cause::program);
}

CheckpointOptions checkpoint_options(TempDir& folder, int world, std::vector<std::string>* log) {
  CheckpointOptions options;
  options.store = {"b", "ck"};
  options.folder = folder / "ck";
  options.world = world;
  options.peers_max = Millis{50};
  options.log = [log](std::string line) { log->push_back(std::move(line)); };
  return options;
}

TEST(Checkpoint, restored_then_only_settled_files_go_up_and_the_manifest_last) {
  FakeObjects store;
  store.objects = {{"ck/step-1/manifest.json", "m1"}, {"ck2/other", "x"}};
  TempDir folder;
  std::vector<std::string> log;
  CheckpointSync sync(store, checkpoint_options(folder, 1, &log));
  const auto restored = sync.restore(kNever);
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(listing(folder / "ck"), "step-1/manifest.json=m1");
  put(folder / "ck/step-2/manifest.json", "m2");
  put(folder / "ck/step-2/z.bin", "z");
  put(folder / "ck/step-2/a.bin.tmp", "half");
  put(folder / "ck/.tmp-step-3/x", "half");
  put(folder / "ck/.muster-lock", "process 1 on this-node");
  EXPECT_EQ(sync.scan(kNever)->files, 0U);  // seen once
  put(folder / "ck/step-2/z.bin", "zz");    // still written
  EXPECT_EQ(sync.scan(kNever)->files, 0U);  // so the manifest waits
  EXPECT_EQ(sync.scan(kNever)->files, 2U);
  EXPECT_EQ(store.order, (std::vector<std::string>{"ck/step-2/z.bin", "ck/step-2/manifest.json"}));
  EXPECT_EQ(sync.scan(kNever)->files, 0U);
  put(folder / "ck/step-4/new", "n");
  EXPECT_EQ(sync.finish(kNever)->files, 1U);
  for (const char* name : {"ck/step-2/a.bin.tmp", "ck/.tmp-step-3/x", "ck/.muster-lock"})
    EXPECT_EQ(store.objects.count(name), 0U) << name;
  EXPECT_EQ(store.objects.at("ck/step-1/manifest.json"), "m1");
}

TEST(Checkpoint, what_is_no_file_is_left_out_and_named_once) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  CheckpointSync sync(store, checkpoint_options(folder, 1, &log));
  put(folder / "ck/step-1/a", "a");
  fs::create_symlink("step-1", folder / "ck/latest");
  fs::create_symlink("a", folder / "ck/step-1/b.tmp");
  ASSERT_EQ(::mkfifo((folder / "ck/pipe").c_str(), 0600), 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(sync.scan(kNever));
  ASSERT_TRUE(sync.finish(kNever));
  EXPECT_EQ(store.order, std::vector<std::string>{"ck/step-1/a"});
  ASSERT_EQ(log.size(), 2U);
  EXPECT_EQ(log[0],
            "muster: " + (folder / "ck/latest") + " is left out: it is a link, and only files are copied");
  EXPECT_NE(log[1].find("ck/pipe is left out: it is a socket, pipe or device"), std::string::npos) << log[1];
}

TEST(Checkpoint, on_two_nodes_the_manifest_waits_for_the_other) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  CheckpointSync sync(store, checkpoint_options(folder, 2, &log));
  ASSERT_TRUE(sync.restore(kNever));
  put(folder / "ck/step-2/manifest.json", "m");
  put(folder / "ck/step-2/node-0.json", "0");
  put(folder / "ck/other/manifest.json", "not muster-train's");
  (void)sync.scan(kNever);
  EXPECT_EQ(sync.scan(kNever)->files, 2U);
  EXPECT_EQ(store.objects.count("ck/step-2/manifest.json"), 0U);
  EXPECT_EQ(sync.finish(kNever)->files, 0U);
  ASSERT_EQ(log.size(), 1U);
  EXPECT_NE(log[0].find("node-1.json did not come"), std::string::npos);
  store.objects["ck/step-2/node-1.json"] = "1";
  EXPECT_EQ(sync.scan(kNever)->files, 1U);
  EXPECT_EQ(store.objects.count("ck/step-2/manifest.json"), 1U);
}

// Node 1's big file takes long: neither its node-1.json nor, with that, the manifest goes up before.
TEST(Checkpoint, the_manifest_comes_after_the_slow_file_of_another_node) {
  FakeObjects store;
  TempDir folders[2];
  std::vector<std::string> logs[2];
  std::unique_ptr<CheckpointSync> nodes[2];
  const auto file = [](int node, int save) {
    return R"({"name":"rank-)" + std::to_string(node) + R"(.bin","bytes":3,"crc32c":[")" +
           std::to_string(save) + R"("]})";
  };
  const auto write = [&](int node, int save) {
    const std::string step = folders[node] / "ck/step-2/";
    put(step + "rank-" + std::to_string(node) + ".bin", "big" + std::to_string(save));
    put(step + "node-" + std::to_string(node) + ".json", R"({"step":2,"files":[)" + file(node, save) + "]}");
    if (node == 0) {
      put(step + "manifest.json",
          R"({"crc32c":"x","manifest":{"files":[)" + file(0, save) + "," + file(1, save) + "]}}");
    }
  };
  for (int node : {0, 1}) {
    auto options = checkpoint_options(folders[node], 2, &logs[node]);
    options.peers_max = Millis{60'000};
    nodes[node] = std::make_unique<CheckpointSync>(store, options);
    ASSERT_TRUE(nodes[node]->restore(kNever));
  }
  for (int save : {1, 2}) {  // the second time what the first left is in the store
    store.slow = "ck/step-2/rank-1.bin";
    for (int node : {0, 1}) write(node, save);
    std::vector<std::string> before;
    {
      std::jthread slow([&] { EXPECT_TRUE(nodes[1]->finish(kNever)); });
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(nodes[0]->scan(kNever));
      const std::lock_guard lock(store.mutex);
      before = store.order;
      store.slow.clear();
      store.arrived.notify_all();
    }
    ASSERT_TRUE(nodes[0]->finish(kNever));
    EXPECT_EQ(before, (std::vector<std::string>{"ck/step-2/rank-0.bin", "ck/step-2/node-0.json"}));
    EXPECT_EQ(std::vector<std::string>(store.order.begin() + 2, store.order.end()),
              (std::vector<std::string>{"ck/step-2/rank-1.bin", "ck/step-2/node-1.json",
                                        "ck/step-2/manifest.json"}));
    store.order.clear();
  }
  EXPECT_TRUE(logs[0].empty());
}

TEST(Checkpoint, five_hundred_with_faults_all_arrive) {
  FakeObjects store;
  TempDir folder;
  std::vector<std::string> log;
  CheckpointSync sync(store, checkpoint_options(folder, 1, &log));
  ASSERT_TRUE(sync.restore(kNever));
  Rng rng(7);
  for (int step = 0; step < 500; ++step) {
    put(folder / ("ck/step-" + std::to_string(step) + "/w.bin"), std::to_string(rng.next()));
    if (step % 25 == 0) {
      const std::lock_guard lock(store.mutex);
      store.away = static_cast<int>(rng.below(20));
    }
    if (step % 50 == 0) (void)sync.scan(kNever);  // what fails is left to the next
  }
  store.away = 0;
  ASSERT_TRUE(sync.finish(kNever));
  EXPECT_EQ(store.objects.size(), 500U);
  store.broken = Error{ErrorCode::permission_denied, "403 AccessDenied"};
  put(folder / "ck/last", "x");
  const auto failed = sync.finish(kNever);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message,
            "cannot upload the last checkpoints to s3://b/ck: s3://b/ck/last: 403 AccessDenied");
}

}  // namespace
}  // namespace muster::runner
