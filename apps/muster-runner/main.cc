// muster-runner: one process a rank on its node. Started by engines, not by people.
//
//   muster-runner node <run folder>    makes a local node and runs the rank in it
//   muster-runner drain <run folder>   ships what a runner that died left behind; 0: nothing is
//                                      left, or nothing that another try could ship
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/local/run_folder.h"
#include "engine/local/sandbox.h"
#include "runner/objects_s3.h"
#include "runner/runner.h"

namespace muster {
namespace {

constexpr Millis kDrainPatience{50'000};  // engines give a drain 60 s

int fail_with(const Error& error) {
  std::fprintf(stderr, "muster-runner: %s\n", error.message.c_str());
  return 1;
}

int run_node(const std::string& folder) {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  auto entered = engine::local::enter_node(folder);
  if (!entered) return fail_with(entered.error());
  const auto node = *std::move(entered);
  runner::Context context;
  context.folder = node.folder;
  context.opt_ml = node.opt_ml;
  context.names_resolve = node.names_resolve;
  context.bin_dir = program.parent_path().string();
  context.user = node.user.name;
  if (!node.user.home.empty()) context.home = node.user.home;
  context.become = [&node] { return engine::local::become_job(node.user); };
  context.give = [&node](const std::string& path) { return engine::local::give_to_job(node.user, path); };
  context.make_objects = runner::s3_objects;
  const auto code = runner::run(std::move(context));
  return code ? *code : fail_with(code.error());
}

int drain(const std::string& folder) {
  // As a node does: who holds the folder is known even if musterd died just after it started this. On a full
  // disk it is not, and the spool is shipped all the same.
  if (const auto self = engine::local::process_ref(::getpid()))
    static_cast<void>(engine::local::write_pid(folder, *self));
  const auto drained = runner::drain(folder, {.give_up = kDrainPatience});
  if (!drained) return fail_with(drained.error());
  if (!drained->empty()) std::fprintf(stderr, "muster-runner: given up: %s\n", drained->c_str());
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const std::string_view command = argc == 3 ? argv[1] : "";
  if (command == "node") return muster::run_node(argv[2]);
  if (command == "drain") return muster::drain(argv[2]);
  std::fprintf(stderr,
               "usage: muster-runner node <run folder>\n"
               "       muster-runner drain <run folder>\n"
               "Started by the engine of musterd; see docs/formats/runner-protocol.md.\n");
  return 2;
}
