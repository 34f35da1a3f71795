#include "data/s3/transfer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/rng.h"
#include "data/s3/testing.h"

namespace muster::data::s3 {
namespace {

using ::testing::ElementsAre;
using testing::error_answer;
using testing::FakeS3;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::string random_text(std::size_t size, std::uint64_t seed) {
  Rng rng(seed);
  std::string out;
  out.reserve(size);
  while (out.size() < size) out += static_cast<char>(rng.next());
  return out;
}

std::map<std::string, std::string> files_of(const std::string& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) {
      files[entry.path().lexically_relative(root).string()] = *read_file(entry.path().string());
    }
  }
  return files;
}

TEST(Download, PrefixWithMarkersAndNestedFolders) {
  FakeS3 s3;
  s3.page_size = 3;
  for (const auto* key : {"in/", "in/a", "in/d/", "in/d/b", "in/d/e/c", "in/empty/", "in-10/x", "in/zero"}) {
    s3.put(key, std::string_view(key).ends_with("zero") || std::string_view(key).ends_with('/') ? "" : key);
  }
  TempDir dir;
  std::vector<Progress> told;
  TransferOptions options;
  options.progress = [&](const Progress& progress) { told.push_back(progress); };
  auto client = s3.client();
  for (const auto* prefix : {"in/", "in"}) {
    const auto root = dir / prefix;
    const auto report = download_prefix(*client, "b", prefix, root, options);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_THAT(files_of(root), UnorderedElementsAre(Pair("a", "in/a"), Pair("d/b", "in/d/b"),
                                                     Pair("d/e/c", "in/d/e/c"), Pair("zero", "")));
    EXPECT_TRUE(std::filesystem::is_directory(root + "/empty"));
    EXPECT_EQ(report->files, 4U);
    EXPECT_TRUE(report->refused.empty());
  }
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().files, told.back().files_total);
  EXPECT_EQ(told.back().bytes, told.back().bytes_total);
}

TEST(Download, AKeyThatIsTheWholePrefix) {
  FakeS3 s3;
  s3.put("data/train.csv", "csv");
  TempDir dir;
  ASSERT_TRUE(download_prefix(*s3.client(), "b", "data/train.csv", dir.path()));
  EXPECT_THAT(files_of(dir.path()), ElementsAre(Pair("train.csv", "csv")));
}

TEST(Download, HostileKeysAreRefusedAndTheRestGoesOn) {
  FakeS3 s3;
  const std::string long_name(256, 'n');
  for (const auto& key : std::vector<std::string>{"p/../../evil", "p/..", "p/./x", "p//abs", "p/a/../b",
                                                  "p/file", "p/file/below", "p/" + long_name, "p/good",
                                                  "p/.muster-tmp-x", "p/" + std::string(255, 'm'),
                                                  "p/\xC3\xA9", "p/e\xCC\x81", "p/new\nline", "p/-rf *"}) {
    s3.put(key, "x");
  }
  TempDir dir;
  const auto root = dir / "root";
  const auto report = download_prefix(*s3.client(), "b", "p/", root);
  ASSERT_TRUE(report) << report.error().message;
  std::vector<std::string> refused;
  for (const auto& [key, error] : report->refused) refused.push_back(key);
  EXPECT_THAT(refused, UnorderedElementsAre("p/../../evil", "p/..", "p/./x", "p//abs", "p/a/../b", "p/file",
                                            "p/" + long_name, "p/.muster-tmp-x"));
  EXPECT_THAT(report->refused.front().second.message, HasSubstr("\"..\""));
  EXPECT_EQ(files_of(root).size(), 7U);
  EXPECT_EQ(files_of(root)["file/below"], "x");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "nothing outside";
}

TEST(Download, LinksOutOfTheFolderAreNotFollowed) {
  FakeS3 s3;
  s3.put("p/link/x", "x");
  TempDir dir;
  ASSERT_TRUE(make_directories(dir / "root"));
  ASSERT_TRUE(make_directories(dir / "outside"));
  ASSERT_EQ(::symlink((dir / "outside").c_str(), (dir / "root/link").c_str()), 0);
  const auto report = download_prefix(*s3.client(), "b", "p/", dir / "root");
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::permission_denied);
  EXPECT_TRUE(std::filesystem::is_empty(dir / "outside"));
}

TEST(Download, ALinkToAFileBelowTheRootIsReplacedNotFollowed) {
  FakeS3 s3;
  s3.put("p/link", "new");
  TempDir dir;
  ASSERT_TRUE(make_directories(dir / "root"));
  ASSERT_TRUE(write_file_atomic(dir / "outside", "old"));
  ASSERT_EQ(::symlink((dir / "outside").c_str(), (dir / "root/link").c_str()), 0);
  ASSERT_TRUE(download_prefix(*s3.client(), "b", "p/", dir / "root"));
  EXPECT_EQ(*read_file(dir / "outside"), "old");
  EXPECT_FALSE(std::filesystem::is_symlink(dir / "root/link"));
}

TEST(Download, OneFileFollowsTheLinkItIsGiven) {
  FakeS3 s3;
  s3.put("k", "new");
  TempDir dir;
  ASSERT_TRUE(make_directories(dir / "real"));
  ASSERT_TRUE(write_file_atomic(dir / "real/file", "old"));
  ASSERT_EQ(::symlink("real/file", (dir / "one").c_str()), 0);
  ASSERT_EQ(::symlink("one", (dir / "two").c_str()), 0);
  const auto got = download_file(*s3.client(), {"b", "k"}, dir / "two");
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "two"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "one"));
  EXPECT_EQ(*read_file(dir / "real/file"), "new");

  ASSERT_EQ(::symlink("nowhere", (dir / "dangling").c_str()), 0);
  const auto dangling = download_file(*s3.client(), {"b", "k"}, dir / "dangling");
  ASSERT_FALSE(dangling);
  EXPECT_THAT(dangling.error().message, HasSubstr("dangling\" to nowhere"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "dangling"));
}

// As root, a rename onto /dev/null would take it from the whole machine.
TEST(Download, PipesAndDevicesAreNotReplaced) {
  FakeS3 s3;
  s3.put("p/fifo", "x");
  TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/dev/null", (dir / "null").c_str()), 0);
  const auto one = download_file(*s3.client(), {"b", "p/fifo"}, dir / "fifo");
  ASSERT_FALSE(one);
  EXPECT_THAT(one.error().message, HasSubstr("\"" + (dir / "fifo") + "\" is a pipe"));
  const auto all = download_prefix(*s3.client(), "b", "p/", dir.path());
  ASSERT_FALSE(all);
  EXPECT_THAT(all.error().message, HasSubstr("\"fifo\" is a pipe"));
  EXPECT_TRUE(std::filesystem::is_fifo(dir / "fifo"));
  const auto linked = download_file(*s3.client(), {"b", "p/fifo"}, dir / "null");
  ASSERT_FALSE(linked);
  EXPECT_THAT(linked.error().message, HasSubstr("is a character device"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(Download, LargeFilesComeInRanges) {
  FakeS3 s3;
  const auto data = random_text(1'000'003, 1);
  s3.put("big", data);
  s3.put("small", "s");
  TempDir dir;
  TransferOptions options;
  options.part_bytes = 64 << 10;
  const auto report = download_prefix(*s3.client(), "b", "", dir.path(), options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(files_of(dir.path())["big"], data);
  EXPECT_GE(s3.requests, 17);
  ASSERT_TRUE(download_file(*s3.client(), {"b", "big"}, dir / "one", options));
  EXPECT_EQ(*read_file(dir / "one"), data);
}

TEST(Download, LargeFilesAreCheckedAgainstTheChecksumOfTheObject) {
  FakeS3 s3;
  const auto data = random_text((11 << 20) + 7, 3);
  TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "big", data));
  TransferOptions options;
  options.part_bytes = 5 << 20;
  auto client = s3.client();
  ASSERT_TRUE(upload_file(*client, dir / "big", {"b", "parts"}, options));
  EXPECT_THAT(s3.objects()["parts"].crc32c, ::testing::EndsWith("-3"));
  s3.put("whole", data);
  for (const auto* key : {"parts", "whole"}) {
    ASSERT_TRUE(download_file(*client, {"b", key}, dir / "copy", options));
    EXPECT_TRUE(*read_file(dir / "copy") == data);
    // One wrong byte in one range, of the right length and ETag.
    s3.fault = [&](const net::Request& request) -> std::optional<net::Response> {
      if (!request.head.headers.get("Range").starts_with("bytes=0-")) return std::nullopt;
      auto response = testing::answer(206, "?" + data.substr(1, (5 << 20) - 1));
      response.headers.set("ETag", '"' + s3.objects()[key].etag + '"');
      response.headers.set("Content-Range", "bytes 0-5242879/" + std::to_string(data.size()));
      return response;
    };
    const auto bad = download_file(*client, {"b", key}, dir / "bad", options);
    ASSERT_FALSE(bad) << key;
    EXPECT_EQ(bad.error().code, ErrorCode::corrupt);
    EXPECT_FALSE(std::filesystem::exists(dir / "bad"));
    s3.fault = nullptr;
  }
}

TEST(Download, AnObjectReplacedMeanwhileIsOneVersion) {
  FakeS3 s3;
  const auto before = random_text(500'000, 1);
  const auto after = random_text(700'000, 2);
  s3.put("big", before);
  std::atomic<int> gets{0};
  s3.fault = [&](const net::Request& request) -> std::optional<net::Response> {
    if (request.head.headers.has("Range") && ++gets == 4) s3.put("big", after);
    return std::nullopt;
  };
  TempDir dir;
  TransferOptions options;
  options.part_bytes = 64 << 10;
  const auto report = download_prefix(*s3.client(), "b", "", dir.path(), options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(files_of(dir.path())["big"], after);
}

TEST(Download, AFailureLeavesNoFile) {
  FakeS3 s3;
  s3.put("a", "fine");
  s3.put("bad", "content");
  s3.fault = [](const net::Request& request) -> std::optional<net::Response> {
    if (request.head.path == "/b/bad") return error_answer(403, "AccessDenied");
    return std::nullopt;
  };
  TempDir dir;
  const auto report = download_prefix(*s3.client(), "b", "", dir.path());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(report.error().message, HasSubstr("cannot download s3://b/bad"));
  for (const auto& [name, content] : files_of(dir.path())) EXPECT_EQ(name, "a");
}

TEST(Download, UnderFaultsNoWrongByte) {
  FakeS3 s3;
  std::map<std::string, std::string> expected;
  for (int i = 0; i < 100; ++i) {
    const auto name = "f" + std::to_string(i);
    expected[name] = random_text(static_cast<std::size_t>(i) * 1500, static_cast<std::uint64_t>(i));
    s3.put(name, expected[name]);
  }
  std::mutex mutex;
  Rng rng(7);
  s3.fault = [&](const net::Request&) -> std::optional<net::Response> {
    const std::lock_guard lock(mutex);
    if (rng.chance(0.3)) return error_answer(503, "SlowDown");
    return std::nullopt;
  };
  TempDir dir;
  TransferOptions options;
  options.part_bytes = 50'000;
  const auto report = download_prefix(*s3.client(), "b", "", dir.path(), options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(files_of(dir.path()), expected);
}

TEST(Download, Stops) {
  FakeS3 s3;
  s3.put("a", "fine");
  TempDir dir;
  const std::atomic<bool> stop{true};
  TransferOptions options;
  options.stop = &stop;
  EXPECT_EQ(download_prefix(*s3.client(), "b", "", dir.path(), options).error().code, ErrorCode::cancelled);
}

TEST(Upload, SmallAndLargeFile) {
  FakeS3 s3;
  TempDir dir;
  const auto data = random_text((11 << 20) + 7, 3);
  ASSERT_TRUE(write_file_atomic(dir / "big", data));
  ASSERT_TRUE(write_file_atomic(dir / "small", "s"));
  TransferOptions options;
  options.part_bytes = 5 << 20;
  auto client = s3.client();
  const auto big = upload_file(*client, dir / "big", {"b", "big"}, options);
  ASSERT_TRUE(big) << big.error().message;
  ASSERT_TRUE(upload_file(*client, dir / "small", {"b", "small"}, options, {.content_type = "text/plain"}));
  EXPECT_TRUE(s3.objects()["big"].data == data);
  EXPECT_EQ(s3.objects()["small"].data, "s");
  EXPECT_EQ(s3.open_uploads, 0);
  EXPECT_EQ(upload_file(*client, dir / "none", {"b", "x"}).error().code, ErrorCode::not_found);
  EXPECT_EQ(upload_file(*client, dir.path(), {"b", "x"}).error().code, ErrorCode::invalid_argument);
}

TEST(Upload, AFailedMultipartUploadIsAborted) {
  FakeS3 s3;
  TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "big", std::string(11 << 20, 'x')));
  s3.fault = [](const net::Request& request) -> std::optional<net::Response> {
    if (request.head.query.find("partNumber=2") != std::string::npos)
      return error_answer(403, "AccessDenied");
    return std::nullopt;
  };
  TransferOptions options;
  options.part_bytes = 5 << 20;
  EXPECT_EQ(upload_file(*s3.client(), dir / "big", {"b", "big"}, options).error().code,
            ErrorCode::permission_denied);
  EXPECT_EQ(s3.open_uploads, 0);
  EXPECT_TRUE(s3.objects().empty());
}

// As the runner stops one when its job must end.
TEST(Upload, AStoppedMultipartUploadIsAborted) {
  FakeS3 s3;
  TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "big", std::string(16 << 20, 'x')));
  std::atomic<bool> stop = false;
  s3.fault = [&](const net::Request& request) -> std::optional<net::Response> {
    if (request.head.query.find("partNumber=2") != std::string::npos) stop = true;
    return std::nullopt;
  };
  TransferOptions options;
  options.part_bytes = 5 << 20;
  options.parallel = 1;
  options.stop = &stop;
  EXPECT_EQ(upload_file(*s3.client(), dir / "big", {"b", "big"}, options).error().code, ErrorCode::cancelled);
  EXPECT_EQ(s3.open_uploads, 0);
  EXPECT_TRUE(s3.objects().empty());
}

TEST(Upload, AFileThatChangesMeanwhileIsAnError) {
  FakeS3 s3;
  TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "log", "one"));
  s3.fault = [&](const net::Request&) -> std::optional<net::Response> {
    const auto fd = open_file(dir / "log", O_WRONLY | O_APPEND);
    EXPECT_TRUE(write_all(fd->get(), "more"));
    return std::nullopt;
  };
  const auto uploaded = upload_file(*s3.client(), dir / "log", {"b", "log"});
  ASSERT_FALSE(uploaded);
  EXPECT_THAT(uploaded.error().message, HasSubstr("changed while it was uploaded"));
}

TEST(Upload, Tree) {
  FakeS3 s3;
  TempDir dir;
  const auto root = dir / "out";
  ASSERT_TRUE(make_directories(root + "/d/e"));
  ASSERT_TRUE(make_directories(root + "/empty"));
  for (const auto* name : {"a", "d/b c", "d/e/\xC3\xA9+", "d/.muster-tmp-1", "d/skip.me"}) {
    ASSERT_TRUE(write_file_atomic(root + "/" + name, name));
  }
  ASSERT_TRUE(write_file_atomic(root + "/bad\xff", "x"));
  ASSERT_EQ(::symlink("a", (root + "/link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", (root + "/dangling").c_str()), 0);
  ASSERT_EQ(::symlink(".", (root + "/loop").c_str()), 0);
  ASSERT_EQ(::mkfifo((root + "/fifo").c_str(), 0600), 0);
  UploadOptions options;
  options.wanted = [](std::string_view path) { return !path.ends_with(".me"); };
  const auto report = upload_tree(*s3.client(), root, "b", "pre", options);
  ASSERT_TRUE(report) << report.error().message;
  std::vector<std::string> keys;
  for (const auto& [key, object] : s3.objects()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("pre/a", "pre/d/b c", "pre/d/e/\xC3\xA9+", "pre/link"));
  std::vector<std::string> refused;
  for (const auto& [name, error] : report->refused) refused.push_back(name);
  EXPECT_THAT(refused, UnorderedElementsAre("bad\xff", "dangling", "loop", "fifo"));
  EXPECT_EQ(report->files, 4U);
  EXPECT_FALSE(upload_tree(*s3.client(), dir / "none", "b", ""));
}

}  // namespace
}  // namespace muster::data::s3
