// One run, one folder of checkpoints: two that write into one would remove each other's steps.
//
// The lock is a flock of DIR/.muster-lock: it goes with the process that holds it, however that ends. The
// file says which that is, so it means something on this node only: the runner of a job copies it to no
// store. Who only reads (ckpt ls, verify, export, eval) takes none. Where several nodes share the folder, one
// rank locks it for all. Functions: any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"

namespace muster::train {

inline constexpr char kLockName[] = ".muster-lock";

// Takes the folder, which is there, for as long as the lock lives. A process that was killed may still be
// dying: if another holds it, `waits` is told by whom, once, and `patience` is had. nullopt: the file system
// has no locks. failed_precondition: another process holds it, and which.
Result<std::optional<FileLock>> lock_checkpoints(const std::string& folder, Millis patience,
                                                 const std::function<void(const std::string&)>& waits = {});

}  // namespace muster::train
