#include "text/shards.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/assert.h"
#include "base/crypto.h"
#include "base/file.h"

namespace muster::text {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and mapped as they are");

constexpr char kMagic[] = "MSTSHARD";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kBlockBytes = 1u << 20;
constexpr std::size_t kVocabularyMax = 1u << 24;
constexpr std::size_t kNarrowMax = 65536;

// The first 128 bytes of a file, as in docs/formats/shards-v1.md.
struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t token_bytes;
  std::uint64_t tokens;
  std::uint64_t documents;
  std::uint64_t bytes;
  std::uint32_t vocab_size;
  std::int32_t eos;
  unsigned char tokenizer_hash[32];
  std::uint32_t block_bytes;
  std::uint32_t dummy_bytes;
  std::uint64_t index_at;
  std::uint64_t index_bytes;
  std::uint32_t index_crc;
  std::uint32_t zero[4];
  std::uint32_t crc;
};
static_assert(sizeof(Header) == 128 && offsetof(Header, index_at) == 88 && offsetof(Header, crc) == 124);

template <typename T>
std::string_view bytes_of(const T* data, std::size_t count) {
  return {reinterpret_cast<const char*>(data), count * sizeof(T)};
}

std::uint32_t header_crc(const Header& header) {
  return crypto::crc32c(bytes_of(&header, 1).substr(0, offsetof(Header, crc)));
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::uint64_t block_count(const Header& header) {
  return (header.tokens * header.token_bytes + kBlockBytes - 1) / kBlockBytes;
}

std::uint64_t index_size(const Header& header) {
  return header.documents * 16 + round_up(std::uint64_t{header.vocab_size} * 2, 4) + block_count(header) * 4;
}

std::string unhex(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at + 1 < text.size(); at += 2) {
    out += static_cast<char>(std::stoi(std::string(text.substr(at, 2)), nullptr, 16));
  }
  return out;
}

}  // namespace

Vocabulary vocabulary_of(const Tokenizer& tokenizer) {
  Vocabulary out{.tokenizer_hash = tokenizer.hash(),
                 .eos = tokenizer.eos(),
                 .dummy_bytes = tokenizer.has_dummy_prefix() ? 1 : 0,
                 .byte_lengths = {}};
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {
    out.byte_lengths.push_back(
        static_cast<std::uint16_t>(std::min<std::size_t>(tokenizer.bytes(id).size(), 65535)));
  }
  return out;
}

// ---- writing

struct ShardWriter::Impl {
  std::string path;
  std::string temporary;
  UniqueFd file;
  Vocabulary vocabulary;
  Header header{};
  std::vector<std::uint64_t> begins;
  std::vector<std::uint64_t> source_bytes;
  std::vector<std::uint32_t> block_crcs;
  std::string block;  // token data not yet written, below kBlockBytes

  ~Impl() {
    if (file) ::unlink(temporary.c_str());
  }

  Result<void> flush_block() {
    if (block.empty()) return {};
    block_crcs.push_back(crypto::crc32c(block));
    auto written = write_all(file.get(), block);
    if (!written) return tl::unexpected(written.error().with_context(temporary));
    block.clear();
    return {};
  }

  template <typename T>
  Result<void> append(std::span<const TokenId> tokens) {
    for (const auto id : tokens) {
      if (id < 0 || static_cast<std::size_t>(id) >= vocabulary.byte_lengths.size()) {
        return fail(ErrorCode::invalid_argument, path + ": token id " + std::to_string(id) +
                                                     " is outside the vocabulary of " +
                                                     std::to_string(vocabulary.byte_lengths.size()) + " ids");
      }
      const auto value = static_cast<T>(id);
      block.append(reinterpret_cast<const char*>(&value), sizeof value);
      if (block.size() == kBlockBytes) MUSTER_CHECK(flush_block());
    }
    header.tokens += tokens.size();
    return {};
  }

  std::string index() const {
    std::string out;
    out += bytes_of(begins.data(), begins.size());
    out += bytes_of(source_bytes.data(), source_bytes.size());
    out += bytes_of(vocabulary.byte_lengths.data(), vocabulary.byte_lengths.size());
    out.resize(round_up(out.size(), 4), '\0');
    out += bytes_of(block_crcs.data(), block_crcs.size());
    return out;
  }

  Result<void> write_rest() {
    const std::uint64_t data = header.tokens * header.token_bytes;
    MUSTER_CHECK(flush_block());
    header.index_at = sizeof(Header) + round_up(data, 8);
    MUSTER_CHECK(write_all(file.get(), std::string(round_up(data, 8) - data, '\0')));
    const auto tail = index();
    header.documents = begins.size();
    header.index_bytes = tail.size();
    header.index_crc = crypto::crc32c(tail);
    MUSTER_ASSERT(tail.size() == index_size(header));
    for (const auto bytes : source_bytes) header.bytes += bytes;
    header.crc = header_crc(header);
    MUSTER_CHECK(write_all(file.get(), tail));
    if (::lseek(file.get(), 0, SEEK_SET) != 0) return fail_errno("seek");
    MUSTER_CHECK(write_all(file.get(), bytes_of(&header, 1)));
    if (::fsync(file.get()) != 0) return fail_errno("fsync");
    return {};
  }
};

ShardWriter::ShardWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardWriter::ShardWriter(ShardWriter&&) noexcept = default;
ShardWriter& ShardWriter::operator=(ShardWriter&&) noexcept = default;
ShardWriter::~ShardWriter() = default;

Result<ShardWriter> ShardWriter::create(std::string path, Vocabulary vocabulary) {
  const auto size = vocabulary.byte_lengths.size();
  if (size == 0 || size > kVocabularyMax) {
    return fail(ErrorCode::invalid_argument, path + ": a vocabulary of " + std::to_string(size) +
                                                 " ids; 1 .. " + std::to_string(kVocabularyMax) +
                                                 " are possible");
  }
  auto impl = std::make_unique<Impl>();
  auto& header = impl->header;
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  header.version = kVersion;
  header.token_bytes = size <= kNarrowMax ? 2 : 4;
  header.vocab_size = static_cast<std::uint32_t>(size);
  header.eos = vocabulary.eos;
  header.dummy_bytes = static_cast<std::uint32_t>(vocabulary.dummy_bytes);
  header.block_bytes = kBlockBytes;
  const auto hash = unhex(vocabulary.tokenizer_hash);
  MUSTER_ASSERT(hash.size() == sizeof header.tokenizer_hash);
  std::memcpy(header.tokenizer_hash, hash.data(), hash.size());
  impl->path = std::move(path);
  impl->temporary = impl->path + ".tmp-" + std::to_string(::getpid());
  impl->vocabulary = std::move(vocabulary);
  MUSTER_TRY(impl->file, open_file(impl->temporary, O_WRONLY | O_CREAT | O_TRUNC));
  MUSTER_CHECK(write_all(impl->file.get(), std::string(sizeof(Header), '\0')));
  return ShardWriter(std::move(impl));
}

void ShardWriter::begin_document() {
  impl_->begins.push_back(impl_->header.tokens);
  impl_->source_bytes.push_back(0);
}

Result<void> ShardWriter::append(std::span<const TokenId> tokens) {
  MUSTER_ASSERT(!impl_->begins.empty());
  return impl_->header.token_bytes == 2 ? impl_->append<std::uint16_t>(tokens)
                                        : impl_->append<std::uint32_t>(tokens);
}

void ShardWriter::add_source_bytes(std::uint64_t bytes) {
  MUSTER_ASSERT(!impl_->source_bytes.empty());
  impl_->source_bytes.back() += bytes;
}

std::uint64_t ShardWriter::tokens() const { return impl_->header.tokens; }

Result<void> ShardWriter::finish() {
  auto written = impl_->write_rest();
  if (!written) return tl::unexpected(written.error().with_context("cannot write " + impl_->path));
  if (::rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0)
    return fail_errno("rename to " + impl_->path);
  impl_->file.reset();
  return sync_directory(std::filesystem::path(impl_->path).parent_path().string());
}

// ---- reading

namespace {

// One mapped file. Checked: header, length, index. Blocks of tokens are checked at first use.
class Shard {
 public:
  static Result<std::unique_ptr<Shard>> open(const std::string& path);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;
  ~Shard() {
    if (base_ != nullptr) ::munmap(base_, size_);
  }

  const Header& header() const { return *static_cast<const Header*>(base_); }
  const std::string& path() const { return path_; }
  std::string_view hash() const { return bytes_of(header().tokenizer_hash, 32); }
  std::span<const std::uint64_t> begins() const { return {index<std::uint64_t>(0), header().documents}; }
  std::span<const std::uint64_t> source_bytes() const {
    return {index<std::uint64_t>(header().documents * 8), header().documents};
  }
  std::span<const std::uint16_t> byte_lengths() const {
    return {index<std::uint16_t>(header().documents * 16), header().vocab_size};
  }
  std::span<const std::uint32_t> block_crcs() const {
    const auto at = header().documents * 16 + round_up(std::uint64_t{header().vocab_size} * 2, 4);
    return {index<std::uint32_t>(at), block_count(header())};
  }

  // Calls use(tokens) with tokens [begin, begin + count) of this shard, as stored.
  template <typename Use>
  Result<void> with_tokens(std::uint64_t begin, std::uint64_t count, Use use) const {
    MUSTER_CHECK(check_blocks(begin * header().token_bytes, (begin + count) * header().token_bytes));
    const char* data = static_cast<const char*>(base_) + sizeof(Header);
    if (header().token_bytes == 2) {
      use(std::span(reinterpret_cast<const std::uint16_t*>(data) + begin, count));
    } else {
      use(std::span(reinterpret_cast<const std::uint32_t*>(data) + begin, count));
    }
    return {};
  }

 private:
  explicit Shard(std::string path) : path_(std::move(path)) {}

  template <typename T>
  const T* index(std::uint64_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(base_) + header().index_at + offset);
  }
  Result<void> map();
  Result<void> check_header() const;
  Result<void> check_index() const;
  Result<void> check_blocks(std::uint64_t from, std::uint64_t to) const;
  tl::unexpected<Error> corrupt(const std::string& why) const {
    return fail(ErrorCode::corrupt, path_ + ": " + why);
  }

  std::string path_;
  void* base_ = nullptr;
  std::size_t size_ = 0;
  mutable std::vector<std::atomic<bool>> checked_;
};

Result<std::unique_ptr<Shard>> Shard::open(const std::string& path) {
  std::unique_ptr<Shard> shard(new Shard(path));
  MUSTER_CHECK(shard->map());
  MUSTER_CHECK(shard->check_header());
  MUSTER_CHECK(shard->check_index());
  shard->checked_ = std::vector<std::atomic<bool>>(block_count(shard->header()));
  return shard;
}

Result<void> Shard::map() {
  MUSTER_CHECK(check_regular(path_));
  MUSTER_TRY(auto file, open_file(path_, O_RDONLY));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return fail_errno("stat " + path_);
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ < sizeof(Header)) {
    return corrupt("truncated: " + std::to_string(size_) + " bytes, a shard's header alone has " +
                   std::to_string(sizeof(Header)));
  }
  void* base = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return fail_errno("mmap " + path_);
  base_ = base;
  return {};
}

Result<void> Shard::check_header() const {
  const auto& h = header();
  if (std::memcmp(h.magic, kMagic, sizeof h.magic) != 0)
    return corrupt("not a shard: it does not begin with MSTSHARD");
  if (h.version != kVersion) {
    return fail(ErrorCode::unsupported, path_ + ": shard format version " + std::to_string(h.version) +
                                            "; this program reads version " + std::to_string(kVersion));
  }
  if (h.crc != header_crc(h)) return corrupt("the header does not match its checksum");
  const bool sizes = (h.token_bytes == 2 || h.token_bytes == 4) && h.block_bytes == kBlockBytes &&
                     h.tokens < size_ && h.documents < size_ && h.vocab_size <= kVocabularyMax;
  if (!sizes || h.index_at != sizeof(Header) + round_up(h.tokens * h.token_bytes, 8) ||
      h.index_bytes != index_size(h)) {
    return corrupt("the sizes in the header contradict each other");
  }
  if (h.index_at + h.index_bytes != size_) {
    return corrupt((h.index_at + h.index_bytes > size_ ? "truncated: " : "extended: ") +
                   std::to_string(size_) + " bytes, the header says " +
                   std::to_string(h.index_at + h.index_bytes));
  }
  return {};
}

Result<void> Shard::check_index() const {
  if (crypto::crc32c({index<char>(0), header().index_bytes}) != header().index_crc) {
    return corrupt("the index does not match its checksum");
  }
  const std::uint64_t data_end = sizeof(Header) + header().tokens * header().token_bytes;
  for (auto at = data_end; at < header().index_at; ++at) {
    if (static_cast<const char*>(base_)[at] != 0) return corrupt("the padding behind the tokens is not zero");
  }
  std::uint64_t last = 0;
  for (const auto begin : begins()) {
    if (begin < last || begin > header().tokens) return corrupt("the document index is not in order");
    last = begin;
  }
  if (header().documents > 0 && begins()[0] != 0)
    return corrupt("the first document does not begin at token 0");
  return {};
}

Result<void> Shard::check_blocks(std::uint64_t from, std::uint64_t to) const {
  const std::uint64_t data = header().tokens * header().token_bytes;
  for (std::uint64_t block = from / kBlockBytes; block * kBlockBytes < to; ++block) {
    if (checked_[block].load(std::memory_order_acquire)) continue;
    const auto begin = block * kBlockBytes;
    const auto length = std::min<std::uint64_t>(kBlockBytes, data - begin);
    if (crypto::crc32c({static_cast<const char*>(base_) + sizeof(Header) + begin, length}) !=
        block_crcs()[block]) {
      return corrupt("block " + std::to_string(block) + " (bytes " + std::to_string(sizeof(Header) + begin) +
                     " .. " + std::to_string(sizeof(Header) + begin + length) +
                     ") does not match its checksum");
    }
    checked_[block].store(true, std::memory_order_release);
  }
  return {};
}

}  // namespace

struct ShardSet::Impl {
  std::vector<std::unique_ptr<Shard>> shards;
  std::vector<ShardInfo> infos;
  std::vector<std::uint64_t> first_token;     // of each shard in the stream; one more entry: the total
  std::vector<std::uint64_t> first_document;  // likewise
  std::uint64_t bytes = 0;
  std::string hash;
  std::string digest;

  // The shard that holds item `at` by the table `first`.
  static std::size_t find(const std::vector<std::uint64_t>& first, std::uint64_t at) {
    return static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), at) - first.begin() - 1);
  }

  Result<void> add(std::unique_ptr<Shard> shard) {
    const auto& header = shard->header();
    if (!shards.empty() &&
        (shard->hash() != shards[0]->hash() || header.vocab_size != shards[0]->header().vocab_size)) {
      return fail(ErrorCode::failed_precondition,
                  shards[0]->path() + " and " + shard->path() + " were written with different tokenizers (" +
                      hash.substr(0, 12) + " and " + crypto::hex(shard->hash()).substr(0, 12) +
                      "); keep one data set a folder");
    }
    if (shards.empty()) hash = crypto::hex(shard->hash());
    infos.push_back(
        {shard->path(), header.tokens, header.documents, header.bytes, static_cast<int>(header.token_bytes)});
    first_token.push_back(first_token.back() + header.tokens);
    first_document.push_back(first_document.back() + header.documents);
    bytes += header.bytes;
    shards.push_back(std::move(shard));
    return {};
  }

  // Calls use(shard, first token in it, tokens) for each part of [begin, begin + count).
  template <typename Use>
  Result<void> for_range(std::uint64_t begin, std::uint64_t count, Use use) const {
    const auto total = first_token.back();
    if (begin > total || count > total - begin) {
      return fail(ErrorCode::invalid_argument, "tokens " + std::to_string(begin) + " .. " +
                                                   std::to_string(begin + count) + " of a data set of " +
                                                   std::to_string(total));
    }
    while (count > 0) {
      const auto s = find(first_token, begin);
      const auto local = begin - first_token[s];
      const auto part = std::min(count, first_token[s + 1] - begin);
      MUSTER_CHECK(shards[s]->with_tokens(local, part, [&](auto tokens) { use(*shards[s], local, tokens); }));
      begin += part;
      count -= part;
    }
    return {};
  }

  template <typename T>
  Result<void> read(std::uint64_t begin, std::span<T> out) const {
    auto to = out.begin();
    return for_range(begin, out.size(), [&](const Shard&, std::uint64_t, auto tokens) {
      to = std::transform(tokens.begin(), tokens.end(), to, [](auto id) { return static_cast<T>(id); });
    });
  }
};

ShardSet::ShardSet(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ShardSet::ShardSet(ShardSet&&) noexcept = default;
ShardSet& ShardSet::operator=(ShardSet&&) noexcept = default;
ShardSet::~ShardSet() = default;

Result<ShardSet> ShardSet::open(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == kShardSuffix) paths.push_back(it->path().string());
  }
  if (error) return fail_errno("open folder " + folder, error.value());
  if (paths.empty()) {
    return fail(ErrorCode::not_found, "no shard (*" + std::string(kShardSuffix) + ") in " + folder +
                                          "; muster-data tokenize writes them");
  }
  std::sort(paths.begin(), paths.end());
  auto impl = std::make_unique<Impl>();
  impl->first_token.push_back(0);
  impl->first_document.push_back(0);
  crypto::Hasher digest(crypto::Digest::sha256);
  for (const auto& path : paths) {
    MUSTER_TRY(auto shard, Shard::open(path));
    const auto crcs = shard->block_crcs();
    digest.update(bytes_of(&shard->header(), 1));  // with the checksum of the index: where documents begin
    digest.update(bytes_of(crcs.data(), crcs.size()));
    MUSTER_CHECK(impl->add(std::move(shard)));
  }
  impl->digest = crypto::hex(digest.finish());
  return ShardSet(std::move(impl));
}

std::uint64_t ShardSet::size() const { return impl_->first_token.back(); }
std::uint64_t ShardSet::documents() const { return impl_->first_document.back(); }
std::uint64_t ShardSet::bytes() const { return impl_->bytes; }
const std::string& ShardSet::tokenizer_hash() const { return impl_->hash; }
const std::string& ShardSet::digest() const { return impl_->digest; }
int ShardSet::vocab_size() const { return static_cast<int>(impl_->shards[0]->header().vocab_size); }
TokenId ShardSet::eos() const { return impl_->shards[0]->header().eos; }
const std::vector<ShardInfo>& ShardSet::shards() const { return impl_->infos; }

Result<void> ShardSet::read(std::uint64_t begin, std::span<std::int32_t> out) const {
  return impl_->read(begin, out);
}
Result<void> ShardSet::read(std::uint64_t begin, std::span<std::int64_t> out) const {
  return impl_->read(begin, out);
}

Result<std::uint64_t> ShardSet::bytes_in(std::uint64_t begin, std::uint64_t count) const {
  std::uint64_t sum = 0;
  MUSTER_CHECK(impl_->for_range(begin, count, [&](const Shard& shard, std::uint64_t local, auto tokens) {
    const auto lengths = shard.byte_lengths();
    for (const auto id : tokens) sum += id < lengths.size() ? lengths[id] : 0;
    const auto begins = shard.begins();
    for (auto it = std::lower_bound(begins.begin(), begins.end(), local);
         it != begins.end() && *it < local + tokens.size(); ++it) {
      const auto id = tokens[*it - local];
      sum -= std::min<std::uint64_t>(id < lengths.size() ? lengths[id] : 0, shard.header().dummy_bytes);
    }
  }));
  return sum;
}

std::uint64_t ShardSet::document_begin(std::uint64_t d) const {
  MUSTER_ASSERT(d < documents());
  const auto s = Impl::find(impl_->first_document, d);
  return impl_->first_token[s] + impl_->shards[s]->begins()[d - impl_->first_document[s]];
}

std::uint64_t ShardSet::document_bytes(std::uint64_t d) const {
  MUSTER_ASSERT(d < documents());
  const auto s = Impl::find(impl_->first_document, d);
  return impl_->shards[s]->source_bytes()[d - impl_->first_document[s]];
}

void ShardSet::document_begins(std::uint64_t begin, std::uint64_t count,
                               std::vector<std::uint64_t>& out) const {
  const auto end = begin + count;
  MUSTER_ASSERT(begin <= end && end <= size());
  if (begin == end) return;
  for (auto s = Impl::find(impl_->first_token, begin); s < impl_->shards.size(); ++s) {
    const auto first = impl_->first_token[s];
    if (first >= end) break;
    const auto begins = impl_->shards[s]->begins();
    const auto from = begin > first ? begin - first : 0;
    for (auto it = std::lower_bound(begins.begin(), begins.end(), from);
         it != begins.end() && *it < impl_->shards[s]->header().tokens && first + *it < end; ++it) {
      const bool again = it != begins.begin() && *std::prev(it) == *it;  // behind a document without tokens
      if (!again) out.push_back(first + *it);
    }
  }
}

Result<void> ShardSet::verify() const {
  for (const auto& shard : impl_->shards) {
    const auto vocab = shard->header().vocab_size;
    std::uint64_t bad = 0;
    MUSTER_CHECK(shard->with_tokens(0, shard->header().tokens, [&](auto tokens) {
      for (const auto id : tokens) bad += id >= vocab ? 1 : 0;
    }));
    if (bad > 0) {
      return fail(ErrorCode::corrupt, shard->path() + ": " + std::to_string(bad) +
                                          " token ids are outside the vocabulary of " +
                                          std::to_string(vocab));
    }
  }
  return {};
}

}  // namespace muster::text
