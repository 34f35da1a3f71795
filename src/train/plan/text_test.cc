#include "train/plan/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/formatted.h"
#include "train/plan/test_plan.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

TEST(PlanText, HasSizesRanksAndStages) {
  const Config config =
      config_of({"model.preset=llama-70b", "mesh.pp=4", "mesh.tp=8", "mesh.shard=4", "train.batch=64",
                 "train.micro_batch=1", "train.sequence=4096", "train.activation_checkpointing=full"});
  const std::string text = to_text(make_plan(config, 128, 8).value(), config);
  EXPECT_THAT(text, HasSubstr("70.55 B parameters, 80 layers of width 8192"));
  EXPECT_THAT(text, HasSubstr("128 = pp 4 x replica 1 x shard 4 x tp 8"));
  EXPECT_THAT(text, HasSubstr("1f1b, stages wait "));
  EXPECT_THAT(text, HasSubstr("memory of a rank"));
  EXPECT_THAT(text, HasSubstr("    3  63-79"));
}

TEST(PlanText, SaysWhereNoCheckpointIsCounted) {
  const auto text_of_plan = [](const Config& config) {
    return to_text(make_plan(config, 1, 1).value(), config);
  };
  constexpr const char* kWithout = "\nwithout checkpoints: checkpoint.dir is empty\n";
  EXPECT_THAT(text_of_plan(config_of({"model.preset=tiny"})), HasSubstr(kWithout));
  EXPECT_THAT(text_of_plan(config_of({"model.preset=tiny", "checkpoint.dir=/c"})),
              testing::Not(HasSubstr("without checkpoints")));
}

TEST(Formatted, CutsNothing) {
  const std::string parts(5000, 'x');
  EXPECT_EQ(formatted("%s|%d", parts.c_str(), 7), parts + "|7");
  EXPECT_EQ(formatted("%s", ""), "");
}

}  // namespace
}  // namespace muster::train
