#include "text/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "base/file.h"
#include "base/rng.h"
#include "text/testing.h"

namespace muster::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Vocabulary vocabulary(std::size_t size, char hash = 'a') {
  return {.tokenizer_hash = std::string(64, hash),
          .eos = 2,
          .dummy_bytes = 1,
          .byte_lengths = std::vector<std::uint16_t>(size, 3)};
}

// One shard with the given documents.
void write_shard(const std::string& path, Vocabulary vocab,
                 const std::vector<std::vector<TokenId>>& documents) {
  auto writer = ShardWriter::create(path, std::move(vocab));
  ASSERT_TRUE(writer) << writer.error().message;
  for (const auto& tokens : documents) {
    writer->begin_document();
    ASSERT_TRUE(writer->append(tokens));
    writer->add_source_bytes(tokens.size() * 3);
  }
  const auto finished = writer->finish();
  ASSERT_TRUE(finished) << finished.error().message;
}

std::vector<TokenId> read_all(const ShardSet& set) {
  std::vector<TokenId> out(set.size());
  const auto read = set.read(0, out);
  EXPECT_TRUE(read) << read.error().message;
  return out;
}

TEST(Shards, AFolderIsOneStream) {
  TempDir folder;
  write_shard(folder / "b.mts", vocabulary(100), {{7, 8}, {9}});
  write_shard(folder / "a.mts", vocabulary(100), {{1, 2, 3}});
  write_shard(folder / "ab.mts", vocabulary(100), {});  // without documents
  ASSERT_TRUE(write_file_atomic(folder / "notes.txt", "not a shard"));
  const auto set = ShardSet::open(folder.path());
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_EQ(set->size(), 6u);
  EXPECT_EQ(set->documents(), 3u);
  EXPECT_EQ(set->bytes(), 18u);
  EXPECT_EQ(set->vocab_size(), 100);
  EXPECT_EQ(set->eos(), 2);
  EXPECT_EQ(set->tokenizer_hash(), std::string(64, 'a'));
  EXPECT_THAT(read_all(*set), ElementsAre(1, 2, 3, 7, 8, 9));
  std::vector<std::int64_t> middle(3);
  ASSERT_TRUE(set->read(2, middle));
  EXPECT_THAT(middle, ElementsAre(3, 7, 8));
  EXPECT_EQ(set->document_begin(0), 0u);
  EXPECT_EQ(set->document_begin(1), 3u);
  EXPECT_EQ(set->document_begin(2), 5u);
  EXPECT_EQ(set->document_bytes(1), 6u);
  EXPECT_TRUE(set->verify());
  EXPECT_TRUE(set->read(6, std::span<std::int32_t>{}));
  std::vector<std::int32_t> two(2);
  EXPECT_EQ(set->read(5, two).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(set->read(~0ULL, two).error().code, ErrorCode::invalid_argument);
}

// Counts are alike in all of these but the last two.
TEST(Shards, TheDigestIsOfWhatTheTokensAreAndTheirOrder) {
  const auto digest = [](const std::vector<std::vector<std::vector<TokenId>>>& shards, char hash = 'a') {
    TempDir folder;
    for (std::size_t i = 0; i < shards.size(); ++i)
      write_shard(folder / (std::to_string(i) + ".mts"), vocabulary(100, hash), shards[i]);
    return ShardSet::open(folder.path())->digest();
  };
  const auto one = digest({{{1, 2, 3}, {4, 5, 6}}, {{7, 8}}});
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(digest({{{1, 2, 3}, {4, 5, 6}}, {{7, 8}}}), one);
  EXPECT_NE(digest({{{4, 5, 6}, {1, 2, 3}}, {{7, 8}}}), one);  // documents in another order
  EXPECT_NE(digest({{{1, 2, 3}, {4, 5, 7}}, {{7, 8}}}), one);
  EXPECT_NE(digest({{{1, 2}, {3, 4, 5, 6}}, {{7, 8}}}), one);  // the same tokens, other documents
  EXPECT_NE(digest({{{7, 8}}, {{1, 2, 3}, {4, 5, 6}}}), one);  // shards in another order
  EXPECT_NE(digest({{{1, 2, 3}, {4, 5, 6}}, {{7, 8}}}, 'b'), one);
  EXPECT_NE(digest({{{1, 2, 3}, {4, 5, 6}}}), one);
}

TEST(Shards, DocumentsThatBeginInAWindow) {
  TempDir folder;
  write_shard(folder / "a.mts", vocabulary(100), {{1, 2, 3}, {}, {4, 5}, {}});
  write_shard(folder / "b.mts", vocabulary(100), {});
  write_shard(folder / "c.mts", vocabulary(100), {{6}, {7, 8, 9, 10}, {11}});
  const auto set = ShardSet::open(folder.path());
  ASSERT_TRUE(set) << set.error().message;
  const std::vector<std::uint64_t> all = {0, 3, 5, 6, 10};
  for (std::uint64_t begin = 0; begin <= set->size(); ++begin) {
    for (std::uint64_t end = begin; end <= set->size(); ++end) {
      std::vector<std::uint64_t> expected;
      std::copy_if(all.begin(), all.end(), std::back_inserter(expected),
                   [&](std::uint64_t at) { return begin <= at && at < end; });
      std::vector<std::uint64_t> got;
      set->document_begins(begin, end - begin, got);
      EXPECT_EQ(got, expected) << begin << " .. " << end;
    }
  }
}

TEST(Shards, IdsAreTwoBytesUpToAVocabularyOf65536) {
  for (const auto& [size, bytes] : {std::pair{65536, 2}, std::pair{65537, 4}}) {
    TempDir folder;
    const std::vector<TokenId> tokens = {0, 1, 65535, size - 1, 256};
    write_shard(folder / "s.mts", vocabulary(static_cast<std::size_t>(size)), {tokens});
    const auto set = ShardSet::open(folder.path());
    ASSERT_TRUE(set) << set.error().message;
    EXPECT_EQ(set->shards()[0].token_bytes, bytes);
    EXPECT_EQ(read_all(*set), tokens);
    EXPECT_TRUE(set->verify());
  }
}

TEST(Shards, WriterRefusesIdsOutsideTheVocabulary) {
  TempDir folder;
  auto writer = ShardWriter::create(folder / "s.mts", vocabulary(10));
  ASSERT_TRUE(writer);
  writer->begin_document();
  EXPECT_THAT(writer->append(std::vector<TokenId>{3, 10}).error().message, HasSubstr("10"));
  EXPECT_FALSE(writer->append(std::vector<TokenId>{-1}));
}

TEST(Shards, AWriterWithoutFinishLeavesNothing) {
  TempDir folder;
  {
    auto writer = ShardWriter::create(folder / "s.mts", vocabulary(10));
    ASSERT_TRUE(writer);
    writer->begin_document();
    ASSERT_TRUE(writer->append(std::vector<TokenId>(100, 1)));
    EXPECT_EQ(ShardSet::open(folder.path()).error().code, ErrorCode::not_found);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Shards, ManyBlocks) {
  TempDir folder;
  std::vector<TokenId> tokens(1'300'000);  // 2.6 MB: three blocks
  Rng rng(3);
  for (auto& id : tokens) id = static_cast<TokenId>(rng.below(5000));
  write_shard(folder / "s.mts", vocabulary(5000), {tokens});
  const auto set = ShardSet::open(folder.path());
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_EQ(read_all(*set), tokens);
  std::vector<TokenId> across(10);  // around the border of the first block
  ASSERT_TRUE(set->read(524'283, across));
  EXPECT_TRUE(std::equal(across.begin(), across.end(), tokens.begin() + 524'283));
}

TEST(Shards, EveryFlippedByteIsFoundAndNamed) {
  TempDir folder;
  const auto path = folder / "s.mts";
  write_shard(path, vocabulary(9), {{1, 2, 3}, {4, 5}});
  const auto good = *read_file(path);
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    ASSERT_TRUE(write_file_atomic(path, bad));
    const auto set = ShardSet::open(folder.path());
    const auto result = set ? set->verify() : Result<void>(tl::unexpected(set.error()));
    ASSERT_FALSE(result) << "byte " << at;
    EXPECT_THAT(result.error().message, HasSubstr(path));
  }
}

TEST(Shards, EveryTruncationIsFound) {
  TempDir folder;
  const auto path = folder / "s.mts";
  write_shard(path, vocabulary(9), {{1, 2, 3}, {4, 5}});
  const auto good = *read_file(path);
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_TRUE(write_file_atomic(path, good.substr(0, size)));
    const auto set = ShardSet::open(folder.path());
    ASSERT_FALSE(set) << size;
    EXPECT_EQ(set.error().code, ErrorCode::corrupt);
    EXPECT_THAT(set.error().message, HasSubstr("truncated"));
  }
  ASSERT_TRUE(write_file_atomic(path, good + "x"));
  EXPECT_THAT(ShardSet::open(folder.path()).error().message, HasSubstr("extended"));
}

TEST(Shards, AFlippedTokenIsFoundByRead) {
  TempDir folder;
  const auto path = folder / "s.mts";
  write_shard(path, vocabulary(5000), {std::vector<TokenId>(1'000'000, 7)});
  auto bad = *read_file(path);
  bad[128 + 1'500'000] ^= 1;
  ASSERT_TRUE(write_file_atomic(path, bad));
  const auto set = ShardSet::open(folder.path());
  ASSERT_TRUE(set);
  std::vector<TokenId> some(100);
  EXPECT_TRUE(set->read(0, some));  // the first block is sound
  EXPECT_THAT(set->read(700'000, some).error().message, HasSubstr("block 1"));
}

TEST(Shards, RefusesMixedTokenizersAndOtherVersions) {
  TempDir folder;
  write_shard(folder / "a.mts", vocabulary(100, 'a'), {{1}});
  write_shard(folder / "b.mts", vocabulary(100, 'b'), {{1}});
  const auto mixed = ShardSet::open(folder.path());
  EXPECT_EQ(mixed.error().code, ErrorCode::failed_precondition);
  EXPECT_THAT(mixed.error().message, HasSubstr("b.mts"));
  auto newer = *read_file(folder / "a.mts");
  newer[8] = 2;
  ASSERT_TRUE(write_file_atomic(folder / "a.mts", newer));
  EXPECT_EQ(ShardSet::open(folder.path()).error().code, ErrorCode::unsupported);
  EXPECT_EQ(ShardSet::open(folder / "absent").error().code, ErrorCode::not_found);
}

TEST(Shards, BytesOfAnyRange) {
  TempDir folder;
  const auto& tokenizer = test_tokenizer();
  const std::string texts[] = {"the light was good\n", "evening \xe6\xbc\xa2 and   morning", "\n7"};
  auto writer = ShardWriter::create(folder / "s.mts", vocabulary_of(tokenizer));
  ASSERT_TRUE(writer);
  std::vector<std::string> stream;  // the text of every token
  for (const auto& text : texts) {
    auto ids = tokenizer.encode(text);
    writer->begin_document();
    writer->add_source_bytes(text.size());
    ASSERT_TRUE(writer->append(ids));
    ASSERT_TRUE(writer->append(std::vector<TokenId>{tokenizer.eos()}));
    const auto first = stream.size();
    for (const auto id : ids) stream.emplace_back(tokenizer.bytes(id));
    stream[first].erase(0, 1);  // the dummy space
    stream.emplace_back();
  }
  ASSERT_TRUE(writer->finish());
  const auto set = ShardSet::open(folder.path());
  ASSERT_TRUE(set) << set.error().message;
  ASSERT_EQ(set->size(), stream.size());
  EXPECT_EQ(set->bytes_in(0, set->size()), set->bytes());
  for (std::size_t begin = 0; begin <= stream.size(); ++begin) {
    std::uint64_t sum = 0;
    for (std::size_t end = begin; end <= stream.size(); ++end) {
      EXPECT_EQ(set->bytes_in(begin, end - begin), sum) << begin << " .. " << end;
      if (end < stream.size()) sum += stream[end].size();
    }
  }
}

}  // namespace
}  // namespace muster::text
