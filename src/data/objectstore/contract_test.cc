// What every object store must do, run on the directory adapter.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/crypto.h"
#include "base/file.h"
#include "data/objectstore/object_store.h"
#include "data/objectstore/testing.h"

namespace muster::objectstore {
namespace {

using crypto::Digest;
using ports::ObjectFault;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ObjectStore : public ::testing::Test {
 protected:
  void SetUp() override {
    open_store();
    ASSERT_TRUE(store->create_bucket({"bucket", "us-east-1", Time{1}}));
  }

  void open_store() {
    store.reset();
    auto opened = open({.directory = folder / "objects", .sync = false, .readers = 3, .part_bytes_min = 10});
    ASSERT_TRUE(opened) << opened.error().message;
    store = *std::move(opened);
  }

  ports::ObjectResult<ports::Written> put(std::string_view key, std::string body,
                                          ports::PutOptions options = {}) {
    TextSource source(std::move(body));
    return store->put("bucket", key, source, options, Time{1000});
  }

  std::string get(std::string_view key) { return read_object(*store, "bucket", key); }

  std::string upload() { return store->create_upload("bucket", "big", {}, Time{5})->id; }

  std::string part(const std::string& id, std::uint32_t number, std::string body) {
    TextSource source(std::move(body));
    auto written = store->put_part("bucket", "big", id, number, source, {}, Time{6});
    return written ? written->etag : written.error().error.message;
  }

  TempDir folder;
  std::unique_ptr<ports::ObjectStore> store;
};

template <typename T>
ObjectFault fault_of(const ports::ObjectResult<T>& result) {
  EXPECT_FALSE(result);
  return result ? ObjectFault::other : result.error().fault;
}

TEST_F(ObjectStore, GivesBackWhatWasPut) {
  const auto written =
      put("a/b", "hello", {.attributes = {{"content-type", "text/plain"}, {"x-amz-meta-k", "v"}}});
  ASSERT_TRUE(written);
  EXPECT_EQ(written->etag, "5d41402abc4b2a76b9719d911017c592");
  EXPECT_EQ(get("a/b"), "hello");
  const auto info = store->head("bucket", "a/b");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->size, 5U);
  EXPECT_EQ(info->modified, Time{1000});
  EXPECT_THAT(info->attributes,
              ElementsAre(std::pair("content-type", "text/plain"), std::pair("x-amz-meta-k", "v")));
  EXPECT_EQ(info->parts, 0U);
}

TEST_F(ObjectStore, EmptyObjectsHaveNoContent) {
  ASSERT_TRUE(put("empty", ""));
  EXPECT_EQ(get("empty"), "");
  EXPECT_EQ((*store->get("bucket", "empty"))->piece_count(), 0U);
  EXPECT_EQ(store->head("bucket", "empty")->etag, "d41d8cd98f00b204e9800998ecf8427e");
}

TEST_F(ObjectStore, SurvivesReopening) {
  ASSERT_TRUE(put("kept", "content", {.checksum = Digest::crc32c}));
  const auto before = store->head("bucket", "kept");
  open_store();
  EXPECT_EQ(get("kept"), "content");
  const auto after = store->head("bucket", "kept");
  ASSERT_TRUE(after);
  EXPECT_EQ(after->etag, before->etag);
  ASSERT_TRUE(after->checksum);
  EXPECT_EQ(after->checksum->value, crypto::base64(crypto::digest(Digest::crc32c, "content")));
}

TEST_F(ObjectStore, NamesWhatIsMissing) {
  EXPECT_EQ(fault_of(store->head("bucket", "none")), ObjectFault::no_such_key);
  EXPECT_EQ(fault_of(store->get("nowhere", "none")), ObjectFault::no_such_bucket);
  TextSource source("x");
  EXPECT_EQ(fault_of(store->put("nowhere", "k", source, {}, Time{})), ObjectFault::no_such_bucket);
  EXPECT_EQ(source.given(), 0U) << "the body was read for nothing";
  EXPECT_EQ(fault_of(store->abort_upload("bucket", "k", "none")), ObjectFault::no_such_upload);
  EXPECT_TRUE(store->remove("bucket", "none", {}));
}

TEST_F(ObjectStore, RefusesKeysThatAreNone) {
  EXPECT_FALSE(put("", "x"));
  EXPECT_FALSE(put(std::string(1025, 'k'), "x"));
  EXPECT_FALSE(put("\xff", "x"));
  EXPECT_TRUE(put(std::string(1024, 'k'), "x"));
}

TEST_F(ObjectStore, HostileKeysStayDistinct) {
  const std::vector<std::string> keys = {
      "../../etc/passwd", "/", "//", "a//b", "a/b",  "a/b/", "a b",   "a+b", "a%20b", "a%2Bb", ".", "..", "é",
      "e\xcc\x81",        "😀", "\n", "\x01", "a\\b", "~",    "'\"<&>"};
  for (const auto& key : keys) ASSERT_TRUE(put(key, "of " + key)) << key;
  for (const auto& key : keys) EXPECT_EQ(get(key), "of " + key);
  auto sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(keys_of(*store->list("bucket", {})), sorted);
}

TEST_F(ObjectStore, ChecksDigestsBeforeAnythingShows) {
  ASSERT_TRUE(put("k", "old"));
  for (const auto kind :
       {Digest::md5, Digest::crc32, Digest::crc32c, Digest::crc64nvme, Digest::sha1, Digest::sha256}) {
    const auto right = crypto::digest(kind, "new");
    EXPECT_TRUE(put("right", "new", {.expected = {{kind, right}}})) << to_string(kind);
    auto wrong = right;
    wrong[0] = static_cast<char>(wrong[0] ^ 1);
    EXPECT_EQ(fault_of(put("k", "new", {.expected = {{kind, wrong}}})), ObjectFault::bad_digest)
        << to_string(kind);
  }
  EXPECT_EQ(get("k"), "old");
}

TEST_F(ObjectStore, ChecksDigestsThatComeBehindTheBody) {
  ASSERT_TRUE(put("k", "old"));
  TextSource right("new");
  right.trailing = {{Digest::crc32, crypto::digest(Digest::crc32, "new")}};
  EXPECT_TRUE(store->put("bucket", "k", right, {.checksum = Digest::crc32}, Time{1}));
  TextSource wrong("newer");
  wrong.trailing = {{Digest::crc32, "zzzz"}};
  EXPECT_EQ(fault_of(store->put("bucket", "k", wrong, {.checksum = Digest::crc32}, Time{1})),
            ObjectFault::bad_digest);
  EXPECT_EQ(get("k"), "new");
}

TEST_F(ObjectStore, ChecksLengths) {
  EXPECT_EQ(fault_of(put("k", "12345", {.size = 4})), ObjectFault::incomplete_body);
  EXPECT_EQ(fault_of(put("k", "12345", {.size = 6})), ObjectFault::incomplete_body);
  EXPECT_EQ(fault_of(put("k", "", {.size = (5ULL << 30) + 1})), ObjectFault::entity_too_large);
  EXPECT_EQ(fault_of(store->head("bucket", "k")), ObjectFault::no_such_key);
}

TEST_F(ObjectStore, FailingSourceLeavesTheOldObjectAndNoFile) {
  ASSERT_TRUE(put("k", "old"));
  TextSource source(std::string(3 << 20, 'x'));
  source.fail_after = 2 << 20;
  EXPECT_EQ(fault_of(store->put("bucket", "k", source, {.size = 3 << 20}, Time{1})),
            ObjectFault::source_failed);
  EXPECT_EQ(get("k"), "old");
  EXPECT_EQ(content_files(folder / "objects"), 1U);
}

TEST_F(ObjectStore, ConditionalWrites) {
  EXPECT_EQ(fault_of(put("k", "x", {.condition = {.etag = "*"}})), ObjectFault::no_such_key);
  const auto first = put("k", "x", {.condition = {.absent = true}});
  ASSERT_TRUE(first);
  EXPECT_EQ(fault_of(put("k", "y", {.condition = {.absent = true}})), ObjectFault::precondition_failed);
  EXPECT_EQ(fault_of(put("k", "y", {.condition = {.etag = "other"}})), ObjectFault::precondition_failed);
  EXPECT_EQ(get("k"), "x");
  EXPECT_TRUE(put("k", "y", {.condition = {.etag = first->etag}}));
  EXPECT_EQ(fault_of(store->remove("bucket", "k", {.etag = first->etag})), ObjectFault::precondition_failed);
  EXPECT_EQ(get("k"), "y");
}

TEST_F(ObjectStore, OnlyOneOfManyConditionalWritersWins) {
  std::atomic<int> won = 0;
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&, i] {
      if (put("latest", std::to_string(i), {.condition = {.absent = true}})) ++won;
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(won, 1);
}

TEST_F(ObjectStore, OpenReadersKeepTheOldContent) {
  ASSERT_TRUE(put("k", "old"));
  auto open_object = store->get("bucket", "k");
  ASSERT_TRUE(open_object);
  ASSERT_TRUE(put("k", "newer"));
  ASSERT_TRUE(wait_for_content_files(folder / "objects", 1));
  EXPECT_EQ(read_all(**open_object), "old");
  EXPECT_EQ(get("k"), "newer");
}

TEST_F(ObjectStore, ReadersAndWritersOfOneKeyNeverMix) {
  ASSERT_TRUE(put("k", std::string(1000, 'a')));
  std::atomic<bool> stop = false;
  std::atomic<int> torn = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        const auto body = get("k");
        if (body.size() != 1000 || body.find_first_not_of(body[0]) != std::string::npos) ++torn;
      }
    });
  }
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(put("k", std::string(1000, static_cast<char>('a' + i % 26))));
  stop = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(torn, 0);
}

TEST_F(ObjectStore, ReplacedAndRemovedContentGoesFromDisk) {
  ASSERT_TRUE(put("k", "one"));
  ASSERT_TRUE(put("k", "two"));
  ASSERT_TRUE(put("other", "three"));
  ASSERT_TRUE(wait_for_content_files(folder / "objects", 2));
  ASSERT_TRUE(store->remove("bucket", "k", {}));
  const std::vector<std::string> keys = {"other", "none"};
  ASSERT_TRUE(store->remove_all("bucket", keys));
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 0));
}

TEST_F(ObjectStore, Buckets) {
  EXPECT_EQ(fault_of(store->create_bucket({"bucket", "us-east-1", Time{2}})), ObjectFault::bucket_exists);
  ASSERT_TRUE(store->create_bucket({"another", "eu-west-1", Time{2}}));
  const auto all = store->buckets();
  ASSERT_EQ(all->size(), 2U);
  EXPECT_EQ((*all)[0].name, "another");
  EXPECT_EQ((*all)[0].region, "eu-west-1");
  ASSERT_TRUE(put("k", "x"));
  EXPECT_EQ(fault_of(store->remove_bucket("bucket")), ObjectFault::bucket_not_empty);
  ASSERT_TRUE(store->remove("bucket", "k", {}));
  const auto id = upload();
  part(id, 1, "left over");
  ASSERT_TRUE(store->remove_bucket("bucket"));
  EXPECT_EQ(fault_of(store->bucket("bucket")), ObjectFault::no_such_bucket);
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 0)) << "parts of uploads go with their bucket";
  EXPECT_TRUE(store->create_bucket({"bucket", "us-east-1", Time{3}}));
  EXPECT_THAT(keys_of(*store->list("bucket", {})), IsEmpty());
}

TEST_F(ObjectStore, CopiesShareContent) {
  ASSERT_TRUE(put("from", "content", {.attributes = {{"x-amz-meta-a", "1"}}, .checksum = Digest::sha256}));
  ASSERT_TRUE(store->copy("bucket", "from", "bucket", "same", {}, Time{7}));
  ASSERT_TRUE(store->copy("bucket", "from", "bucket", "new",
                          {.replace = ports::Attributes{{"x-amz-meta-b", "2"}}}, Time{7}));
  EXPECT_EQ(content_files(folder / "objects"), 1U);
  EXPECT_THAT(store->head("bucket", "same")->attributes, ElementsAre(std::pair("x-amz-meta-a", "1")));
  EXPECT_THAT(store->head("bucket", "new")->attributes, ElementsAre(std::pair("x-amz-meta-b", "2")));
  EXPECT_EQ(store->head("bucket", "new")->modified, Time{7});
  EXPECT_EQ(store->head("bucket", "new")->checksum->value, store->head("bucket", "from")->checksum->value);
  ASSERT_TRUE(put("from", "changed"));
  ASSERT_TRUE(store->remove("bucket", "same", {}));
  EXPECT_EQ(get("new"), "content");
  ASSERT_TRUE(store->remove("bucket", "new", {}));
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 1));
  EXPECT_EQ(fault_of(store->copy("bucket", "none", "bucket", "x", {}, Time{7})), ObjectFault::no_such_key);
  EXPECT_EQ(fault_of(store->copy("bucket", "from", "bucket", "x", {.source_etag = "old"}, Time{7})),
            ObjectFault::precondition_failed);
}

TEST_F(ObjectStore, CopyOntoItselfKeepsTheContent) {
  ASSERT_TRUE(put("k", "content"));
  ASSERT_TRUE(store->copy("bucket", "k", "bucket", "k", {.replace = ports::Attributes{{"x-amz-meta-b", "2"}}},
                          Time{7}));
  EXPECT_EQ(get("k"), "content");
  ASSERT_TRUE(put("other", "x"));  // gives the reaper its time
  ASSERT_TRUE(wait_for_content_files(folder / "objects", 2));
  EXPECT_EQ(get("k"), "content");
}

// ---- uploads in parts ----

TEST_F(ObjectStore, UploadBecomesItsParts) {
  const auto id = upload();
  const auto second = part(id, 7, "0123456789second");
  const auto first = part(id, 2, "0123456789first");
  part(id, 3, "not used in the end");
  part(id, 9, "replaced");
  const auto last = part(id, 9, "last");
  const auto done = store->complete_upload(
      "bucket", "big", id, std::vector<ports::CompletedPart>{{2, first, {}}, {7, second, {}}, {9, last, {}}},
      {}, Time{9});
  ASSERT_TRUE(done) << done.error().error.message;
  EXPECT_EQ(get("big"), "0123456789first0123456789secondlast");
  const auto md5s = crypto::digest(Digest::md5, "0123456789first") +
                    crypto::digest(Digest::md5, "0123456789second") + crypto::digest(Digest::md5, "last");
  EXPECT_EQ(done->etag, crypto::hex(crypto::digest(Digest::md5, md5s)) + "-3");
  EXPECT_EQ(store->head("bucket", "big")->parts, 3U);
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 3));
  EXPECT_EQ(fault_of(store->list_parts("bucket", "big", id, 0, 10)), ObjectFault::no_such_upload);
  open_store();
  EXPECT_EQ(get("big"), "0123456789first0123456789secondlast");
  ASSERT_TRUE(store->remove("bucket", "big", {}));
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 0));
}

TEST_F(ObjectStore, CompletingAgainAnswersTheSame) {
  const auto id = upload();
  const std::vector<ports::CompletedPart> parts = {{1, part(id, 1, "only"), {}}};
  const auto first = store->complete_upload("bucket", "big", id, parts, {}, Time{9});
  const auto again = store->complete_upload("bucket", "big", id, parts, {}, Time{10});
  ASSERT_TRUE(first && again);
  EXPECT_EQ(again->etag, first->etag);
  EXPECT_EQ(again->modified, Time{9});
}

TEST_F(ObjectStore, UploadRefusesWrongLists) {
  const auto id = upload();
  const auto one = part(id, 1, "0123456789");
  const auto two = part(id, 2, "short");
  const auto three = part(id, 3, "x");
  const auto complete = [&](std::vector<ports::CompletedPart> parts, ports::CompleteOptions options = {}) {
    return fault_of(store->complete_upload("bucket", "big", id, parts, options, Time{9}));
  };
  EXPECT_EQ(complete({{1, one, {}}, {4, one, {}}}), ObjectFault::invalid_part);
  EXPECT_EQ(complete({{1, two, {}}}), ObjectFault::invalid_part);
  EXPECT_EQ(complete({{2, two, {}}, {1, one, {}}}), ObjectFault::invalid_part_order);
  EXPECT_EQ(complete({{1, one, {}}, {1, one, {}}}), ObjectFault::invalid_part_order);
  EXPECT_EQ(complete({{1, one, {}}, {2, two, {}}, {3, three, {}}}), ObjectFault::entity_too_small);
  EXPECT_EQ(complete({}), ObjectFault::invalid_part);
  EXPECT_EQ(complete({{1, one, {}}}, {.size = 11}), ObjectFault::incomplete_body);
  EXPECT_EQ(complete({{1, one, {}}}, {.condition = {.etag = "x"}}), ObjectFault::no_such_key);
  EXPECT_EQ(fault_of(store->complete_upload("bucket", "other", id, {}, {}, Time{9})),
            ObjectFault::no_such_upload);
  EXPECT_TRUE(store->complete_upload(
      "bucket", "big", id, std::vector<ports::CompletedPart>{{1, one, {}}, {2, two, {}}}, {}, Time{9}));
}

TEST_F(ObjectStore, ChecksumsOfUploads) {
  const std::string first = "0123456789";
  const std::string second = "abc";
  for (const auto kind : {Digest::crc32, Digest::crc32c, Digest::crc64nvme, Digest::sha1, Digest::sha256}) {
    for (const bool full : {false, true}) {
      if (full && (kind == Digest::sha1 || kind == Digest::sha256)) continue;
      const auto created =
          store->create_upload("bucket", "big", {.checksum = kind, .full_object_checksum = full}, Time{5});
      std::vector<ports::CompletedPart> parts;
      std::string digests;
      for (const auto& body : {first, second}) {
        TextSource source(body);
        const auto number = static_cast<std::uint32_t>(parts.size() + 1);
        const auto written = store->put_part("bucket", "big", created->id, number, source, {}, Time{6});
        digests += crypto::digest(kind, body);
        EXPECT_EQ(written->checksum->value, crypto::base64(crypto::digest(kind, body)));
        parts.push_back({number, written->etag, written->checksum->value});
      }
      const auto whole = full ? crypto::base64(crypto::digest(kind, first + second))
                              : crypto::base64(crypto::digest(kind, digests)) + "-2";
      EXPECT_EQ(fault_of(store->complete_upload("bucket", "big", created->id, parts,
                                                {.checksum = ports::Checksum{kind, "AAAA", false}}, Time{9})),
                ObjectFault::bad_digest);
      auto wrong = parts;
      wrong[1].checksum = wrong[0].checksum;
      EXPECT_EQ(fault_of(store->complete_upload("bucket", "big", created->id, wrong, {}, Time{9})),
                ObjectFault::invalid_part);
      const auto done = store->complete_upload("bucket", "big", created->id, parts,
                                               {.checksum = ports::Checksum{kind, whole, !full}}, Time{9});
      ASSERT_TRUE(done) << to_string(kind) << full;
      EXPECT_EQ(done->checksum->value, whole);
      EXPECT_EQ(store->head("bucket", "big")->checksum->composite, !full);
    }
  }
}

TEST_F(ObjectStore, AbortedUploadsLeaveNothing) {
  const auto id = upload();
  part(id, 1, "a");
  part(id, 2, "b");
  EXPECT_EQ(store->list_uploads("bucket", {})->uploads.size(), 1U);
  ASSERT_TRUE(store->abort_upload("bucket", "big", id));
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 0));
  EXPECT_THAT(store->list_uploads("bucket", {})->uploads, IsEmpty());
  TextSource source("late");
  EXPECT_EQ(fault_of(store->put_part("bucket", "big", id, 1, source, {}, Time{})),
            ObjectFault::no_such_upload);
}

TEST_F(ObjectStore, IdleUploadsAreAbortedInEveryBucket) {
  const auto begin = [&](const char* bucket, std::int64_t at) {
    return store->create_upload(bucket, "k", {}, Time{at})->id;
  };
  const auto add_part = [&](const char* bucket, const std::string& id, std::int64_t at) {
    TextSource source("part of " + id);
    ASSERT_TRUE(store->put_part(bucket, "k", id, 1, source, {}, Time{at}));
  };
  ASSERT_TRUE(store->create_bucket({"second", "us-east-1", Time{1}}));
  const auto idle = begin("bucket", 10);
  add_part("bucket", idle, 99);
  const auto elsewhere = begin("second", 10);
  const auto young = begin("bucket", 100);
  const auto busy = begin("bucket", 10);
  add_part("bucket", busy, 100);

  EXPECT_EQ(store->abort_idle_uploads(Time{100}).value(), 2U);
  EXPECT_EQ(fault_of(store->upload("bucket", "k", idle)), ObjectFault::no_such_upload);
  EXPECT_EQ(fault_of(store->upload("second", "k", elsewhere)), ObjectFault::no_such_upload);
  EXPECT_TRUE(store->upload("bucket", "k", young));
  EXPECT_TRUE(store->upload("bucket", "k", busy));
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 1));
  EXPECT_EQ(store->abort_idle_uploads(Time{100}).value(), 0U);
}

TEST_F(ObjectStore, ManyIdleUploadsAreAbortedAtOnce) {
  for (int i = 0; i < 250; ++i) {
    ASSERT_TRUE(store->create_upload("bucket", std::to_string(i), {}, Time{1}));
  }
  EXPECT_EQ(store->abort_idle_uploads(Time{2}).value(), 250U);
  EXPECT_THAT(store->list_uploads("bucket", {})->uploads, IsEmpty());
}

TEST_F(ObjectStore, ListsPartsAndUploadsInPages) {
  const auto id = upload();
  for (std::uint32_t i = 1; i <= 5; ++i) part(id, i * 2, "x");
  auto page = store->list_parts("bucket", "big", id, 0, 2);
  EXPECT_TRUE(page->truncated);
  EXPECT_EQ(page->parts[1].number, 4U);
  page = store->list_parts("bucket", "big", id, 4, 3);
  EXPECT_FALSE(page->truncated);
  EXPECT_EQ(page->parts.back().number, 10U);

  for (const auto* key : {"b", "a", "c/1", "big"})
    ASSERT_TRUE(store->create_upload("bucket", key, {}, Time{5}));
  std::vector<std::string> keys;
  ports::UploadQuery query{.max = 2};
  for (;;) {
    const auto uploads = store->list_uploads("bucket", query);
    for (const auto& one : uploads->uploads) keys.push_back(one.key);
    if (!uploads->truncated) break;
    query.after_key = uploads->uploads.back().key;
    query.after_upload = uploads->uploads.back().id;
  }
  EXPECT_THAT(keys, ElementsAre("a", "b", "big", "big", "c/1"));
  EXPECT_EQ(store->list_uploads("bucket", {.prefix = "c/"})->uploads.size(), 1U);
}

TEST_F(ObjectStore, ManyPiecesOpenLateAndStayReadable) {
  const auto id = upload();
  std::vector<ports::CompletedPart> parts;
  std::string whole;
  for (std::uint32_t i = 1; i <= 40; ++i) {
    const auto body = "part number " + std::to_string(i);
    whole += body;
    parts.push_back({i, part(id, i, body), {}});
  }
  ASSERT_TRUE(store->complete_upload("bucket", "big", id, parts, {}, Time{9}));
  {
    auto open_object = store->get("bucket", "big");
    ASSERT_TRUE(open_object);
    ASSERT_TRUE(put("later", "removed later"));
    ASSERT_TRUE(store->remove("bucket", "big", {}));
    ASSERT_TRUE(store->remove("bucket", "later", {}));
    EXPECT_TRUE(wait_for_content_files(folder / "objects", 40)) << "the reaper took what nobody reads";
    EXPECT_EQ(read_all(**open_object), whole);
  }
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 0)) << "released with its last reader";
}

// ---- the folder ----

TEST_F(ObjectStore, SecondOwnerIsRefused) {
  const auto second = open({.directory = folder / "objects", .sync = false});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::failed_precondition);
}

TEST_F(ObjectStore, SweepsWhatACrashLeftInIncoming) {
  ASSERT_TRUE(put("k", "content"));
  store.reset();
  // A crash between commit and move, and one before the commit.
  const auto settled = folder / "objects/01/0000000000000001";
  ASSERT_EQ(::rename(settled.c_str(), (folder / "objects/incoming/0000000000000001").c_str()), 0);
  ASSERT_TRUE(write_file_atomic(folder / "objects/incoming/00000000000000aa", "half an ob"));
  open_store();
  EXPECT_EQ(get("k"), "content");
  EXPECT_EQ(content_files(folder / "objects"), 1U);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "objects/incoming"));
}

TEST_F(ObjectStore, MissingContentIsCorruptNotAbsent) {
  ASSERT_TRUE(put("k", "content"));
  std::filesystem::remove(folder / "objects/01/0000000000000001");
  const auto object = store->get("bucket", "k");
  ASSERT_FALSE(object);
  EXPECT_EQ(object.error().error.code, ErrorCode::corrupt);
}

TEST_F(ObjectStore, ShortenedContentIsCorruptAndNoted) {
  ASSERT_TRUE(put("k", "content"));
  store.reset();
  std::vector<std::string> said;
  store = open({.directory = folder / "objects",
                .sync = false,
                .note = [&](std::string_view line) { said.emplace_back(line); }})
              .value();
  const auto file = folder / "objects/01/0000000000000001";
  std::filesystem::resize_file(file, 3);
  const auto object = store->get("bucket", "k");
  ASSERT_FALSE(object);
  EXPECT_EQ(object.error().error.code, ErrorCode::corrupt);
  EXPECT_EQ(said, std::vector<std::string>{"the content of s3://bucket/k is damaged: " + file +
                                           " has 3 bytes of 7"});
}

TEST_F(ObjectStore, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const auto key = std::to_string(t) + "/" + std::to_string(i);
        if (!put(key, key) || get(key) != key) ++failures;
        if (i % 4 == 0 && !store->remove("bucket", key, {})) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(store->list("bucket", {})->objects.size(), 8U * 30);
  EXPECT_TRUE(wait_for_content_files(folder / "objects", 8 * 30));
}

TEST_F(ObjectStore, LargeBodiesAreHashedOnTwoThreadsAlike) {
  std::string body(5 << 20, '\0');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>(i * 7 + i / 1000);
  const auto written = put("k", body, {.size = body.size(), .checksum = Digest::crc64nvme});
  ASSERT_TRUE(written);
  EXPECT_EQ(written->etag, crypto::hex(crypto::digest(Digest::md5, body)));
  EXPECT_EQ(written->checksum->value, crypto::base64(crypto::digest(Digest::crc64nvme, body)));
  EXPECT_EQ(get("k"), body);
}

}  // namespace
}  // namespace muster::objectstore
