#include "base/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/text.h"

namespace muster::crypto {
namespace {

const unsigned char* bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string_view view(const Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Slicing-by-8 tables for a reflected polynomial (Kounavis and Berry, 2005).
template <typename Word>
struct CrcTables {
  std::array<std::array<Word, 256>, 8> table{};
  explicit constexpr CrcTables(Word polynomial) {
    for (std::size_t i = 0; i < 256; ++i) {
      auto crc = static_cast<Word>(i);
      for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ polynomial : crc >> 1;
      table[0][i] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k) {
      for (std::size_t i = 0; i < 256; ++i) {
        table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xff];
      }
    }
  }
  Word update(Word crc, std::string_view data) const {
    const auto* p = bytes(data);
    auto left = data.size();
    while (left >= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, p, 8);
      word ^= crc;
      crc = table[7][word & 0xff] ^ table[6][(word >> 8) & 0xff] ^ table[5][(word >> 16) & 0xff] ^
            table[4][(word >> 24) & 0xff] ^ table[3][(word >> 32) & 0xff] ^ table[2][(word >> 40) & 0xff] ^
            table[1][(word >> 48) & 0xff] ^ table[0][word >> 56];
      p += 8;
      left -= 8;
    }
    while (left-- > 0) crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xff];
    return crc;
  }
};

constexpr std::uint32_t kCrc32cPolynomial = 0x82f63b78U;
constexpr std::uint64_t kCrc64NvmePolynomial = 0x9a6c9329ac4bc9b5ULL;
const CrcTables<std::uint32_t> kCrc32c(kCrc32cPolynomial);
const CrcTables<std::uint64_t> kCrc64Nvme(kCrc64NvmePolynomial);

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_hardware(std::uint32_t crc, std::string_view data) {
  const auto* p = bytes(data);
  auto left = data.size();
  std::uint64_t wide = crc;
  while (left >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    wide = __builtin_ia32_crc32di(wide, word);
    p += 8;
    left -= 8;
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  while (left-- > 0) narrow = __builtin_ia32_crc32qi(narrow, *p++);
  return narrow;
}
#endif

template <typename Word>
std::string big_endian(Word value) {
  std::string out(sizeof(Word), '\0');
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    out[sizeof(Word) - 1 - i] = static_cast<char>((value >> (8 * i)) & 0xff);
  }
  return out;
}

template <typename Word>
Word read_big_endian(std::string_view bytes) {
  MUSTER_ASSERT(bytes.size() == sizeof(Word));
  Word value = 0;
  for (const char c : bytes) value = static_cast<Word>((value << 8) | static_cast<unsigned char>(c));
  return value;
}

// a * b modulo a reflected polynomial over GF(2); the highest bit is x^0.
template <typename Word>
Word multiply(Word a, Word b, Word polynomial) {
  Word product = 0;
  for (Word bit = Word{1} << (sizeof(Word) * 8 - 1); bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ polynomial : b >> 1;
  }
  return product;
}

template <typename Word>
std::string combine(Word first, Word second, std::uint64_t second_bytes, Word polynomial) {
  const Word one = Word{1} << (sizeof(Word) * 8 - 1);
  Word square = one >> 1;  // x, then x^8 by three squarings, then x^16, ...
  for (int i = 0; i < 3; ++i) square = multiply(square, square, polynomial);
  Word shift = one;
  for (auto left = second_bytes; left != 0; left >>= 1) {
    if ((left & 1) != 0) shift = multiply(square, shift, polynomial);
    square = multiply(square, square, polynomial);
  }
  return big_endian(static_cast<Word>(multiply(shift, first, polynomial) ^ second));
}

constexpr std::uint32_t kCrc32Polynomial = 0xedb88320U;

}  // namespace

std::string combine_crcs(Digest kind, std::string_view first, std::string_view second,
                         std::uint64_t second_bytes) {
  if (kind == Digest::crc64nvme) {
    return combine(read_big_endian<std::uint64_t>(first), read_big_endian<std::uint64_t>(second),
                   second_bytes, kCrc64NvmePolynomial);
  }
  MUSTER_ASSERT(kind == Digest::crc32 || kind == Digest::crc32c);
  return combine(read_big_endian<std::uint32_t>(first), read_big_endian<std::uint32_t>(second), second_bytes,
                 kind == Digest::crc32 ? kCrc32Polynomial : kCrc32cPolynomial);
}

Sha256 sha256(std::string_view data) {
  Sha256 out;
  unsigned int length = 0;
  MUSTER_ASSERT(EVP_Digest(data.data(), data.size(), out.data(), &length, EVP_sha256(), nullptr) == 1);
  return out;
}

Sha256 hmac_sha256(std::string_view key, std::string_view data) {
  Sha256 out;
  unsigned int length = 0;
  MUSTER_ASSERT(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes(data), data.size(),
                     out.data(), &length) != nullptr);
  return out;
}

std::string hmac_sha1(std::string_view key, std::string_view data) {
  std::string out(20, '\0');
  unsigned int length = 0;
  MUSTER_ASSERT(HMAC(EVP_sha1(), key.data(), static_cast<int>(key.size()), bytes(data), data.size(),
                     reinterpret_cast<unsigned char*>(out.data()), &length) != nullptr);
  return out;
}

std::string_view to_string(Digest kind) {
  switch (kind) {
    case Digest::md5:
      return "MD5";
    case Digest::sha1:
      return "SHA1";
    case Digest::sha256:
      return "SHA256";
    case Digest::crc32:
      return "CRC32";
    case Digest::crc32c:
      return "CRC32C";
    case Digest::crc64nvme:
      return "CRC64NVME";
  }
  return "";
}

std::optional<Digest> parse_digest(std::string_view name) {
  for (const auto kind :
       {Digest::md5, Digest::sha1, Digest::sha256, Digest::crc32, Digest::crc32c, Digest::crc64nvme}) {
    if (iequals(name, to_string(kind))) return kind;
  }
  return std::nullopt;
}

struct Hasher::Impl {
  Digest kind;
  EVP_MD_CTX* context = nullptr;
  std::uint32_t crc32 = 0;
  std::uint64_t crc64 = ~0ULL;

  explicit Impl(Digest digest_kind) : kind(digest_kind) {
    const EVP_MD* algorithm = kind == Digest::md5      ? EVP_md5()
                              : kind == Digest::sha1   ? EVP_sha1()
                              : kind == Digest::sha256 ? EVP_sha256()
                                                       : nullptr;
    if (algorithm == nullptr) return;
    context = EVP_MD_CTX_new();
    MUSTER_ASSERT(context != nullptr && EVP_DigestInit_ex(context, algorithm, nullptr) == 1);
  }
  ~Impl() { EVP_MD_CTX_free(context); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

Hasher::Hasher(Digest kind) : impl_(std::make_unique<Impl>(kind)) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::string_view data) {
  switch (impl_->kind) {
    case Digest::crc32:
      impl_->crc32 = static_cast<std::uint32_t>(::crc32_z(impl_->crc32, bytes(data), data.size()));
      break;
    case Digest::crc32c:
      impl_->crc32 = crc32c(data, impl_->crc32);
      break;
    case Digest::crc64nvme:
      impl_->crc64 = kCrc64Nvme.update(impl_->crc64, data);
      break;
    default:
      MUSTER_ASSERT(EVP_DigestUpdate(impl_->context, data.data(), data.size()) == 1);
  }
}

std::string Hasher::finish() {
  switch (impl_->kind) {
    case Digest::crc32:
    case Digest::crc32c:
      return big_endian(impl_->crc32);
    case Digest::crc64nvme:
      return big_endian(~impl_->crc64);
    default:
      break;
  }
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int length = 0;
  MUSTER_ASSERT(EVP_DigestFinal_ex(impl_->context, reinterpret_cast<unsigned char*>(out.data()), &length) ==
                1);
  out.resize(length);
  return out;
}

std::string digest(Digest kind, std::string_view data) {
  Hasher hasher(kind);
  hasher.update(data);
  return hasher.finish();
}

std::uint32_t crc32c(std::string_view data, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2") != 0;
  if (hardware) return ~crc32c_hardware(~crc, data);
#endif
  return ~kCrc32c.update(~crc, data);
}

std::string hex(std::string_view data) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(data.size() * 2);
  for (const char c : data) {
    const auto byte = static_cast<unsigned char>(c);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::string hex(const Sha256& digest) { return hex(view(digest)); }

std::string base64(std::string_view data) {
  std::string out((data.size() + 2) / 3 * 4 + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes(data),
                                     static_cast<int>(data.size()));
  out.resize(static_cast<std::size_t>(length));
  return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string out(text.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes(text),
                                     static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  out.resize(static_cast<std::size_t>(length) - padding);
  return out;
}

std::string base64url(std::string_view data) {
  auto out = base64(data);
  while (!out.empty() && out.back() == '=') out.pop_back();
  for (auto& c : out) {
    if (c == '+') c = '-';
    if (c == '/') c = '_';
  }
  return out;
}

std::optional<std::string> base64url_decode(std::string_view text) {
  std::string padded(text);
  for (auto& c : padded) {
    if (c == '-') c = '+';
    if (c == '_') c = '/';
  }
  while (padded.size() % 4 != 0) padded += '=';
  return base64_decode(padded);
}

bool constant_time_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// From the kernel: OpenSSL's own generator would first read its configuration and seed itself.
std::string random_bytes(std::size_t count) {
  std::string out(count, '\0');
  for (std::size_t done = 0; done < count;) {
    const auto got = ::getrandom(out.data() + done, count - done, 0);
    MUSTER_ASSERT(got > 0 || errno == EINTR);
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return out;
}

std::string random_token(std::size_t length) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string out;
  while (out.size() < length) {
    for (const char c : random_bytes(length)) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 4 * kAlphabet.size() && out.size() < length) out += kAlphabet[byte % kAlphabet.size()];
    }
  }
  return out;
}

namespace {
constexpr std::size_t kNonce = 12;
constexpr std::size_t kTag = 16;

struct Cipher {
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  Cipher() = default;
  ~Cipher() { EVP_CIPHER_CTX_free(context); }
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;
};
}  // namespace

std::string seal(std::string_view key, std::string_view plain, std::string_view context) {
  MUSTER_ASSERT(key.size() == 32);
  auto out = random_bytes(kNonce);
  out.resize(kNonce + plain.size() + kTag);
  auto* text = reinterpret_cast<unsigned char*>(out.data()) + kNonce;
  const Cipher cipher;
  int length = 0;
  bool ok = EVP_EncryptInit_ex(cipher.context, EVP_aes_256_gcm(), nullptr, bytes(key), bytes(out)) == 1;
  ok = ok && EVP_EncryptUpdate(cipher.context, nullptr, &length, bytes(context),
                               static_cast<int>(context.size())) == 1;
  ok = ok &&
       EVP_EncryptUpdate(cipher.context, text, &length, bytes(plain), static_cast<int>(plain.size())) == 1;
  ok = ok && EVP_EncryptFinal_ex(cipher.context, text + plain.size(), &length) == 1;
  ok = ok && EVP_CIPHER_CTX_ctrl(cipher.context, EVP_CTRL_GCM_GET_TAG, kTag, text + plain.size()) == 1;
  MUSTER_ASSERT(ok);
  return out;
}

Result<std::string> open(std::string_view key, std::string_view sealed, std::string_view context) {
  MUSTER_ASSERT(key.size() == 32);
  if (sealed.size() < kNonce + kTag) return fail(ErrorCode::corrupt, "sealed value is too short");
  const auto text = sealed.substr(kNonce, sealed.size() - kNonce - kTag);
  std::string tag(sealed.substr(sealed.size() - kTag));
  std::string out(text.size(), '\0');
  const Cipher cipher;
  int length = 0;
  bool ok = EVP_DecryptInit_ex(cipher.context, EVP_aes_256_gcm(), nullptr, bytes(key), bytes(sealed)) == 1;
  ok = ok && EVP_DecryptUpdate(cipher.context, nullptr, &length, bytes(context),
                               static_cast<int>(context.size())) == 1;
  ok = ok && EVP_DecryptUpdate(cipher.context, reinterpret_cast<unsigned char*>(out.data()), &length,
                               bytes(text), static_cast<int>(text.size())) == 1;
  ok = ok && EVP_CIPHER_CTX_ctrl(cipher.context, EVP_CTRL_GCM_SET_TAG, kTag, tag.data()) == 1;
  unsigned char rest[16];
  ok = ok && EVP_DecryptFinal_ex(cipher.context, rest, &length) == 1;
  if (!ok) return fail(ErrorCode::corrupt, "sealed value was not made with this key and context");
  return out;
}

}  // namespace muster::crypto
