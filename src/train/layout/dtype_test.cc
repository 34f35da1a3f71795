#include "train/layout/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace muster::train {
namespace {

TEST(BFloat16, EveryOneComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = std::bit_cast<BFloat16>(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(BFloat16(float{value}).bits, bits);
  }
}

// Between two neighbours a float goes to the nearer one, in the middle to the even one.
TEST(BFloat16, RoundsToTheNearest) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {  // all finite ones but the sign
    const auto lower = static_cast<std::uint16_t>(bits), upper = static_cast<std::uint16_t>(bits + 1);
    const auto float_at = [&](std::uint32_t more) { return std::bit_cast<float>((bits << 16) + more); };
    ASSERT_EQ(BFloat16(float_at(0x7fff)).bits, lower);
    ASSERT_EQ(BFloat16(float_at(0x8000)).bits, bits % 2 == 0 ? lower : upper);
    ASSERT_EQ(BFloat16(float_at(0x8001)).bits, upper);
    ASSERT_EQ(BFloat16(-float_at(0x8001)).bits, upper | 0x8000);
  }
  EXPECT_TRUE(std::isinf(float{BFloat16(std::numeric_limits<float>::max())}));
  EXPECT_TRUE(std::isnan(float{BFloat16(std::bit_cast<float>(0x7f800001U))}));
  EXPECT_TRUE(std::isnan(float{BFloat16(std::bit_cast<float>(0x7fffffffU))}));
}

}  // namespace
}  // namespace muster::train
