// The one door to libtorch: every other header of src/train stays free of it, or names at::Tensor by a
// forward declaration. This header is also the precompiled header of all files that use tensors
// (cmake/Torch.cmake). Includes only; nothing to call.
#pragma once

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
