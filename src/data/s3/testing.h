// A small S3 in memory for the tests of this folder: it checks every signature and body hash, and can be told
// to fail. Not a model of S3's finer rules; those are tested against the real servers in tests/. Threading:
// put(), objects() and the counters from any thread; `fault` is set while no request runs.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/crypto.h"
#include "base/text.h"
#include "data/s3/client.h"
#include "net/http.h"
#include "wire/sigv4/sigv4.h"

namespace muster::data::s3::testing {

inline constexpr const char* kAccessKey = "AKIDTEST";
inline constexpr const char* kSecretKey = "secret/key";

inline net::Response answer(int status, std::string body = "") {
  net::Response response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

inline net::Response error_answer(int status, const std::string& code) {
  return answer(status,
                "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><Message>because</Message></Error>");
}

class FakeS3 final : public net::Handler {
 public:
  struct Object {
    std::string data;
    std::string etag;
    std::string crc32c;  // "...-N" of an upload in N parts
    std::uint64_t first_part = 0;
  };

  FakeS3() { start(0); }
  void start(std::uint16_t port) {
    auto server = net::Server::start({.port = port, .handler_threads = 8}, *this);
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = *std::move(server);
    port_ = server_->port();
  }
  void stop() { server_.reset(); }
  std::uint16_t port() const { return port_; }

  ClientOptions options() const {
    ClientOptions out;
    out.endpoint = "http://127.0.0.1:" + std::to_string(port_);
    out.credentials = static_credentials({kAccessKey, kSecretKey, ""});
    out.retry.delay_base = Millis(1);
    out.retry.delay_max = Millis(4);
    return out;
  }
  std::unique_ptr<Client> client() const { return client(options()); }
  static std::unique_ptr<Client> client(ClientOptions options) {
    auto made = Client::create(std::move(options));
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return made ? *std::move(made) : nullptr;
  }

  void put(const std::string& key, std::string data) {
    const std::lock_guard lock(mutex_);
    store(key, std::move(data));
  }
  std::map<std::string, Object> objects() {
    const std::lock_guard lock(mutex_);
    return objects_;
  }

  // Asked first; an answer wins over the store. Called by several threads at once.
  std::function<std::optional<net::Response>(const net::Request&)> fault;
  std::atomic<int> requests{0};
  std::atomic<int> open_uploads{0};
  std::atomic<int> page_size{1000};

  std::variant<net::Route, net::Response> route(const net::RequestHead&) override {
    net::Route route;
    route.body_max = 64 << 20;
    route.handle = [this](net::Request& request) {
      ++requests;
      if (fault) {
        if (auto response = fault(request)) return *std::move(response);
      }
      if (auto refused = check(request)) return *std::move(refused);
      const std::lock_guard lock(mutex_);
      return handle(request);
    };
    return route;
  }

 private:
  static std::string crc_of(std::string_view data) {
    return crypto::base64(crypto::digest(crypto::Digest::crc32c, data));
  }
  void store(const std::string& key, std::string data) {
    auto etag = crypto::hex(crypto::digest(crypto::Digest::md5, data));
    auto crc = crc_of(data);
    objects_[key] = {std::move(data), std::move(etag), std::move(crc), 0};
  }

  static std::optional<net::Response> check(const net::Request& request) {
    const auto& head = request.head;
    const wire::sigv4::RequestView view{head.method, head.path, head.query, head.headers.all()};
    const auto claim = wire::sigv4::parse(view);
    if (!claim || !*claim) return error_answer(403, "AccessDenied");
    const auto hash = wire::sigv4::payload_hash_of(request.body);
    if ((*claim)->payload_hash != hash) return error_answer(400, "XAmzContentSHA256Mismatch");
    if (!wire::sigv4::verify(**claim, kSecretKey, view, hash))
      return error_answer(403, "SignatureDoesNotMatch");
    const auto crc = head.headers.get("x-amz-checksum-crc32c");
    if (!crc.empty() && crc != crc_of(request.body)) return error_answer(400, "BadDigest");
    return std::nullopt;
  }

  static std::map<std::string, std::string> query_of(const net::Request& request) {
    std::map<std::string, std::string> query;
    for (const auto part : split(request.head.query, '&')) {
      const auto equals = part.find('=');
      if (!part.empty()) {
        query[std::string(part.substr(0, equals))] =
            equals == std::string_view::npos ? "" : *percent_decode(part.substr(equals + 1));
      }
    }
    return query;
  }

  net::Response handle(const net::Request& request) {
    const auto path = percent_decode(request.head.path).value_or("");
    const auto slash = path.find('/', 1);
    const auto key = slash == std::string::npos ? "" : path.substr(slash + 1);
    auto query = query_of(request);
    if (key.empty()) return bucket(request, query);
    if (request.head.method == "GET" || request.head.method == "HEAD") return get(request, key);
    if (request.head.method == "DELETE" && query.count("uploadId") > 0) {
      uploads_.erase(query["uploadId"]);
      --open_uploads;
      return answer(204);
    }
    if (request.head.method == "DELETE") {
      objects_.erase(key);
      return answer(204);
    }
    if (request.head.method == "POST") return multipart(request, key, query);
    if (query.count("partNumber") > 0) {
      auto& part = uploads_[query["uploadId"]][std::stoi(query["partNumber"])];
      part = request.body;
      auto response = answer(200);
      response.headers.set("ETag", '"' + crypto::hex(crypto::digest(crypto::Digest::md5, part)) + '"');
      return response;
    }
    if (request.head.headers.get("If-None-Match") == "*" && objects_.count(key) > 0) {
      return error_answer(412, "PreconditionFailed");
    }
    if (const auto from = request.head.headers.get("x-amz-copy-source"); !from.empty()) {
      const auto source = percent_decode(from.substr(from.find('/', 1) + 1)).value_or("");
      if (objects_.count(source) == 0) return error_answer(404, "NoSuchKey");
      store(key, objects_[source].data);
      return answer(
          200, "<CopyObjectResult><ETag>&quot;" + objects_[key].etag + "&quot;</ETag></CopyObjectResult>");
    }
    store(key, request.body);
    auto response = answer(200);
    response.headers.set("ETag", '"' + objects_[key].etag + '"');
    return response;
  }

  net::Response multipart(const net::Request& request, const std::string& key,
                          std::map<std::string, std::string>& query) {
    if (query.count("uploads") > 0) {
      const auto id = "upload/+" + std::to_string(++upload_ids_);
      uploads_[id];
      ++open_uploads;
      return answer(200, "<InitiateMultipartUploadResult><UploadId>" + id +
                             "</UploadId></InitiateMultipartUploadResult>");
    }
    std::string whole;
    std::string digests;
    std::uint64_t first_part = 0;
    int parts = 0;
    for (const auto& [number, part] : uploads_[query["uploadId"]]) {
      whole += part;
      digests += crypto::digest(crypto::Digest::crc32c, part);
      if (++parts == 1) first_part = part.size();
      if (request.body.find("<ChecksumCRC32C>" + crc_of(part) + "<") == std::string::npos) {
        return error_answer(400, "InvalidPart");
      }
    }
    uploads_.erase(query["uploadId"]);
    --open_uploads;
    store(key, std::move(whole));
    objects_[key].crc32c = crc_of(digests) + "-" + std::to_string(parts);
    objects_[key].first_part = first_part;
    return answer(200, "<CompleteMultipartUploadResult><ETag>\"" + objects_[key].etag +
                           "\"</ETag></CompleteMultipartUploadResult>");
  }

  net::Response get(const net::Request& request, const std::string& key) {
    const auto found = objects_.find(key);
    if (found == objects_.end()) return error_answer(404, "NoSuchKey");
    const auto& object = found->second;
    const auto wanted = request.head.headers.get("If-Match");
    if (!wanted.empty() && wanted != '"' + object.etag + '"') return error_answer(412, "PreconditionFailed");
    auto response = answer(200, object.data);
    response.headers.set("ETag", '"' + object.etag + '"');
    response.headers.set("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT");
    const auto range = request.head.headers.get("Range");
    if (request.head.query == "partNumber=1") {
      response.content_length_of_head = object.first_part;
      return response;
    }
    if (range.empty()) {
      response.headers.set("x-amz-checksum-crc32c", object.crc32c);
      return response;
    }
    const auto dash = range.find('-');
    const auto first = static_cast<std::size_t>(*parse_int(range.substr(6, dash - 6)));
    const auto last = static_cast<std::size_t>(
        parse_int(range.substr(dash + 1)).value_or(static_cast<std::int64_t>(object.data.size()) - 1));
    if (first >= object.data.size()) return error_answer(416, "InvalidRange");
    response.status = 206;
    response.body = object.data.substr(first, last - first + 1);
    response.headers.set("Content-Range", "bytes " + std::to_string(first) + "-" +
                                              std::to_string(std::min(last, object.data.size() - 1)) + "/" +
                                              std::to_string(object.data.size()));
    return response;
  }

  net::Response bucket(const net::Request& request, std::map<std::string, std::string>& query) {
    if (request.head.method == "POST") {
      std::string failed;
      std::vector<std::string> doomed;
      for (const auto& [key, object] : objects_) {
        if (request.body.find("<Key>" + key + "</Key>") != std::string::npos) doomed.push_back(key);
      }
      for (const auto& key : doomed) {
        if (key.starts_with("locked")) {
          failed += "<Error><Key>" + key + "</Key><Code>AccessDenied</Code><Message>locked</Message></Error>";
        } else {
          objects_.erase(key);
        }
      }
      return answer(200, "<DeleteResult>" + failed + "</DeleteResult>");
    }
    if (request.head.path == "/" && request.head.method == "GET") {
      return answer(
          200,
          "<ListAllMyBucketsResult><Buckets><Bucket><Name>b</Name><CreationDate>2026-11-29T16:41:58.123Z"
          "</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>");
    }
    if (request.head.method == "PUT") {
      return request.head.path == "/b"       ? error_answer(409, "BucketAlreadyOwnedByYou")
             : request.head.path == "/taken" ? error_answer(409, "BucketAlreadyExists")
                                             : answer(200);
    }
    if (request.head.method == "DELETE") return error_answer(409, "BucketNotEmpty");
    if (request.head.method == "HEAD") return answer(request.head.path == "/b" ? 200 : 404);
    return list(query);
  }

  net::Response list(std::map<std::string, std::string>& query) {
    if (query["encoding-type"] != "url") return error_answer(400, "InvalidArgument");
    const auto start =
        query["continuation-token"].empty() ? query["start-after"] : query["continuation-token"];
    std::string xml = "<ListBucketResult><EncodingType>url</EncodingType>";
    int count = 0;
    std::string last;
    bool truncated = false;
    std::string common;
    for (auto at = objects_.upper_bound(start); at != objects_.end(); ++at) {
      const auto& [key, object] = *at;
      if (!key.starts_with(query["prefix"])) continue;
      const auto cut = query["delimiter"].empty() ? std::string::npos : key.find('/', query["prefix"].size());
      if (cut != std::string::npos && key.substr(0, cut + 1) == common) {
        last = key;
        continue;
      }
      if (count == page_size) {
        truncated = true;
        break;
      }
      if (cut != std::string::npos) {
        common = key.substr(0, cut + 1);
        xml += "<CommonPrefixes><Prefix>" + form(common) + "</Prefix></CommonPrefixes>";
      } else {
        xml += "<Contents><Key>" + form(key) + "</Key><Size>" + std::to_string(object.data.size()) +
               "</Size><ETag>&quot;" + object.etag + "&quot;</ETag></Contents>";
      }
      last = key;
      ++count;
    }
    if (truncated)
      xml += "<IsTruncated>true</IsTruncated><NextContinuationToken>" + last + "</NextContinuationToken>";
    return answer(200, xml + "</ListBucketResult>");
  }
  static std::string form(const std::string& key) {
    auto out = percent_encode(key, "/ ");
    for (auto& c : out) c = c == ' ' ? '+' : c;
    return out;
  }

  std::mutex mutex_;
  std::map<std::string, Object> objects_;
  std::map<std::string, std::map<int, std::string>> uploads_;
  int upload_ids_ = 0;
  std::uint16_t port_ = 0;
  std::unique_ptr<net::Server> server_;
};

}  // namespace muster::data::s3::testing
