// The XML of S3, to and from values. Pure. Its .cc is the only one here that sees pugixml.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/s3/client.h"

namespace muster::data::s3::detail {

struct ErrorBody {
  std::string code;  // "NoSuchKey"; "" when the body is not an S3 error
  std::string message;
};
ErrorBody parse_error(std::string_view xml);

struct ListAnswer {
  ListPage page;
  bool truncated = false;
  std::string next_token;
};
// ListObjectsV2 with encoding-type=url: names are decoded.
Result<ListAnswer> parse_list(std::string_view xml);
Result<std::vector<BucketInfo>> parse_buckets(std::string_view xml);
Result<std::string> parse_upload_id(std::string_view xml);
// ETag of CompleteMultipartUploadResult or CopyObjectResult, without quotes.
Result<std::string> parse_etag(std::string_view xml);
// Those that failed: key and error.
Result<std::vector<std::pair<std::string, ErrorBody>>> parse_deleted(std::string_view xml);

std::string delete_request(const std::vector<std::string>& keys);
std::string complete_request(const std::vector<Part>& parts);
std::string location_constraint(std::string_view region);

std::string without_quotes(std::string_view etag);

}  // namespace muster::data::s3::detail
