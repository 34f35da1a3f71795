// The gloo backend of comm, and the store by which its ranks find each other; both are c10d's.
//
// The store is hosted by node 0's agent (StoreServer), so that it outlives any rank. A peer that dies shows
// as an error within milliseconds; one that hangs, by the time-out. No libtorch type shows here. Threading:
// functions may be called by any thread; a Transport is for one thread, its rank's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/time.h"
#include "train/comm/comm.h"

namespace muster::train {

class StoreServer {
 public:
  virtual ~StoreServer() = default;
  virtual std::uint16_t port() const = 0;
};

// A TCP socket listening on host:port (port 0: any free one), for start_store. Binds to host's own address
// where this machine has it, so that two nodes of one machine do not meet; else to all addresses.
Result<UniqueFd> listen_for_store(const std::string& host, std::uint16_t port);
Result<std::unique_ptr<StoreServer>> start_store(const std::string& host, UniqueFd listener);

struct GlooOptions {
  std::string store_host;
  std::uint16_t store_port = 0;
  std::string prefix;   // of the keys: job and epoch
  std::string address;  // host name or address at which peers reach this rank
  int rank = 0;
  int size = 1;
  Millis connect_timeout{300'000};  // until all ranks are there
  Millis timeout{300'000};          // of one exchange
};

// Returns when all ranks are connected. timeout: names what is missing.
Result<std::unique_ptr<Transport>> gloo_transport(const GlooOptions& options);

// The address from which this machine would reach `host`: a good GlooOptions::address.
Result<std::string> address_towards(const std::string& host, std::uint16_t port);

}  // namespace muster::train
