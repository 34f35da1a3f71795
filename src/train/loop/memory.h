// Whether a run fits into the memory of the machines that it runs on, asked before anything large is
// allocated; and what is said where it does not fit after all. One thread a rank.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "train/comm/comm.h"
#include "train/loop/machine.h"
#include "train/plan/fit.h"

namespace muster::train {

// Collective over all ranks: the memories that they have, with those of the ranks that share each. Every rank
// gives what it may use itself (machine.h), and gets the same answer as the others: virtual nodes and
// containers on one machine are one memory.
Result<std::vector<SharedMemory>> shared_memories(std::span<const MemoryLimit> mine, Comm& world);

// resource_exhausted: a process that holds `model` alone, to use it, needs more than it may have.
Result<void> check_memory_of_model(const ModelConfig& model, Dtype dtype);

// Whether this is a tensor library's, or the language's, way to say that there is no memory.
bool is_out_of_memory(const std::exception& error);

// The error of a rank that ran out of memory in `what`: what it needs by plan, and what makes it less.
tl::unexpected<Error> out_of_memory(const std::string& what, const MemoryPlan& plan);

// work(), where running out of memory is an error.
template <typename Work>
auto with_memory_errors(const std::string& what, const MemoryPlan& plan, Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return out_of_memory(what, plan);
  }
}

}  // namespace muster::train
