#include "train/plan/run_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/plan/test_plan.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

TEST(RunLayout, RefusesWhatCannotWorkAndSaysWhatWould) {
  struct Case {
    int ranks;
    std::vector<std::string> settings;
    const char* says;
  };
  for (const Case& c :
       {Case{6, {"mesh.tp=3"}, "possible here: 1, 2"},
        Case{6,
             {"mesh.pp=6"},
             "6 pipeline stages for 4 layers: each stage needs a layer; possible are 1 to 4"},
        Case{6, {"mesh.pp=4"}, "the ranks must be a multiple of that"},
        Case{2, {"mesh.pp=2", "mesh.stage_layers=3,2"}, "that add up to the 4 layers"},
        Case{2, {"mesh.pp=2", "mesh.stage_layers=9223372036854775807,9"}, "that add up to the 4 layers"},
        Case{2, {"mesh.pp=2", "mesh.stage_layers=4,x"}, "mesh.stage_layers = 4,x: 2 whole numbers"},
        Case{3, {"train.batch=16", "train.micro_batch=4"}, "12 and 24 are the nearest"},
        Case{21,
             {"mesh.tp=3", "mesh.shard=7", "model.heads=3", "model.kv_heads=3", "model.head_dim=2",
              "model.width=8", "model.ffn=5", "mesh.sequence_parallel=true", "train.batch=7",
              "train.micro_batch=1"},
             "3 cuts do not divide model.ffn = 5"}}) {
    auto settings = c.settings;
    settings.insert(settings.begin(), "model.preset=quickstart");
    const auto layout = run_layout(config_of(settings), c.ranks);
    ASSERT_FALSE(layout) << c.says;
    EXPECT_THAT(layout.error().message, HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace muster::train
