#include <algorithm>
#include <array>
#include <pugixml.hpp>

#include "api/s3/detail/body.h"
#include "api/s3/detail/handlers.h"
#include "api/s3/detail/xml.h"
#include "base/text.h"

namespace muster::api::s3 {
namespace {

constexpr std::size_t kDeletesMax = 1000;

// [first, first + length) of an object as pieces of its files, given one after another.
class Pieces {
 public:
  Pieces(std::shared_ptr<const ports::OpenObject> object, ByteRange range) : object_(std::move(object)) {
    left_ = range.length;
    offset_ = range.first;
    while (index_ < object_->piece_count() && offset_ >= object_->piece_length(index_)) {
      offset_ -= object_->piece_length(index_++);
    }
  }

  // Whether one file holds all that is left.
  bool single() const { return left_ > 0 && offset_ + left_ <= object_->piece_length(index_); }
  std::uint64_t left() const { return left_; }

  Result<net::FileRange> next() {
    const auto length = std::min(left_, object_->piece_length(index_) - offset_);
    MUSTER_TRY(auto piece, object_->piece(index_));
    net::FileRange range{std::move(piece.file), piece.offset + offset_, length};
    left_ -= length;
    offset_ = 0;
    ++index_;
    return range;
  }

 private:
  std::shared_ptr<const ports::OpenObject> object_;
  std::size_t index_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t left_ = 0;
};

ApiResult<void> set_body(net::Response& response, std::shared_ptr<const ports::OpenObject> object,
                         ByteRange range) {
  if (range.length == 0) return {};
  auto pieces = std::make_shared<Pieces>(std::move(object), range);
  if (!pieces->single()) {
    response.body = net::FileSequence{range.length, [pieces] { return pieces->next(); }};
    return {};
  }
  auto whole = pieces->next();
  if (!whole) return refuse(std::move(whole).error(), "InternalError", 500);
  response.body = *std::move(whole);
  return {};
}

// 304, PreconditionFailed, or nothing: the object is to be given. Order as RFC 9110, 13.2.2.
ApiResult<bool> not_modified(const Context& context, const ports::ObjectInfo& info) {
  const auto names = [&](std::string_view list) {
    for (const auto one : split(list, ',')) {
      if (trim(one) == "*" || unquote(one) == info.etag) return true;
    }
    return false;
  };
  const auto seconds = info.modified.unix_ms / 1000;  // HTTP dates have no more
  const auto date = [&](std::string_view name) { return parse_http_date(context.header(name)); };
  const auto failed = [] {
    return refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold", 412);
  };
  if (context.head.headers.has("if-match")) {
    if (!names(context.header("if-match"))) return failed();
  } else if (const auto limit = date("if-unmodified-since"); limit && seconds > limit->unix_ms / 1000) {
    return failed();
  }
  if (context.head.headers.has("if-none-match")) return names(context.header("if-none-match"));
  const auto since = date("if-modified-since");
  return since && seconds <= since->unix_ms / 1000;
}

// The bytes wanted: by Range, by partNumber, or all.
struct Wanted {
  ByteRange range;
  bool partial = false;
  bool part = false;
};

ApiResult<Wanted> wanted_bytes(const Context& context, const ports::OpenObject& object) {
  const auto size = object.info().size;
  if (!context.query.has("partNumber")) {
    MUSTER_TRY(const auto range, parse_range(context.header("range"), size));
    if (range) return Wanted{*range, true};
    return Wanted{{0, size}};
  }
  MUSTER_TRY(const auto number, context.query.number("partNumber", 0));
  if (!context.header("range").empty()) {
    return refuse("InvalidRequest", "Cannot specify both Range header and partNumber query parameter.");
  }
  const auto parts = std::max<std::uint64_t>(1, object.info().parts);
  if (number < 1 || number > parts) {
    return refuse(
        "InvalidPartNumber",
        "The requested partnumber is not satisfiable: the object has " + std::to_string(parts) + " parts",
        416);
  }
  if (object.info().parts == 0) return Wanted{{0, size}, size > 0, true};
  ByteRange range;
  for (std::size_t i = 0; i < object.piece_count() && i < number; ++i) {
    if (i + 1 < number) {
      range.first += object.piece_length(i);
    } else {
      range.length = object.piece_length(i);
    }
  }
  return Wanted{range, range.length > 0, true};
}

void set_object_headers(net::Response& response, const Context& context, const ports::ObjectInfo& info) {
  auto& headers = response.headers;
  headers.set("Content-Type", "binary/octet-stream");
  for (const auto& [name, value] : info.attributes) headers.set(name, value);
  headers.set("ETag", quoted(info.etag));
  headers.set("Last-Modified", format_http_date(info.modified));
  headers.set("Accept-Ranges", "bytes");
  constexpr std::array kOverrides = {"content-type",  "content-language",    "expires",
                                     "cache-control", "content-disposition", "content-encoding"};
  for (const auto* name : kOverrides) {
    const auto value = context.query.maybe("response-" + std::string(name));
    if (value) headers.set(name, *value);
  }
}

struct Deletion {
  std::string key;
  std::string etag;  // "" : whatever is there
};

// A NUL as such or as a reference: a key would end there, and be another one.
bool holds_nul(std::string_view xml) {
  if (xml.find('\0') != std::string_view::npos) return true;
  for (auto at = xml.find("&#"); at != std::string_view::npos; at = xml.find("&#", at + 2)) {
    auto number = xml.substr(at + 2);
    if (number.starts_with('x')) number.remove_prefix(1);
    const auto end = number.find_first_not_of('0');
    if (end != 0 && end != std::string_view::npos && number[end] == ';') return true;
  }
  return false;
}

ApiResult<std::vector<Deletion>> parse_deletions(const std::string& body, bool& quiet) {
  const auto malformed = [](std::string_view why) {
    return refuse("MalformedXML",
                  "The XML you provided was not well-formed or did not validate against our published "
                  "schema: " +
                      std::string(why));
  };
  if (holds_nul(body)) {
    return malformed("it holds a NUL, which XML cannot; delete such a key by DeleteObject");
  }
  pugi::xml_document document;
  const auto parsed =
      document.load_buffer(body.data(), body.size(), pugi::parse_default | pugi::parse_ws_pcdata);
  if (!parsed) return malformed(parsed.description());
  const auto root = document.document_element();
  if (std::string_view(root.name()) != "Delete") return malformed("expected Delete");
  quiet = std::string_view(root.child("Quiet").text().as_string()) == "true";
  std::vector<Deletion> out;
  for (const auto object : root.children("Object")) {
    out.push_back({object.child("Key").text().as_string(), unquote(object.child("ETag").text().as_string())});
    if (out.back().key.empty()) return malformed("an Object has no Key");
  }
  if (out.empty() || out.size() > kDeletesMax) {
    return malformed("Delete has " + std::to_string(out.size()) + " objects, 1 to 1000 are allowed");
  }
  return out;
}

}  // namespace

Handlers::Answer Handlers::put_object(const Context& context) const {
  MUSTER_TRY(const auto length, content_length(context));
  MUSTER_TRY(auto digests, digests_of(context.head.headers));
  MUSTER_TRY(auto attributes, attributes_of(context.head.headers));
  MUSTER_TRY(auto condition, write_condition(context.head.headers));
  BodySource source(context);
  auto written = store_.put(context.target.bucket, context.target.key, source,
                            {.attributes = std::move(attributes),
                             .size = length,
                             .expected = std::move(digests.expected),
                             .checksum = digests.keep,
                             .condition = std::move(condition)},
                            context.caller.now);
  if (!written) return refuse_fault(written.error(), source);
  net::Response response;
  response.headers.set("ETag", quoted(written->etag));
  if (written->checksum) set_checksum(response.headers, *written->checksum);
  return response;
}

Handlers::Answer Handlers::get_object(const Context& context) const {
  auto opened = store_.get(context.target.bucket, context.target.key);
  if (!opened) return refuse_fault(opened.error());
  const std::shared_ptr<const ports::OpenObject> object = *std::move(opened);
  const auto& info = object->info();
  net::Response response;
  MUSTER_TRY(const bool unchanged, not_modified(context, info));
  set_object_headers(response, context, info);
  if (unchanged) {
    response.status = 304;
    response.content_length_of_head = info.size;
    return response;
  }
  MUSTER_TRY(const auto wanted, wanted_bytes(context, *object));
  if (wanted.partial) {
    response.status = 206;
    response.headers.set("Content-Range", "bytes " + std::to_string(wanted.range.first) + "-" +
                                              std::to_string(wanted.range.first + wanted.range.length - 1) +
                                              "/" + std::to_string(info.size));
  }
  if (wanted.part && info.parts > 0) response.headers.set("x-amz-mp-parts-count", std::to_string(info.parts));
  const bool whole = wanted.range.length == info.size && !wanted.part;
  if (whole && info.checksum && iequals(context.header("x-amz-checksum-mode"), "ENABLED")) {
    set_checksum(response.headers, *info.checksum);
  }
  if (context.head.method == "HEAD") {
    response.content_length_of_head = wanted.range.length;
    return response;
  }
  MUSTER_CHECK(set_body(response, object, wanted.range));
  return response;
}

Handlers::Answer Handlers::delete_object(const Context& context) const {
  MUSTER_TRY(const auto condition, write_condition(context.head.headers));
  auto removed = store_.remove(context.target.bucket, context.target.key, condition);
  if (!removed) return refuse_fault(removed.error());
  net::Response response;
  response.status = 204;
  return response;
}

Handlers::Answer Handlers::delete_objects(const Context& context) const {
  MUSTER_TRY(const auto body, small_body(context));
  bool quiet = false;
  MUSTER_TRY(const auto deletions, parse_deletions(body, quiet));
  std::vector<std::string> keys;
  for (const auto& deletion : deletions) {
    if (deletion.etag.empty()) keys.push_back(deletion.key);
  }
  auto removed = store_.remove_all(context.target.bucket, keys);
  if (!removed) return refuse_fault(removed.error());
  Xml xml("DeleteResult");
  for (const auto& deletion : deletions) {
    if (!deletion.etag.empty()) {
      auto one = store_.remove(context.target.bucket, deletion.key, {.absent = false, .etag = deletion.etag});
      if (!one) {
        const auto error = refuse_fault(one.error()).value();
        xml.open("Error").text("Key", deletion.key).text("Code", error.code);
        xml.text("Message", error.error.message).close();
        continue;
      }
    }
    if (!quiet) xml.open("Deleted").text("Key", deletion.key).close();
  }
  return xml.response();
}

Handlers::Answer Handlers::get_object_attributes(const Context& context) const {
  auto info = store_.head(context.target.bucket, context.target.key);
  if (!info) return refuse_fault(info.error());
  std::vector<std::string> wanted;
  for (const auto part : split(context.header("x-amz-object-attributes"), ','))
    wanted.emplace_back(trim(part));
  const auto asked = [&](std::string_view name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  Xml xml("GetObjectAttributesResponse");
  if (asked("ETag")) xml.text("ETag", info->etag);
  if (asked("Checksum") && info->checksum) {
    xml.open("Checksum").text(checksum_element(info->checksum->kind).c_str(), info->checksum->value);
    xml.text("ChecksumType", info->checksum->composite ? "COMPOSITE" : "FULL_OBJECT").close();
  }
  if (asked("ObjectParts") && info->parts > 0) {
    xml.open("ObjectParts").number("PartsCount", info->parts).close();
  }
  if (asked("StorageClass")) xml.text("StorageClass", "STANDARD");
  if (asked("ObjectSize")) xml.number("ObjectSize", info->size);
  auto response = xml.response();
  response.headers.set("Last-Modified", format_http_date(info->modified));
  return response;
}

}  // namespace muster::api::s3
