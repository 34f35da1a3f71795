#include "wire/sigv4/aws_chunked.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace muster::wire::sigv4 {
namespace {

constexpr std::size_t kLineMax = 8 << 10;       // bytes of one size or trailer line
constexpr std::size_t kTrailersMax = 16 << 10;  // bytes of all trailers
constexpr std::string_view kEmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string scope_text(const Scope& scope) {
  return scope.date + "/" + scope.region + "/" + scope.service + "/aws4_request";
}

std::string chunk_signature(std::string_view key, Time time, const Scope& scope, std::string_view previous,
                            std::string_view chunk_hash) {
  const auto text = "AWS4-HMAC-SHA256-PAYLOAD\n" + format_compact(time) + "\n" + scope_text(scope) + "\n" +
                    std::string(previous) + "\n" + std::string(kEmptyHash) + "\n" + std::string(chunk_hash);
  return crypto::hex(crypto::hmac_sha256(key, text));
}

std::string shown(std::string_view line) {
  std::string out;
  for (const char c : line.substr(0, 60)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

}  // namespace

std::optional<Framing> framing_of(std::string_view payload_hash) {
  if (payload_hash == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD") return Framing::signed_chunks;
  if (payload_hash == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER") return Framing::signed_chunks_trailer;
  if (payload_hash == "STREAMING-UNSIGNED-PAYLOAD-TRAILER") return Framing::unsigned_trailer;
  return std::nullopt;
}

AwsChunkedDecoder::AwsChunkedDecoder(Framing framing, const Claim& claim, std::string_view secret_key)
    : framing_(framing), scope_(claim.scope), time_(claim.time), previous_signature_(claim.signature) {
  if (framing_ != Framing::unsigned_trailer) key_ = signing_key(secret_key, scope_);
}

Result<void> AwsChunkedDecoder::feed(std::string_view piece, std::string& out) {
  while (!piece.empty()) {
    auto stepped = step(piece, out);
    if (!stepped) {
      state_ = State::failed;
      return stepped;
    }
  }
  return {};
}

Result<void> AwsChunkedDecoder::step(std::string_view& piece, std::string& out) {
  if (state_ == State::failed) return broken("after an earlier error");
  if (state_ == State::done) return broken("bytes after the end of the body");
  if (state_ == State::data) {
    const auto take =
        piece.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(chunk_left_, piece.size())));
    out += take;
    if (chunk_hash_) chunk_hash_->update(take);
    decoded_ += take.size();
    chunk_left_ -= take.size();
    piece.remove_prefix(take.size());
    if (chunk_left_ == 0) state_ = State::data_end;
    return {};
  }
  bool complete = false;
  MUSTER_CHECK(take_line(piece, complete));
  if (!complete) return {};
  Result<void> result;
  switch (state_) {
    case State::size_line:
      result = begin_chunk();
      break;
    case State::data_end:
      result = end_chunk();
      break;
    default:
      result = trailer_line();
      break;
  }
  line_.clear();
  return result;
}

Result<void> AwsChunkedDecoder::take_line(std::string_view& piece, bool& complete) {
  const auto end = piece.find('\n');
  line_ += piece.substr(0, end);
  piece.remove_prefix(end == std::string_view::npos ? piece.size() : end + 1);
  if (line_.size() > kLineMax) return broken("a line of more than 8 KiB");
  if (end == std::string_view::npos) return {};
  complete = true;
  if (!line_.empty() && line_.back() == '\r') {
    line_.pop_back();
  } else if (state_ != State::trailer) {  // published clients end trailers by "\n" alone, too
    return broken("a line that does not end in CR LF");
  }
  return {};
}

Result<void> AwsChunkedDecoder::begin_chunk() {
  const std::string_view line = line_;
  const auto digits = line.substr(0, line.find(';'));
  const auto* digits_end = digits.data() + digits.size();
  std::uint64_t size = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits_end, size, 16);
  if (digits.empty() || digits.size() > 12 || error != std::errc() || stop != digits_end) {
    return broken("a chunk size that is not hexadecimal: \"" + shown(line) + "\"");
  }
  constexpr std::string_view kMark = ";chunk-signature=";
  chunk_signature_.clear();
  const auto extension = line.substr(digits.size());
  if (framing_ != Framing::unsigned_trailer) {
    if (!extension.starts_with(kMark))
      return broken("a chunk without chunk-signature: \"" + shown(line) + "\"");
    chunk_signature_ = extension.substr(kMark.size());
    chunk_hash_.emplace(crypto::Digest::sha256);
  }
  last_chunk_ = size == 0;
  chunk_left_ = size;
  if (!last_chunk_) {
    state_ = State::data;
    return {};
  }
  if (framing_ == Framing::signed_chunks) {
    state_ = State::data_end;
    return {};
  }
  state_ = State::trailer;
  return framing_ == Framing::signed_chunks_trailer ? end_chunk() : Result<void>();
}

// Called at the line end after the bytes of a chunk; for the last chunk of a body with trailers, at its
// size line, for there is no empty line between.
Result<void> AwsChunkedDecoder::end_chunk() {
  if (state_ == State::data_end && !line_.empty()) return broken("a chunk longer than its size says");
  if (chunk_hash_) {
    const auto expected =
        chunk_signature(key_, time_, scope_, previous_signature_, crypto::hex(chunk_hash_->finish()));
    chunk_hash_.reset();
    if (!crypto::constant_time_equal(expected, chunk_signature_)) {
      return fail(ErrorCode::unauthenticated, "the signature of the chunk that ends at byte " +
                                                  std::to_string(decoded_) +
                                                  " of the content does not match");
    }
    previous_signature_ = expected;
  }
  if (state_ == State::data_end) state_ = last_chunk_ ? State::done : State::size_line;
  return {};
}

Result<void> AwsChunkedDecoder::trailer_line() {
  trailer_bytes_ += line_.size() + 2;
  if (trailer_bytes_ > kTrailersMax) return broken("more than 16 KiB of trailers");
  if (line_.empty()) return end_trailers();
  const auto colon = line_.find(':');
  if (colon == std::string::npos) return broken("a trailer without ':': \"" + shown(line_) + "\"");
  auto name = to_lower(trim(std::string_view(line_).substr(0, colon)));
  const auto value = trim(std::string_view(line_).substr(colon + 1));
  if (name == "x-amz-trailer-signature") {
    trailer_signature_ = value;
    return {};
  }
  if (!trailer_signature_.empty()) return broken("a trailer after x-amz-trailer-signature");
  trailer_text_ += name + ":" + std::string(value) + "\n";
  trailers_.emplace_back(std::move(name), value);
  return {};
}

Result<void> AwsChunkedDecoder::end_trailers() {
  if (framing_ == Framing::signed_chunks_trailer) {
    const auto text = "AWS4-HMAC-SHA256-TRAILER\n" + format_compact(time_) + "\n" + scope_text(scope_) +
                      "\n" + previous_signature_ + "\n" + crypto::hex(crypto::sha256(trailer_text_));
    if (!crypto::constant_time_equal(crypto::hex(crypto::hmac_sha256(key_, text)), trailer_signature_)) {
      return fail(ErrorCode::unauthenticated, trailer_signature_.empty()
                                                  ? "the trailers lack x-amz-trailer-signature"
                                                  : "the signature of the trailers does not match");
    }
  }
  state_ = State::done;
  return {};
}

tl::unexpected<Error> AwsChunkedDecoder::broken(std::string what) {
  return fail(ErrorCode::invalid_argument, "the aws-chunked body has " + std::move(what) + ", after " +
                                               std::to_string(decoded_) + " bytes of content");
}

std::string encode_signed_chunks(std::string_view body, std::size_t chunk_bytes, const Scope& scope,
                                 Time time, std::string_view secret_key, std::string_view seed_signature) {
  const auto key = signing_key(secret_key, scope);
  std::string previous(seed_signature);
  std::string out;
  for (bool last = false; !last;) {
    const auto chunk = body.substr(0, chunk_bytes);
    body.remove_prefix(chunk.size());
    last = chunk.empty();
    previous = chunk_signature(key, time, scope, previous, payload_hash_of(chunk));
    char size[17];
    const auto end = std::to_chars(size, size + sizeof size, chunk.size(), 16).ptr;
    out += std::string(size, end) + ";chunk-signature=" + previous + "\r\n" + std::string(chunk) + "\r\n";
  }
  return out;
}

}  // namespace muster::wire::sigv4
