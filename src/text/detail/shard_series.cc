#include "text/detail/shard_series.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/crypto.h"
#include "base/file.h"
#include "text/detail/byte_source.h"

namespace muster::text::detail {
namespace {

constexpr std::size_t kStemMax = 64;

std::string shard_name(const std::string& input, int ordinal) {
  auto stem = std::filesystem::path(without_compression(input)).stem().string().substr(0, kStemMax);
  for (auto& c : stem) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
    if (!plain) c = '-';
  }
  char number[16];
  std::snprintf(number, sizeof number, "%05d", ordinal);
  return "tokens-" + stem + "-" + crypto::hex(crypto::sha256(input)).substr(0, 8) + "-" + number +
         kShardSuffix;
}

}  // namespace

ShardSeries::~ShardSeries() {
  if (finished_) return;
  for (const auto& path : paths_) ::unlink(path.c_str());
}

Result<void> ShardSeries::begin() {
  MUSTER_CHECK(make_directories(folder_));
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == kShardSuffix) {
      return fail(ErrorCode::failed_precondition, folder_ + " holds shards already (" +
                                                      it->path().filename().string() +
                                                      "); remove them or choose another folder");
    }
  }
  if (error) return fail_errno("list " + folder_, error.value());
  return {};
}

Result<void> ShardSeries::begin_document(const std::string& input) {
  if (input != input_) {
    input_ = input;
    ordinal_ = 0;
  }
  if (shard_ && shard_->tokens() >= shard_tokens_) MUSTER_CHECK(close_shard());
  if (!shard_) {
    path_ = folder_ + "/" + shard_name(input, ordinal_++);
    MUSTER_TRY(shard_, ShardWriter::create(path_, vocabulary_));
  }
  shard_->begin_document();
  return {};
}

Result<void> ShardSeries::append(std::span<const TokenId> tokens, std::uint64_t bytes) {
  shard_->add_source_bytes(bytes);
  return shard_->append(tokens);
}

Result<void> ShardSeries::end_document() {
  if (vocabulary_.eos < 0) return {};
  return shard_->append(std::span(&vocabulary_.eos, 1));
}

Result<void> ShardSeries::close_shard() {
  if (!shard_) return {};
  MUSTER_CHECK(shard_->finish());
  shard_.reset();
  paths_.push_back(path_);
  return {};
}

Result<void> ShardSeries::finish() {
  MUSTER_CHECK(close_shard());
  finished_ = true;
  return {};
}

}  // namespace muster::text::detail
