#include "api/s3/detail/request.h"

#include <gtest/gtest.h>

namespace muster::api::s3 {
namespace {

// "first+length", "all" for no usable range, or the code of the refusal.
std::string range(std::string_view header, std::uint64_t size = 10) {
  const auto parsed = parse_range(header, size);
  if (!parsed) return parsed.error().code + " " + std::to_string(parsed.error().status);
  if (!*parsed) return "all";
  return std::to_string((*parsed)->first) + "+" + std::to_string((*parsed)->length);
}

constexpr const char* kNotThere = "InvalidRange 416";

TEST(Range, IsCutOffAtTheEndOfTheObject) {
  EXPECT_EQ(range("bytes=2-4"), "2+3");
  EXPECT_EQ(range("bytes=2-"), "2+8");
  EXPECT_EQ(range("bytes=0-9"), "0+10");
  EXPECT_EQ(range("bytes=0-10"), "0+10");
  EXPECT_EQ(range("bytes=9-18446744073709551615"), "9+1");
  EXPECT_EQ(range("bytes=0-18446744073709551616"), "0+10");
  EXPECT_EQ(range("bytes=0-99999999999999999999"), "0+10");
  EXPECT_EQ(range(" bytes= 2 - 4 "), "2+3");
}

TEST(Range, BeyondTheEndIsRefused) {
  EXPECT_EQ(range("bytes=10-"), kNotThere);
  EXPECT_EQ(range("bytes=10-20"), kNotThere);
  EXPECT_EQ(range("bytes=9223372036854775808-"), kNotThere);
  EXPECT_EQ(range("bytes=99999999999999999999-"), kNotThere);
  EXPECT_EQ(range("bytes=99999999999999999998-99999999999999999999"), kNotThere);
  EXPECT_EQ(range("bytes=0-", 0), kNotThere);
}

TEST(Range, ASuffixCountsFromTheEnd) {
  EXPECT_EQ(range("bytes=-4"), "6+4");
  EXPECT_EQ(range("bytes=-10"), "0+10");
  EXPECT_EQ(range("bytes=-11"), "0+10");
  EXPECT_EQ(range("bytes=-99999999999999999999"), "0+10");
  EXPECT_EQ(range("bytes=-0"), kNotThere);
  EXPECT_EQ(range("bytes=-4", 0), kNotThere);
}

TEST(Range, WhatCannotBeReadMeansTheWholeObject) {
  for (const auto* header : {"",
                             "bytes",
                             "bytes=",
                             "bytes=-",
                             "bytes=4",
                             "bytes=a-b",
                             "bytes=1-b",
                             "bytes=a-1",
                             "bytes=1-2-3",
                             "bytes=-1-2",
                             "bytes=+1-2",
                             "bytes=1-+2",
                             "bytes=0x1-2",
                             "bytes=1.0-2",
                             "bytes=5-2",
                             "bytes=1-2,4-5",
                             "bytes=99999999999999999999-5",
                             "bytes=0-99999999999999999999x",
                             "lines=1-2",
                             "Bytes 1-2"}) {
    EXPECT_EQ(range(header), "all") << header;
  }
}

}  // namespace
}  // namespace muster::api::s3
