// The thread backend: the ranks of a group are threads of this process. For tests and simulations.
//
// Sends are rendezvous: they end only when the receiver has the bytes, so a program that would hang on NCCL
// hangs here too. A hang is not waited out: when every rank waits (or has left) and nothing can move, all of
// them get an error at once that lists what each rank waits for.
//
// A world lives as long as its transports. join() once per rank, by any thread; a transport is for one
// thread, its rank's, but for abort(). A rank that destroys its transport has left.
#pragma once

#include <memory>

#include "base/time.h"
#include "train/comm/comm.h"

namespace muster::train {

class ThreadWorld {
 public:
  // timeout: how long one exchange may wait for a rank that is busy elsewhere.
  explicit ThreadWorld(int size, Millis timeout = Millis(60'000));
  ~ThreadWorld();

  std::unique_ptr<Transport> join(int rank);

 private:
  class Hub;
  class Endpoint;
  std::shared_ptr<Hub> hub_;
};

}  // namespace muster::train
