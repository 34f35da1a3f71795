#include "data/s3/detail/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"

namespace muster::data::s3::detail {

Result<std::string> digest_of_file(crypto::Digest kind, int fd, std::uint64_t offset, std::uint64_t length) {
  crypto::Hasher hasher(kind);
  std::string piece(256 << 10, '\0');
  for (std::uint64_t done = 0; done < length;) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), length - done));
    const auto got = ::pread(fd, piece.data(), size, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("read back the file");
    if (got == 0) return fail(ErrorCode::io, "the file has become shorter");
    hasher.update(std::string_view(piece).substr(0, static_cast<std::size_t>(got)));
    done += static_cast<std::uint64_t>(got);
  }
  return hasher.finish();
}

namespace {

std::string crc32c_of(const ReceivedRuns& runs, std::uint64_t size) {
  auto crc = runs.crc32c.front();
  for (std::size_t i = 1; i < runs.crc32c.size(); ++i) {
    const auto bytes = std::min(runs.bytes, size - i * runs.bytes);
    crc = crypto::combine_crcs(crypto::Digest::crc32c, crc, runs.crc32c[i], bytes);
  }
  return crc;
}

}  // namespace

Result<void> verify_file(Client& client, const Place& place, const ObjectInfo& version, int fd,
                         const ReceivedRuns& runs) {
  MUSTER_TRY(const auto now, client.head_object(place));
  if (now.etag != version.etag) {
    return fail(ErrorCode::failed_precondition, to_string(place) + " was replaced while it was downloaded");
  }
  if (!now.checksum) return {};
  const auto& expected = *now.checksum;
  const bool have_runs = expected.kind == crypto::Digest::crc32c && !runs.crc32c.empty();
  std::string found;
  if (expected.parts == 0 && have_runs) {
    found = crc32c_of(runs, version.size);
  } else if (expected.parts == 0) {
    MUSTER_TRY(found, digest_of_file(expected.kind, fd, 0, version.size));
  } else {
    const auto parts = static_cast<std::uint64_t>(expected.parts);
    MUSTER_TRY(const auto each, client.part_size(place, 1));
    if (each * parts < version.size || each * (parts - 1) >= version.size) return {};
    const bool fit = have_runs && each == runs.bytes;
    std::string digests = fit ? join(runs.crc32c, "") : "";
    for (std::uint64_t offset = 0; !fit && offset < version.size; offset += each) {
      MUSTER_TRY(const auto digest,
                 digest_of_file(expected.kind, fd, offset, std::min(each, version.size - offset)));
      digests += digest;
    }
    found = crypto::digest(expected.kind, digests);
  }
  if (crypto::base64(found) == expected.value) return {};
  return fail(ErrorCode::corrupt, "the bytes received do not have the " +
                                      std::string(to_string(expected.kind)) + " " + expected.value + " of " +
                                      to_string(place));
}

}  // namespace muster::data::s3::detail
