// Where the files of a job are: the local path of each object, which objects a rank gets, and what /opt/ml
// means on this node. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/s3_uri.h"
#include "domain/workload.h"

namespace muster::runner {

// `name` below the prefix, with exactly one '/' between.
S3Location below(const S3Location& prefix, std::string_view name);

// The path of `key` below the local folder of a channel over `prefix`: s3://b/in/code or s3://b/in/code/ with
// key in/code/x give "x"; an object whose key is the prefix itself gives its base name; the prefix in/co
// gives the whole last component onwards ("code/x"). Empty: nothing to store (a folder marker, "in/code/").
// invalid_argument, naming the key: a path that would leave the folder ("..", an empty or "." component, NUL,
// a component over 255 bytes).
Result<std::string> local_name(std::string_view prefix, std::string_view key);

// The names that rank gets of `keys`, in order: all, or key i (sorted by bytes) for rank i mod world.
std::vector<std::string> share_of(std::vector<std::string> keys, domain::Distribution distribution, int rank,
                                  int world);

// Where a path of the workload is on this node: paths at or below /opt/ml move to `opt_ml`.
std::string node_path(std::string_view opt_ml, std::string_view path);

}  // namespace muster::runner
