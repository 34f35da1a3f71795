// Every scenario file of this folder is a test.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "sim/scenario/scenario.h"

namespace muster::sim {
namespace {

std::vector<std::string> files() {
  std::vector<std::string> result;
  for (const auto* folder : {"/tests/scenarios", "/tests/regress"}) {
    const auto path = std::string(MUSTER_SOURCE_DIR) + folder;
    if (!std::filesystem::exists(path)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt")
        result.push_back(entry.path().string());
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

class Scenario : public testing::TestWithParam<std::string> {};

TEST_P(Scenario, HappensAsWritten) {
  const auto result = run_scenario_file(GetParam());
  for (const auto& failure : result.failures) ADD_FAILURE() << GetParam() << " " << failure;
  if (result.failures.empty()) return;
  for (const auto& line : result.history) std::cout << line << "\n";
}

INSTANTIATE_TEST_SUITE_P(Files, Scenario, testing::ValuesIn(files()), [](const auto& param) {
  auto name = std::filesystem::path(param.param).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

// The runner itself must notice what is wrong.
TEST(ScenarioRunner, ReportsWhatDoesNotHappenAndWhatItCannotRead) {
  const auto failures = [](const char* text) { return run_scenario(text).failures; };
  EXPECT_EQ(failures("cluster 1 node\nat 0s submit a 1 node\nexpect a running"),
            std::vector<std::string>{"line 3: a is launching: Starting on node-1"});
  EXPECT_EQ(failures("cluster 1 node\nat 0s submit a 1 node\nexpect a launching on node-2").size(), 1U);
  EXPECT_EQ(failures("cluster 1 node\nat 0s submit a 1 node\nexpect a launching \"no such words\"").size(),
            1U);
  EXPECT_EQ(failures("cluster 1 node\nat 0s submit a 1 node"),
            std::vector<std::string>{"line 2: expects nothing"});
  EXPECT_EQ(failures("at 0s submit a 1 node").size(), 2U);
  EXPECT_EQ(failures("cluster 1 node\nat 0 submit a 1 node\nexpect a absent").at(0),
            "line 2: \"0\" is not a time such as 3s; the line is: at 0 submit a 1 node");
  EXPECT_EQ(failures("cluster 1 node\nexpect refused").size(), 1U);
}

}  // namespace
}  // namespace muster::sim
