// Corpora of JSON lines, compressed or not, into shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/detail/coding.h"
#include "text/testing.h"
#include "text/tokenize.h"

namespace muster::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  out.resize(::ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ::ZSTD_freeCCtx(context);
  return out;
}

std::string line(const std::string& text) {
  return json::dump(json::Object{{"id", 7}, {"text", text}}) + "\n";
}

// `documents` of random words, as JSON lines.
std::string some_lines(int documents, std::uint64_t seed) {
  Rng rng(seed);
  std::string out;
  for (int i = 0; i < documents; ++i) {
    out += line("document " + std::to_string(i) + " of " + std::to_string(seed) + ": " +
                test_text().substr(rng.below(50'000), rng.below(3000)) + "\n");
  }
  return out;
}

// A folder of input files and a folder for shards.
struct Corpus {
  TempDir in;
  TempDir out;
  void put(const std::string& name, std::string_view content) const {
    ASSERT_TRUE(write_file_atomic(in / name, content));
  }
  Result<TokenizeReport> tokenize(const TokenizeOptions& options = {}, const std::string& to = "out") const {
    const auto inputs = list_inputs({in.path()});
    return text::tokenize(*inputs, test_tokenizer(), out / to, options);
  }
  std::vector<std::string> documents(const std::string& folder = "out") const {
    std::vector<std::string> all;
    const auto set = ShardSet::open(out / folder);
    EXPECT_TRUE(set) << set.error().message;
    if (!set) return all;
    EXPECT_TRUE(set->verify());
    for (std::uint64_t d = 0; d < set->documents(); ++d) {
      std::vector<TokenId> ids((d + 1 < set->documents() ? set->document_begin(d + 1) : set->size()) -
                               set->document_begin(d));
      EXPECT_TRUE(set->read(set->document_begin(d), ids));
      all.push_back(*test_tokenizer().decode(ids));
      EXPECT_EQ(set->document_bytes(d), all.back().size());
    }
    return all;
  }
  std::map<std::string, std::string> files(const std::string& folder) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out / folder)) {
      if (entry.is_regular_file()) all[entry.path().filename().string()] = *read_file(entry.path().string());
    }
    return all;
  }
};

TEST(JsonLines, ADocumentALine) {
  Corpus corpus;
  corpus.put("a.jsonl", "\xef\xbb\xbf" + line("the light\n") + "\r\n\n" + line("") +
                            line(" \xe6\xbc\xa2 \"and\"") + R"({"text": "evening"})");
  corpus.put("b.txt", line("plain"));
  const auto report = corpus.tokenize();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_THAT(corpus.documents(),
              ElementsAre("the light\n", " \xe6\xbc\xa2 \"and\"", "evening", line("plain")));
  EXPECT_EQ(report->documents, 4u);
  EXPECT_EQ(report->empty_documents, 1u);
  EXPECT_EQ(report->bad_lines, 0u);
  corpus.put("b.txt", R"({"body": "named otherwise"})");
  corpus.put("a.jsonl", R"({"body": "and here"})");
  ASSERT_TRUE(corpus.tokenize({.json_lines = true, .text_field = "body"}, "forced"));
  EXPECT_THAT(corpus.documents("forced"), ElementsAre("and here", "named otherwise"));
}

TEST(JsonLines, CompressedFilesAreTheSame) {
  Corpus corpus;
  const auto text = some_lines(700, 1);
  const auto half = text.find('\n', text.size() / 2) + 1;
  corpus.put("a.jsonl", text);
  ASSERT_TRUE(corpus.tokenize());
  const auto documents = corpus.documents();
  ASSERT_EQ(documents.size(), 700u);
  std::filesystem::remove(corpus.in / "a.jsonl");
  corpus.put("a.jsonl.gz", gzip(text.substr(0, half)) + gzip(text.substr(half)));  // two members
  auto report = corpus.tokenize({}, "gz");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->file_bytes, std::filesystem::file_size(corpus.in / "a.jsonl.gz"));
  EXPECT_EQ(corpus.documents("gz"), documents);
  std::filesystem::remove(corpus.in / "a.jsonl.gz");
  corpus.put("a.jsonl.zst", zstd(text.substr(0, half)) + zstd(text.substr(half)));
  report = corpus.tokenize({}, "zst");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(corpus.documents("zst"), documents);
}

TEST(JsonLines, TheOutputDoesNotDependOnThreads) {
  Corpus corpus;
  corpus.put("a.jsonl", some_lines(2000, 1));
  corpus.put("b.jsonl.gz", gzip(some_lines(500, 2)));
  corpus.put("c.jsonl.zst", zstd(some_lines(500, 3)));
  for (int i = 0; i < 30; ++i) corpus.put("d" + std::to_string(i) + ".txt", test_text().substr(0, 1000));
  corpus.put("e.txt", test_text() + std::string(100, '\n') + test_text());
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 7}) {
    const auto to = std::to_string(threads);
    const auto report = corpus.tokenize({.held_out = 0.1, .shard_tokens = 50'000, .threads = threads}, to);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->files_without_text, 0u);
    if (first.empty()) first = corpus.files(to);
    EXPECT_EQ(corpus.files(to), first) << threads << " threads";
  }
  EXPECT_GT(first.size(), 5u);
}

TEST(JsonLines, BadLinesEndTheRunAndAreShown) {
  Corpus corpus;
  corpus.put("a.jsonl", line("good") + "{\"text\": \"cut\n" + "[1]\n" + line("good") + "{\"txt\": 1}\n" +
                            "{\"text\": 1}\n" + "{\"text\": \"\xff\"}\n");
  const auto path = corpus.in / "a.jsonl";
  const auto refused = corpus.tokenize();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::corrupt);
  EXPECT_THAT(refused.error().message, StartsWith("5 bad lines:\n  " + path + " line 2: malformed JSON"));
  EXPECT_THAT(refused.error().message, HasSubstr(path + " line 3: it is no JSON object\n"));
  EXPECT_THAT(refused.error().message, HasSubstr(path + " line 5: it has no field \"text\"\n"));
  EXPECT_THAT(refused.error().message, HasSubstr(path + " line 6: field \"text\" is no string\n"));
  EXPECT_THAT(refused.error().message, HasSubstr(path + " line 7: it is not UTF-8\n"));
  EXPECT_THAT(refused.error().message, HasSubstr("--skip-bad-lines"));
  EXPECT_TRUE(corpus.files("out").empty());
  const auto report = corpus.tokenize({.skip_bad_lines = true});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->bad_lines, 5u);
  EXPECT_EQ(report->first_bad_lines.size(), 5u);
  EXPECT_THAT(corpus.documents(), ElementsAre("good", "good"));
}

TEST(JsonLines, WhereAllLinesAreLeftOutTheyAreCountedAndTheFirstIsShown) {
  Corpus corpus;
  corpus.put("a.jsonl", line("") + "[1]\n{}\n");
  const auto nothing = corpus.tokenize({.skip_bad_lines = true});
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, ErrorCode::failed_precondition);
  EXPECT_EQ(
      nothing.error().message,
      "no text in 1 input file: there is nothing to tokenise; 1 line with an empty text; 2 bad lines left "
      "out (--skip-bad-lines), the first:\n  " +
          corpus.in / "a.jsonl" + " line 2: it is no JSON object");
}

TEST(JsonLines, OneBadLineIsSaidAsOne) {
  Corpus corpus;
  corpus.put("a.jsonl", line("good") + "[1]\n");
  EXPECT_THAT(corpus.tokenize().error().message, StartsWith("1 bad line:\n  "));
}

TEST(JsonLines, OnlyTheFirstBadLinesAreShown) {
  Corpus corpus;
  std::string text = line("good");
  for (int i = 0; i < 100; ++i) text += "bad\n";
  corpus.put("a.jsonl", text);
  EXPECT_THAT(corpus.tokenize().error().message, StartsWith("100 bad lines and perhaps more; the first:\n"));
  EXPECT_THAT(corpus.tokenize().error().message, ::testing::Not(HasSubstr("line 12")));
  const auto report = corpus.tokenize({.skip_bad_lines = true});
  EXPECT_EQ(report->bad_lines, 100u);
  EXPECT_EQ(report->first_bad_lines.size(), kBadLinesShown);
}

TEST(JsonLines, LinesAboveTheLimitAreBad) {
  Corpus corpus;
  corpus.put("a.jsonl",
             line("good") + line(std::string(3'000'000, 'x')) + line("good") + line(std::string(200, 'y')));
  const auto report = corpus.tokenize({.line_bytes_max = 100, .skip_bad_lines = true});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->bad_lines, 2u);
  EXPECT_THAT(report->first_bad_lines[0], HasSubstr("line 2: it has 2.9 MiB, the limit is 100 B"));
  EXPECT_THAT(report->first_bad_lines[1], HasSubstr("line 4"));
  EXPECT_THAT(corpus.documents(), ElementsAre("good", "good"));
}

TEST(HeldOut, ADocumentIsWhereItsTextSays) {
  Corpus corpus;
  corpus.put("a.jsonl", some_lines(2000, 1));
  const auto report = corpus.tokenize({.held_out = 0.1}, "one");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->documents, 2000u);
  EXPECT_NEAR(static_cast<double>(report->held_out_documents), 200, 60);
  auto train = corpus.documents("one/train");
  auto held_out = corpus.documents("one/held-out");
  EXPECT_EQ(train.size() + held_out.size(), 2000u);
  EXPECT_EQ(held_out.size(), report->held_out_documents);
  // Another order, over other files, one of them of plain text.
  std::filesystem::remove(corpus.in / "a.jsonl");
  std::string first;
  for (std::size_t i = 0; i < held_out.size(); i += 2) first += line(held_out[i]);
  for (std::size_t i = 1; i < train.size(); ++i) first += line(train[i]);
  for (std::size_t i = 1; i < held_out.size(); i += 2) first += line(held_out[i]);
  corpus.put("z.jsonl", first);
  corpus.put("b.txt", train[0]);
  ASSERT_TRUE(corpus.tokenize({.held_out = 0.1}, "two"));
  auto again = corpus.documents("two/held-out");
  std::sort(held_out.begin(), held_out.end());
  std::sort(again.begin(), again.end());
  EXPECT_EQ(again, held_out);
}

TEST(HeldOut, LongDocumentsOfTextAreDecidedOnce) {
  Corpus corpus;
  std::string longer;
  while (longer.size() < 3'000'000) longer += test_text();
  for (int i = 0; i < 8; ++i) corpus.put("t" + std::to_string(i) + ".txt", std::to_string(i) + longer);
  for (int i = 0; i < 8; ++i)
    corpus.put("z" + std::to_string(i) + ".jsonl", line(std::to_string(i) + longer));
  ASSERT_TRUE(corpus.tokenize({.held_out = 0.5}));
  const auto held_out = corpus.documents("out/held-out");
  const auto train = corpus.documents("out/train");
  ASSERT_EQ(held_out.size() + train.size(), 16u);
  std::map<std::string, int> times;
  for (const auto& document : held_out) ++times[document];
  for (const auto& [document, count] : times) EXPECT_EQ(count, 2) << document[0];
}

// Whatever is wrong with a compressed file, it is said with its name and the place, and no shard is left.
TEST(Compressed, EveryTruncationAndEveryFlippedByteIsFound) {
  const auto text = line("the light was good") + line("and the evening");
  for (const auto& [name, good] :
       std::map<std::string, std::string>{{"a.jsonl.gz", gzip(text)}, {"a.jsonl.zst", zstd(text)}}) {
    Corpus corpus;
    corpus.put(name, good);
    ASSERT_TRUE(corpus.tokenize({}, "good"));
    const auto documents = corpus.documents("good");
    int found = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
      corpus.put(name, good.substr(0, at));
      const auto truncated = corpus.tokenize();
      ASSERT_FALSE(truncated) << name << " of " << at << " bytes";
      EXPECT_EQ(truncated.error().code, ErrorCode::corrupt) << truncated.error().message;
      EXPECT_THAT(truncated.error().message, HasSubstr(name + ": "));
      EXPECT_THAT(truncated.error().message,
                  HasSubstr("damaged at byte " + std::to_string(at) + " of the file"));
      EXPECT_THAT(truncated.error().message, HasSubstr("truncated"));
      auto bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      corpus.put(name, bad);
      const auto flipped = corpus.tokenize();
      if (!flipped) {
        ++found;
        EXPECT_THAT(flipped.error().message, HasSubstr(name));
        EXPECT_TRUE(corpus.files("out").empty());
      } else {  // bits of the gzip header that mean nothing: time, system
        EXPECT_EQ(corpus.documents(), documents) << name << " byte " << at;
        std::filesystem::remove_all(corpus.out / "out");
      }
    }
    EXPECT_GT(found, static_cast<int>(good.size()) - 8);
    corpus.put(name, good + "rubbish");
    EXPECT_EQ(corpus.tokenize().error().code, ErrorCode::corrupt);
  }
}

TEST(Tokenize, ProgressMayStopIt) {
  Corpus corpus;
  corpus.put("a.jsonl", some_lines(3000, 1));
  std::vector<std::uint64_t> seen;
  const auto stopped =
      corpus.tokenize({.shard_tokens = 300'000, .progress = [&](const TokenizeReport& report) {
                         seen.push_back(report.file_bytes);
                         return seen.size() < 3;
                       }});
  EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_LT(seen[0], seen[1]);
  EXPECT_TRUE(corpus.files("out").empty());
}

}  // namespace
}  // namespace muster::text
