#include "wire/sigv4/detail/canonical.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace muster::wire::sigv4::detail {

namespace {
std::optional<std::string> decode_query(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return percent_decode(spaced);
}
}  // namespace

std::optional<Query> Query::parse(std::string_view raw) {
  Query query;
  if (raw.empty()) return query;
  for (const auto part : split(raw, '&')) {
    if (part.empty()) continue;
    const auto equals = part.find('=');
    auto name = decode_query(part.substr(0, equals));
    auto value =
        decode_query(equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1));
    if (!name || !value) return std::nullopt;
    query.all_.emplace_back(std::move(*name), std::move(*value));
  }
  return query;
}

std::optional<std::string_view> Query::get(std::string_view name) const {
  for (const auto& [key, value] : all_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

std::optional<std::string_view> header(const RequestView& request, std::string_view name) {
  for (const auto& [key, value] : request.headers) {
    if (iequals(key, name)) return value;
  }
  return std::nullopt;
}

std::string canonical_path_s3(std::string_view raw) {
  if (raw.empty()) return "/";
  const auto decoded = percent_decode(raw);
  return percent_encode(decoded ? *decoded : std::string(raw), "/");
}

std::string canonical_path(std::string_view raw) {
  std::vector<std::string_view> kept;
  const auto segments = split(raw, '/');
  for (const auto segment : segments) {
    if (segment.empty() || segment == ".") continue;
    if (segment == "..") {
      if (!kept.empty()) kept.pop_back();
    } else {
      kept.push_back(segment);
    }
  }
  std::string path;
  for (const auto segment : kept) {
    path += '/';
    path += segment;
  }
  const auto last = segments.back();
  if (path.empty() || last.empty() || last == "." || last == "..") path += '/';
  return percent_encode(path, "/");
}

std::string canonical_query(std::string_view raw, std::string_view leave_out) {
  const auto query = Query::parse(raw);
  if (!query) return std::string(raw);  // cannot match; parse() has refused it before
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query->all()) {
    if (!leave_out.empty() && name == leave_out) continue;
    encoded.emplace_back(percent_encode(name), percent_encode(value));
  }
  std::sort(encoded.begin(), encoded.end());
  std::string out;
  for (const auto& [name, value] : encoded) {
    if (!out.empty()) out += '&';
    out += name;
    out += '=';
    out += value;
  }
  return out;
}

namespace {
// Spaces at both ends removed, inner runs of spaces made one.
std::string fold_spaces(std::string_view value) {
  std::string out;
  for (const char c : trim(value)) {
    const bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (!blank) {
      out += c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  return out;
}
}  // namespace

std::string canonical_headers(const RequestView& request, const std::vector<std::string>& names) {
  std::string out;
  for (const auto& name : names) {
    out += name;
    out += ':';
    bool first = true;
    for (const auto& [key, value] : request.headers) {
      if (!iequals(key, name)) continue;
      if (!first) out += ',';
      first = false;
      out += fold_spaces(value);
    }
    out += '\n';
  }
  return out;
}

namespace {
// Query parameters that are part of the resource of a SigV2 signature.
bool is_subresource(std::string_view name) {
  static constexpr std::array<std::string_view, 35> kNames = {"accelerate",
                                                              "acl",
                                                              "analytics",
                                                              "cors",
                                                              "defaultObjectAcl",
                                                              "delete",
                                                              "inventory",
                                                              "lifecycle",
                                                              "location",
                                                              "logging",
                                                              "metrics",
                                                              "notification",
                                                              "object-lock",
                                                              "partNumber",
                                                              "policy",
                                                              "replication",
                                                              "requestPayment",
                                                              "response-cache-control",
                                                              "response-content-disposition",
                                                              "response-content-encoding",
                                                              "response-content-language",
                                                              "response-content-type",
                                                              "response-expires",
                                                              "restore",
                                                              "select",
                                                              "select-type",
                                                              "storageClass",
                                                              "tagging",
                                                              "torrent",
                                                              "uploadId",
                                                              "uploads",
                                                              "versionId",
                                                              "versioning",
                                                              "versions",
                                                              "website"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}
}  // namespace

std::string string_to_sign_v2(const RequestView& request) {
  const auto query = Query::parse(request.query);
  // Clients move the x-amz-* headers (and Content-Type, Content-MD5) that they signed into the query.
  const auto value_of = [&](std::string_view name) -> std::string {
    if (const auto found = header(request, name)) return std::string(trim(*found));
    for (const auto& [key, value] : query->all()) {
      if (iequals(key, name)) return value;
    }
    return "";
  };
  if (!query) return "";
  std::vector<std::pair<std::string, std::string>> amz;
  for (const auto& [name, value] : request.headers) {
    if (to_lower(name).starts_with("x-amz-")) amz.emplace_back(to_lower(name), fold_spaces(value));
  }
  for (const auto& [name, value] : query->all()) {
    if (to_lower(name).starts_with("x-amz-")) amz.emplace_back(to_lower(name), fold_spaces(value));
  }
  std::stable_sort(amz.begin(), amz.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out(request.method);
  out += '\n' + value_of("content-md5") + '\n' + value_of("content-type") + '\n' +
         std::string(query->get("Expires").value_or("")) + '\n';
  for (std::size_t i = 0; i < amz.size(); ++i) {
    if (i > 0 && amz[i].first == amz[i - 1].first) {
      out.back() = ',';
      out += amz[i].second + '\n';
    } else {
      out += amz[i].first + ':' + amz[i].second + '\n';
    }
  }
  out += request.path.empty() ? std::string_view("/") : request.path;
  std::vector<std::string> resources;
  for (const auto part : split(request.query, '&')) {
    const auto equals = part.find('=');
    const auto name = percent_decode(part.substr(0, equals)).value_or("");
    if (!is_subresource(name)) continue;
    // Values are signed decoded.
    resources.push_back(equals == std::string_view::npos
                            ? name
                            : name + "=" + percent_decode(part.substr(equals + 1)).value_or(""));
  }
  std::sort(resources.begin(), resources.end());
  if (!resources.empty()) out += "?" + join(resources, "&");
  return out;
}

}  // namespace muster::wire::sigv4::detail
