#include "data/s3/detail/xml.h"

#include <pugixml.hpp>
#include <sstream>

#include "base/text.h"

namespace muster::data::s3::detail {
namespace {

tl::unexpected<Error> unexpected_xml(std::string_view what) {
  return fail(ErrorCode::unavailable, "the server's answer is not " + std::string(what));
}

// The root element, if it has that name.
Result<pugi::xml_node> root_of(pugi::xml_document& document, std::string_view xml, const char* name) {
  if (!document.load_buffer(xml.data(), xml.size())) return unexpected_xml("XML");
  const auto root = document.child(name);
  if (!root) return unexpected_xml(name);
  return root;
}

// Form encoding: '+' is a space.
Result<std::string> decode(const char* text) {
  std::string plain(text);
  for (auto& c : plain) c = c == '+' ? ' ' : c;
  auto decoded = percent_decode(plain);
  if (!decoded) return unexpected_xml("url-encoded as asked: \"" + std::string(text).substr(0, 100) + "\"");
  return *std::move(decoded);
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\r':
        out += "&#13;";
        break;
      case '\n':
        out += "&#10;";
        break;
      case '\t':
        out += "&#9;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

constexpr std::string_view kNamespace = " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";

}  // namespace

std::string without_quotes(std::string_view etag) {
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

ErrorBody parse_error(std::string_view xml) {
  pugi::xml_document document;
  if (!document.load_buffer(xml.data(), xml.size())) return {};
  const auto root = document.child("Error");
  return {root.child_value("Code"), root.child_value("Message")};
}

Result<ListAnswer> parse_list(std::string_view xml) {
  pugi::xml_document document;
  MUSTER_TRY(const auto root, root_of(document, xml, "ListBucketResult"));
  const bool encoded = std::string_view(root.child_value("EncodingType")) == "url";
  const auto name = [&](const char* text) {
    return encoded ? decode(text) : Result<std::string>(std::string(text));
  };
  ListAnswer answer;
  for (const auto node : root.children("Contents")) {
    ObjectInfo object;
    MUSTER_TRY(object.key, name(node.child_value("Key")));
    const auto size = parse_int(node.child_value("Size"));
    if (object.key.empty() || !size || *size < 0) return unexpected_xml("a list of keys with sizes");
    object.size = static_cast<std::uint64_t>(*size);
    object.etag = without_quotes(node.child_value("ETag"));
    object.modified = parse_iso8601(node.child_value("LastModified")).value_or(Time{});
    answer.page.objects.push_back(std::move(object));
  }
  for (const auto node : root.children("CommonPrefixes")) {
    MUSTER_TRY(auto prefix, name(node.child_value("Prefix")));
    answer.page.common_prefixes.push_back(std::move(prefix));
  }
  answer.truncated = std::string_view(root.child_value("IsTruncated")) == "true";
  answer.next_token = root.child_value("NextContinuationToken");
  if (answer.truncated && answer.next_token.empty()) return unexpected_xml("a page that names the next one");
  return answer;
}

Result<std::vector<BucketInfo>> parse_buckets(std::string_view xml) {
  pugi::xml_document document;
  MUSTER_TRY(const auto root, root_of(document, xml, "ListAllMyBucketsResult"));
  std::vector<BucketInfo> buckets;
  for (const auto node : root.child("Buckets").children("Bucket")) {
    buckets.push_back(
        {node.child_value("Name"), parse_iso8601(node.child_value("CreationDate")).value_or(Time{})});
  }
  return buckets;
}

Result<std::string> parse_upload_id(std::string_view xml) {
  pugi::xml_document document;
  MUSTER_TRY(const auto root, root_of(document, xml, "InitiateMultipartUploadResult"));
  std::string id = root.child_value("UploadId");
  if (id.empty()) return unexpected_xml("an upload id");
  return id;
}

Result<std::string> parse_etag(std::string_view xml) {
  pugi::xml_document document;
  if (!document.load_buffer(xml.data(), xml.size())) return unexpected_xml("XML");
  auto etag = without_quotes(document.first_child().child_value("ETag"));
  if (etag.empty()) return unexpected_xml("a result with an ETag");
  return etag;
}

Result<std::vector<std::pair<std::string, ErrorBody>>> parse_deleted(std::string_view xml) {
  pugi::xml_document document;
  MUSTER_TRY(const auto root, root_of(document, xml, "DeleteResult"));
  std::vector<std::pair<std::string, ErrorBody>> failed;
  for (const auto node : root.children("Error")) {
    failed.emplace_back(node.child_value("Key"),
                        ErrorBody{node.child_value("Code"), node.child_value("Message")});
  }
  return failed;
}

std::string delete_request(const std::vector<std::string>& keys) {
  std::string out = "<Delete" + std::string(kNamespace) + "<Quiet>true</Quiet>";
  for (const auto& key : keys) out += "<Object><Key>" + escape(key) + "</Key></Object>";
  return out + "</Delete>";
}

std::string complete_request(const std::vector<Part>& parts) {
  std::string out = "<CompleteMultipartUpload" + std::string(kNamespace);
  for (const auto& part : parts) {
    out += "<Part><PartNumber>" + std::to_string(part.number) + "</PartNumber><ETag>" +
           escape('"' + part.etag + '"') + "</ETag>";
    if (!part.crc32c.empty()) out += "<ChecksumCRC32C>" + escape(part.crc32c) + "</ChecksumCRC32C>";
    out += "</Part>";
  }
  return out + "</CompleteMultipartUpload>";
}

std::string location_constraint(std::string_view region) {
  return "<CreateBucketConfiguration" + std::string(kNamespace) + "<LocationConstraint>" + escape(region) +
         "</LocationConstraint></CreateBucketConfiguration>";
}

}  // namespace muster::data::s3::detail
