// Hashes, checksums, sealing and randomness, over OpenSSL. Nothing here is home-made but the CRC tables.
//
// All functions are pure except random_bytes. Digests are raw bytes; hex() and base64() make text of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace muster::crypto {

using Sha256 = std::array<unsigned char, 32>;

Sha256 sha256(std::string_view data);
Sha256 hmac_sha256(std::string_view key, std::string_view data);
std::string hmac_sha1(std::string_view key, std::string_view data);  // SigV2 presigned URLs only

// A running digest. kind: what S3 clients ask for.
enum class Digest { md5, sha1, sha256, crc32, crc32c, crc64nvme };
std::string_view to_string(Digest kind);                    // "CRC32", "SHA256", ... as S3 spells them
std::optional<Digest> parse_digest(std::string_view name);  // case-insensitive

class Hasher {
 public:
  explicit Hasher(Digest kind);
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(std::string_view data);
  std::string finish();  // raw digest, CRCs big-endian; call once

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string digest(Digest kind, std::string_view data);

// The CRC of two runs of bytes behind each other from the CRCs of both, as Hasher answers them, without the
// bytes (method: zlib's crc32_combine). kind: crc32, crc32c or crc64nvme.
std::string combine_crcs(Digest kind, std::string_view first, std::string_view second,
                         std::uint64_t second_bytes);

// CRC32C (Castagnoli), continuing from `crc` (0 to begin). Uses the SSE4.2 instruction where there is one.
std::uint32_t crc32c(std::string_view data, std::uint32_t crc = 0);

std::string hex(std::string_view bytes);
std::string hex(const Sha256& digest);
std::string base64(std::string_view bytes);
std::optional<std::string> base64_decode(std::string_view text);
std::string base64url(std::string_view bytes);  // no padding
std::optional<std::string> base64url_decode(std::string_view text);

// Equal in constant time for equal lengths.
bool constant_time_equal(std::string_view a, std::string_view b);

std::string random_bytes(std::size_t count);
// `length` characters of [A-Za-z0-9].
std::string random_token(std::size_t length);

// Authenticated encryption (AES-256-GCM, random nonce in front). key: 32 bytes. `context` is authenticated
// and must be given again to open.
std::string seal(std::string_view key, std::string_view plain, std::string_view context);
Result<std::string> open(std::string_view key, std::string_view sealed, std::string_view context);

}  // namespace muster::crypto
