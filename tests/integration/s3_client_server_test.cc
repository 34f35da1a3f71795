// Our S3 client against our S3 server, over sockets and with real signatures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "api/s3/service.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/objectstore/object_store.h"
#include "data/s3/transfer.h"

namespace muster {
namespace {

using data::s3::Client;
using ::testing::HasSubstr;

constexpr const char* kSecret = "secret/key+";

// The part of api/auth that S3 needs.
class SignedS3 final : public net::Handler {
 public:
  explicit SignedS3(ports::ObjectStore& store) : service_(store, {}) {}
  std::variant<net::Route, net::Response> route(const net::RequestHead& head) override {
    const wire::sigv4::RequestView view{head.method, head.path, head.query, head.headers.all()};
    const auto claim = wire::sigv4::parse(view);
    if (!claim || !*claim) return api::s3::error_response(head, "1", 403, "AccessDenied", "unsigned");
    if (!wire::sigv4::verify(**claim, kSecret, view, (*claim)->payload_hash)) {
      return api::s3::error_response(head, "1", 403, "SignatureDoesNotMatch", "no");
    }
    api::Caller caller{.account = "000000000000",
                       .access_key = (*claim)->access_key,
                       .region = (*claim)->scope.region,
                       .arn = "arn",
                       .request_id = "1",
                       .now = SystemClock().now()};
    return service_.route(head, caller, api::s3::payload_of(**claim, kSecret));
  }

 private:
  api::s3::S3Service service_;
};

class S3ClientServer : public ::testing::Test {
 protected:
  S3ClientServer() {
    store_ = *objectstore::open({.directory = dir_ / "objects", .sync = false});
    handler_ = std::make_unique<SignedS3>(*store_);
    server_ = *net::Server::start({}, *handler_);
    client_ = *Client::create({.endpoint = "http://127.0.0.1:" + std::to_string(server_->port()),
                               .credentials = data::s3::static_credentials({"AK", kSecret, ""})});
    EXPECT_TRUE(client_->create_bucket("bucket"));
  }

  static std::string random_text(std::size_t size) {
    Rng rng(size);
    std::string out;
    while (out.size() < size) out += static_cast<char>(rng.next());
    return out;
  }
  static std::map<std::string, std::string> files_of(const std::string& root) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.is_regular_file()) {
        files[entry.path().lexically_relative(root).string()] = *read_file(entry.path().string());
      }
    }
    return files;
  }

  TempDir dir_;
  std::unique_ptr<ports::ObjectStore> store_;
  std::unique_ptr<SignedS3> handler_;
  std::unique_ptr<net::Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(S3ClientServer, Buckets) {
  EXPECT_TRUE(client_->create_bucket("bucket"));
  EXPECT_EQ(client_->bucket_exists("bucket"), true);
  EXPECT_EQ(client_->bucket_exists("none"), false);
  EXPECT_EQ(client_->list_buckets()->size(), 1U);
  ASSERT_TRUE(client_->put_object({"bucket", "k"}, std::string("x")));
  const auto refused = client_->delete_bucket("bucket");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::failed_precondition) << refused.error().message;
  ASSERT_TRUE(client_->delete_object({"bucket", "k"}));
  EXPECT_TRUE(client_->delete_bucket("bucket"));
  EXPECT_EQ(client_->get_text({"bucket", "k"}).error().code, ErrorCode::not_found);
}

TEST_F(S3ClientServer, HostileKeysStayDistinct) {
  const std::vector<std::string> keys = {
      "a b",   "a+b",   "a%2Bb",   "a%20b", "\xC3\xA9",         "e\xCC\x81", "x/../y", "x//y",
      "/lead", "tail/", "q?a=b&c", "h#f",   "\xF0\x9F\x98\x80", "new\nline", "<&>\"'", "~!*'()"};
  for (const auto& key : keys) {
    const auto put = client_->put_object({"bucket", key}, key);
    ASSERT_TRUE(put) << key << ": " << put.error().message;
  }
  std::vector<std::string> listed;
  ASSERT_TRUE(client_->list_objects({.bucket = "bucket", .page_size = 3},
                                    [&](data::s3::ListPage page) -> Result<void> {
                                      for (const auto& object : page.objects) listed.push_back(object.key);
                                      return {};
                                    }));
  EXPECT_THAT(listed, ::testing::UnorderedElementsAreArray(keys));
  for (const auto& key : keys) EXPECT_EQ(client_->get_text({"bucket", key}), key);
  ASSERT_TRUE(client_->copy_object({"bucket", "<&>\"'"}, {"bucket", "copy +"}));
  EXPECT_EQ(client_->get_text({"bucket", "copy +"}), "<&>\"'");
  auto all = keys;
  all.push_back("copy +");
  const auto failed = client_->delete_objects("bucket", all);
  ASSERT_TRUE(failed) << failed.error().message;
  EXPECT_TRUE(failed->empty());
  listed.clear();
  ASSERT_TRUE(client_->list_objects({.bucket = "bucket"}, [&](data::s3::ListPage page) -> Result<void> {
    for (const auto& object : page.objects) listed.push_back(object.key);
    return {};
  }));
  EXPECT_TRUE(listed.empty()) << listed.front();
}

TEST_F(S3ClientServer, TreeThereAndBack) {
  std::map<std::string, std::string> files = {
      {"big", random_text((21 << 20) + 3)}, {"empty", ""}, {"d/a b", "1"}, {"d/e/+", "2"}};
  for (const auto& [name, content] : files) {
    const auto path = dir_ / ("in/" + name);
    ASSERT_TRUE(make_directories(std::filesystem::path(path).parent_path().string()));
    ASSERT_TRUE(write_file_atomic(path, content));
  }
  data::s3::UploadOptions options;
  options.part_bytes = 8 << 20;
  const auto up = upload_tree(*client_, dir_ / "in", "bucket", "pre/fix", options);
  ASSERT_TRUE(up) << up.error().message;
  EXPECT_EQ(up->files, 4U);
  const auto head = client_->head_object({"bucket", "pre/fix/big"});
  ASSERT_TRUE(head && head->checksum) << "the server keeps the checksum of the parts";
  EXPECT_EQ(head->checksum->parts, 3);
  EXPECT_EQ(client_->part_size({"bucket", "pre/fix/big"}, 1), 8U << 20);
  options.part_bytes = 5 << 20;
  const auto down = download_prefix(*client_, "bucket", "pre/fix", dir_ / "out", options);
  ASSERT_TRUE(down) << down.error().message;
  EXPECT_TRUE(files_of(dir_ / "out") == files);
}

TEST_F(S3ClientServer, ConditionsAndRanges) {
  const auto etag = client_->put_object({"bucket", "k"}, std::string("0123456789"));
  ASSERT_TRUE(etag);
  EXPECT_EQ(client_->put_object({"bucket", "k"}, std::string("x"), {.if_none_match = true}).error().code,
            ErrorCode::failed_precondition);
  std::string got;
  const auto sink = [&](std::string_view piece) -> Result<void> {
    got += piece;
    return {};
  };
  ASSERT_TRUE(client_->get_object({"bucket", "k"}, {data::s3::ByteRange{3, 4}, *etag}, sink));
  EXPECT_EQ(got, "3456");
  ASSERT_TRUE(client_->put_object({"bucket", "k"}, std::string("other")));
  EXPECT_EQ(client_->get_object({"bucket", "k"}, {data::s3::ByteRange{0, 1}, *etag}, sink).error().code,
            ErrorCode::failed_precondition);
}

TEST_F(S3ClientServer, WrongSecret) {
  auto wrong = Client::create({.endpoint = "http://127.0.0.1:" + std::to_string(server_->port()),
                               .credentials = data::s3::static_credentials({"AK", "wrong", ""})});
  const auto denied = (*wrong)->put_object({"bucket", "k"}, std::string(2 << 20, 'x'));
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, ErrorCode::unauthenticated);
  EXPECT_THAT(denied.error().message, HasSubstr("SignatureDoesNotMatch"));
}

TEST_F(S3ClientServer, AnUploadOfPartsCanBeGivenUp) {
  const auto id = client_->create_upload({"bucket", "k"});
  ASSERT_TRUE(id);
  ASSERT_TRUE(client_->upload_part({"bucket", "k"}, *id, 1, std::string("part")));
  EXPECT_TRUE(client_->abort_upload({"bucket", "k"}, *id));
  EXPECT_EQ(client_->upload_part({"bucket", "k"}, *id, 1, std::string("part")).error().code,
            ErrorCode::not_found);
}

}  // namespace
}  // namespace muster
