#include "train/loop/state.h"

#include <algorithm>
#include <cmath>

namespace muster::train {
namespace {

constexpr char kFirstMoment[] = "optimizer.first_moment.";
constexpr char kSecondMoment[] = "optimizer.second_moment.";

const char* dtype_name(Dtype dtype) { return dtype == Dtype::f32 ? "F32" : "F64"; }

// The pieces of the flat parameters as slices of tensors named with `prefix`; of each, `take` is told the
// parameter, the slice and its range of the layout.
template <typename Take>
Result<void> for_slices(const ParamTable& table, const std::string& prefix, std::span<const Range> pieces,
                        Take take) {
  for (const Param& param : table.params()) {
    for (const Range part : within(pieces, {param.offset, param.offset + param.numel})) {
      MUSTER_CHECK(take(
          param, Slice{prefix + param.name, param.box, {part.begin - param.offset, part.end - param.offset}},
          part));
    }
  }
  return {};
}

void append_slices(const ParamTable& table, const FlatBuffer& buffer, const std::string& prefix,
                   std::span<const Range> pieces, std::vector<TensorSlice>& out) {
  const auto append = [&](const Param& param, const Slice& slice, Range where) -> Result<void> {
    if (table.owns(param)) out.push_back({slice, buffer.bytes(where)});
    return {};
  };
  static_cast<void>(for_slices(table, prefix, pieces, append));
}

Result<void> read_held(Reader& reader, const ParamTable& table, const std::string& prefix,
                       FlatBuffer& buffer) {
  return for_slices(table, prefix, buffer.pieces(), [&](const Param&, const Slice& slice, Range where) {
    return reader.read(slice, buffer.bytes(where));
  });
}

}  // namespace

std::vector<TensorInfo> state_tensors(const ParamTable& table, Dtype dtype, bool with_optimizer) {
  const ParamTable whole(table.config());
  std::vector<TensorInfo> tensors;
  for (const std::string& prefix : {std::string(), std::string(kFirstMoment), std::string(kSecondMoment)}) {
    for (const Param& param : whole.params())
      tensors.push_back({prefix + param.name, dtype_name(dtype), param.shape});
    if (!with_optimizer) break;
  }
  return tensors;
}

std::vector<TensorSlice> state_slices(const ParamTable& table, const FlatBuffer& weights,
                                      const AdamW* moments, std::span<const Range> pieces) {
  std::vector<TensorSlice> slices;
  append_slices(table, weights, "", pieces, slices);
  if (moments != nullptr) {
    append_slices(table, moments->first_moment(), kFirstMoment, pieces, slices);
    append_slices(table, moments->second_moment(), kSecondMoment, pieces, slices);
  }
  return slices;
}

Result<void> check_tensors(const Reader& reader, const std::vector<TensorInfo>& wanted_tensors) {
  const auto& stored = reader.info().tensors;
  for (const TensorInfo& wanted : wanted_tensors) {
    const auto found = std::ranges::find(stored, wanted.name, &TensorInfo::name);
    if (found == stored.end()) {
      return fail(ErrorCode::failed_precondition, "the checkpoint has no tensor " + wanted.name);
    }
    if (*found != wanted) {
      return fail(ErrorCode::failed_precondition, "tensor " + wanted.name + " is " + found->dtype + " " +
                                                      shape_text(found->shape) + " in the checkpoint, " +
                                                      wanted.dtype + " " + shape_text(wanted.shape) +
                                                      " in this model");
    }
  }
  return {};
}

Result<void> restore_state(Reader& reader, const ParamTable& table, FlatBuffer& weights, AdamW& optimizer) {
  MUSTER_CHECK(check_tensors(reader, state_tensors(table, weights.dtype(), true)));
  MUSTER_CHECK(read_held(reader, table, "", weights));
  MUSTER_CHECK(read_held(reader, table, kFirstMoment, optimizer.first_moment()));
  MUSTER_CHECK(read_held(reader, table, kSecondMoment, optimizer.second_moment()));
  optimizer.set_steps(reader.info().step);
  return {};
}

Result<void> check_finite(std::string_view tensor, std::span<const float> weights) {
  const auto found = std::ranges::find_if_not(weights, [](float weight) { return std::isfinite(weight); });
  if (found == weights.end()) return {};
  return fail(ErrorCode::failed_precondition,
              "tensor " + std::string(tensor) + " has a weight that is " +
                  (std::isnan(*found) ? "NaN" : "infinite") +
                  ": its training diverged, or the file was made so; take an earlier checkpoint or another "
                  "model");
}

Result<void> read_weights(const hf::Weights& from, const ParamTable& table, FlatBuffer& weights) {
  std::vector<float> values;
  return for_slices(table, "", weights.pieces(), [&](const Param&, const Slice& slice, Range where) {
    if (weights.dtype() == Dtype::f32) {
      from.read(slice, weights.as<float>(where));
      return check_finite(slice.tensor, weights.as<float>(where));
    }
    values.resize(static_cast<std::size_t>(where.size()));
    from.read(slice, values);
    std::ranges::copy(values, weights.as<double>(where).begin());
    return check_finite(slice.tensor, values);
  });
}

}  // namespace muster::train
