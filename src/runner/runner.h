// One rank of a job on its node, from the first report to the last. The shell around runner/core.
//
// run() is called with one thread in the process, in the node that the engine has made; it blocks until the
// rank is over. It reaps every child of the process, so nothing else in the process may wait for children. It
// may be called once. docs/formats/runner-protocol.md.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "runner/credentials.h"
#include "runner/report/link.h"
#include "runner/transfer/objects.h"

namespace muster::runner {

// Makes the client of the job's object store. Called at most once, before the first transfer.
using MakeObjects = std::function<Result<std::unique_ptr<Objects>>(
    const std::string& endpoint_url, const std::string& region, CredentialsCache& credentials)>;

struct Context {
  std::string folder;  // the launch's: launch.json, token; spool/ and scratch/ are made
  std::string opt_ml = "/opt/ml";
  bool names_resolve = true;  // algo-1 .. algo-N resolve in the node
  std::string bin_dir;        // of the built-in programs, as seen in the node
  std::string user;           // name and home of the job's user; empty: none of its own
  std::string home = "/";
  std::function<int()> become;                           // core of the child: takes the job's user
  std::function<Result<void>(const std::string&)> give;  // gives a tree to the job's user
  MakeObjects make_objects;
  Patience::Options patience;  // with the control plane
};

// Exit code of the program: 0 when the final report was acknowledged. An error: the node cannot work at all.
Result<int> run(Context context);

// Ships what a runner that died left in `folder`. Success: nothing is left that another try could ship; the
// answer says what was refused for good or cannot be read, "" when all is shipped or nobody wants it any
// more. timeout: the control plane was away for too long.
Result<std::string> drain(const std::string& folder, Patience::Options patience);

}  // namespace muster::runner
