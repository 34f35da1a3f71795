// muster.toml: the settings of a service. Every key is optional; unknown keys are refused with the nearest
// known one.
//
//   account = "000000000000"          twelve digits
//   region = "us-east-1"              of the buckets, of `muster env` and so of jobs
//   [local]
//   nodes = 2                         virtual nodes on this machine
//   user = "muster"                   whom jobs run as when musterd is root
//   [images]                          image name, * for any characters -> muster/host, muster/train or
//                                     muster/data
//   "*/pytorch-training*" = "muster/host"
//   [instance_types]                  type, * for any characters -> "local" or "refuse"
//   "ml.p5*" = "refuse"
//
// For musterd and for `muster doctor`. Thread-safe.
#pragma once

#include <map>
#include <string>

#include "base/error.h"

namespace muster::app {

struct Config {
  std::string account = "000000000000";
  std::string region = "us-east-1";
  int nodes = 2;
  std::string user;
  std::map<std::string, std::string> images;
  std::map<std::string, std::string> instance_types = {{"ml.*", "local"}};
};

// Defaults when the file is absent. Errors name the file, the line and the key.
Result<Config> load_config(const std::string& path);

}  // namespace muster::app
