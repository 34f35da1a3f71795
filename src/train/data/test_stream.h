// A token stream in memory: for tests. Every token stands for three bytes of text; documents begin where it
// is told. Never changes: any thread.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/crypto.h"
#include "train/data/loader.h"

namespace muster::train {

class MemoryStream : public TokenStream {
 public:
  MemoryStream(std::vector<std::int64_t> tokens, int vocab, std::string tokenizer_hash = "memory")
      : tokens_(std::move(tokens)), vocab_(vocab), hash_(std::move(tokenizer_hash)) {}

  std::uint64_t size() const override { return tokens_.size(); }
  Result<void> read(std::uint64_t begin, std::span<std::int64_t> out) const override {
    if (begin + out.size() > tokens_.size()) return fail(ErrorCode::invalid_argument, "read past the end");
    std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    return {};
  }
  Result<std::uint64_t> bytes_in(std::uint64_t, std::uint64_t count) const override { return 3 * count; }
  void document_begins(std::uint64_t begin, std::uint64_t count,
                       std::vector<std::uint64_t>& out) const override {
    std::copy_if(documents_.begin(), documents_.end(), std::back_inserter(out),
                 [&](std::uint64_t at) { return at >= begin && at - begin < count; });
  }
  std::vector<Part> parts() const override { return parts_.empty() ? TokenStream::parts() : parts_; }
  void set_documents(std::vector<std::uint64_t> begins) { documents_ = std::move(begins); }
  void set_parts(std::vector<Part> parts) { parts_ = std::move(parts); }
  int vocab_size() const override { return vocab_; }
  const std::string& tokenizer_hash() const override { return hash_; }
  json::Object description() const override {
    const std::string_view bytes(reinterpret_cast<const char*>(tokens_.data()),
                                 tokens_.size() * sizeof tokens_[0]);
    return {{"tokens", tokens_.size()}, {"tokenizer", hash_}, {"digest", crypto::hex(crypto::sha256(bytes))}};
  }

 private:
  std::vector<std::int64_t> tokens_;
  int vocab_;
  std::string hash_;
  std::vector<std::uint64_t> documents_;
  std::vector<Part> parts_;
};

}  // namespace muster::train
