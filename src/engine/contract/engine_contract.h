// What every engine must do: one suite for local, slurm, kubernetes and the simulated one.
//
// An adapter's test program compiles engine_contract.cc, and instantiates the suite with a factory:
//   INSTANTIATE_TEST_SUITE_P(Local, EngineContract, testing::Values(MakeSubject(make_local_subject)));
//
// One thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "ports/engine.h"

namespace muster::engine::contract {

// How the runners of a gang behave.
enum class Conduct {
  stays,     // until SIGTERM, then ends with success
  stubborn,  // ignores SIGTERM
  ends,      // at once, with success
  fails,     // at once, without its final report
};

class Subject {
 public:
  virtual ~Subject() = default;
  virtual ports::Engine& engine() = 0;
  virtual domain::GangLaunch gang(domain::AttemptId attempt, int ranks, Conduct conduct) = 0;
  virtual domain::GangLaunch broken_gang(domain::AttemptId attempt) = 0;  // its last rank cannot be started
  virtual void kill_runner(const domain::LaunchId& id) = 0;               // like SIGKILL or a power cut
  virtual int exits(const domain::LaunchId& id) = 0;                      // NodeExit events so far
  // Lets things happen until `done` holds or a generous time is over; answers whether it holds.
  virtual bool wait(const std::function<bool()>& done) = 0;
  virtual void restart() = 0;  // a new engine over the same world, as after a crash of musterd
};

using MakeSubject = std::function<std::unique_ptr<Subject>()>;

class EngineContract : public testing::TestWithParam<MakeSubject> {
 protected:
  void SetUp() override { subject_ = GetParam()(); }
  bool alive(const domain::LaunchId& id);
  bool known(const domain::LaunchId& id);

  std::unique_ptr<Subject> subject_;
};

}  // namespace muster::engine::contract
