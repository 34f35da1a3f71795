#include "text/tokenizer.h"

#include <filesystem>

#include "base/assert.h"
#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"
#include "text/detail/coder.h"
#include "text/detail/tokenizer_json.h"

namespace muster::text {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kTokenizerBytesMax = 256u << 20;
constexpr char kJsonName[] = "tokenizer.json";
constexpr char kModelName[] = "tokenizer.model";

// A SentencePiece model is a protobuf message, whose first byte is no brace and no white space.
bool is_json(std::string_view file) { return trim(file.substr(0, 64)).starts_with('{'); }

}  // namespace

struct Tokenizer::Impl {
  std::string file;
  std::string hash;
  std::unique_ptr<detail::Coder> coder;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  MUSTER_TRY(auto file, read_regular_file(path, kTokenizerBytesMax));
  const auto folder = fs::path(path).parent_path().string();
  auto tokenizer = create(std::move(file), folder.empty() ? "." : folder);
  if (!tokenizer) return tl::unexpected(tokenizer.error().with_context(path));
  return tokenizer;
}

Result<Tokenizer> Tokenizer::from_bytes(std::string file) { return create(std::move(file), ""); }

Result<Tokenizer> Tokenizer::create(std::string file, const std::string& folder) {
  if (file.empty()) {
    return fail(ErrorCode::corrupt,
                "the tokenizer file is empty; a SentencePiece model or a tokenizer.json is expected");
  }
  auto impl = std::make_unique<Impl>();
  MUSTER_TRY(impl->coder,
             is_json(file) ? detail::bpe_coder(file, folder) : detail::sentencepiece_coder(file));
  impl->hash = crypto::hex(crypto::sha256(file));
  impl->file = std::move(file);
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<TokenId> out;
  Encoder(*this).append(text, true, out, specials);
  return out;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string out;
  bool first = true;
  for (const auto id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return fail(ErrorCode::invalid_argument, "token id " + std::to_string(id) +
                                                   " is outside the vocabulary of " +
                                                   std::to_string(vocab_size()) + " ids");
    }
    auto piece = bytes(id);
    if (piece.empty()) continue;
    if (first && has_dummy_prefix() && piece.front() == ' ' && id != unk()) piece.remove_prefix(1);
    first = false;
    out += piece;
  }
  return is_utf8(out) ? out : to_utf8_lossy(out);
}

std::size_t Tokenizer::cut(std::string_view text) const { return impl_->coder->cut(text); }
int Tokenizer::vocab_size() const { return static_cast<int>(impl_->coder->bytes.size()); }
TokenId Tokenizer::unk() const { return impl_->coder->unk; }
TokenId Tokenizer::bos() const { return impl_->coder->bos; }
TokenId Tokenizer::eos() const { return impl_->coder->eos; }
std::string_view Tokenizer::bytes(TokenId id) const {
  MUSTER_ASSERT(id >= 0 && id < vocab_size());
  return impl_->coder->bytes[static_cast<std::size_t>(id)];
}
bool Tokenizer::has_dummy_prefix() const { return impl_->coder->dummy_prefix; }
const std::string& Tokenizer::hash() const { return impl_->hash; }
const std::string& Tokenizer::file() const { return impl_->file; }

Encoder::Encoder(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer), words_(std::make_unique<detail::WordMemory>()) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

void Encoder::append(std::string_view text, bool first, std::vector<TokenId>& out, Specials specials) {
  std::string repaired;
  if (!is_utf8(text)) {
    repaired = to_utf8_lossy(text);
    text = repaired;
  }
  if (!text.empty()) tokenizer_->impl_->coder->encode(text, first, specials, *words_, out);
}

Result<void> copy_tokenizer(const std::string& path, const std::string& folder) {
  MUSTER_TRY(const auto file, read_regular_file(path, kTokenizerBytesMax));
  if (!is_json(file)) return write_file_atomic(folder + "/" + kModelName, file);
  for (const char* name : detail::kSpecialFiles) {
    const auto beside = fs::path(path).parent_path() / name;
    if (!fs::exists(beside)) continue;
    MUSTER_TRY(const auto special, read_regular_file(beside.string()));
    MUSTER_CHECK(write_file_atomic(folder + "/" + name, special));
  }
  return write_file_atomic(folder + "/" + kJsonName, file);
}

}  // namespace muster::text
