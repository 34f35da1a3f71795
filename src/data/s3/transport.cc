#include "data/s3/detail/transport.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/crypto.h"
#include "base/text.h"
#include "wire/sigv4/sigv4.h"

namespace muster::data::s3 {

namespace detail {
namespace {

std::uint64_t seed() {
  std::uint64_t value = 0;
  for (const char c : crypto::random_bytes(8)) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

ErrorCode code_of(int status, std::string_view code) {
  if (code == "BucketAlreadyOwnedByYou" || code == "BucketAlreadyExists") return ErrorCode::already_exists;
  if (code == "SignatureDoesNotMatch" || code == "InvalidAccessKeyId" || code == "ExpiredToken" ||
      code == "InvalidToken" || code == "RequestTimeTooSkewed") {
    return ErrorCode::unauthenticated;
  }
  if (code == "BadDigest" || code == "XAmzContentSHA256Mismatch") return ErrorCode::corrupt;
  switch (status) {
    case 401:
      return ErrorCode::unauthenticated;
    case 403:
      return ErrorCode::permission_denied;
    case 404:
      return ErrorCode::not_found;
    case 409:
    case 412:
      return ErrorCode::failed_precondition;
    case 429:
      return ErrorCode::unavailable;
    case 501:
      return ErrorCode::unsupported;
    case 507:
      return ErrorCode::resource_exhausted;
    default:
      return status >= 500 ? ErrorCode::unavailable : ErrorCode::invalid_argument;
  }
}

Error error_of(const Call& call, int status, const ErrorBody& body) {
  auto message = call.operation + " " + to_string(call.place) + ": ";
  message += body.code.empty() ? "the server answered " + std::to_string(status)
                               : body.code + ": " + body.message + " (" + std::to_string(status) + ")";
  return {code_of(status, body.code), std::move(message)};
}

bool is_transient(int status, std::string_view code) {
  if (code == "RequestTimeout" || code == "SlowDown" || code == "InternalError" || code == "BadDigest")
    return true;
  return status == 429 || (status >= 500 && status != 501 && status != 507);
}

}  // namespace

Result<std::unique_ptr<Transport>> Transport::create(ClientOptions options) {
  MUSTER_TRY(auto url, net::parse_url(options.endpoint));
  if (!options.credentials) return fail(ErrorCode::unauthenticated, "the S3 client was given no credentials");
  return std::unique_ptr<Transport>(new Transport(std::move(options), std::move(url)));
}

Transport::Transport(ClientOptions options, net::Url url)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? options_.clock : &system_clock_),
      host_header_(net::host_in_url(url.host) + (url.port == 80 ? "" : ":" + std::to_string(url.port))),
      base_path_(url.path == "/" ? "" : url.path),
      client_(net::Client::create(url.host, url.port, options_.connections_max)),
      budget_left_(options_.retry.budget),
      rng_(seed()) {}

void Transport::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  cancel_wake_.notify_all();
  client_->cancel();
}

Result<BodyHashes> hashes_of(const Body& body) {
  crypto::Hasher sha256(crypto::Digest::sha256);
  std::uint32_t crc = 0;
  const auto take = [&](std::string_view piece) {
    sha256.update(piece);
    crc = crypto::crc32c(piece, crc);
  };
  if (const auto* text = std::get_if<std::string>(&body)) {
    take(*text);
  } else {
    const auto& range = std::get<net::FileRange>(body);
    std::string piece(256 << 10, '\0');
    for (std::uint64_t done = 0; done < range.length;) {
      const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), range.length - done));
      const auto got =
          ::pread(range.file->get(), piece.data(), size, static_cast<off_t>(range.offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_errno("read the file to upload");
      if (got == 0) return fail(ErrorCode::io, "the file to upload has become shorter");
      take(std::string_view(piece).substr(0, static_cast<std::size_t>(got)));
      done += static_cast<std::uint64_t>(got);
    }
  }
  std::string big_endian;
  for (int shift = 24; shift >= 0; shift -= 8) big_endian += static_cast<char>(crc >> shift & 0xff);
  return BodyHashes{crypto::hex(sha256.finish()), crypto::base64(big_endian)};
}

// Signed anew for each attempt: the date must be that of sending.
Result<net::ClientRequest> Transport::signed_request(const Call& call) {
  MUSTER_TRY(const auto credentials, options_.credentials->get());
  net::ClientRequest request;
  request.method = call.method;
  request.timeout = options_.timeout;
  request.headers = call.headers;
  request.headers.set("Host", host_header_);
  if (call.prepare) call.prepare(request.headers);
  auto path = base_path_ + "/" + percent_encode(call.place.bucket);
  if (!call.place.key.empty()) path += "/" + percent_encode(call.place.key, "/");
  std::string payload_hash(call.headers.get("x-amz-content-sha256"));
  if (payload_hash.empty()) payload_hash = wire::sigv4::payload_hash_of("");
  auto headers = request.headers;
  request.headers = net::Headers();
  for (const auto& [name, value] : headers.all()) {
    if (!iequals(name, "x-amz-content-sha256")) request.headers.add(name, value);
  }
  const wire::sigv4::RequestView view{call.method, path, call.query, request.headers.all()};
  for (const auto& [name, value] :
       wire::sigv4::sign(view, credentials, options_.region, "s3", now(), payload_hash)) {
    request.headers.set(name, value);
  }
  request.target = call.query.empty() ? path : path + "?" + call.query;
  if (const auto* text = std::get_if<std::string>(&call.body)) {
    request.body = *text;
  } else {
    request.body = std::get<net::FileRange>(call.body);
    // A large body is worth asking first: a refusal saves sending it.
    request.expect_continue = std::get<net::FileRange>(call.body).length > 1 << 20;
  }
  return request;
}

Transport::Verdict Transport::judge(const Call& call, const net::ClientResponse& answer, Patience& patience) {
  const auto body = parse_error(answer.body);
  auto error = error_of(call, answer.status, body);
  if ((body.code == "ExpiredToken" || body.code == "InvalidToken") && !patience.refreshed) {
    patience.refreshed = true;
    options_.credentials->refresh();
    return {Verdict::What::now, std::move(error)};
  }
  const auto server_time = parse_http_date(answer.headers.get("Date"));
  if (body.code == "RequestTimeTooSkewed" && server_time && !patience.clock_learned) {
    patience.clock_learned = true;
    clock_offset_ms_ = (*server_time - clock_->now()).count();
    return {Verdict::What::now, std::move(error)};
  }
  return {is_transient(answer.status, body.code) ? Verdict::What::again : Verdict::What::fatal,
          std::move(error)};
}

Transport::Verdict Transport::judge(const Error& error, bool answered) {
  const bool broken = error.code == ErrorCode::unavailable;
  const bool late = error.code == ErrorCode::timeout;
  const bool away = broken || (late && !answered);
  if (away && options_.retry.away_max.count() > 0) return {Verdict::What::away, error};
  return {broken || late ? Verdict::What::again : Verdict::What::fatal, error};
}

// Full jitter; false when cancelled.
bool Transport::pause(Millis limit) {
  std::unique_lock lock(mutex_);
  const Millis time{rng_.between(0, std::max<std::int64_t>(limit.count(), 0))};
  return !cancel_wake_.wait_for(lock, time, [this] { return cancelled_; });
}

bool Transport::wait_before_retry(const Verdict& verdict, Patience& patience) {
  const auto& retry = options_.retry;
  const auto backoff = [&](int tries, Millis limit) {
    return std::min(limit, Millis(retry.delay_base.count() << std::min(tries, 20)));
  };
  switch (verdict.what) {
    case Verdict::What::fatal:
      return false;
    case Verdict::What::now:
      return true;
    case Verdict::What::away:
      if (!patience.away_since) {
        patience.away_since = boot_time();
        patience.away_tries = 0;
      }
      if (boot_time() - *patience.away_since >= retry.away_max) return false;
      return pause(backoff(++patience.away_tries, retry.away_delay_max));
    case Verdict::What::again:
      break;
  }
  patience.away_since.reset();
  if (++patience.attempts >= retry.attempts_max) return false;
  {
    const std::lock_guard lock(mutex_);
    if (budget_left_ <= 0) return false;
    --budget_left_;
  }
  return pause(backoff(patience.attempts, retry.delay_max));
}

Result<net::ClientResponse> Transport::send(const Call& call, const net::Client::Sink& sink,
                                            const net::Client::HeadSink& on_head) {
  Patience patience;
  std::optional<Error> local;  // of the caller's functions: sending again cannot help
  const auto mine = [&local](Result<void> result) {
    if (!result) local = result.error();
    return result;
  };
  bool answered = false;
  const net::Client::HeadSink arrived = [&](int status, const net::Headers& headers) -> Result<void> {
    answered = true;
    patience.away_since.reset();
    return on_head ? mine(on_head(status, headers)) : Result<void>();
  };
  net::Client::Sink taking;
  if (sink) taking = [&](std::string_view piece) { return mine(sink(piece)); };
  for (;;) {
    auto request = signed_request(call);
    answered = false;
    Verdict verdict;
    if (!request) {
      verdict = judge(request.error(), answered);
    } else if (auto answer = client_->send(*request, taking, arrived); !answer) {
      if (local) return tl::unexpected(std::move(*local));
      verdict = judge(answer.error(), answered);
      verdict.error = verdict.error.with_context(call.operation + " " + to_string(call.place));
    } else {
      const bool hidden = call.error_in_body && !parse_error(answer->body).code.empty();
      if (answer->status / 100 == 2 && !hidden) {
        const std::lock_guard lock(mutex_);
        budget_left_ = std::min(budget_left_ + 1, options_.retry.budget);
        return answer;
      }
      if (answer->status / 100 == 2) answer->status = 500;  // S3 began its answer before it failed
      verdict = judge(call, *answer, patience);
    }
    if (!wait_before_retry(verdict, patience)) {
      const std::lock_guard lock(mutex_);
      if (cancelled_) {
        return fail(ErrorCode::cancelled, call.operation + " " + to_string(call.place) + " was cancelled");
      }
      if (patience.attempts > 1)
        verdict.error.message += "; given up after " + std::to_string(patience.attempts) + " attempts";
      return tl::unexpected(std::move(verdict.error));
    }
  }
}

}  // namespace detail
}  // namespace muster::data::s3
