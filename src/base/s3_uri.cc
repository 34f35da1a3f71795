#include "base/s3_uri.h"

namespace muster {
namespace {

constexpr std::string_view kScheme = "s3://";

}  // namespace

bool is_s3_uri(std::string_view text) { return text.substr(0, kScheme.size()) == kScheme; }

Result<S3Location> parse_s3_uri(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::invalid_argument,
                "\"" + std::string(text) + "\" " + std::string(why) + " (s3://BUCKET/KEY)");
  };
  if (!is_s3_uri(text)) return bad("must begin with s3://");
  const auto rest = text.substr(kScheme.size());
  const auto slash = rest.find('/');
  if (rest.empty() || slash == 0) return bad("names no bucket");
  if (slash == std::string_view::npos) return S3Location{std::string(rest), ""};
  return S3Location{std::string(rest.substr(0, slash)), std::string(rest.substr(slash + 1))};
}

std::string to_string(const S3Location& location) {
  return std::string(kScheme) +
         (location.bucket.empty() && location.key.empty() ? "" : location.bucket + "/" + location.key);
}

}  // namespace muster
