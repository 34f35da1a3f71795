#include "address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::app {
namespace {

using ::testing::HasSubstr;

TEST(Address, IsParsed) {
  EXPECT_EQ(parse_address("127.0.0.1").value(), (Address{"127.0.0.1", 0}));
  EXPECT_EQ(parse_address("127.0.0.1:9650").value(), (Address{"127.0.0.1", 9650}));
  EXPECT_EQ(parse_address("::1").value(), (Address{"::1", 0}));
  EXPECT_EQ(parse_address("[::1]").value(), (Address{"::1", 0}));
  EXPECT_EQ(parse_address("[::1]:9650").value(), (Address{"::1", 9650}));
  EXPECT_EQ(parse_address("[0:0::0:1]:0").value(), (Address{"::1", 0}));
  EXPECT_EQ(parse_address("fe80::1:2").value(), (Address{"fe80::1:2", 0}));
}

TEST(Address, BadOnesAreNamed) {
  for (const auto* text : {":9650", "[]:1", "[::1", "[::1]9650", "[::1]:", "[127.0.0.1]:1", "::1::2", "1:2:3",
                           "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:x"}) {
    const auto parsed = parse_address(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("--listen " + std::string(text) + ": ")) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("[IPV6]:PORT")) << text;
  }
}

// Nothing here resolves names, and "reachable from other machines" would be wrong of some.
TEST(Address, NamesAreRefused) {
  for (const auto* text : {"localhost", "localhost:9650", "example.com", "127.1"}) {
    EXPECT_THAT(parse_address(text).error().message, HasSubstr("is not an IP address; use 127.0.0.1"))
        << text;
  }
}

TEST(Address, OnlyLoopbackIsServedInClear) {
  for (const auto* host : {"127.0.0.1", "127.77.0.1", "::1", "0:0:0:0:0:0:0:1"})
    EXPECT_TRUE(is_loopback(host));
  for (const auto* host : {"0.0.0.0", "::", "10.0.0.1", "::2", "127.example.com", "fe80::1"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
  EXPECT_EQ(choose_address({.listen = "[::1]:0"}).value(), (Address{"::1", 0}));
  EXPECT_THAT(choose_address({.listen = "[::]:0"}).error().message, HasSubstr("--insecure"));
  EXPECT_EQ(choose_address({.listen = "0.0.0.0", .insecure = true}).value(), (Address{"0.0.0.0", 0}));
}

TEST(Address, IsKeptUntilAnotherIsAskedForAndNothingDialsIt) {
  EXPECT_EQ(choose_address({}).value(), (Address{"127.0.0.1", 0}));
  const std::string kept = "http://[::1]:9651";
  EXPECT_EQ(choose_address({.kept = kept}).value(), (Address{"::1", 9651}));
  EXPECT_EQ(choose_address({.listen = "::1", .kept = kept, .dialling = 1}).value(), (Address{"::1", 9651}));
  EXPECT_EQ(choose_address({.listen = "127.0.0.1:9650", .kept = kept}).value(), (Address{"127.0.0.1", 9650}));
  const auto refused = choose_address({.listen = "127.0.0.1:9650", .kept = kept, .dialling = 2});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("2 nodes run jobs that dial http://[::1]:9651"));
}

}  // namespace
}  // namespace muster::app
