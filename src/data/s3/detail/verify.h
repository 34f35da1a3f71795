// A file on disk against the checksum that the server has of the object. Functions without state: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/s3/client.h"

namespace muster::data::s3::detail {

// CRC32C of runs of the object's bytes behind each other, as they were received: of `bytes` each, but for the
// last one.
struct ReceivedRuns {
  std::uint64_t bytes = 0;
  std::vector<std::string> crc32c;  // raw
};

// `fd` holds `version` of the object. corrupt when it does not; failed_precondition when the object is
// another one by now. Fine without a word when the server has no checksum that we know, or one of parts of
// unequal sizes. With `runs` that fit the checksum the file is not read again.
Result<void> verify_file(Client& client, const Place& place, const ObjectInfo& version, int fd,
                         const ReceivedRuns& runs = {});

// Raw digest of [offset, offset + length) of a file.
Result<std::string> digest_of_file(crypto::Digest kind, int fd, std::uint64_t offset, std::uint64_t length);

}  // namespace muster::data::s3::detail
