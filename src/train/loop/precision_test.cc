// Training in bf16: gradients, weights and checkpoints beside those of fp64 and fp32. That it is bitwise
// where fp32 is, loop_test.cc and resume_test.cc say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "train/loop/model_folder.h"
#include "train/loop/test_layout.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

// What every layout computes in bf16 beside one rank in fp64. Random layouts: layout_test.cc.
TEST(Precision, GradientsInBf16AreThoseOfFp64ButForRounding) {
  for (const Layout& layout : std::vector<Layout>{
           {.settings = {}},
           {.settings = {"train.activation_checkpointing=full", "data.document_mask=true"}},
           {.replica = 3, .settings = {"mesh.zero=1", "model.tied=true"}},
           {.tp = 2, .settings = {"mesh.sequence_parallel=true"}},
           {.tp = 2, .settings = {"model.tied=true", "train.activation_checkpointing=selective"}},
           {.pp = 2, .replica = 2, .settings = {"model.tied=true", "mesh.zero=1"}},
           {.shard = 3, .settings = {"model.tied=true"}},
           {.pp = 2, .shard = 2, .tp = 2, .settings = {"data.document_mask=true"}},
           {.replica = 2, .shard = 4, .node_ranks = 2, .settings = {"mesh.zero=1"}}}) {
    Layout sized = layout;
    for (const char* text : {"model.layers=2", "model.width=32", "model.heads=4", "model.kv_heads=2",
                             "model.init_std=0.1", "train.batch=24", "train.micro_batch=1",
                             "train.sequence=24", "data.ignored_token=0", "optim.lr=0.001"})
      sized.settings.emplace_back(text);
    EXPECT_EQ(check_narrow(sized, 5, 64, kNarrow), "") << name_of(sized);
  }
}

// 100 updates, each too small to move a bf16, move the weights as in fp32.
TEST(Precision, MasterWeightsRememberWhatBf16CannotShow) {
  const auto data = tokens();
  const std::vector<std::string> slow = {"optim.lr=0.00002", "optim.min_lr=0.00002", "optim.warmup=0",
                                         "optim.weight_decay=0", "train.steps=100"};
  const auto norms = [&](const char* precision) {
    auto settings = slow;
    settings.emplace_back(precision);
    std::vector<double> weights;
    Comm comm("world", single_transport());
    const Config config = tiny(settings);
    auto trainer = Trainer::create({.config = config, .train = &data, .comm = &comm, .machines = {}});
    EXPECT_TRUE(trainer) << trainer.error().message;
    while ((*trainer)->steps_done() < config.steps) EXPECT_TRUE((*trainer)->step());
    const Model& model = (*trainer)->model();
    const Param& param = model.table().at("model.norm.weight");  // 1 at first; a bf16 below it is 0.996
    const auto values = (*trainer)
                            ->optimizer()
                            .weights(model.parameters())
                            .as<float>({param.offset, param.offset + param.numel});
    return std::vector<double>(values.begin(), values.end());
  };
  const auto single = norms("train.precision=fp32"), narrow = norms("train.precision=bf16");
  double moved = 0;
  for (std::size_t i = 0; i < single.size(); ++i) {
    moved = std::max(moved, std::abs(single[i] - 1));
    EXPECT_NEAR(narrow[i], single[i], 4e-4);
  }
  EXPECT_GT(moved, 1e-3);
}

TEST(Precision, LearnsAsMuchAsFp32) {
  const auto data = tokens();
  const auto losses = [&](const char* precision) {
    const auto trace = run_alone({.config = tiny({"train.steps=150", precision}), .train = &data});
    EXPECT_EQ(trace.error, "");
    return trace.losses;
  };
  const auto single = losses("train.precision=fp32"), narrow = losses("train.precision=bf16");
  ASSERT_EQ(narrow.size(), 150U);
  EXPECT_LT(narrow.back(), narrow.front() - 2);
  EXPECT_NEAR(narrow.back(), single.back(), 0.1);
}

// What a checkpoint holds is fp32: a run in fp32 may take over, once that is accepted, and a finished model
// is the master weights.
TEST(Precision, ACheckpointHoldsTheMasterWeights) {
  const auto data = tokens();
  const TempDir folder;
  const auto settings = [&](std::vector<std::string> more) {
    more.push_back("checkpoint.dir=" + (folder / "ckpt"));
    more.push_back("output.dir=" + (folder / "model"));
    return tiny(more);
  };
  const auto first = run_ranks(4, [&](int) {
    return RunOptions{
        .config = settings({"train.precision=bf16", "mesh.shard=2", "mesh.zero=1", "train.steps=4",
                            "train.micro_batch=1", "train.batch=12", "mesh.replica=2"}),
        .train = &data,
        .steps_only = false};
  });
  for (const Trace& rank : first) ASSERT_EQ(rank.error, "");
  const auto text_of_model = [](const std::string& path) {
    auto model = ModelFolder::open(path);
    EXPECT_TRUE(model) << model.error().message;
    return text_of(model->load(16).value().parameters());
  };
  const std::string weights = text_of_model(folder / "ckpt");
  EXPECT_EQ(text_of_model(folder / "model"), weights);
  bool finer = false;  // than bf16
  for (std::size_t i = 0; i < weights.size(); i += 4) finer = finer || weights[i] != 0 || weights[i + 1] != 0;
  EXPECT_TRUE(finer);

  const std::vector<std::string> longer = {"train.steps=6", "train.batch=12", "train.micro_batch=1"};
  EXPECT_THAT(run_alone({.config = settings(longer), .train = &data}).error, HasSubstr("train.precision"));
  const auto taken =
      run_alone({.config = settings(longer), .train = &data, .accepted = {"train.precision", "train.steps"}});
  EXPECT_EQ(taken.error, "");
  EXPECT_EQ(taken.losses.size(), 2U);
}

}  // namespace
}  // namespace muster::train
