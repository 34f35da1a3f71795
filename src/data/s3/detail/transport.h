// One S3 request with everything that makes it arrive: signing at send time, retries with full jitter inside
// a budget, waiting while the endpoint is away, fresh credentials and the server's clock when it complains.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/rng.h"
#include "data/s3/client.h"
#include "data/s3/detail/xml.h"

namespace muster::data::s3::detail {

struct Call {
  std::string operation;  // for messages: "PutObject"
  std::string method = "GET";
  Place place;        // key empty: the bucket; bucket empty: the service
  std::string query;  // canonical pieces, percent-encoded: "list-type=2&prefix=a%2F"
  net::Headers headers;
  Body body;
  // Called before each attempt, to change headers (a range that moves on).
  std::function<void(net::Headers&)> prepare;
  // A 200 whose body is an S3 error is an error: CompleteMultipartUpload, CopyObject.
  bool error_in_body = false;
};

class Transport {
 public:
  static Result<std::unique_ptr<Transport>> create(ClientOptions options);

  // The answer of status 2xx, or an Error made of the server's.
  // `sink` and `on_head` may see several attempts: call.prepare is called before each.
  Result<net::ClientResponse> send(const Call& call, const net::Client::Sink& sink = {},
                                   const net::Client::HeadSink& on_head = {});
  void cancel();
  const ClientOptions& options() const { return options_; }

 private:
  // What became of one attempt.
  struct Verdict {
    enum class What { fatal, again, away, now };  // now: once more at once (new credentials, clock learned)
    What what = What::fatal;
    Error error;
  };
  struct Patience {  // of one send()
    int attempts = 0;
    bool refreshed = false;
    bool clock_learned = false;
    std::optional<Millis> away_since;
    int away_tries = 0;
  };

  Transport(ClientOptions options, net::Url url);
  Result<net::ClientRequest> signed_request(const Call& call);
  Verdict judge(const Call& call, const net::ClientResponse& answer, Patience& patience);
  Verdict judge(const Error& error, bool answered);  // answered: the head of an answer has come
  bool wait_before_retry(const Verdict& verdict, Patience& patience);
  bool pause(Millis limit);
  Time now() const { return clock_->now() + Millis(clock_offset_ms_); }

  const ClientOptions options_;
  const Clock* clock_;
  SystemClock system_clock_;
  const std::string host_header_;
  const std::string base_path_;
  std::unique_ptr<net::Client> client_;
  std::atomic<std::int64_t> clock_offset_ms_{0};  // server minus us
  std::mutex mutex_;
  std::condition_variable cancel_wake_;
  bool cancelled_ = false;
  int budget_left_;
  Rng rng_;
};

// SHA-256 in hex (what is signed) and CRC32C in base64 (what the server keeps) of a body.
struct BodyHashes {
  std::string sha256;
  std::string crc32c;
};
Result<BodyHashes> hashes_of(const Body& body);

}  // namespace muster::data::s3::detail
