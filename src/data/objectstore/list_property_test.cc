// Lists against a naive model, on random keys, prefixes, delimiters and page sizes.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "base/file.h"
#include "data/objectstore/object_store.h"
#include "data/objectstore/testing.h"

namespace muster::objectstore {
namespace {

struct Entry {
  std::string text;
  bool prefix = false;
  bool operator==(const Entry&) const = default;
};

void showValue(const Entry& entry, std::ostream& out) {
  out << entry.text << (entry.prefix ? " (prefix)" : "");
}

// What S3 says in words: keys with the prefix, in byte order; those that hold the delimiter behind the prefix
// count once, as the text up to it.
std::vector<Entry> model(const std::set<std::string>& keys, const std::string& prefix,
                         const std::string& delimiter, const std::string& after) {
  std::vector<Entry> out;
  for (const auto& key : keys) {
    if (key.rfind(prefix, 0) != 0) continue;
    const auto at = delimiter.empty() ? std::string::npos : key.find(delimiter, prefix.size());
    const Entry entry =
        at == std::string::npos ? Entry{key, false} : Entry{key.substr(0, at + delimiter.size()), true};
    if (entry.prefix ? (entry.text == after || key <= after) : key <= after) continue;
    if (out.empty() || out.back() != entry) out.push_back(entry);
  }
  return out;
}

std::vector<Entry> merged(const ports::ListPage& page) {
  std::vector<Entry> out;
  for (const auto& object : page.objects) out.push_back({object.key, false});
  for (const auto& prefix : page.prefixes) out.push_back({prefix, true});
  std::sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  return out;
}

// Few letters, so that keys collide with prefixes and with each other's beginnings.
std::string word(std::size_t length_max) {
  static const std::vector<std::string> kLetters = {"a", "b", "/", "/", "é", "😀", "\x01", "-", "~"};
  const auto length = *rc::gen::inRange<std::size_t>(0, length_max + 1);
  std::string out;
  for (std::size_t i = 0; i < length; ++i) out += *rc::gen::elementOf(kLetters);
  return out;
}

TEST(ListProperty, PagesJoinToTheModelsList) {
  const TempDir folder;
  auto opened = open({.directory = folder / "objects", .sync = false, .readers = 1});
  ASSERT_TRUE(opened);
  auto& store = **opened;
  int round = 0;
  const bool right = rc::check("pages join to the model's list", [&] {
    const auto bucket = "bucket-" + std::to_string(++round);
    RC_ASSERT(store.create_bucket({bucket, "us-east-1", Time{1}}).has_value());
    std::set<std::string> keys;
    const auto count = *rc::gen::inRange(0, 25);
    for (int i = 0; i < count; ++i) {
      const auto key = word(6);
      if (key.empty() || !keys.insert(key).second) continue;
      TextSource empty("");
      RC_ASSERT(store.put(bucket, key, empty, {}, Time{1}).has_value());
    }
    ports::ListQuery query{
        .prefix = word(2),
        .delimiter = *rc::gen::elementOf(std::vector<std::string>{"", "/", "/", "a", "//", "é"}),
        .after = word(3),
        .max = *rc::gen::inRange<std::size_t>(1, 6)};
    const auto wanted = model(keys, query.prefix, query.delimiter, query.after);
    std::vector<Entry> got;
    for (std::size_t pages = 0;; ++pages) {
      RC_ASSERT(pages <= wanted.size());
      const auto page = store.list(bucket, query);
      RC_ASSERT(page.has_value());
      const auto entries = merged(*page);
      RC_ASSERT(entries.size() <= query.max);
      got.insert(got.end(), entries.begin(), entries.end());
      if (!page->truncated) break;
      RC_ASSERT(entries.size() == query.max);
      RC_ASSERT(page->next == entries.back().text);
      query.after = page->next;
    }
    RC_ASSERT(got == wanted);
  });
  EXPECT_TRUE(right);
}

}  // namespace
}  // namespace muster::objectstore
