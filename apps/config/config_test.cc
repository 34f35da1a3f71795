#include "apps/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"

namespace muster::app {
namespace {

using ::testing::HasSubstr;

Result<Config> load(std::string_view text) {
  const TempDir dir;
  EXPECT_TRUE(write_file_atomic(dir / "muster.toml", text));
  return load_config(dir / "muster.toml");
}

TEST(Config, ReadsWhatIsThere) {
  const auto config = load(
                          "account = \"123456789012\"\nregion = \"eu-west-1\"\n[local]\nnodes = "
                          "4\n[images]\n\"*/my:*\" = \"muster/host\"\n")
                          .value();
  EXPECT_EQ(config.account, "123456789012");
  EXPECT_EQ(config.region, "eu-west-1");
  EXPECT_EQ(config.nodes, 4);
  EXPECT_EQ(config.images.at("*/my:*"), "muster/host");
  EXPECT_EQ(config.instance_types.at("ml.*"), "local");
  EXPECT_EQ(load_config("/nonexistent/muster.toml")->nodes, 2);
}

TEST(Config, RefusesWithLineAndRemedy) {
  EXPECT_THAT(load("acount = \"1\"").error().message,
              HasSubstr("line 1: acount is not a setting; did you mean account?"));
  EXPECT_THAT(load("\n[local]\nnodes = 0").error().message,
              HasSubstr("line 3: nodes must be a number from 1 to 250"));
  EXPECT_THAT(load("[images]\nx = \"y\"").error().message, HasSubstr("must be one of muster/host"));
  EXPECT_THAT(load("account = \"12\"").error().message, HasSubstr("twelve digits"));
  EXPECT_THAT(load("region = \"Here!\"").error().message, HasSubstr("region is \"Here!\", it must be"));
  EXPECT_THAT(load("[:").error().message, HasSubstr("line 1"));
}

// Not taken for no configuration, and not waited for.
TEST(Config, IsARegularFile) {
  const TempDir dir;
  ASSERT_TRUE(make_directories(dir / "folder/muster.toml"));
  EXPECT_THAT(load_config(dir / "folder/muster.toml").error().message,
              HasSubstr("muster.toml is a folder; a regular file is needed"));
  ASSERT_EQ(::mkfifo((dir / "muster.toml").c_str(), 0600), 0);
  EXPECT_THAT(load_config(dir / "muster.toml").error().message, HasSubstr("muster.toml is a FIFO"));
}

}  // namespace
}  // namespace muster::app
