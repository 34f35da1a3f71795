// aws-chunked: the framing inside an S3 upload body whose x-amz-content-sha256 is a STREAMING-... word.
//
//   <hex size>[;chunk-signature=<hex>]\r\n <bytes> \r\n ... 0[;chunk-signature=...]\r\n [trailers] \r\n
//
// A decoder belongs to one request and one thread. Pure. Bytes come out as they arrive, before the signature
// of their chunk has been seen: make them visible only after finished() is true. Source: "Signature
// calculations for the Authorization header: transferring payload in multiple chunks", and
// "... including trailing headers", AWS S3 documentation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/crypto.h"
#include "base/error.h"
#include "wire/sigv4/sigv4.h"

namespace muster::wire::sigv4 {

enum class Framing {
  signed_chunks,          // STREAMING-AWS4-HMAC-SHA256-PAYLOAD
  signed_chunks_trailer,  // STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER
  unsigned_trailer,       // STREAMING-UNSIGNED-PAYLOAD-TRAILER
};
// nullopt: not a framing word (the body is plain).
std::optional<Framing> framing_of(std::string_view payload_hash);

class AwsChunkedDecoder {
 public:
  // secret_key: of claim.access_key; not needed for unsigned_trailer. The claim must be verified before.
  AwsChunkedDecoder(Framing framing, const Claim& claim, std::string_view secret_key);

  // Decodes one piece, of any size, and appends its content to `out`. invalid_argument: broken framing, with
  // the place. unauthenticated: the signature of a chunk or of the trailers does not match. After an error
  // the decoder stays failed.
  Result<void> feed(std::string_view piece, std::string& out);

  // The last chunk and the trailers have been read and were right. Bytes after that are an error of feed().
  bool finished() const { return state_ == State::done; }
  std::uint64_t decoded_bytes() const { return decoded_; }
  // For example {"x-amz-checksum-crc32c", "sOO8/Q=="}; names in lower case. x-amz-trailer-signature is taken
  // out.
  const std::vector<std::pair<std::string, std::string>>& trailers() const { return trailers_; }

 private:
  enum class State { size_line, data, data_end, trailer, done, failed };

  Result<void> step(std::string_view& piece, std::string& out);
  Result<void> take_line(std::string_view& piece, bool& complete);
  Result<void> begin_chunk();
  Result<void> end_chunk();
  Result<void> trailer_line();
  Result<void> end_trailers();
  tl::unexpected<Error> broken(std::string what);

  Framing framing_;
  Scope scope_;
  Time time_;
  std::string key_;
  std::string previous_signature_;
  State state_ = State::size_line;
  std::string line_;
  std::uint64_t chunk_left_ = 0;
  bool last_chunk_ = false;
  std::string chunk_signature_;
  std::optional<crypto::Hasher> chunk_hash_;
  std::uint64_t decoded_ = 0;
  std::vector<std::pair<std::string, std::string>> trailers_;
  std::string trailer_text_;  // "name:value\n" of each, as signed
  std::string trailer_signature_;
  std::uint64_t trailer_bytes_ = 0;
};

// The encoding side, for clients and tests: one body as signed chunks of `chunk_bytes`.
std::string encode_signed_chunks(std::string_view body, std::size_t chunk_bytes, const Scope& scope,
                                 Time time, std::string_view secret_key, std::string_view seed_signature);

}  // namespace muster::wire::sigv4
