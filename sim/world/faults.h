// What may go wrong, and how often. All zero: a friendly world. Values only.
#pragma once

namespace muster::sim {

struct Odds {
  bool operator==(const Odds&) const = default;
  // of a commit
  double commit_fails = 0;       // nothing is written, the loop is told so
  double commit_fails_late = 0;  // it is written, the loop is told that it is not
  double crash_before = 0;       // the process dies before the write
  double crash_after = 0;        // ... after the write, before any effect
  // of a launch
  double launch_fails = 0;
  double crash_in_launch = 0;  // the process dies when a part of the ranks has been started
  // of a message, each way
  double drop = 0;
  double duplicate = 0;
  double late = 0;
  // a second
  double crash = 0;
  double runner_dies = 0;
  double runner_hangs = 0;  // alive, and silent for good
  double node_dies = 0;     // with all that runs on it
  double node_parts = 0;    // unreachable; what runs on it goes on
  double wall_clock_steps = 0;
};

}  // namespace muster::sim
