#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <random>

#include "base/crypto.h"
#include "base/file.h"
#include "base/json.h"
#include "base/notes.h"
#include "base/rng.h"
#include "base/s3_uri.h"
#include "base/sqlite.h"
#include "base/text.h"
#include "base/time.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Text, SplitKeepsEmptyParts) { EXPECT_THAT(split("a,,b,", ','), ElementsAre("a", "", "b", "")); }

TEST(Text, ClosestOffersOnlyNearNames) {
  EXPECT_EQ(closest("learning_rat", {"learning_rate", "layers"}), "learning_rate");
  EXPECT_EQ(closest("zzz", {"learning_rate", "layers"}), "");
}

TEST(Text, PercentCodingRoundTripsEveryByte) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(percent_decode(percent_encode(all)), all);
  EXPECT_EQ(percent_encode("a/b +é", "/"), "a/b%20%2B%C3%A9");
  EXPECT_EQ(percent_decode("%4"), std::nullopt);
  EXPECT_EQ(percent_decode("%zz"), std::nullopt);
}

TEST(Text, Utf8) {
  EXPECT_TRUE(is_utf8("é漢😀"));
  EXPECT_FALSE(is_utf8("\xc0\xaf"));          // overlong
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));      // surrogate
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_EQ(to_utf8_lossy("a\xff"
                          "b"),
            "a\xef\xbf\xbd"
            "b");
}

TEST(Text, WhatXmlCannotCarry) {
  for (const auto* fine : {"", "a\t\n\r\x7f", "\xc2\x85", "\xef\xbf\xbd", "é漢😀"}) {
    EXPECT_EQ(to_xml_lossy(fine), fine);
    EXPECT_TRUE(is_xml(fine));
  }
  const std::string odd[] = {std::string(1, '\0'), "\x01",         "\x0b", "\x1f",
                             "\xef\xbf\xbe",       "\xef\xbf\xbf", "\xff"};
  for (const auto& one : odd) {
    EXPECT_EQ(to_xml_lossy("a" + one + "b"),
              "a\xef\xbf\xbd"
              "b");
    EXPECT_FALSE(is_xml(one));
  }
}

TEST(Text, ClipsByCharacters) {
  EXPECT_EQ(clip_characters("abcdef", 6), "abcdef");
  EXPECT_EQ(clip_characters("abcdefg", 6), "abcdef");
  EXPECT_EQ(clip_characters("abcdef", 6, "..."), "abcdef");
  EXPECT_EQ(clip_characters("abcdefg", 6, "..."), "abc...");
  EXPECT_EQ(clip_characters("abcdefg", 3, "..."), "...");
  EXPECT_EQ(clip_characters("é漢😀é", 3), "é漢😀");
  EXPECT_EQ(clip_characters("é漢😀é", 3, "."), "é漢.");
  EXPECT_EQ(clip_characters("a\xff\xe6\xbc", 3), "a\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(clip_characters("", 0), "");
  EXPECT_EQ(clip_characters("a", 0), "");
}

TEST(Text, ParseIntRefusesRestAndOverflow) {
  EXPECT_EQ(parse_int("-12"), -12);
  EXPECT_EQ(parse_int("12x"), std::nullopt);
  EXPECT_EQ(parse_int("99999999999999999999"), std::nullopt);
  EXPECT_EQ(parse_int(""), std::nullopt);
}

TEST(TimeFormat, RoundTrips) {
  const Time time{1'796'056'918'123};
  EXPECT_EQ(parse_iso8601(format_iso8601_millis(time)), time);
  EXPECT_EQ(parse_compact(format_compact(time))->unix_ms, time.unix_ms / 1000 * 1000);
  EXPECT_EQ(parse_http_date(format_http_date(time))->unix_ms, time.unix_ms / 1000 * 1000);
  EXPECT_EQ(format_http_date(Time{784111777000}), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(parse_iso8601("2026-11-29"), std::nullopt);
}

TEST(Crypto, CrcsOfTwoHalvesMakeTheCrcOfTheWhole) {
  using crypto::Digest;
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += static_cast<char>(i * 31 + i / 7);
  for (const auto kind : {Digest::crc32, Digest::crc32c, Digest::crc64nvme}) {
    for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{777}, text.size()}) {
      const auto first = std::string_view(text).substr(0, cut);
      const auto second = std::string_view(text).substr(cut);
      EXPECT_EQ(crypto::combine_crcs(kind, crypto::digest(kind, first), crypto::digest(kind, second),
                                     second.size()),
                crypto::digest(kind, text))
          << to_string(kind) << " cut at " << cut;
    }
  }
}

TEST(Crypto, PublishedDigests) {
  // FIPS 180-2, RFC 4231 case 2, the check values of the CRC catalogue for "123456789".
  EXPECT_EQ(crypto::hex(crypto::sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(crypto::hex(crypto::hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(crypto::hex(crypto::digest(crypto::Digest::crc32, "123456789")), "cbf43926");
  EXPECT_EQ(crypto::hex(crypto::digest(crypto::Digest::crc32c, "123456789")), "e3069283");
  EXPECT_EQ(crypto::hex(crypto::digest(crypto::Digest::crc64nvme, "123456789")), "ae8b14860a799888");
  EXPECT_EQ(crypto::hex(crypto::digest(crypto::Digest::md5, "abc")), "900150983cd24fb0d6963f7d28e17f72");
}

TEST(Crypto, CrcIsTheSameInPieces) {
  std::string data;
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) data += static_cast<char>(rng.below(256));
  for (const auto kind : {crypto::Digest::crc32, crypto::Digest::crc32c, crypto::Digest::crc64nvme}) {
    crypto::Hasher hasher(kind);
    hasher.update(std::string_view(data).substr(0, 333));
    hasher.update(std::string_view(data).substr(333));
    EXPECT_EQ(hasher.finish(), crypto::digest(kind, data));
  }
}

TEST(Crypto, SealedValuesOpenOnlyWithTheirKeyAndContext) {
  const auto key = crypto::random_bytes(32);
  auto sealed = crypto::seal(key, "secret", "key/1");
  EXPECT_EQ(crypto::open(key, sealed, "key/1").value(), "secret");
  EXPECT_FALSE(crypto::open(key, sealed, "key/2"));
  EXPECT_FALSE(crypto::open(crypto::random_bytes(32), sealed, "key/1"));
  sealed[14] = static_cast<char>(sealed[14] ^ 1);
  EXPECT_EQ(crypto::open(key, sealed, "key/1").error().code, ErrorCode::corrupt);
}

TEST(Crypto, Base64) {
  EXPECT_EQ(crypto::base64("foob"), "Zm9vYg==");
  EXPECT_EQ(crypto::base64_decode("Zm9vYg=="), "foob");
  EXPECT_EQ(crypto::base64_decode("Zm9v!!=="), std::nullopt);
  EXPECT_EQ(crypto::base64url_decode(crypto::base64url("\xff\xfe?")), "\xff\xfe?");
}

TEST(S3Uri, IsReadToTheByte) {
  const struct {
    const char* text;
    const char* answer;
  } kCases[] = {
      {"s3://b/k/x", "b|k/x"},
      {"s3://b", "b|"},
      {"s3://b/", "b|"},
      {"s3://b//k", "b|/k"},  // another object than s3://b/k
      {"s3://b/k/", "b|k/"},
      {"s3:///k", "\"s3:///k\" names no bucket (s3://BUCKET/KEY)"},
      {"s3://", "names no bucket"},
      {"s3:/b/k", "must begin with s3://"},
      {"https://b/k", "must begin with s3://"},
      {"", "must begin with s3://"},
  };
  for (const auto& c : kCases) {
    const auto location = parse_s3_uri(c.text);
    const auto answer = location ? location->bucket + "|" + location->key : location.error().message;
    EXPECT_THAT(answer, HasSubstr(c.answer)) << c.text;
  }
  EXPECT_EQ(to_string(S3Location{"b", "/k"}), "s3://b//k");
  EXPECT_EQ(to_string(S3Location{"b", ""}), "s3://b/");
  EXPECT_EQ(to_string(S3Location{}), "s3://");
}

TEST(File, AtomicWriteReplacesWholeFiles) {
  const TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "a", "one"));
  ASSERT_TRUE(write_file_atomic(dir / "a", "two"));
  EXPECT_EQ(read_file(dir / "a").value(), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
  EXPECT_EQ(write_file_atomic(dir / "none/a", "x").error().code, ErrorCode::not_found);
  EXPECT_EQ(read_file(dir / "a", 2).error().code, ErrorCode::resource_exhausted);
}

TEST(File, AFullDiskHasACodeOfItsOwn) {
  const auto full = open_file("/dev/full", O_WRONLY);
  ASSERT_TRUE(full);
  EXPECT_EQ(write_all(full->get(), "x").error().code, ErrorCode::no_space);
  EXPECT_EQ(fail_errno("write", EDQUOT).value().code, ErrorCode::no_space);
}

TEST(File, WhatIsNoRegularFileIsRefusedAndHoldsNobodyUp) {
  const TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "a", "one"));
  EXPECT_EQ(read_regular_file(dir / "a").value(), "one");
  EXPECT_EQ(read_regular_file(dir / "a", 2).error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(read_regular_file(dir / "none").error().code, ErrorCode::not_found);
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  const std::pair<std::string, std::string> others[] = {
      {dir / "fifo", "a FIFO"}, {dir.path(), "a folder"}, {"/dev/null", "a device or a socket"}};
  for (const auto& [path, what] : others) {
    const auto read = read_regular_file(path);
    ASSERT_FALSE(read) << path;
    EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(read.error().message, path + " is " + what + "; a regular file is needed");
  }
}

TEST(File, LockIsExclusive) {
  const TempDir dir;
  auto first = FileLock::acquire(dir / "lock");
  ASSERT_TRUE(first);
  EXPECT_EQ(FileLock::acquire(dir / "lock").error().code, ErrorCode::failed_precondition);
}

TEST(File, MakeDirectoriesRefusesAFileInTheWay) {
  const TempDir dir;
  ASSERT_TRUE(make_directories(dir / "a/b/c"));
  ASSERT_TRUE(make_directories(dir / "a/b/c"));
  ASSERT_TRUE(write_file_atomic(dir / "f", "x"));
  EXPECT_FALSE(make_directories(dir / "f"));
}

TEST(Json, ErrorsSayWhere) {
  EXPECT_THAT(json::parse("{\"a\": }").error().message, HasSubstr("malformed JSON"));
  EXPECT_FALSE(json::parse("{} {}"));
  EXPECT_FALSE(json::parse(std::string(100, '[')));
  const auto object = json::parse_object(R"({"a": "x", "n": 3, "z": null})").value();
  EXPECT_EQ(json::get_string(object, "a").value(), "x");
  EXPECT_THAT(json::get_int(object, "a").error().message, HasSubstr("a must be an integer, not \"x\""));
  EXPECT_THAT(json::get_int(object, "z").error().message, HasSubstr("z is missing"));
}

TEST(Json, NumbersAreTheNearestDoubles) {
  const auto read = [](std::string_view text) { return json::parse(text).value().as_double(); };
  EXPECT_EQ(read("0.1"), 0.1);
  EXPECT_EQ(read("-2.5e-3"), -2.5e-3);
  EXPECT_EQ(read("1E+22"), 1e22);
  EXPECT_EQ(read(" 4.35 "), 4.35);
  EXPECT_EQ(read("9007199254740993.0"), 9007199254740992.0);
  EXPECT_EQ(read("1e-400"), 0);
  EXPECT_TRUE(std::isinf(read("1e400")));
  EXPECT_EQ(json::parse("-7").value().as_int64(), -7);
  EXPECT_EQ(json::parse("18446744073709551615").value().as_uint64(), UINT64_MAX);
  for (const char* text : {"1.", ".5", "1e", "+1.0", "0x1", "01.5", "nan", "1.5.2", "-"})
    EXPECT_FALSE(json::parse(text)) << text;
  const auto list = json::parse("[0.3,{\"a\":1.7e5},-0.7]").value();
  EXPECT_EQ(json::dump(list), "[3E-1,{\"a\":1.7E5},-7E-1]");

  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  Rng rng(seed);
  for (int i = 0; i < 100'000; ++i) {
    const auto number = std::bit_cast<double>(rng.next());
    if (!std::isfinite(number)) continue;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(read(json::dump(number))), std::bit_cast<std::uint64_t>(number))
        << json::dump(number) << ", seed " << seed;
  }
}

TEST(Sqlite, TransactionsRollBackUnlessCommitted) {
  const TempDir dir;
  auto database = sqlite::Database::open(dir / "db").value();
  ASSERT_TRUE(database.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)"));
  auto insert = database.prepare("INSERT INTO t VALUES(?, ?)").value();
  {
    auto transaction = sqlite::Transaction::begin(database).value();
    ASSERT_TRUE(insert.bind(1, std::int64_t{1}).bind_blob(2, std::string_view("x\0y", 3)).run());
  }
  auto count = database.prepare("SELECT count(*) FROM t").value();
  ASSERT_TRUE(count.step().value());
  EXPECT_EQ(count.integer(0), 0);
  count.reset();
  auto transaction = sqlite::Transaction::begin(database).value();
  ASSERT_TRUE(insert.bind(1, std::int64_t{1}).bind_blob(2, std::string_view("x\0y", 3)).run());
  ASSERT_TRUE(transaction.commit());
  EXPECT_EQ(insert.bind(1, std::int64_t{1}).bind_null(2).run().error().code, ErrorCode::already_exists);
  auto select = database.prepare("SELECT b FROM t").value();
  ASSERT_TRUE(select.step().value());
  EXPECT_EQ(select.blob(0), std::string_view("x\0y", 3));
}

TEST(Notes, TheSameTextIsSaidOnceAMinuteAndCounted) {
  Millis now{0};
  std::vector<std::string> said;
  Notes notes([&](std::string_view line) { said.emplace_back(line); }, [&] { return now; });
  for (int i = 0; i < 3; ++i) notes.say("disk\nfull");
  notes.say("other");
  now += Notes::kQuiet;
  for (int i = 0; i < 2; ++i) notes.say("disk\nfull");
  EXPECT_THAT(said, ElementsAre("disk full", "other", "disk full (and 2 times more since it was said)"));
}

TEST(Notes, ManyTextsAreCountedOnly) {
  Millis now{0};
  std::vector<std::string> said;
  Notes notes([&](std::string_view line) { said.emplace_back(line); }, [&] { return now; });
  for (std::size_t i = 0; i < Notes::kTextsMax + 5; ++i) notes.say("entry " + std::to_string(i));
  EXPECT_EQ(said.size(), Notes::kTextsMax);
  now += Notes::kQuiet;
  notes.say("later");
  EXPECT_EQ(said.back(), "later (5 other lines were left out)");
}

TEST(Rng, BelowIsInRangeAndRepeatable) {
  Rng a(7);
  Rng b(7);
  for (int i = 0; i < 1000; ++i) {
    const auto value = a.below(10);
    EXPECT_LT(value, 10U);
    EXPECT_EQ(value, b.below(10));
  }
}

}  // namespace
}  // namespace muster
