// How long a save stops the training: Saver::start() beside a plain copy of the same bytes between touched
// buffers, in alternation, and how long the file then takes.
//   bench_save_stall [MIB] [ROUNDS] [FOLDER]

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/file.h"
#include "bench/support/summary.h"
#include "train/ckpt/saver.h"

namespace muster::train {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Touched memory.
std::unique_ptr<std::byte[]> filled(std::size_t bytes) {
  auto data = std::make_unique<std::byte[]>(bytes);
  std::memset(data.get(), 1, bytes);
  return data;
}

Result<void> measure(std::size_t mib, int rounds, const std::string& folder) {
  const std::size_t bytes = mib << 20;
  const auto weights = filled(bytes), copy = filled(bytes);
  const TensorInfo tensor{"weights", "F32", {static_cast<std::int64_t>(bytes / 4)}};
  const TensorSlice slice{whole_slice(tensor.name, whole_box(tensor.shape)), {weights.get(), bytes}};
  CheckpointInfo info{.tensors = {tensor}};
  Comm alone("world", single_transport());
  Saver saver({.folder = folder, .keep = Keep{.last = 1}}, alone);
  MUSTER_CHECK(saver.reserve(bytes));
  std::vector<double> copies, stalls, wholes;
  for (int round = 0; round < rounds; ++round) {
    auto start = Clock::now();
    std::memcpy(copy.get(), weights.get(), bytes);
    copies.push_back(milliseconds_since(start));
    info.step = round;
    start = Clock::now();
    MUSTER_CHECK(saver.start(info, {&slice, 1}));
    stalls.push_back(milliseconds_since(start));
    MUSTER_TRY(const auto report, saver.wait());
    wholes.push_back(report->seconds * 1000);
  }
  std::printf("%zu MiB: copy %s ms, stall %s ms, ratio %s; until the step counts %s ms\n", mib,
              to_string(bench::summarize(copies)).c_str(), to_string(bench::summarize(stalls)).c_str(),
              to_string(bench::summarize_ratio(stalls, copies), 2).c_str(),
              to_string(bench::summarize(wholes), 0).c_str());
  return {};
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  const muster::TempDir scratch;
  const int mib = argc > 1 ? std::atoi(argv[1]) : 193, rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  if (mib < 1 || rounds < 1) {
    std::fprintf(stderr, "MIB and ROUNDS must be at least 1\n");
    return 2;
  }
  std::printf("%s\n", muster::bench::describe_machine().c_str());
  const auto done =
      muster::train::measure(static_cast<std::size_t>(mib), rounds, argc > 3 ? argv[3] : scratch / "ckpt");
  if (done) return 0;
  std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return 1;
}
