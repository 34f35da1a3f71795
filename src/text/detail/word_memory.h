// The tokens of words seen before: most words of a text come again.
//
// Bounded: when it holds kWordsMax words it is emptied. Belongs to one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "text/detail/bpe.h"
#include "text/tokenizer.h"

namespace muster::text::detail {

class WordMemory {
 public:
  static constexpr std::size_t kWordBytesMax = 64;  // longer ones hardly come twice
  static constexpr std::size_t kWordsMax = 1u << 17;

  WordMemory() : slots_(256, kFree) {}

  Merges::Scratch scratch;  // of whoever codes the words that are not known

  // The word's tokens, to be copied before the next call; nullptr with `count` untouched when it is not
  // known.
  const TokenId* find(std::string_view word, std::size_t& count) const {
    const auto mask = slots_.size() - 1;
    const auto hash = hash_of(word);
    for (auto at = hash & mask; slots_[at] != kFree; at = (at + 1) & mask) {
      const auto& entry = entries_[slots_[at]];
      if (entry.hash == hash && text_of(entry) == word) {
        count = entry.count;
        return ids_.data() + entry.ids;
      }
    }
    return nullptr;
  }

  // Precondition: find() does not know it. Longer words are not kept.
  void keep(std::string_view word, std::span<const TokenId> ids) {
    if (word.size() > kWordBytesMax) return;
    if (entries_.size() == kWordsMax) clear();
    if (2 * entries_.size() >= slots_.size()) grow();
    const Entry entry{hash_of(word), static_cast<std::uint32_t>(text_.size()),
                      static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(word.size()),
                      static_cast<std::uint16_t>(ids.size())};
    text_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    entries_.push_back(entry);
    place(static_cast<std::uint32_t>(entries_.size() - 1));
  }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t text;  // begin in text_
    std::uint32_t ids;   // begin in ids_
    std::uint16_t length;
    std::uint16_t count;
  };
  static constexpr std::uint32_t kFree = ~0U;

  static std::uint64_t hash_of(std::string_view word) {
    std::uint64_t hash = word.size();
    for (; word.size() >= 8; word.remove_prefix(8)) hash = Rng::mix(hash ^ load(word.data(), 8));
    return Rng::mix(hash ^ load(word.data(), word.size()));
  }
  static std::uint64_t load(const char* from, std::size_t bytes) {
    std::uint64_t out = 0;
    std::memcpy(&out, from, bytes);
    return out;
  }
  std::string_view text_of(const Entry& entry) const {
    return std::string_view(text_).substr(entry.text, entry.length);
  }
  void place(std::uint32_t index) {
    const auto mask = slots_.size() - 1;
    auto at = entries_[index].hash & mask;
    while (slots_[at] != kFree) at = (at + 1) & mask;
    slots_[at] = index;
  }
  void grow() {
    slots_.assign(slots_.size() * 2, kFree);
    for (std::uint32_t i = 0; i < entries_.size(); ++i) place(i);
  }
  void clear() {
    slots_.assign(slots_.size(), kFree);
    entries_.clear();
    text_.clear();
    ids_.clear();
  }

  std::vector<std::uint32_t> slots_;  // open addressing, at most half full: indices into entries_
  std::vector<Entry> entries_;
  std::string text_;
  std::vector<TokenId> ids_;
};

}  // namespace muster::text::detail
