// Uploads in parts. A part is a blob of its own; the finished object is the list of their blobs.
#include <algorithm>

#include "base/crypto.h"
#include "base/text.h"
#include "data/objectstore/detail/directory_store.h"
#include "data/objectstore/detail/refuse.h"

namespace muster::objectstore {

using ports::ObjectError;
using ports::ObjectFault;
using ports::ObjectLimits;
using ports::ObjectResult;

namespace {

constexpr std::size_t kUploadIdLength = 48;

ObjectResult<UploadRow> find_upload(Catalog& catalog, std::int64_t bucket, std::string_view key,
                                    std::string_view id) {
  MUSTER_TRY(auto row, catalog.upload(bucket, key, id));
  if (!row) {
    return refuse(
        ObjectFault::no_such_upload,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been "
        "aborted or completed.");
  }
  return *std::move(row);
}

std::optional<crypto::Digest> checksum_kind(const UploadRow& row) {
  if (!row.extra.checksum) return std::nullopt;
  return row.extra.checksum->kind;
}

ports::UploadInfo info_of(const UploadRow& row) {
  return {.id = row.id,
          .key = row.key,
          .created = row.created,
          .checksum = checksum_kind(row),
          .full_object_checksum = row.extra.full_object_checksum};
}

std::string part_name(const ports::CompletedPart& part) { return "part " + std::to_string(part.number); }

// The rows of the parts named, in order. `there`: all parts of the upload, by number.
ObjectResult<std::vector<PartRow>> choose_parts(const std::vector<PartRow>& there,
                                                std::span<const ports::CompletedPart> named,
                                                std::uint64_t part_bytes_min) {
  std::vector<PartRow> chosen;
  for (const auto& part : named) {
    if (!chosen.empty() && part.number <= chosen.back().number) {
      return refuse(ObjectFault::invalid_part_order,
                    "The list of parts was not in ascending order. Parts must be ordered by part number.");
    }
    const auto at =
        std::lower_bound(there.begin(), there.end(), part.number,
                         [](const PartRow& row, std::uint32_t number) { return row.number < number; });
    if (at == there.end() || at->number != part.number || at->etag != part.etag) {
      return refuse(ObjectFault::invalid_part,
                    "One or more of the specified parts could not be found: " + part_name(part) +
                        " was not uploaded, or has another ETag than " + part.etag);
    }
    if (part.checksum && !at->checksum.empty() && *part.checksum != crypto::base64(at->checksum)) {
      return refuse(ObjectFault::invalid_part,
                    part_name(part) + " has another checksum than " + *part.checksum);
    }
    chosen.push_back(*at);
  }
  for (std::size_t i = 0; i + 1 < chosen.size(); ++i) {
    if (chosen[i].size >= part_bytes_min) continue;
    return refuse(ObjectFault::entity_too_small,
                  "Your proposed upload is smaller than the minimum allowed size: part " +
                      std::to_string(chosen[i].number) + " has " + std::to_string(chosen[i].size) +
                      " bytes, all but the last need " + std::to_string(part_bytes_min));
  }
  return chosen;
}

std::string etag_of(const std::vector<PartRow>& parts) {
  crypto::Hasher hasher(crypto::Digest::md5);
  for (const auto& part : parts) {
    std::string raw;
    for (std::size_t i = 0; i + 1 < part.etag.size(); i += 2) {
      raw += static_cast<char>(std::stoi(part.etag.substr(i, 2), nullptr, 16));
    }
    hasher.update(raw);
  }
  return crypto::hex(hasher.finish()) + "-" + std::to_string(parts.size());
}

std::optional<ports::Checksum> checksum_of(const UploadRow& upload, const std::vector<PartRow>& parts) {
  const auto kind = checksum_kind(upload);
  if (!kind) return std::nullopt;
  if (upload.extra.full_object_checksum) {
    std::string all = parts.front().checksum;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      all = crypto::combine_crcs(*kind, all, parts[i].checksum, parts[i].size);
    }
    return ports::Checksum{.kind = *kind, .value = crypto::base64(all)};
  }
  crypto::Hasher hasher(*kind);
  for (const auto& part : parts) hasher.update(part.checksum);
  return ports::Checksum{.kind = *kind,
                         .value = crypto::base64(hasher.finish()) + "-" + std::to_string(parts.size()),
                         .composite = true};
}

bool agrees(const ports::Checksum& said, const ports::Checksum& computed) {
  const auto dash = computed.value.find('-');
  return said.kind == computed.kind && (said.value == computed.value ||
                                        (computed.composite && said.value == computed.value.substr(0, dash)));
}

// The finished object but for its blob; checks what the caller says of the whole.
ObjectResult<ObjectRow> assemble(const UploadRow& upload, const std::vector<PartRow>& parts,
                                 const ports::CompleteOptions& options, Time now) {
  ObjectRow object{.key = upload.key,
                   .modified = now,
                   .etag = etag_of(parts),
                   .extra = {.attributes = upload.extra.attributes,
                             .checksum = checksum_of(upload, parts),
                             .parts = static_cast<std::uint32_t>(parts.size()),
                             .upload = upload.id}};
  for (const auto& part : parts) object.size += part.size;
  if (object.size > ObjectLimits::object_bytes_max) {
    return refuse(ObjectFault::entity_too_large, "the parts make " + std::to_string(object.size) +
                                                     " bytes, an object has at most " +
                                                     std::to_string(ObjectLimits::object_bytes_max));
  }
  if (options.size && *options.size != object.size) {
    return refuse(ObjectFault::incomplete_body, "the parts make " + std::to_string(object.size) +
                                                    " bytes, not the " + std::to_string(*options.size) +
                                                    " announced");
  }
  if (options.checksum && object.extra.checksum && !agrees(*options.checksum, *object.extra.checksum)) {
    return refuse(ObjectFault::bad_digest, "the " + std::string(to_string(object.extra.checksum->kind)) +
                                               " of the whole is " + object.extra.checksum->value + ", not " +
                                               options.checksum->value);
  }
  return object;
}

// Gives the object its blob: the part's own when there is one, else a list of them.
Result<void> attach_blob(Catalog& catalog, ObjectRow& object, const std::vector<PartRow>& parts,
                         std::int64_t composite) {
  std::vector<Piece> pieces;
  for (const auto& part : parts) {
    if (part.blob != 0) pieces.push_back({part.blob, part.size});
  }
  if (pieces.empty()) return {};
  if (pieces.size() == 1) {
    object.blob = pieces.front().blob;
    return {};
  }
  object.blob = composite;
  return catalog.insert_composite_blob(composite, object.size, pieces);
}

}  // namespace

ObjectResult<ports::UploadInfo> DirectoryStore::create_upload(std::string_view bucket, std::string_view key,
                                                              const ports::UploadOptions& options, Time now) {
  MUSTER_CHECK(check_key(key));
  UploadRow upload{.id = crypto::random_token(kUploadIdLength),
                   .key = std::string(key),
                   .created = now,
                   .extra = {.attributes = options.attributes,
                             .checksum = {},
                             .upload = {},
                             .full_object_checksum = options.full_object_checksum}};
  if (options.checksum) upload.extra.checksum.emplace().kind = *options.checksum;
  auto done = writer_.run([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    MUSTER_CHECK(catalog.insert_upload(row.id, upload));
    return {};
  });
  if (!done) return tl::unexpected(std::move(done).error());
  return info_of(upload);
}

ObjectResult<ports::UploadInfo> DirectoryStore::upload(std::string_view bucket, std::string_view key,
                                                       std::string_view id) {
  ReadPool::Lease reader(readers_);
  MUSTER_TRY(const auto row, find_bucket(*reader, bucket));
  MUSTER_TRY(const auto upload, find_upload(*reader, row.id, key, id));
  return info_of(upload);
}

ObjectResult<ports::Written> DirectoryStore::put_part(std::string_view bucket, std::string_view key,
                                                      std::string_view id, std::uint32_t number,
                                                      ports::ByteSource& source,
                                                      const ports::PutOptions& options, Time now) {
  if (number < 1 || number > ObjectLimits::parts_max) {
    return tl::unexpected(ObjectError(
        Error{ErrorCode::invalid_argument, "Part number must be an integer between 1 and 10000, inclusive"}));
  }
  auto adjusted = options;
  std::optional<crypto::Digest> kept;
  {
    ReadPool::Lease reader(readers_);
    MUSTER_TRY(const auto row, find_bucket(*reader, bucket));
    MUSTER_TRY(const auto upload, find_upload(*reader, row.id, key, id));
    kept = checksum_kind(upload);
    if (kept) adjusted.checksum = kept;
  }
  const auto blob = next_blob();
  MUSTER_TRY(auto taken, take_in(source, adjusted, folder_, buffers_, blob));
  const PartRow part{.number = number,
                     .size = taken.size,
                     .modified = now,
                     .etag = crypto::hex(taken.md5),
                     .checksum = kept ? *taken.checksum : "",
                     .blob = taken.content ? blob : 0};
  auto done = commit(taken, [&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    MUSTER_CHECK(find_upload(catalog, row.id, key, id));
    if (part.blob != 0) MUSTER_CHECK(catalog.insert_simple_blob(part.blob, part.size));
    MUSTER_CHECK(catalog.put_part(id, part));
    return {};
  });
  if (!done) return tl::unexpected(std::move(done).error());
  ports::Written written{.etag = part.etag, .checksum = {}, .modified = now};
  if (adjusted.checksum) {
    written.checksum = ports::Checksum{.kind = *adjusted.checksum, .value = crypto::base64(*taken.checksum)};
  }
  return written;
}

ObjectResult<ports::Written> DirectoryStore::complete_upload(std::string_view bucket, std::string_view key,
                                                             std::string_view id,
                                                             std::span<const ports::CompletedPart> parts,
                                                             const ports::CompleteOptions& options,
                                                             Time now) {
  ports::Written written;
  const auto composite = next_blob();
  auto done = writer_.run([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    MUSTER_TRY(const auto there, catalog.object(row.id, key));
    auto upload = find_upload(catalog, row.id, key, id);
    if (!upload) {
      if (!there || there->extra.upload != id) return tl::unexpected(std::move(upload).error());
      // Its answer was lost and the client asks again.
      written = {.etag = there->etag, .checksum = there->extra.checksum, .modified = there->modified};
      return {};
    }
    MUSTER_CHECK(check_condition(options.condition, there));
    MUSTER_TRY(const auto all, catalog.parts(id, 0, ObjectLimits::parts_max));
    MUSTER_TRY(const auto chosen, choose_parts(all, parts, options_.part_bytes_min));
    if (chosen.empty()) return refuse(ObjectFault::invalid_part, "You must specify at least one part");
    MUSTER_TRY(auto object, assemble(*upload, chosen, options, now));
    MUSTER_CHECK(attach_blob(catalog, object, chosen, composite));
    std::size_t next = 0;
    for (const auto& part : all) {
      if (next < chosen.size() && chosen[next].number == part.number) {
        ++next;
      } else {
        MUSTER_CHECK(catalog.remove_user(part.blob));
      }
    }
    MUSTER_CHECK(catalog.delete_upload(id, false));
    MUSTER_CHECK(catalog.put_object(row.id, object));
    written = {.etag = object.etag, .checksum = object.extra.checksum, .modified = now};
    return {};
  });
  if (!done) return tl::unexpected(std::move(done).error());
  reaper_.notice();
  return written;
}

ObjectResult<void> DirectoryStore::abort_upload(std::string_view bucket, std::string_view key,
                                                std::string_view id) {
  auto done = writer_.run_freeing([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    MUSTER_CHECK(find_upload(catalog, row.id, key, id));
    MUSTER_CHECK(catalog.delete_upload(id, true));
    return {};
  });
  if (done) reaper_.notice();
  return done;
}

ObjectResult<std::size_t> DirectoryStore::abort_idle_uploads(Time before) {
  constexpr std::size_t kBatch =
      100;  // a transaction: others wait for it, and an upload may have 10,000 parts
  std::size_t aborted = 0;
  for (;;) {
    std::size_t found = 0;
    auto done = writer_.run_freeing([&](Catalog& catalog) -> ObjectResult<void> {
      MUSTER_TRY(const auto idle, catalog.idle_uploads(before, kBatch));
      for (const auto& id : idle) MUSTER_CHECK(catalog.delete_upload(id, true));
      found = idle.size();
      return {};
    });
    if (!done) return tl::unexpected(std::move(done).error());
    if (found > 0) reaper_.notice();
    aborted += found;
    if (found < kBatch) return aborted;
  }
}

ObjectResult<ports::PartPage> DirectoryStore::list_parts(std::string_view bucket, std::string_view key,
                                                         std::string_view id, std::uint32_t after,
                                                         std::size_t max) {
  ReadPool::Lease reader(readers_);
  MUSTER_TRY(const auto row, find_bucket(*reader, bucket));
  MUSTER_TRY(const auto upload, find_upload(*reader, row.id, key, id));
  MUSTER_TRY(auto rows, reader->parts(id, after, max + 1));
  ports::PartPage page{.upload = info_of(upload), .parts = {}, .truncated = rows.size() > max};
  if (page.truncated) rows.pop_back();
  for (const auto& part : rows) {
    ports::PartInfo info{.number = part.number,
                         .size = part.size,
                         .etag = part.etag,
                         .checksum = {},
                         .modified = part.modified};
    if (page.upload.checksum) {
      info.checksum = ports::Checksum{.kind = *page.upload.checksum, .value = crypto::base64(part.checksum)};
    }
    page.parts.push_back(std::move(info));
  }
  return page;
}

ObjectResult<ports::UploadPage> DirectoryStore::list_uploads(std::string_view bucket,
                                                             const ports::UploadQuery& query) {
  ReadPool::Lease reader(readers_);
  MUSTER_TRY(const auto row, find_bucket(*reader, bucket));
  MUSTER_TRY(auto rows, reader->uploads(row.id, query, query.max + 1));
  ports::UploadPage page{.uploads = {}, .truncated = rows.size() > query.max};
  if (page.truncated) rows.pop_back();
  for (const auto& upload : rows) page.uploads.push_back(info_of(upload));
  return page;
}

}  // namespace muster::objectstore
