// s3://BUCKET/KEY: the one reading of it, for the service, the runner and the command line. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace muster {

struct S3Location {
  std::string bucket;
  std::string key;  // of an object, or a prefix of keys; may be empty
};

bool is_s3_uri(std::string_view text);  // begins with s3://

// The key is what follows the '/' after the bucket, to the byte: s3://b//k has the key "/k", as on S3.
// invalid_argument, with the text, when it is no S3 URI or names no bucket.
Result<S3Location> parse_s3_uri(std::string_view text);

std::string to_string(const S3Location& location);  // "s3://" without a bucket

}  // namespace muster
