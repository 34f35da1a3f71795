// How lists of pieces and of attributes are kept inside a row (docs/formats/objects-v1.md). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ports/object_store.h"

namespace muster::objectstore {

// A blob that other blobs are made of, or the one content file of a simple blob.
struct Piece {
  std::int64_t blob = 0;
  std::uint64_t length = 0;
};

std::string pack_pieces(const std::vector<Piece>& pieces);
Result<std::vector<Piece>> unpack_pieces(std::string_view packed);  // corrupt

// The part of ObjectInfo that has no column of its own, and the upload that made the object.
struct Extra {
  ports::Attributes attributes;
  std::optional<ports::Checksum> checksum;
  std::uint32_t parts = 0;
  std::string upload;
  bool full_object_checksum = false;  // of uploads
};

std::string pack_extra(const Extra& extra);
Result<Extra> unpack_extra(std::string_view packed);  // corrupt

}  // namespace muster::objectstore
