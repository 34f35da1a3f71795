#include "text/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/file.h"
#include "text/testing.h"

namespace muster::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void put(const TempDir& folder, const std::string& name, std::string_view text) {
  const std::filesystem::path path(folder / name);
  ASSERT_TRUE(make_directories(path.parent_path().string()));
  ASSERT_TRUE(write_file_atomic(path.string(), text));
}

std::vector<InputFile> inputs(const std::string& folder) {
  auto files = list_inputs({folder});
  EXPECT_TRUE(files) << files.error().message;
  return files.value_or(std::vector<InputFile>{});
}

// The documents of a shard folder as text, without their end tokens.
std::vector<std::string> documents(const std::string& folder) {
  const auto set = ShardSet::open(folder);
  EXPECT_TRUE(set) << set.error().message;
  EXPECT_TRUE(set->verify());
  std::vector<std::string> out;
  for (std::uint64_t d = 0; d < set->documents(); ++d) {
    const auto end = d + 1 < set->documents() ? set->document_begin(d + 1) : set->size();
    std::vector<TokenId> ids(end - set->document_begin(d));
    EXPECT_TRUE(set->read(set->document_begin(d), ids));
    EXPECT_EQ(ids.back(), set->eos());
    ids.pop_back();
    out.push_back(*test_tokenizer().decode(ids));
    EXPECT_EQ(set->document_bytes(d), out.back().size());
  }
  return out;
}

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    out[entry.path().filename().string()] = *read_file(entry.path().string());
  }
  return out;
}

TEST(Corpus, ListsFilesByNameAndRefusesDuplicates) {
  TempDir in;
  put(in, "b.txt", "b");
  put(in, "a/z.txt", "z");
  put(in, ".hidden", "no");
  put(in, ".git/config", "no");
  const auto files = inputs(in.path());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "a/z.txt");
  EXPECT_EQ(files[1].name, "b.txt");
  EXPECT_EQ(files[1].bytes, 1u);
  EXPECT_EQ(list_inputs({in / "missing"}).error().code, ErrorCode::not_found);
  EXPECT_EQ(list_inputs({in / "b.txt", in / "b.txt"}).error().code, ErrorCode::invalid_argument);
}

std::size_t behind_last_newline(std::string_view text) { return text.rfind('\n') + 1; }

// Cuts `text` into parts of about `chunk_bytes`; documents joined again, "|" between parts.
std::vector<std::string> cut(const std::string& text, CorpusOptions options) {
  TempDir in;
  put(in, "a.txt", text);
  auto reader = FileReader::open(in / "a.txt", options);
  EXPECT_TRUE(reader) << reader.error().message;
  std::vector<std::string> out;
  bool open = false;
  for (;;) {
    const auto chunk = reader->next();
    EXPECT_TRUE(chunk) << chunk.error().message;
    if (!chunk || chunk->empty()) break;
    for (const auto& part : chunk->parts) {
      EXPECT_EQ(part.begins, !open);
      if (part.begins) {
        out.emplace_back();
      } else {
        out.back() += '|';
      }
      out.back() += chunk->content.substr(part.begin, part.length);
      open = !part.ends;
    }
  }
  EXPECT_FALSE(open);
  return out;
}

TEST(Corpus, CutsWhereTheTokenizerLetsIt) {
  EXPECT_THAT(cut("ab\ncd\nef", {.cut = behind_last_newline, .chunk_bytes = 4}), ElementsAre("ab\n|cd\n|ef"));
  EXPECT_THAT(cut("abcdefgh\nij\n", {.cut = behind_last_newline, .chunk_bytes = 4}),
              ElementsAre("abcdefgh\nij\n|"));
  EXPECT_THAT(cut("ab\ncd\nef", {.chunk_bytes = 4}), ElementsAre("ab\ncd\nef"));
  EXPECT_THAT(cut("", {}), ElementsAre());
}

TEST(Corpus, BlankLinesPartDocuments) {
  const auto never = [](std::string_view) { return std::size_t{0}; };
  const auto before_space = [](std::string_view text) { return text.size() > 1 ? text.rfind(' ') + 1 : 0; };
  for (const std::size_t chunk : {2, 3, 4, 5, 7, 100}) {
    for (const std::function<std::size_t(std::string_view)>& where :
         {std::function<std::size_t(std::string_view)>(behind_last_newline), {never}, {before_space}}) {
      auto got = cut("\n\nab\ncd\n\n  \t\nef g h\n\r\ngh",
                     {.split_documents = true, .cut = where, .chunk_bytes = chunk});
      for (auto& text : got) std::erase(text, '|');
      EXPECT_THAT(got, ElementsAre("ab\ncd\n", "ef g h\n", "gh")) << chunk;
    }
  }
  EXPECT_THAT(cut("\n \n\n", {.split_documents = true}), ElementsAre());
}

TEST(Corpus, RefusesATextThatCannotBeCut) {
  TempDir in;
  put(in, "a.txt", std::string(1000, 'x'));
  auto reader =
      FileReader::open(in / "a.txt", {.cut = behind_last_newline, .chunk_bytes = 10, .chunk_bytes_max = 100});
  const auto chunk = reader->next();
  EXPECT_EQ(chunk.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(chunk.error().message, HasSubstr("a.txt"));
}

// The lines of a chunk of JSON lines with their numbers; "!" for one that is too long.
std::vector<std::string> lines(const std::string& text, CorpusOptions options) {
  TempDir in;
  put(in, "a.jsonl", text);
  auto reader = FileReader::open(in / "a.jsonl", options);
  std::vector<std::string> out;
  for (;;) {
    const auto chunk = reader->next();
    EXPECT_TRUE(chunk);
    if (!chunk || chunk->empty()) return out;
    if (chunk->too_long) out.push_back(std::to_string(chunk->too_long->line) + "!");
    if (!chunk->content.empty()) out.push_back(std::to_string(chunk->first_line) + ":" + chunk->content);
  }
}

TEST(Corpus, JsonLinesComeWholeAndNumbered) {
  EXPECT_THAT(lines("a\nbb\n\nc\ndd", {.chunk_bytes = 4}), ElementsAre("1:a\n", "2:bb\n\nc\n", "5:dd"));
  EXPECT_THAT(lines("a\n0123456789\nb\n0123456789", {.chunk_bytes = 4, .line_bytes_max = 6}),
              ElementsAre("1:a\n", "2!", "3:b\n", "4!"));
}

TEST(Tokenize, FilesBecomeDocuments) {
  TempDir in;
  TempDir out;
  put(in, "x/one.txt", "the light\n");
  put(in, "two.txt", "  \xe6\xbc\xa2 and\r\n");
  put(in, "empty.txt", "");
  const auto report = tokenize(inputs(in.path()), test_tokenizer(), out.path(), {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->documents, 2u);
  EXPECT_EQ(report->files_without_text, 1u);
  EXPECT_EQ(report->shards.size(), 1u);
  EXPECT_EQ(report->bytes, 21u);
  EXPECT_THAT(documents(out.path()), ElementsAre("  \xe6\xbc\xa2 and\r\n", "the light\n"));
}

TEST(Tokenize, TheOutputDoesNotDependOnThreads) {
  TempDir in;
  std::string big;
  while (big.size() < 3'000'000) big += test_text() + "\n";
  put(in, "big.txt", big);
  for (int i = 0; i < 20; ++i) put(in, "small-" + std::to_string(i) + ".txt", test_text().substr(0, 1000));
  for (const bool split : {false, true}) {
    std::map<std::string, std::string> first;
    for (const int threads : {1, 2, 7}) {
      TempDir out;
      const auto report =
          tokenize(inputs(in.path()), test_tokenizer(), out.path(),
                   {.split_documents = split, .shard_tokens = 100'000, .threads = threads, .progress = {}});
      ASSERT_TRUE(report) << report.error().message;
      const auto files = files_of(out.path());
      EXPECT_EQ(files.size(), report->shards.size());
      EXPECT_GT(files.size(), 1u);
      if (first.empty()) first = files;
      EXPECT_TRUE(files == first) << threads << " threads";
    }
  }
}

TEST(Tokenize, NodesWithDifferentFilesWriteDifferentNames) {
  TempDir in1;
  TempDir in2;
  TempDir out;
  put(in1, "a/part.txt", "the same stem");
  put(in2, "b/part.txt", "the same stem");
  const auto one = tokenize(inputs(in1.path()), test_tokenizer(), out / "1", {});
  const auto two = tokenize(inputs(in2.path()), test_tokenizer(), out / "2", {});
  ASSERT_TRUE(one && two);
  const auto name = [](const auto& report) {
    return std::filesystem::path(report->shards[0]).filename().string();
  };
  EXPECT_THAT(name(one), StartsWith("tokens-part-"));
  EXPECT_NE(name(one), name(two));
}

TEST(Tokenize, WrongBytesAreReplacedAndCounted) {
  TempDir in;
  TempDir out;
  put(in, "a.txt",
      "a\xff"
      "b \xef\xbf\xbd\n\xe6\xbc");
  const auto report = tokenize(inputs(in.path()), test_tokenizer(), out.path(), {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_GE(report->replaced, 2u);
  EXPECT_THAT(documents(out.path())[0], StartsWith("a\xef\xbf\xbd"
                                                   "b \xef\xbf\xbd\n"));
}

TEST(Tokenize, RefusesOldShardsAndEmptyInput) {
  TempDir in;
  TempDir out;
  put(in, "empty.txt", "");
  EXPECT_EQ(tokenize(inputs(in.path()), test_tokenizer(), out.path(), {}).error().code,
            ErrorCode::failed_precondition);
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
  put(in, "a.txt", "text");
  ASSERT_TRUE(tokenize(inputs(in.path()), test_tokenizer(), out.path(), {}));
  EXPECT_THAT(tokenize(inputs(in.path()), test_tokenizer(), out.path(), {}).error().message,
              HasSubstr("holds shards"));
}

TEST(Tokenize, AnErrorLeavesNoShard) {
  TempDir in;
  TempDir out;
  put(in, "a.txt", test_text());
  put(in, "b.txt", test_text());
  auto files = inputs(in.path());
  files.push_back({in / "gone.txt", "gone.txt", 1});
  const auto report = tokenize(files, test_tokenizer(), out.path(), {.shard_tokens = 1, .progress = {}});
  EXPECT_EQ(report.error().code, ErrorCode::not_found);
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
}

}  // namespace
}  // namespace muster::text
