// Training runs of the tests: a tiny model, on threads, and what a run leaves. One thread at a time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/crypto.h"
#include "base/rng.h"
#include "base/text.h"
#include "train/comm/test_ranks.h"
#include "train/data/test_stream.h"
#include "train/determinism.h"
#include "train/loop/machine.h"
#include "train/loop/trainer.h"
#include "train/model/model.h"
#include "train/optim/adamw.h"
#include "train/shard/data_parallel.h"

namespace muster::train {

inline const std::string kGemmPath = fix_gemm_path();  // before any tensor

// Text with something to learn: a walk that mostly repeats a cycle.
inline constexpr char kTokenizer[] = "a tokenizer";

inline MemoryStream tokens(std::uint64_t seed = 1, std::size_t count = 4000) {
  Rng rng(seed);
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<std::int64_t>(rng.chance(0.1) ? rng.below(64) : i * 7 % 64));
  }
  return MemoryStream(std::move(values), 64, crypto::hex(crypto::sha256(kTokenizer)));
}

inline Config tiny(const std::vector<std::string>& assignments = {}) {
  std::vector<Setting> settings;
  for (const char* text : {"model.preset=tiny", "train.sequence=16", "train.batch=6", "train.micro_batch=2",
                           "train.steps=8", "optim.warmup=2", "optim.lr=0.01", "eval.windows=10"}) {
    settings.push_back(*parse_assignment(text));
  }
  for (const auto& text : assignments) settings.push_back(*parse_assignment(text));
  const auto config = resolve(settings);
  EXPECT_TRUE(config) << config.error().message;
  return *config;
}

// What a run leaves: every bit of parameters and moments, and the losses on the way.
struct Trace {
  std::string error;
  std::vector<double> losses, norms;
  std::string state;  // digest
  std::vector<std::string> lines;
  bool cuts_parameter = false;
  Outcome outcome = Outcome::finished;
  bool operator==(const Trace& other) const {
    return error == other.error && state == other.state && losses == other.losses && norms == other.norms;
  }
};

inline std::string text_of(const FlatBuffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.bytes().size()};
}

// A digest of every element of the state, by tensor and place: the same for every layout that has the same
// bits, and another if copies of an element differ. Collective.
inline std::string digest_of(Trainer& trainer, Comm& comm) {
  const ParamTable& table = trainer.model().table();
  const AdamW& optimizer = trainer.optimizer();
  const ParamTable whole(table.config());
  std::string mine;  // runs of elements: a line with tensor, first byte and bytes, then these
  const auto add = [&](const char* kind, const FlatBuffer& buffer, const Param& param) {
    const Slice global = whole_slice(param.name, whole_box(whole.at(param.name).shape));
    const auto width = static_cast<std::int64_t>(size_of(buffer.dtype()));
    for (const Range part : within(buffer.pieces(), {param.offset, param.offset + param.numel})) {
      const Slice slice{param.name, param.box, {part.begin - param.offset, part.end - param.offset}};
      for (const Run& run : intersect(global, slice)) {
        const auto bytes = buffer.bytes(Range{part.begin + run.b, part.begin + run.b + run.count});
        mine += kind + param.name + " " + std::to_string(run.a * width) + " " +
                std::to_string(run.count * width) + "\n";
        mine.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
    }
  };
  for (const Param& param : table.params()) {
    add("w:", std::as_const(trainer.model()).parameters(), param);
    if (optimizer.has_master())
      add("master:", optimizer.weights(std::as_const(trainer.model()).parameters()), param);
    add("m:", optimizer.first_moment(), param);
    add("v:", optimizer.second_moment(), param);
  }
  std::map<std::string, std::pair<std::string, std::string>> tensors;  // bytes, and which of them are known
  std::string unlike;
  const auto all = comm.gather_text(mine).value();
  for (const std::string& text : all) {
    for (std::size_t at = 0; at < text.size();) {
      const auto line = std::string_view(text).substr(at, text.find('\n', at) - at);
      const auto words = split(line, ' ');
      const auto begin = static_cast<std::size_t>(*parse_int(words[1])),
                 count = static_cast<std::size_t>(*parse_int(words[2]));
      const auto bytes = std::string_view(text).substr(at + line.size() + 1, count);
      at += line.size() + 1 + count;
      auto& [values, known] = tensors[std::string(words[0])];
      values.resize(std::max(values.size(), begin + count));
      known.resize(values.size(), '-');
      for (std::size_t i = 0; i < count; ++i) {
        if (known[begin + i] == '+' && values[begin + i] != bytes[i]) unlike += bytes[i];
      }
      values.replace(begin, count, bytes);
      std::fill_n(known.begin() + static_cast<std::ptrdiff_t>(begin), count, '+');
    }
  }
  std::string joined = unlike;
  for (const auto& [name, tensor] : tensors) joined += name + " " + tensor.first + tensor.second;
  return crypto::hex(crypto::sha256(joined));
}

// Whether what this rank holds or updates begins or ends inside a parameter.
inline bool cuts_parameter(Trainer& trainer) {
  const ParamTable& table = trainer.model().table();
  const auto inside = [&](std::int64_t end) {
    return end < table.numel() && table.param_at(end).offset != end;
  };
  const Placement& placement = trainer.replicas().placement();
  return std::ranges::any_of(std::array{&placement.held(), &placement.owned()}, [&](const auto* pieces) {
    return std::ranges::any_of(*pieces,
                               [&](const Range& piece) { return inside(piece.begin) || inside(piece.end); });
  });
}

struct RunOptions {
  Config config;
  const TokenStream* train = nullptr;
  const TokenStream* validation = nullptr;
  std::function<bool()> stop = {};
  std::function<void(Trainer&)> prepare = {};
  std::function<void(Trainer&)> after_run = {};
  std::set<std::string> accepted = {};
  bool steps_only = true;           // step() alone, else run()
  std::optional<Dtype> dtype = {};  // TrainerParts::dtype_override
  int node_ranks = 0;
  std::vector<json::Object> machines = {};  // of every rank
  std::optional<double> ask_every_s = {};   // TrainerParts
};

inline Trace run_on(Comm& comm, const RunOptions& options) {
  set_threads(1);
  Trace trace;
  auto trainer = Trainer::create({.config = options.config,
                                  .train = options.train,
                                  .validation = options.validation,
                                  .comm = &comm,
                                  .writer = {.node = comm.rank(), .local_rank = 0},
                                  .node_ranks = options.node_ranks,
                                  .accepted = options.accepted,
                                  .machines = options.machines,
                                  .dtype_override = options.dtype,
                                  .say = [&](const std::string& line) { trace.lines.push_back(line); },
                                  .stop_requested = options.stop,
                                  .ask_every_s = options.ask_every_s});
  if (!trainer) {
    trace.error = trainer.error().message;
    return trace;
  }
  if (options.prepare) options.prepare(**trainer);
  if (options.steps_only) {
    while ((*trainer)->steps_done() < options.config.steps) {
      const auto report = (*trainer)->step();
      if (!report) {
        trace.error = report.error().message;
        break;
      }
      trace.losses.push_back(report->loss);
      trace.norms.push_back(report->gradient_norm);
    }
  } else if (const auto outcome = (*trainer)->run()) {
    trace.outcome = *outcome;
  } else {
    trace.error = outcome.error().message;
  }
  if (options.after_run) options.after_run(**trainer);
  trace.cuts_parameter = cuts_parameter(**trainer);
  trace.state = digest_of(**trainer, comm);
  return trace;
}

// One trace a rank.
inline std::vector<Trace> run_ranks(int size, const std::function<RunOptions(int)>& options) {
  return on_ranks(size, [&](Comm& comm) { return run_on(comm, options(comm.rank())); });
}

inline Trace run_alone(const RunOptions& options) {
  Comm comm("world", single_transport());
  return run_on(comm, options);
}

// Stops (as by SIGTERM) when asked this often, on one rank only: as a rule once a step, and once a pass of an
// evaluation.
inline std::function<bool()> after(int steps, bool here) {
  auto count = std::make_shared<int>(0);
  return [=] { return ++*count == steps && here; };
}

}  // namespace muster::train
