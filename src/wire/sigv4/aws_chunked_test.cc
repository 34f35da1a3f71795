#include "wire/sigv4/aws_chunked.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crypto.h"

namespace muster::wire::sigv4 {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;

// The example of the S3 documentation: 66,560 times 'a' in chunks of 65,536.
constexpr std::string_view kSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const std::string kBody(66560, 'a');

Claim claim_with(std::string signature) {
  Claim claim;
  claim.scope = {"20130524", "us-east-1", "s3"};
  claim.time = *parse_compact("20130524T000000Z");
  claim.signature = std::move(signature);
  return claim;
}

std::string chunk(std::string_view hex_size, std::string_view signature, std::string_view data) {
  return std::string(hex_size) + ";chunk-signature=" + std::string(signature) + "\r\n" + std::string(data);
}

const Claim kSeed = claim_with("4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9");
const std::string kSigned =
    chunk("10000", "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
          kBody.substr(0, 65536) + "\r\n") +
    chunk("400", "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
          kBody.substr(0, 1024) + "\r\n") +
    chunk("0", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9", "\r\n");

const Claim kTrailerSeed = claim_with("106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e");
const std::string kSignedTrailer =
    chunk("10000", "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
          kBody.substr(0, 65536) + "\r\n") +
    chunk("400", "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
          kBody.substr(0, 1024) + "\r\n") +
    chunk("0", "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992", "") +
    "x-amz-checksum-crc32c:sOO8/Q==\r\n"
    "x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n";

Result<std::string> decode(Framing framing, const Claim& claim, std::string_view wire, std::size_t step) {
  AwsChunkedDecoder decoder(framing, claim, kSecret);
  std::string out;
  for (std::size_t at = 0; at < wire.size(); at += step) {
    MUSTER_CHECK(decoder.feed(wire.substr(at, step), out));
  }
  if (!decoder.finished()) return fail(ErrorCode::unavailable, "unfinished");
  EXPECT_EQ(decoder.decoded_bytes(), out.size());
  return out;
}

TEST(AwsChunked, PublishedExampleInPiecesOfAnySize) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, kSigned.size()}) {
    const auto out = decode(Framing::signed_chunks, kSeed, kSigned, step);
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ(*out, kBody);
  }
}

TEST(AwsChunked, PublishedExampleWithTrailers) {
  AwsChunkedDecoder decoder(Framing::signed_chunks_trailer, kTrailerSeed, kSecret);
  std::string out;
  const auto fed = decoder.feed(kSignedTrailer, out);
  ASSERT_TRUE(fed) << fed.error().message;
  EXPECT_TRUE(decoder.finished());
  EXPECT_EQ(out, kBody);
  EXPECT_THAT(decoder.trailers(), ::testing::ElementsAre(Pair("x-amz-checksum-crc32c", "sOO8/Q==")));
}

TEST(AwsChunked, UnsignedTrailer) {
  AwsChunkedDecoder decoder(Framing::unsigned_trailer, Claim{}, "");
  std::string out;
  ASSERT_TRUE(decoder.feed("5\r\nhello\r\n6\r\n world\r\n0\r\nX-Amz-Checksum-CRC32:DUoRhQ==\r\n\r\n", out));
  EXPECT_TRUE(decoder.finished());
  EXPECT_EQ(out, "hello world");
  EXPECT_THAT(decoder.trailers(), ::testing::ElementsAre(Pair("x-amz-checksum-crc32", "DUoRhQ==")));
}

TEST(AwsChunked, EmptyBody) {
  const auto wire = encode_signed_chunks("", 65536, kSeed.scope, kSeed.time, kSecret, kSeed.signature);
  const auto out = decode(Framing::signed_chunks, kSeed, wire, 3);
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ(*out, "");
}

TEST(AwsChunked, EncoderMakesThePublishedBytes) {
  EXPECT_EQ(encode_signed_chunks(kBody, 65536, kSeed.scope, kSeed.time, kSecret, kSeed.signature), kSigned);
}

TEST(AwsChunked, EveryFlippedByteIsRefused) {
  const auto small =
      encode_signed_chunks("some content", 5, kSeed.scope, kSeed.time, kSecret, kSeed.signature);
  for (std::size_t i = 0; i < small.size(); ++i) {
    auto wire = small;
    wire[i] = static_cast<char>(wire[i] ^ 1);
    EXPECT_FALSE(decode(Framing::signed_chunks, kSeed, wire, wire.size())) << "byte " << i;
  }
}

TEST(AwsChunked, TruncationIsNeverFinished) {
  for (std::size_t length = 0; length < kSignedTrailer.size(); length += length < 65000 ? 5003 : 1) {
    AwsChunkedDecoder decoder(Framing::signed_chunks_trailer, kTrailerSeed, kSecret);
    std::string out;
    EXPECT_TRUE(decoder.feed(std::string_view(kSignedTrailer).substr(0, length), out)) << length;
    EXPECT_FALSE(decoder.finished()) << length;
  }
}

TEST(AwsChunked, BrokenFraming) {
  struct Broken {
    Framing framing;
    std::string wire;
    ErrorCode code;
    const char* says;
  };
  constexpr auto kBad = ErrorCode::invalid_argument;
  const Broken table[] = {
      {Framing::unsigned_trailer, "zz\r\n", kBad, "not hexadecimal"},
      {Framing::unsigned_trailer, "\r\n", kBad, "not hexadecimal"},
      {Framing::unsigned_trailer, "-1\r\n", kBad, "not hexadecimal"},
      {Framing::unsigned_trailer, "fffffffffffffffff\r\n", kBad, "not hexadecimal"},
      {Framing::unsigned_trailer, "2\r\nabc\r\n", kBad, "longer than its size"},
      {Framing::unsigned_trailer, "2\nab\r\n", kBad, "CR LF"},
      {Framing::unsigned_trailer, std::string(9000, '1'), kBad, "8 KiB"},
      {Framing::unsigned_trailer, "0\r\nno colon\r\n", kBad, "without ':'"},
      {Framing::unsigned_trailer, "0\r\n\r\nmore", kBad, "after the end"},
      {Framing::signed_chunks, "5\r\nhello\r\n", kBad, "without chunk-signature"},
      {Framing::signed_chunks, "1;chunk-signature=00\r\na\r\n", ErrorCode::unauthenticated, "does not match"},
      {Framing::signed_chunks_trailer, "0;chunk-signature=00\r\n", ErrorCode::unauthenticated,
       "does not match"},
  };
  for (const auto& bad : table) {
    const auto out = decode(bad.framing, kSeed, bad.wire, bad.wire.size());
    ASSERT_FALSE(out) << bad.wire.substr(0, 40);
    EXPECT_EQ(out.error().code, bad.code) << bad.wire.substr(0, 40);
    EXPECT_THAT(out.error().message, HasSubstr(bad.says));
  }
  const std::string many = "0\r\n" + [] {
    std::string lines;
    for (int i = 0; i < 300; ++i)
      lines += "x-trailer-of-some-length-" + std::to_string(i) + ": " + std::string(60, 'v') + "\r\n";
    return lines;
  }();
  EXPECT_THAT(decode(Framing::unsigned_trailer, kSeed, many, many.size()).error().message,
              HasSubstr("16 KiB"));
}

TEST(AwsChunked, TrailersMustBeSigned) {
  auto wire = kSignedTrailer;
  const auto at = wire.find("x-amz-trailer-signature");
  wire = wire.substr(0, at) + "\r\n";
  EXPECT_THAT(decode(Framing::signed_chunks_trailer, kTrailerSeed, wire, 999).error().message,
              HasSubstr("lack x-amz-trailer-signature"));
}

TEST(AwsChunked, Words) {
  EXPECT_EQ(framing_of("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), Framing::unsigned_trailer);
  EXPECT_EQ(framing_of("UNSIGNED-PAYLOAD"), std::nullopt);
}

}  // namespace
}  // namespace muster::wire::sigv4
