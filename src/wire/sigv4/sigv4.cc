#include "wire/sigv4/sigv4.h"

#include <algorithm>
#include <array>

#include "base/crypto.h"
#include "base/text.h"
#include "wire/sigv4/detail/canonical.h"

namespace muster::wire::sigv4 {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::string_view kTerminator = "aws4_request";
constexpr Millis kPresignedMax = std::chrono::hours(24 * 7);

std::string_view view(const crypto::Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

tl::unexpected<Error> malformed(std::string message) {
  return fail(ErrorCode::invalid_argument, std::move(message));
}

// Credential=AKID/20261129/us-east-1/s3/aws4_request. The access key itself may hold slashes.
Result<void> parse_credential(std::string_view text, Claim& claim) {
  auto parts = split(text, '/');
  if (parts.size() < 5 || parts.back() != kTerminator) {
    return malformed("Credential must be ACCESS_KEY/DATE/REGION/SERVICE/aws4_request, not \"" +
                     std::string(text.substr(0, 200)) + "\"");
  }
  const auto n = parts.size();
  claim.scope = {std::string(parts[n - 4]), std::string(parts[n - 3]), std::string(parts[n - 2])};
  const auto tail = claim.scope.date.size() + claim.scope.region.size() + claim.scope.service.size() +
                    kTerminator.size() + 4;
  claim.access_key = std::string(text.substr(0, text.size() - tail));
  if (claim.access_key.empty() || claim.scope.service.empty() || claim.scope.region.empty()) {
    return malformed("Credential has an empty part: \"" + std::string(text.substr(0, 200)) + "\"");
  }
  if (claim.scope.date.size() != 8 || !parse_int(claim.scope.date)) {
    return malformed("the date of Credential must be YYYYMMDD, not \"" + claim.scope.date.substr(0, 40) +
                     "\"");
  }
  return {};
}

Result<void> parse_signed_headers(std::string_view text, Claim& claim) {
  for (const auto name : split(text, ';')) {
    if (name.empty() || to_lower(name) != name) {
      return malformed("SignedHeaders must be lower-case names separated by ';', not \"" +
                       std::string(text.substr(0, 200)) + "\"");
    }
    claim.signed_headers.emplace_back(name);
  }
  if (std::find(claim.signed_headers.begin(), claim.signed_headers.end(), "host") ==
      claim.signed_headers.end()) {
    return malformed("the Host header must be among the signed headers");
  }
  return {};
}

Result<void> check_signature_text(std::string_view signature) {
  const bool hex = std::all_of(signature.begin(), signature.end(),
                               [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (signature.size() != 64 || !hex) return malformed("Signature must be 64 lower-case hex digits");
  return {};
}

Result<void> set_time(std::string_view text, Claim& claim) {
  auto time = parse_compact(text);
  if (!time) time = parse_http_date(text);
  if (!time) time = parse_iso8601(text);
  if (!time) {
    return malformed("the request's date must look like 20261129T164158Z, not \"" +
                     std::string(text.substr(0, 60)) + "\"");
  }
  claim.time = *time;
  if (format_compact(claim.time).substr(0, 8) != claim.scope.date) {
    return malformed("the date of Credential (" + claim.scope.date +
                     ") is not the day of the request's date (" + format_compact(claim.time) + ")");
  }
  return {};
}

Result<Claim> parse_header(const RequestView& request, std::string_view text) {
  Claim claim;
  claim.scheme = Scheme::header;
  if (text.substr(0, kAlgorithm.size()) != kAlgorithm) {
    return fail(ErrorCode::unsupported,
                "the Authorization header must begin with " + std::string(kAlgorithm) + "; \"" +
                    std::string(text.substr(0, text.find(' ')).substr(0, 40)) + "\" is not supported");
  }
  text.remove_prefix(kAlgorithm.size());
  std::string_view credential;
  std::string_view signed_headers;
  for (const auto raw : split(text, ',')) {
    const auto part = trim(raw);
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) {
      return malformed("the Authorization header has a part without '=': \"" +
                       std::string(part.substr(0, 80)) + "\"");
    }
    const auto name = part.substr(0, equals);
    const auto value = part.substr(equals + 1);
    if (name == "Credential") credential = value;
    if (name == "SignedHeaders") signed_headers = value;
    if (name == "Signature") claim.signature = std::string(value);
  }
  if (credential.empty()) return malformed("the Authorization header lacks Credential");
  if (signed_headers.empty()) return malformed("the Authorization header lacks SignedHeaders");
  if (claim.signature.empty()) return malformed("the Authorization header lacks Signature");
  MUSTER_CHECK(parse_credential(credential, claim));
  MUSTER_CHECK(parse_signed_headers(signed_headers, claim));
  MUSTER_CHECK(check_signature_text(claim.signature));
  auto date = detail::header(request, "x-amz-date");
  if (!date) date = detail::header(request, "date");
  if (!date) return malformed("a signed request needs an X-Amz-Date (or Date) header");
  MUSTER_CHECK(set_time(trim(*date), claim));
  claim.session_token = std::string(trim(detail::header(request, "x-amz-security-token").value_or("")));
  claim.payload_hash = std::string(trim(detail::header(request, "x-amz-content-sha256").value_or("")));
  return claim;
}

Result<Claim> parse_query(const RequestView& request, const detail::Query& query) {
  Claim claim;
  claim.scheme = Scheme::query;
  if (query.get("X-Amz-Algorithm") != kAlgorithm) {
    return fail(ErrorCode::unsupported,
                "X-Amz-Algorithm must be " + std::string(kAlgorithm) + ", not \"" +
                    std::string(query.get("X-Amz-Algorithm").value_or("").substr(0, 40)) + "\"");
  }
  for (const auto* name :
       {"X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"}) {
    if (!query.get(name)) return malformed("the presigned query lacks " + std::string(name));
  }
  MUSTER_CHECK(parse_credential(*query.get("X-Amz-Credential"), claim));
  MUSTER_CHECK(parse_signed_headers(*query.get("X-Amz-SignedHeaders"), claim));
  claim.signature = std::string(*query.get("X-Amz-Signature"));
  MUSTER_CHECK(check_signature_text(claim.signature));
  MUSTER_CHECK(set_time(*query.get("X-Amz-Date"), claim));
  const auto seconds = parse_int(*query.get("X-Amz-Expires"));
  if (!seconds || *seconds < 1 || *seconds > kPresignedMax / std::chrono::seconds(1)) {
    return malformed("X-Amz-Expires must be 1 to 604800 seconds, not \"" +
                     std::string(query.get("X-Amz-Expires")->substr(0, 40)) + "\"");
  }
  claim.expires_at = claim.time + std::chrono::seconds(*seconds);
  claim.session_token = std::string(query.get("X-Amz-Security-Token").value_or(""));
  auto hash = query.get("X-Amz-Content-Sha256");
  if (!hash) hash = detail::header(request, "x-amz-content-sha256");
  if (hash) {
    claim.payload_hash = std::string(trim(*hash));
  } else if (claim.scope.service == "s3") {
    claim.payload_hash = kUnsignedPayload;
  }
  return claim;
}

Result<Claim> parse_query_v2(const RequestView& request, const detail::Query& query) {
  Claim claim;
  claim.scheme = Scheme::query_v2;
  claim.scope.service = "s3";
  if (request.method != "GET" && request.method != "HEAD" && request.method != "PUT") {
    return fail(ErrorCode::unsupported, "a SigV2 presigned URL is good for GET, HEAD and PUT only, not " +
                                            std::string(request.method.substr(0, 20)) +
                                            "; sign with AWS4-HMAC-SHA256");
  }
  for (const auto* name : {"Signature", "Expires"}) {
    if (!query.get(name)) return malformed("the presigned query lacks " + std::string(name));
  }
  claim.access_key = std::string(*query.get("AWSAccessKeyId"));
  claim.signature = std::string(*query.get("Signature"));
  const auto seconds = parse_int(*query.get("Expires"));
  if (!seconds || *seconds < 0 || *seconds > 1'000'000'000'000) {
    return malformed("Expires must be seconds since 1970, not \"" +
                     std::string(query.get("Expires")->substr(0, 40)) + "\"");
  }
  claim.expires_at = Time{*seconds * 1000};
  claim.session_token = std::string(query.get("x-amz-security-token").value_or(""));
  claim.payload_hash = kUnsignedPayload;
  return claim;
}

std::string hex_hmac(std::string_view key, std::string_view text) {
  return crypto::hex(crypto::hmac_sha256(key, text));
}

std::string authorization(const Credentials& credentials, const Scope& scope,
                          const std::vector<std::string>& signed_headers, std::string_view signature) {
  return std::string(kAlgorithm) + " Credential=" + credentials.access_key + "/" + scope.date + "/" +
         scope.region + "/" + scope.service + "/" + std::string(kTerminator) +
         ", SignedHeaders=" + join(signed_headers, ";") + ", Signature=" + std::string(signature);
}

bool is_unsignable(std::string_view lower_name) {
  static constexpr std::array<std::string_view, 10> kNames = {
      "authorization",   "connection", "expect",           "transfer-encoding", "user-agent", "te",
      "x-amzn-trace-id", "keep-alive", "proxy-connection", "content-length"};
  return std::find(kNames.begin(), kNames.end(), lower_name) != kNames.end();
}

std::vector<std::string> names_to_sign(std::span<const std::pair<std::string, std::string>> headers) {
  std::vector<std::string> names;
  for (const auto& [name, value] : headers) {
    auto lower = to_lower(name);
    if (!is_unsignable(lower)) names.push_back(std::move(lower));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

Result<std::optional<Claim>> parse(const RequestView& request) {
  const auto query = detail::Query::parse(request.query);
  if (!query) return malformed("the query string has a broken percent escape");
  if (const auto text = detail::header(request, "authorization")) {
    if (query->get("X-Amz-Signature")) {
      return malformed("the request is signed twice: in the Authorization header and in the query");
    }
    MUSTER_TRY(auto claim, parse_header(request, trim(*text)));
    return claim;
  }
  if (query->get("X-Amz-Algorithm") || query->get("X-Amz-Signature")) {
    MUSTER_TRY(auto claim, parse_query(request, *query));
    return claim;
  }
  if (query->get("AWSAccessKeyId")) {
    MUSTER_TRY(auto claim, parse_query_v2(request, *query));
    return claim;
  }
  return std::nullopt;
}

TimeCheck check_time(const Claim& claim, Time now, Millis skew) {
  if (claim.expires_at) {
    if (claim.scheme == Scheme::query && claim.time > now + skew) return TimeCheck::early;
    return now > *claim.expires_at ? TimeCheck::expired : TimeCheck::ok;
  }
  return claim.time > now + skew || claim.time < now - skew ? TimeCheck::skewed : TimeCheck::ok;
}

namespace {

std::string canonical_request_of_path(const RequestView& request, std::string_view canonical_path,
                                      const std::vector<std::string>& signed_headers, Scheme scheme,
                                      std::string_view payload_hash) {
  std::string out(request.method);
  out += '\n';
  out += canonical_path;
  out += '\n';
  out += detail::canonical_query(request.query, scheme == Scheme::query ? "X-Amz-Signature" : "");
  out += '\n';
  out += detail::canonical_headers(request, signed_headers);
  out += '\n';
  out += join(signed_headers, ";");
  out += '\n';
  out += payload_hash;
  return out;
}

std::string canonical_path_of(const RequestView& request, const Scope& scope) {
  return scope.service == "s3" ? detail::canonical_path_s3(request.path)
                               : detail::canonical_path(request.path);
}

// The signatures that are good for the request, one or two. S3 clients sign the path encoded by the rule, or
// as they send it (botocore, given %2F or a bare + in it): both spell the same key, so nothing else is
// signed.
std::vector<std::string> good_signatures(const Claim& claim, std::string_view secret_key,
                                         const RequestView& request, std::string_view payload_hash) {
  if (claim.scheme == Scheme::query_v2) {
    return {crypto::base64(crypto::hmac_sha1(secret_key, detail::string_to_sign_v2(request)))};
  }
  std::vector<std::string> paths = {canonical_path_of(request, claim.scope)};
  if (claim.scope.service == "s3" && paths.front() != request.path) paths.emplace_back(request.path);
  const auto key = signing_key(secret_key, claim.scope);
  std::vector<std::string> out;
  for (const auto& path : paths) {
    const auto canonical =
        canonical_request_of_path(request, path, claim.signed_headers, claim.scheme, payload_hash);
    out.push_back(hex_hmac(key, string_to_sign(claim.time, claim.scope, canonical)));
  }
  return out;
}

}  // namespace

Result<void> verify(const Claim& claim, std::string_view secret_key, const RequestView& request,
                    std::string_view payload_hash) {
  if (claim.scheme != Scheme::query_v2) {
    for (const auto& [name, value] : request.headers) {
      const auto lower = to_lower(name);
      // A session token authenticates itself, and some services take it unsigned.
      if (!lower.starts_with("x-amz-") || lower == "x-amz-security-token") continue;
      if (std::find(claim.signed_headers.begin(), claim.signed_headers.end(), lower) ==
          claim.signed_headers.end()) {
        return fail(ErrorCode::permission_denied,
                    "There were headers present in the request which were not signed: " + lower);
      }
    }
  }
  for (const auto& good : good_signatures(claim, secret_key, request, payload_hash)) {
    if (crypto::constant_time_equal(good, claim.signature)) return {};
  }
  return fail(ErrorCode::unauthenticated,
              "The request signature we calculated does not match the signature you provided. Check your key "
              "and signing method.");
}

std::string payload_hash_of(std::string_view body) { return crypto::hex(crypto::sha256(body)); }

std::string canonical_request(const RequestView& request, const Scope& scope,
                              const std::vector<std::string>& signed_headers, Scheme scheme,
                              std::string_view payload_hash) {
  return canonical_request_of_path(request, canonical_path_of(request, scope), signed_headers, scheme,
                                   payload_hash);
}

std::string string_to_sign(Time time, const Scope& scope, std::string_view canonical) {
  return std::string(kAlgorithm) + "\n" + format_compact(time) + "\n" + scope.date + "/" + scope.region +
         "/" + scope.service + "/" + std::string(kTerminator) + "\n" + crypto::hex(crypto::sha256(canonical));
}

std::string signing_key(std::string_view secret_key, const Scope& scope) {
  const auto date = crypto::hmac_sha256("AWS4" + std::string(secret_key), scope.date);
  const auto region = crypto::hmac_sha256(view(date), scope.region);
  const auto service = crypto::hmac_sha256(view(region), scope.service);
  return std::string(view(crypto::hmac_sha256(view(service), kTerminator)));
}

std::vector<std::pair<std::string, std::string>> sign(const RequestView& request,
                                                      const Credentials& credentials, std::string_view region,
                                                      std::string_view service, Time now,
                                                      std::string_view payload_hash) {
  const Scope scope{format_compact(now).substr(0, 8), std::string(region), std::string(service)};
  std::vector<std::pair<std::string, std::string>> added;
  added.emplace_back("X-Amz-Date", format_compact(now));
  if (!credentials.session_token.empty())
    added.emplace_back("X-Amz-Security-Token", credentials.session_token);
  if (service == "s3") added.emplace_back("X-Amz-Content-SHA256", payload_hash);
  std::vector<std::pair<std::string, std::string>> all(request.headers.begin(), request.headers.end());
  all.insert(all.end(), added.begin(), added.end());
  const RequestView whole{request.method, request.path, request.query, all};
  const auto names = names_to_sign(all);
  const auto text =
      string_to_sign(now, scope, canonical_request(whole, scope, names, Scheme::header, payload_hash));
  added.emplace_back(
      "Authorization",
      authorization(credentials, scope, names, hex_hmac(signing_key(credentials.secret_key, scope), text)));
  return added;
}

std::string presign(const RequestView& request, const Credentials& credentials, std::string_view region,
                    std::string_view service, Time now, Millis expires) {
  const Scope scope{format_compact(now).substr(0, 8), std::string(region), std::string(service)};
  const auto names = names_to_sign(request.headers);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(expires).count();
  std::string query(request.query);
  const auto add = [&](std::string_view name, std::string_view value) {
    if (!query.empty()) query += '&';
    query += std::string(name) + "=" + percent_encode(value);
  };
  add("X-Amz-Algorithm", kAlgorithm);
  add("X-Amz-Credential", credentials.access_key + "/" + scope.date + "/" + scope.region + "/" +
                              scope.service + "/" + std::string(kTerminator));
  add("X-Amz-Date", format_compact(now));
  add("X-Amz-Expires", std::to_string(seconds));
  if (!credentials.session_token.empty()) add("X-Amz-Security-Token", credentials.session_token);
  add("X-Amz-SignedHeaders", join(names, ";"));
  const RequestView whole{request.method, request.path, query, request.headers};
  const auto hash = service == "s3" ? std::string(kUnsignedPayload) : payload_hash_of("");
  const auto canonical = canonical_request(whole, scope, names, Scheme::query, hash);
  add("X-Amz-Signature",
      hex_hmac(signing_key(credentials.secret_key, scope), string_to_sign(now, scope, canonical)));
  return query;
}

std::string presign_v2(const RequestView& request, const Credentials& credentials, Time expires_at) {
  std::string query(request.query);
  const auto add = [&](std::string_view name, std::string_view value) {
    if (!query.empty()) query += '&';
    query += std::string(name) + "=" + percent_encode(value);
  };
  if (!credentials.session_token.empty()) add("x-amz-security-token", credentials.session_token);
  add("AWSAccessKeyId", credentials.access_key);
  add("Expires", std::to_string(expires_at.unix_ms / 1000));
  const RequestView whole{request.method, request.path, query, request.headers};
  const auto text = detail::string_to_sign_v2(whole);
  add("Signature", crypto::base64(crypto::hmac_sha1(credentials.secret_key, text)));
  return query;
}

}  // namespace muster::wire::sigv4
