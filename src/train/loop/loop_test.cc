#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <thread>

#include "base/crypto.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "train/agent/process.h"
#include "train/comm/gloo/gloo.h"
#include "train/data/test_stream.h"
#include "train/determinism.h"
#include "train/loop/evaluate.h"
#include "train/loop/machine.h"
#include "train/loop/model_folder.h"
#include "train/loop/state.h"
#include "train/loop/test_run.h"
#include "train/loop/trainer.h"

namespace muster::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Bitwise, ThreeRanksAreOneRankWithThreeMicroBatches) {
  const auto data = tokens();
  for (const char* tied : {"model.tied=false", "model.tied=true"}) {
    const RunOptions options{.config = tiny({tied}), .train = &data};
    const Trace alone = run_alone(options);
    ASSERT_EQ(alone.error, "");
    ASSERT_EQ(alone.losses.size(), 8u);
    EXPECT_LT(alone.losses.back(), alone.losses.front());
    for (const Trace& rank : run_ranks(3, [&](int) { return options; }))
      EXPECT_TRUE(rank == alone) << rank.error << tied;
    // The test can tell: another micro-batch size sums in another order.
    EXPECT_FALSE(run_alone({.config = tiny({tied, "train.micro_batch=3"}), .train = &data}) == alone);
  }
}

TEST(Bitwise, ZeroOneIsDataParallel) {
  const auto data = tokens();
  for (const char* tied : {"model.tied=false", "model.tied=true"}) {
    const Trace alone = run_alone({.config = tiny({tied}), .train = &data});
    const auto traces = run_ranks(3, [&](int) {
      return RunOptions{.config = tiny({tied, "mesh.zero=1"}), .train = &data};
    });
    for (const Trace& rank : traces) EXPECT_TRUE(rank == alone) << rank.error << tied;
  }
}

// Everything that only moves numbers, or computes the same ones again, against the same micro-batches on one
// rank. (Not so: tensor and sequence parallelism, and sums over shards before those over micro-batches.)
TEST(Bitwise, LayoutsThatOnlyMoveNumbersAreOneRank) {
  const auto data = tokens();
  struct Case {
    int ranks, node_ranks;
    std::vector<std::string> settings;
  };
  for (const auto& [tied, precision] : {std::pair("model.tied=false", "train.precision=fp32"),
                                        {"model.tied=true", "train.precision=fp32"},
                                        {"model.tied=false", "train.precision=bf16"},
                                        {"model.tied=true", "train.precision=bf16"}}) {
    const std::vector<std::string> common = {tied, precision, "model.layers=4", "train.batch=12"};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), common.begin(), common.end());
      return tiny(more);
    };
    const Trace alone = run_alone({.config = with({}), .train = &data});
    ASSERT_EQ(alone.error, "");
    for (const auto& [ranks, node_ranks, settings] : std::vector<Case>{
             {1, 0, {"train.activation_checkpointing=full"}},
             {1, 0, {"train.activation_checkpointing=selective"}},
             {3, 0, {"mesh.pp=3"}},
             {3, 0, {"mesh.pp=3", "mesh.schedule=gpipe", "train.activation_checkpointing=full"}},
             {4, 0, {"mesh.pp=4", "mesh.stage_layers=1,1,1,1"}},
             {6, 0, {"mesh.zero=1"}},
             {6, 0, {"mesh.shard=6"}},
             {6, 2, {"mesh.shard=6", "mesh.gather=hierarchical"}},
             {6, 0, {"mesh.replica=6", "mesh.shard=1", "train.activation_checkpointing=selective"}}}) {
      const auto traces = run_ranks(ranks, [&](int) {
        return RunOptions{.config = with(settings), .train = &data, .node_ranks = node_ranks};
      });
      for (const Trace& rank : traces)
        EXPECT_TRUE(rank == alone) << rank.error << " " << tied << " " << precision << " "
                                   << join(settings, " ");
    }
    // Pipelines of replicas that share the optimizer's state, and shards of replicas: as without either.
    const auto replicas = run_ranks(3, [&](int) { return RunOptions{.config = with({}), .train = &data}; });
    for (const auto& settings : {std::vector<std::string>{"mesh.pp=2", "mesh.zero=1"}, {"mesh.pp=2"}}) {
      for (const Trace& rank :
           run_ranks(6, [&](int) { return RunOptions{.config = with(settings), .train = &data}; }))
        EXPECT_TRUE(rank == replicas[0])
            << rank.error << " " << tied << " " << precision << " " << join(settings, " ");
    }
  }
}

// The same where shards, and the replicas' parts of the optimizer's state, are cut inside parameters.
TEST(Bitwise, CutsInsideParametersAreOneRank) {
  const auto data = tokens();
  for (const char* precision : {"train.precision=fp32", "train.precision=bf16"}) {
    const auto run = [&](int ranks, int node_ranks, std::vector<std::string> settings) {
      for (const char* text : {precision, "model.width=72", "model.ffn=100", "model.tied=true",
                               "train.batch=12", "train.steps=3"})
        settings.emplace_back(text);
      return run_ranks(ranks, [&](int) {
        return RunOptions{.config = tiny(settings), .train = &data, .node_ranks = node_ranks};
      });
    };
    const auto expect_same = [&](const std::vector<Trace>& traces, const Trace& wanted, const char* what) {
      for (const Trace& rank : traces) EXPECT_TRUE(rank == wanted) << rank.error << precision << what;
      EXPECT_TRUE(std::ranges::any_of(traces, &Trace::cuts_parameter)) << precision << what;
    };
    const Trace alone = run(1, 0, {})[0];
    ASSERT_EQ(alone.error, "");
    EXPECT_FALSE(alone.cuts_parameter);
    expect_same(run(6, 0, {"mesh.zero=1"}), alone, " replicas");
    expect_same(run(6, 0, {"mesh.shard=6"}), alone, " shards");
    expect_same(run(6, 2, {"mesh.shard=6", "mesh.gather=hierarchical"}), alone, " shards of three nodes");
    expect_same(run(6, 0, {"mesh.pp=2", "mesh.zero=1"}), run(3, 0, {})[0], " pipelines");
  }
}

TEST(Bitwise, ARunAgainIsTheSame) {
  const auto data = tokens();
  const RunOptions options{.config = tiny(), .train = &data};
  EXPECT_TRUE(run_alone(options) == run_alone(options));
}

// The rank of the next test, in a process of its own.
TEST(DISABLED_GlooRank, Trains) {
  const auto number = [](const char* name) { return static_cast<int>(*parse_int(std::getenv(name))); };
  auto transport = gloo_transport({.store_host = "127.0.0.1",
                                   .store_port = static_cast<std::uint16_t>(number("LOOP_PORT")),
                                   .prefix = "loop",
                                   .address = "127.0.0.1",
                                   .rank = number("LOOP_RANK"),
                                   .size = 2});
  ASSERT_TRUE(transport) << transport.error().message;
  Comm comm("world", *std::move(transport));
  const auto data = tokens();
  const Trace trace = run_on(comm, {.config = tiny({"train.batch=4"}), .train = &data});
  ASSERT_EQ(trace.error, "");
  std::cout << "state " << trace.state << "\n" << std::flush;
  ASSERT_TRUE(comm.barrier());
}

TEST(Bitwise, TwoGlooProcessesAreOneProcessWithTwoMicroBatches) {
  auto store = start_store("127.0.0.1", *listen_for_store("127.0.0.1", 0));
  ASSERT_TRUE(store) << store.error().message;
  std::vector<Child> children;
  for (const char* rank : {"0", "1"}) {
    auto child =
        spawn({*own_program(), "--gtest_also_run_disabled_tests", "--gtest_filter=DISABLED_GlooRank.Trains"},
              {{"LOOP_RANK", rank}, {"LOOP_PORT", std::to_string((*store)->port())}});
    ASSERT_TRUE(child) << child.error().message;
    children.push_back(*std::move(child));
  }
  const auto data = tokens();
  const Trace alone = run_alone({.config = tiny({"train.batch=4"}), .train = &data});
  for (const Child& child : children) {
    std::string said;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(child.out.get(), buffer, sizeof buffer)) > 0;)
      said.append(buffer, static_cast<std::size_t>(got));
    EXPECT_EQ(wait_child(child).code, 0) << said;
    EXPECT_THAT(said, HasSubstr("state " + alone.state));
  }
}

TEST(Run, ReportsInLinesAndLeavesAModel) {
  const auto data = tokens(), held_out = tokens(3, 500);
  const TempDir folder;
  ASSERT_TRUE(write_file_atomic(folder / "tok", kTokenizer));
  const Config config =
      tiny({"output.dir=" + folder / "model", "log.every=4", "checkpoint.dir=" + folder / "ckpt",
            "checkpoint.every=2", "checkpoint.keep=2", "data.tokenizer=" + folder / "tok", "eval.every=4"});
  const auto traces = run_ranks(3, [&](int) {
    return RunOptions{.config = config, .train = &data, .validation = &held_out, .steps_only = false};
  });
  for (const Trace& trace : traces) EXPECT_EQ(trace.error, "");
  EXPECT_TRUE(traces[1].lines.empty());
  const auto& lines = traces[0].lines;
  const auto matches = [&](const char* pattern) {
    return testing::Contains(testing::ContainsRegex(pattern));
  };
  EXPECT_THAT(lines,
              matches("^start ranks=3 pp=1 replica=3 shard=1 tp=1 zero=0 parameters=[0-9]+ steps=8 batch=6"));
  EXPECT_THAT(lines,
              matches("^eval step=0 split=held-out loss=[0-9.]+ bits_per_byte=[0-9.]+ tokens=160 bytes=480"));
  EXPECT_THAT(lines, matches("^step=4/8 loss=[0-9.]+ grad_norm=[0-9.]+ lr=[0-9.e+-]+ tokens_per_s=[0-9]+ "
                             "rss_mib=[0-9]+ left_s=[0-9]+$"));
  EXPECT_THAT(lines, matches("^checkpoint step=8 path="));
  EXPECT_THAT(lines, matches("^eval step=8 "));
  EXPECT_THAT(lines.back(), HasSubstr("done step=8/8"));
  EXPECT_TRUE(fs::exists(folder / "ckpt/step-6") && fs::exists(folder / "ckpt/step-8") &&
              !fs::exists(folder / "ckpt/step-4"));

  auto finished = ModelFolder::open(folder / "model");
  ASSERT_TRUE(finished) << finished.error().message;
  EXPECT_EQ(finished->step(), 8);
  auto checkpoint = ModelFolder::open(folder / "ckpt");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto bytes = [](ModelFolder& model) { return text_of(model.load(16).value().parameters()); };
  EXPECT_EQ(bytes(*finished), bytes(*checkpoint));
  EXPECT_EQ(*read_file(folder / "model/tokenizer.model"), kTokenizer);
  const auto json = json::parse_object(*read_file(folder / "model/config.json"));
  ASSERT_TRUE(json);
  EXPECT_EQ(*json::opt_int(*json, "vocab_size"), 64);
  EXPECT_THAT(ModelFolder::open(folder / "nothing").error().message,
              HasSubstr("no model in " + folder / "nothing"));
}

// A stream of a slow disk.
constexpr Millis kReadTakes(50);
class SlowStream final : public MemoryStream {
 public:
  using MemoryStream::MemoryStream;
  explicit SlowStream(const MemoryStream& other) : MemoryStream(other) {}
  Result<void> read(std::uint64_t begin, std::span<std::int64_t> out) const override {
    std::this_thread::sleep_for(kReadTakes);
    return MemoryStream::read(begin, out);
  }
};

// Of three ranks one is slow: the others are in exchanges meanwhile, it is not.
TEST(Run, TellsHowLongRankZeroIsInExchanges) {
  const auto data = tokens();
  const SlowStream slow(data);
  const auto longest = [&](int slow_rank) {
    const TempDir folder;
    run_ranks(3, [&](int rank) {
      return RunOptions{.config = tiny({"log.metrics=" + folder / "m", "train.steps=3"}),
                        .train = rank == slow_rank ? static_cast<const TokenStream*>(&slow) : &data,
                        .steps_only = false};
    });
    double exchange = 0, rest = 0;
    const std::string text = *read_file(folder / "m");
    for (const auto line : split(trim(text), '\n')) {
      const auto record = *json::parse_object(line);
      const double of_step = *json::opt_double(record, "exchange_s");
      exchange = std::max(exchange, of_step);
      rest = std::max(rest, *json::opt_double(record, "seconds") - of_step);
    }
    return std::pair(exchange, rest);
  };
  constexpr double kMost = 0.9 * kReadTakes.count() / 1000.0;
  EXPECT_GT(longest(1).first, kMost);
  EXPECT_GT(longest(0).second, kMost);
}

// Nodes that share no folder, and a model that is spread over all of them: its folder is whole where rank 0
// is, and nowhere else.
TEST(Run, LeavesAWholeModelInTheFolderOfRankZero) {
  const auto data = tokens(), held_out = tokens(3, 500);
  for (const auto& [ranks, layout] : std::vector<std::pair<int, std::vector<std::string>>>{
           {4, {"mesh.pp=2", "mesh.shard=2", "model.tied=true"}}, {6, {"mesh.tp=2", "mesh.replica=3"}}}) {
    const TempDir folder;
    const auto traces = run_ranks(ranks, [&](int rank) {
      std::vector<std::string> settings = layout;
      for (const std::string& text : {"output.dir=" + folder / std::to_string(rank),
                                      "checkpoint.dir=" + folder / "ckpt", std::string("train.batch=12")})
        settings.push_back(text);
      return RunOptions{
          .config = tiny(settings), .train = &data, .validation = &held_out, .steps_only = false};
    });
    for (const Trace& trace : traces) ASSERT_EQ(trace.error, "");
    for (int rank = 1; rank < ranks; ++rank) EXPECT_FALSE(fs::exists(folder / std::to_string(rank))) << rank;
    auto finished = ModelFolder::open(folder / "0");
    ASSERT_TRUE(finished) << finished.error().message;
    auto checkpoint = ModelFolder::open(folder / "ckpt");
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(text_of(finished->load(16).value().parameters()),
              text_of(checkpoint->load(16).value().parameters()));
  }
}

// A model that does not learn loses no more than the unigram entropy: of 4.16 nats (64 tokens) next to
// nothing here, where every token is equally frequent.
TEST(Run, LearnsMoreThanTwoNats) {
  const auto text = tokens();
  const auto trace = run_alone({.config = tiny({"train.steps=150"}), .train = &text});
  ASSERT_EQ(trace.error, "");
  ASSERT_EQ(trace.losses.size(), 150U);
  EXPECT_NEAR(trace.losses.front(), std::log(64.0), 0.3);
  const auto last = (trace.losses[147] + trace.losses[148] + trace.losses[149]) / 3;
  EXPECT_GT(trace.losses.front() - last, 2.0) << last;
}

TEST(Evaluation, IsTheSameForAnyNumberOfRanks) {
  const auto data = tokens();
  const auto loader = Loader::create(data, 16, 1);
  const auto with = [&](int size) {
    const auto results = on_ranks(size, [&](Comm& comm) {
      set_threads(1);
      ModelConfig config = *preset("tiny", 64);
      auto model = Model::create(config);
      model->init_parameters(1);
      Pipeline pipeline(*model, nullptr, PipelineSchedule::gpipe);
      return **evaluate(
          pipeline, *loader,
          {.windows_max = 11, .rows = 2, .part = {.part = comm.rank(), .parts = size}, .go_on = {}}, comm);
    });
    for (const auto& result : results) EXPECT_EQ(result.loss, results[0].loss);
    return results[0];
  };
  const Evaluation one = with(1);
  EXPECT_EQ(one.tokens, 11 * 16);
  EXPECT_EQ(one.bytes, 3u * 11 * 16);
  EXPECT_NEAR(one.loss, std::log(64.0), 0.3);
  EXPECT_NEAR(one.bits_per_byte, one.loss / std::log(2.0) / 3, 1e-12);
  EXPECT_EQ(with(3).loss, one.loss);
}

TEST(Faults, ALossThatIsNotFiniteNamesStepAndRankAndUpdatesNothing) {
  const auto data = tokens();
  const auto traces = run_ranks(3, [&](int rank) {
    return RunOptions{.config = tiny(), .train = &data, .prepare = [rank](Trainer& trainer) {
                        const std::int64_t at = trainer.model().table().at("model.norm.weight").offset;
                        if (rank == 1)
                          trainer.model().parameters().as<float>(Range{at, at + 1})[0] =
                              std::numeric_limits<float>::quiet_NaN();
                      }};
  });
  for (const Trace& trace : traces) {
    EXPECT_THAT(trace.error, HasSubstr("step 1: the loss of rank 1 is"));
    EXPECT_THAT(trace.error, HasSubstr("nothing was updated"));
    EXPECT_TRUE(trace.losses.empty());
  }
  EXPECT_EQ(traces[0].state, traces[2].state);
}

// Weights so large in the last norm that logits and loss are still numbers, but their gradient, 50 times
// that, is not.
TEST(Faults, AGradientThatIsNotFiniteNamesRankAndParameter) {
  const auto data = tokens();
  const auto traces = run_ranks(2, [&](int rank) {
    return RunOptions{.config = tiny({"train.batch=4"}), .train = &data, .prepare = [rank](Trainer& trainer) {
                        if (rank == 0) return;
                        const Param& param = trainer.model().table().at("model.norm.weight");
                        for (float& value : trainer.model().parameters().as<float>(
                                 Range{param.offset, param.offset + param.numel})) {
                          value = 8e37F;
                        }
                      }};
  });
  for (const Trace& trace : traces) {
    EXPECT_THAT(trace.error,
                testing::ContainsRegex("step 1: the gradient is not finite; it began in the gradient of "
                                       "[a-z0-9_.]+ on rank 1; nothing was updated"));
    EXPECT_TRUE(trace.losses.empty());
  }
}

TEST(Faults, RanksThatDoNotRunTheSameAreRefused) {
  const auto data = tokens(), other = tokens(2, 5000);
  auto traces = run_ranks(2, [&](int rank) {
    return RunOptions{.config = tiny({"train.batch=4", rank == 1 ? "optim.lr=0.02" : "optim.lr=0.01"}),
                      .train = &data};
  });
  for (const Trace& trace : traces)
    EXPECT_THAT(trace.error, HasSubstr("optim.lr is 1E-2 on rank 0, 2E-2 on rank 1"));
  traces = run_ranks(2, [&](int rank) {
    return RunOptions{.config = tiny({"train.batch=4"}), .train = rank == 1 ? &other : &data};
  });
  for (const Trace& trace : traces)
    EXPECT_THAT(trace.error, HasSubstr("the ranks do not run the same thing; data is"));
}

// A path may be another on each node, but it is set on all or on none: the ranks would wait for each other in
// different collectives, and the model be lost.
TEST(Faults, APathThatIsSetOnOneNodeOnlyIsRefused) {
  const auto data = tokens();
  const TempDir folder;
  for (const std::string key : {"output.dir", "checkpoint.dir"}) {
    for (const int forgetful : {0, 1}) {
      const auto traces = run_ranks(2, [&](int rank) {
        const std::string own = folder / (key + std::to_string(rank));
        return RunOptions{.config = tiny({"train.batch=4", key + "=" + (rank == forgetful ? "" : own)}),
                          .train = &data,
                          .steps_only = false};
      });
      const std::string says = forgetful == 0 ? key + " is \"not set\" on rank 0, \"set\" on rank 1"
                                              : key + " is \"set\" on rank 0, \"not set\" on rank 1";
      for (const Trace& trace : traces) EXPECT_THAT(trace.error, HasSubstr(says));
    }
  }
}

// The finished model takes the place of what its folder has: no checkpoint is ever in it.
TEST(Faults, AModelIsNotWrittenOverCheckpoints) {
  const auto data = tokens();
  const TempDir folder;
  const std::string ckpt = folder / "ckpt";
  ASSERT_TRUE(make_directories(ckpt + "/step-4"));
  fs::create_directory_symlink("ckpt", folder / "link");
  const auto run = [&](const std::string& checkpoints, const std::string& output) {
    return run_alone({.config = tiny({"checkpoint.dir=" + checkpoints, "output.dir=" + output}),
                      .train = &data,
                      .steps_only = false})
        .error;
  };
  const std::string anew = folder / "new";
  for (const auto& [checkpoints, output] :
       {std::pair{ckpt, ckpt}, std::pair{ckpt, ckpt + "/"}, std::pair{ckpt, folder / "link"},
        std::pair{folder / "link/", ckpt}, std::pair{ckpt, folder / "./ckpt/."}, std::pair{anew, anew + "/"}})
    EXPECT_THAT(run(checkpoints, output), HasSubstr("are one folder: the finished model would")) << output;
  for (const auto& [checkpoints, output] :
       {std::pair{ckpt, ckpt + "/step-4"}, std::pair{ckpt, folder / "link/step-8/model"},
        std::pair{folder / "model/step-8/ckpt", folder / "model"}})
    EXPECT_THAT(run(checkpoints, output), HasSubstr("lie in a step of one another")) << output;
  // One in the other is well, beside the steps.
  EXPECT_EQ(run(folder / "job", folder / "job/model"), "");
  ASSERT_TRUE(make_directories(folder / "run"));
  EXPECT_EQ(run(folder / "run/ckpt", folder / "run"), "");
}

// Of another training too: before the first step, and once more at the end.
TEST(Faults, AModelReplacesModelsButNoStateOfATraining) {
  const auto data = tokens();
  const TempDir folder;
  const std::string model = "output.dir=" + folder / "model";
  const auto run = [&](const std::vector<std::string>& settings, std::function<void(Trainer&)> prepare = {}) {
    return run_alone({.config = tiny(settings), .train = &data, .prepare = prepare, .steps_only = false})
        .error;
  };
  ASSERT_EQ(run({"checkpoint.dir=" + folder / "other"}), "");
  EXPECT_THAT(run({"output.dir=" + folder / "other"}),
              HasSubstr("other/step-8 is a checkpoint with optimizer state, which the finished model would "
                        "replace; choose another output.dir"));
  ASSERT_EQ(run({model, "train.steps=3"}), "");
  ASSERT_EQ(run({model}), "");  // of another step: that one goes
  EXPECT_FALSE(fs::exists(folder / "model/step-3"));
  EXPECT_TRUE(fs::exists(folder / "model/step-8"));
  const auto meanwhile = [&](Trainer&) {
    fs::copy(folder / "other/step-8", folder / "model/step-7", fs::copy_options::recursive);
    fs::remove_all(folder / "model/step-8");
    fs::rename(folder / "model/step-7", folder / "model/step-8");
  };
  EXPECT_THAT(run({model}, meanwhile), HasSubstr("the model is not written: "));
  auto whole = Reader::open(folder / "model/step-8");
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_TRUE(whole->verify());
}

// Before the first step, on every rank, in the words of the rank that found it.
TEST(Faults, WhatIsNeededAtTheEndIsLookedAtBeforeTheFirstStep) {
  const auto data = tokens();
  const TempDir folder;
  ASSERT_TRUE(write_file_atomic(folder / "file", "not a folder"));
  struct Case {
    std::vector<std::string> settings;
    std::string says;
  };
  const std::string output = "output.dir=" + folder / "model";
  for (const auto& [settings, says] :
       {Case{{"output.dir=" + folder / "file"}, "output.dir = " + folder / "file: "},
        Case{{"checkpoint.dir=/proc/x"}, "checkpoint.dir = /proc/x: "},
        Case{{output, "data.tokenizer=" + folder / "file"}, "is tokenizer "},
        Case{{output, "data.tokenizer=" + folder / "none"}, "none: "}}) {
    const auto traces =
        run_ranks(3, [&](int) { return RunOptions{.config = tiny(settings), .train = &data}; });
    for (const Trace& trace : traces) {
      EXPECT_THAT(trace.error, HasSubstr(says));
      EXPECT_TRUE(trace.losses.empty());
    }
    EXPECT_FALSE(fs::exists(folder / "model"));  // made to see whether that can be done
  }
}

// Nothing but padding.
TEST(Run, AStepWithoutTargetsTellsNoLoss) {
  const MemoryStream data(std::vector<std::int64_t>(4000), 64);
  for (const Trace& trace : run_ranks(3, [&](int) {
         return RunOptions{.config = tiny({"data.ignored_token=0", "train.steps=3", "log.every=1"}),
                           .train = &data,
                           .validation = &data,
                           .steps_only = false};
       })) {
    EXPECT_EQ(trace.error, "");
    if (trace.lines.empty()) continue;
    EXPECT_THAT(trace.lines, testing::Contains(HasSubstr("step=2/3 loss=none grad_norm=none lr=")));
    EXPECT_THAT(trace.lines, testing::Contains(HasSubstr("notice: step 2: no target of the batch counts")));
    EXPECT_THAT(trace.lines, testing::Contains(HasSubstr("eval step=3 split=held-out loss=none ")));
    EXPECT_EQ(trace.lines.back(), "done step=3/3");
  }
}

TEST(Faults, ABatchThatDoesNotDivide) {
  const auto data = tokens();
  EXPECT_THAT(
      run_alone({.config = tiny({"train.batch=7"}), .train = &data}).error,
      HasSubstr("train.batch = 7: 1 rank takes whole micro-batches of train.micro_batch = 2 windows"));
}

}  // namespace
}  // namespace muster::train
