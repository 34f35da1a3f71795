#include "train/loop/state.h"

#include <algorithm>

namespace muster::train {
namespace {

constexpr char kFirstMoment[] = "optimizer.first_moment.";
constexpr char kSecondMoment[] = "optimizer.second_moment.";

const char* dtype_name(Dtype dtype) { return dtype == Dtype::f32 ? "F32" : "F64"; }

// Elements `range` of the flat parameters as slices of tensors named with `prefix`; of those, `take` is told
// the parameter, the slice and where it lies, counted from element `origin`.
template <typename Take>
Result<void> for_slices(const ParamTable& table, const std::string& prefix, Range range, std::int64_t origin,
                        Take take) {
  for (const Param& param : table.params()) {
    const Range part{std::max(range.begin, param.offset), std::min(range.end, param.offset + param.numel)};
    if (part.begin >= part.end) continue;
    const Slice slice{prefix + param.name, param.box, {part.begin - param.offset, part.end - param.offset}};
    MUSTER_CHECK(take(param, slice, Range{part.begin - origin, part.end - origin}));
  }
  return {};
}

void append_slices(const ParamTable& table, const FlatBuffer& buffer, const std::string& prefix, Range range,
                   std::int64_t origin, std::vector<TensorSlice>& out) {
  const auto append = [&](const Param& param, const Slice& slice, Range where) -> Result<void> {
    if (table.owns(param)) out.push_back({slice, buffer.bytes(where)});
    return {};
  };
  static_cast<void>(for_slices(table, prefix, range, origin, append));
}

Result<void> read_range(Reader& reader, const ParamTable& table, const std::string& prefix, Range range,
                        std::int64_t origin, FlatBuffer& buffer) {
  return for_slices(table, prefix, range, origin, [&](const Param&, const Slice& slice, Range where) {
    return reader.read(slice, buffer.bytes(where));
  });
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
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

std::vector<TensorSlice> state_slices(const Model& model, const AdamW* optimizer, Range range) {
  const ParamTable& table = model.table();
  std::vector<TensorSlice> slices;
  append_slices(table, model.parameters(), "", range, 0, slices);
  if (optimizer != nullptr) {
    const std::int64_t origin = optimizer->range().begin;
    append_slices(table, optimizer->first_moment(), kFirstMoment, range, origin, slices);
    append_slices(table, optimizer->second_moment(), kSecondMoment, range, origin, slices);
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

Result<void> restore_state(Reader& reader, Model& model, AdamW* optimizer) {
  const ParamTable& table = model.table();
  MUSTER_CHECK(check_tensors(reader, state_tensors(table, model.dtype(), optimizer != nullptr)));
  MUSTER_CHECK(read_range(reader, table, "", {0, table.numel()}, 0, model.parameters()));
  if (optimizer == nullptr) return {};
  const Range owned = optimizer->range();
  MUSTER_CHECK(read_range(reader, table, kFirstMoment, owned, owned.begin, optimizer->first_moment()));
  MUSTER_CHECK(read_range(reader, table, kSecondMoment, owned, owned.begin, optimizer->second_moment()));
  optimizer->set_steps(reader.info().step);
  return {};
}

void read_weights(const hf::Weights& weights, Model& model) {
  const ParamTable& table = model.table();
  FlatBuffer& parameters = model.parameters();
  std::vector<float> values;
  const auto read = [&](const Param&, const Slice& slice, Range where) -> Result<void> {
    if (parameters.dtype() == Dtype::f32) {
      weights.read(slice, parameters.as<float>(where));
      return {};
    }
    values.resize(static_cast<std::size_t>(where.size()));
    weights.read(slice, values);
    std::ranges::copy(values, parameters.as<double>(where).begin());
    return {};
  };
  static_cast<void>(for_slices(table, "", {0, table.numel()}, 0, read));
}

}  // namespace muster::train
