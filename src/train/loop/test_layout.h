// Runs of one layout and how far their gradients are from those of one rank, for the tests of layouts. The
// gate is the gradient of every parameter before clipping, and the global norm, in fp64: loss curves hide
// what AdamW and clipping forgive.
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/text.h"
#include "train/ckpt/checkpoint.h"
#include "train/formatted.h"
#include "train/loop/evaluate.h"
#include "train/loop/test_run.h"

namespace muster::train {

inline constexpr double kGate = 1e-12;
// Of the largest gradient of all: what is below is rounding of a gradient that is 0 (queries and keys where
// no token sees two).
inline constexpr double kNoise = 1e-15;
inline constexpr int kGatedSteps = 2;

struct Layout {
  int pp = 1, replica = 1, shard = 1, tp = 1;
  int node_ranks = 0;
  bool cuts_parameters = false;       // some of them lie on several ranks, which is an error if it is not so
  std::vector<std::string> settings;  // model, batch and mesh
  int ranks() const { return pp * replica * shard * tp; }
};

inline std::string name_of(const Layout& layout) {
  return "pp " + std::to_string(layout.pp) + ", replica " + std::to_string(layout.replica) + ", shard " +
         std::to_string(layout.shard) + ", tp " + std::to_string(layout.tp) + ", node of " +
         std::to_string(layout.node_ranks) + ": " + join(layout.settings, " ");
}

inline Config config_of(const Layout& layout) {
  auto settings = layout.settings;
  for (const auto& [axis, extent] : {std::pair("pp", layout.pp), std::pair("replica", layout.replica),
                                     std::pair("shard", layout.shard), std::pair("tp", layout.tp)})
    settings.push_back("mesh." + std::string(axis) + "=" + std::to_string(extent));
  return tiny(settings);
}

// The same run on one rank: the same micro-batches, one after the other.
inline Layout alone(const Layout& layout) {
  Layout one{.settings = {}};
  for (const std::string& setting : layout.settings) {
    if (!setting.starts_with("mesh.") && !setting.starts_with("train.activation"))
      one.settings.push_back(setting);
  }
  return one;
}

// Whole global tensors, row-major.
using Tensors = std::map<std::string, std::vector<double>>;

// Of each gated step: loss, norm, and the gradient of each global tensor.
struct StepGradients {
  double loss = 0, norm = 0;
  Tensors tensors;
};
struct Gradients {
  std::string error;
  std::vector<StepGradients> steps;
  double held_out = 0;  // loss
  bool cuts_parameter = false;
};

// Copies the elements of `param` in `ranges` of a buffer to their places in the global tensor.
inline void place(const FlatBuffer& buffer, std::span<const Range> ranges, const Param& param,
                  const Slice& global, std::vector<double>& values) {
  for (const Range part : within(ranges, {param.offset, param.offset + param.numel})) {
    std::vector<double> mine;
    if (buffer.dtype() == Dtype::f64) {
      std::ranges::copy(buffer.as<double>(part), std::back_inserter(mine));
    } else {
      std::ranges::copy(buffer.as<float>(part), std::back_inserter(mine));
    }
    const Slice slice{param.name, param.box, {part.begin - param.offset, part.end - param.offset}};
    for (const Run& run : intersect(global, slice))
      std::copy_n(mine.begin() + run.b, run.count, values.begin() + run.a);
  }
}

// Of a buffer that is laid out as the parameters, what this rank has in `ranges`, in global tensors; NaN
// elsewhere.
inline Tensors tensors_of(Trainer& trainer, const FlatBuffer& buffer, std::span<const Range> ranges) {
  Tensors tensors;
  const ParamTable& table = trainer.model().table();
  const ParamTable whole(table.config());
  for (const Param& param : table.params()) {
    const Slice global = whole_slice(param.name, whole_box(whole.at(param.name).shape));
    auto& values = tensors[param.name];
    values.resize(static_cast<std::size_t>(global.numel()), std::nan(""));
    place(buffer, ranges, param, global, values);
  }
  return tensors;
}

// The gradients that this rank owns.
inline Tensors owned_of(Trainer& trainer) {
  const ParamTable& table = trainer.model().table();
  Tensors tensors = tensors_of(trainer, trainer.model().gradients(), trainer.replicas().placement().owned());
  for (const Param& param : table.params()) {
    if (!table.owns(param)) tensors.erase(param.name);
  }
  return tensors;
}

// The weights that this rank holds, copies too.
inline Tensors weights_of(Trainer& trainer) {
  const FlatBuffer& weights = std::as_const(trainer.model()).parameters();
  return tensors_of(trainer, weights, weights.pieces());
}

// Every tensor of the newest checkpoint in a folder, whole; none: there is no checkpoint.
inline Tensors tensors_in(const std::string& folder) {
  Tensors tensors;
  auto latest = latest_checkpoint(folder, OnDamage::refuse);
  if (!latest || !latest->reader) return tensors;
  for (const TensorInfo& info : latest->reader->info().tensors) {
    auto& values = tensors[info.name];
    values.resize(info.numel());
    EXPECT_TRUE(latest->reader->read(whole_slice(info.name, whole_box(info.shape)),
                                     std::as_writable_bytes(std::span(values))));
  }
  return tensors;
}

inline std::vector<Gradients> gradients_on(const Layout& layout, const TokenStream& data,
                                           const RanksOptions& options = {}, Dtype dtype = Dtype::f64) {
  const Config config = config_of(layout);
  const auto run = [&](Comm& comm) {
    set_threads(1);
    Gradients out;
    auto trainer = Trainer::create({.config = config,
                                    .train = &data,
                                    .validation = &data,
                                    .comm = &comm,
                                    .node_ranks = layout.node_ranks,
                                    .machines = {},
                                    .dtype_override = dtype});
    if (!trainer) {
      out.error = trainer.error().message;
      return out;
    }
    for (int step = 0; step < kGatedSteps; ++step) {
      const auto report = (*trainer)->step();
      if (!report) {
        out.error = report.error().message;
        return out;
      }
      out.steps.push_back(
          {.loss = report->loss, .norm = report->gradient_norm, .tensors = owned_of(**trainer)});
    }
    const auto evaluated = (*trainer)->evaluate();
    if (!evaluated) out.error = evaluated.error().message;
    if (evaluated) out.held_out = evaluated->loss;
    out.cuts_parameter = cuts_parameter(**trainer);
    return out;
  };
  auto all = on_ranks(layout.ranks(), run, options);
  if (all[0].error.empty() && layout.cuts_parameters && std::ranges::none_of(all, &Gradients::cuts_parameter))
    all[0].error = "no parameter is cut";
  return all;
}

// A tensor of `size` elements put together from what its owners have, which is the same where there are
// several; what is wrong if it is not, or if an element has none.
inline Result<std::vector<double>> united(const std::vector<Gradients>& ranks, std::size_t step,
                                          const std::string& name, std::size_t size) {
  std::vector<double> all(size, std::nan(""));
  for (const Gradients& rank : ranks) {
    const auto found = rank.steps[step].tensors.find(name);
    if (found == rank.steps[step].tensors.end()) continue;
    for (std::size_t i = 0; i < size; ++i) {
      const double here = found->second[i];
      if (std::isnan(here)) continue;
      if (!std::isnan(all[i]) && here != all[i]) return fail(ErrorCode::internal, name + ": owners differ");
      all[i] = here;
    }
  }
  if (std::ranges::any_of(all, [](double value) { return std::isnan(value); }))
    return fail(ErrorCode::internal, name + ": an element without an owner");
  return all;
}

// How far a layout is from one rank; "" if it is not. An element that two ranks own is the same on both.
inline std::string difference(const std::vector<Gradients>& ranks, const Gradients& one) {
  for (const Gradients& rank : ranks) {
    if (!rank.error.empty()) return rank.error;
    if (!(std::abs(rank.held_out - one.held_out) <= kGate * one.held_out)) return "held-out loss";
  }
  for (std::size_t step = 0; step < one.steps.size(); ++step) {
    const std::string at = "step " + std::to_string(step + 1) + " ";
    for (const Gradients& rank : ranks) {
      const StepGradients &got = rank.steps[step], &wanted = one.steps[step];
      if (!(std::abs(got.loss - wanted.loss) <= kGate * std::abs(wanted.loss))) return at + "loss";
      if (!(std::abs(got.norm - wanted.norm) <= kGate * wanted.norm)) return at + "norm";
    }
    double largest = 0;
    for (const auto& [name, wanted] : one.steps[step].tensors) {
      for (const double value : wanted) largest = std::max(largest, std::abs(value));
    }
    for (const auto& [name, wanted] : one.steps[step].tensors) {
      const auto owned = united(ranks, step, name, wanted.size());
      if (!owned) return at + owned.error().message;
      double greatest = 0, worst = 0;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        greatest = std::max(greatest, std::abs(wanted[i]));
        worst = std::max(worst, std::abs(wanted[i] - (*owned)[i]));
      }
      if (!(worst <= std::max(kGate * greatest, kNoise * largest))) {
        return at + name +
               formatted(": off by %.3g of %.3g, the largest of all is %.3g", worst, greatest, largest);
      }
    }
  }
  return "";
}

inline double norm_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// A bf16 has 8 bits: each of a layer's dozen roundings is off by at most 0.4 %, in either direction. Tiny
// random layouts average over few: in 300 of them it came to 0.145.
inline constexpr double kNarrow = 0.03;
inline constexpr double kNarrowRandom = 0.3;  // what is lost is 0.5 or more
inline constexpr double kNarrowNoise = 0.01;

// How far a layout in bf16 is from one rank in fp64 in its first step, of each parameter by the norm of the
// difference: a factor or a summand that is lost, a gradient that is summed twice are seen, roundings are let
// pass. "" if it is not.
inline std::string narrow_difference(const std::vector<Gradients>& ranks, const Gradients& exact,
                                     double bound = kNarrow) {
  const auto near = [](double got, double wanted, double part) {
    return std::abs(got - wanted) <= part * std::abs(wanted);
  };
  for (const Gradients& rank : ranks) {
    if (!rank.error.empty()) return rank.error;
    if (!near(rank.held_out, exact.held_out, bound / 3)) return "held-out loss";
  }
  const StepGradients &got = ranks[0].steps[0], &wanted = exact.steps[0];
  if (!near(got.loss, wanted.loss, bound / 3)) return "loss";
  if (!near(got.norm, wanted.norm, bound)) return "norm";
  double all = 0;
  for (const auto& [name, values] : wanted.tensors) all = std::hypot(all, norm_of(values));
  for (const auto& [name, values] : wanted.tensors) {
    std::vector<double> difference = values;
    std::vector<bool> seen(values.size());
    for (const Gradients& rank : ranks) {
      const auto found = rank.steps[0].tensors.find(name);
      if (found == rank.steps[0].tensors.end()) continue;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (seen[i] || std::isnan(found->second[i])) continue;
        difference[i] -= found->second[i];
        seen[i] = true;
      }
    }
    // What is small beside all others is the difference of greater numbers, and has their roundings.
    const double off = norm_of(difference), scale = std::max(norm_of(values), kNarrowNoise * all);
    if (!(off <= bound * scale)) return name + ": " + std::to_string(off / scale);
  }
  return "";
}

// Tokens of which many are 0, in runs of very different length; as data.ignored_token these are no targets.
// Documents begin here and there.
inline MemoryStream masked_tokens(std::uint64_t seed, std::int64_t vocab) {
  Rng rng(seed);
  std::vector<std::int64_t> values;
  std::vector<std::uint64_t> documents;
  while (values.size() < 3000) {
    const auto count = rng.between(1, 20);
    const bool masked = rng.chance(0.5);
    if (rng.chance(0.3)) documents.push_back(values.size());
    for (std::int64_t i = 0; i < count; ++i) values.push_back(masked ? 0 : rng.between(0, vocab - 1));
  }
  MemoryStream stream(std::move(values), static_cast<int>(vocab));
  stream.set_documents(std::move(documents));
  return stream;
}

inline std::string check(const Layout& layout, std::uint64_t seed, std::int64_t vocab) {
  const MemoryStream data = masked_tokens(seed, vocab);
  const Gradients one = gradients_on(alone(layout), data)[0];
  if (!one.error.empty()) return "one rank: " + one.error;
  return difference(gradients_on(layout, data), one);
}

// The same in bf16, beside fp64.
inline std::string check_narrow(const Layout& layout, std::uint64_t seed, std::int64_t vocab, double bound) {
  const MemoryStream data = masked_tokens(seed, vocab);
  const Gradients one = gradients_on(alone(layout), data)[0];
  if (!one.error.empty()) return "one rank: " + one.error;
  return narrow_difference(gradients_on(layout, data, {}, Dtype::bf16), one, bound);
}

}  // namespace muster::train
