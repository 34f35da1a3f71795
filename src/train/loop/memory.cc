#include "train/loop/memory.h"

#include <algorithm>
#include <map>

#include "train/model/params.h"
#include "train/plan/text.h"

namespace muster::train {
namespace {

std::string text_of(std::span<const MemoryLimit> limits) {
  json::Array array;
  for (const MemoryLimit& limit : limits)
    array.push_back(json::Object{{"id", limit.id}, {"name", limit.name}, {"bytes", limit.bytes}});
  return json::dump(json::Object{{"limits", std::move(array)}});
}

Result<std::vector<MemoryLimit>> limits_in(const std::string& text) {
  MUSTER_TRY(const json::Object object, json::parse_object(text));
  std::vector<MemoryLimit> limits;
  for (const auto& value : object.at("limits").as_array()) {
    const json::Object& one = value.as_object();
    MUSTER_TRY(std::string id, json::get_string(one, "id"));
    MUSTER_TRY(std::string name, json::get_string(one, "name"));
    limits.push_back({std::move(id), std::move(name), json::opt_double(one, "bytes").value_or(0)});
  }
  return limits;
}

}  // namespace

Result<std::vector<SharedMemory>> shared_memories(std::span<const MemoryLimit> mine, Comm& world) {
  MUSTER_TRY(const auto texts, world.gather_text(text_of(mine)));
  std::vector<SharedMemory> memories;
  std::map<std::string, std::size_t> places;  // id -> in `memories`
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    MUSTER_TRY(const auto limits, limits_in(texts[rank]));
    for (const MemoryLimit& limit : limits) {
      const auto [place, is_new] = places.try_emplace(limit.id, memories.size());
      if (is_new) memories.push_back({.name = limit.name, .bytes = limit.bytes, .ranks = {}});
      SharedMemory& memory = memories[place->second];
      memory.bytes = std::min(memory.bytes, limit.bytes);
      memory.ranks.push_back(static_cast<int>(rank));
    }
  }
  return memories;
}

Result<void> check_memory_of_model(const ModelConfig& model, Dtype dtype) {
  const PartSize size = part_size(model, whole_model(model));
  const double needed = static_cast<double>(size.parameters * size_of(dtype)) +
                        static_cast<double>(size.gradients * size_of(wide(dtype)));
  for (const MemoryLimit& limit : memory_limits()) {
    if (needed <= limit.bytes) continue;
    return fail(ErrorCode::resource_exhausted, "the model, of " + std::to_string(parameter_count(model)) +
                                                   " parameters, needs " + amount(needed) + "; this " +
                                                   limit.name + " has " + amount(limit.bytes) +
                                                   ": use a machine with more memory or a smaller model");
  }
  return {};
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  return std::string_view(error.what()).find("can't allocate memory") !=
         std::string_view::npos;  // libtorch's
}

tl::unexpected<Error> out_of_memory(const std::string& what, const MemoryPlan& plan) {
  return fail(ErrorCode::resource_exhausted, "no memory for " + what + ": this rank needs " +
                                                 amount(plan.total()) + " by plan, and less is free here. " +
                                                 what_takes_most(plan));
}

}  // namespace muster::train
