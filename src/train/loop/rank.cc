#include "train/loop/rank.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iostream>

#include "base/file.h"
#include "train/agent/agent.h"
#include "train/comm/comm.h"
#include "train/comm/gloo/gloo.h"
#include "train/data/loader.h"
#include "train/loop/machine.h"
#include "train/loop/memory.h"
#include "train/loop/trainer.h"

namespace muster::train {
namespace {

std::atomic<bool> g_stop{false};  // set by the signal handler, the one place it can write to

void on_stop(int) { g_stop.store(true, std::memory_order_relaxed); }

void on_signal(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

// A terminal's Ctrl-C reaches the agent too, which sends SIGTERM. Until the first step SIGTERM just ends the
// rank: there is nothing to save yet.
void ignore_terminal(bool has_agent) {
  if (has_agent) {
    on_signal(SIGINT, SIG_IGN);
    on_signal(SIGHUP, SIG_IGN);
  }
  on_signal(SIGPIPE, SIG_IGN);
  on_signal(SIGXFSZ, SIG_IGN);  // a file may grow no further (ulimit -f): an error that names it
}

void stop_on_signals(bool has_agent) {
  on_signal(SIGTERM, on_stop);
  if (!has_agent) on_signal(SIGINT, on_stop);
}

// What a rank holds until it ends.
struct Held {
  std::unique_ptr<TokenStream> tokens, held_out;
  std::unique_ptr<StoreServer> store;  // only where no agent hosts it
  bool joining = false;                // asks the others for a `comm`
  std::unique_ptr<Comm> comm;
  std::unique_ptr<Trainer> trainer;
};

Result<void> open_data(const Config& config, Held& held) {
  MUSTER_TRY(held.tokens, open_tokens(config.train_data, config.mixture));
  if (config.validation_data.empty()) return {};
  MUSTER_TRY(held.held_out, shard_stream(config.validation_data));
  return {};
}

Result<void> join(const RankOptions& options, Held& held) {
  const RankPlace& place = options.place;
  if (place.host_store) {
    MUSTER_TRY(UniqueFd listener, listen_for_store(place.store_host, place.store_port));
    MUSTER_TRY(held.store, start_store(place.store_host, std::move(listener)));
  }
  if (place.world == 1) {
    held.comm = std::make_unique<Comm>("world", single_transport());
    return {};
  }
  std::string address = place.address;
  if (address.empty()) {
    MUSTER_TRY(address, address_towards(place.store_host, place.store_port));
  }
  held.joining = true;
  MUSTER_TRY(auto transport,
             gloo_transport({.store_host = place.store_host,
                             .store_port = place.store_port,
                             .prefix = options.job + "/" + place.epoch,
                             .address = address,
                             .rank = place.rank,
                             .size = place.world,
                             .timeout = Millis(static_cast<std::int64_t>(options.config.timeout_s * 1000))}));
  held.comm = std::make_unique<Comm>("world", std::move(transport));
  return {};
}

void say(const std::string& line) { std::cout << line << '\n' << std::flush; }

// Whether a peer is gone: the ranks did not find each other, or an operation between them broke. The same
// codes may also come from a file system, of this rank or, by agree(), of another.
bool lost_a_peer(const Held& held, const Error& error) {
  if (error.code != ErrorCode::unavailable && error.code != ErrorCode::timeout) return false;
  if (!held.comm) return held.joining;
  const auto records = held.comm->recent();
  return std::ranges::find(records, OperationRecord::State::failed, &OperationRecord::state) != records.end();
}

// The last operations, the one that broke among them, for whoever looks for the cause.
void show_recent(const Comm& comm) {
  const auto records = comm.recent();
  std::string line = "rank " + std::to_string(comm.rank()) + ": last operations:";
  for (std::size_t i = records.size() > 4 ? records.size() - 4 : 0; i < records.size(); ++i) {
    const OperationRecord& record = records[i];
    line += " " + record.name + " #" + std::to_string(record.sequence) + " of " + record.group + " " +
            std::to_string(record.bytes_sent) + " bytes " +
            format_duration(Millis(record.duration_ns / 1'000'000)) +
            (record.state == OperationRecord::State::failed ? " failed" : "") +
            (i + 1 < records.size() ? "," : "");
  }
  std::cerr << line << std::endl;
}

Result<Outcome> train(const RankOptions& options, Held& held) {
  const Config& config = options.config;
  MUSTER_CHECK(open_data(config, held));
  MUSTER_CHECK(join(options, held));
  MUSTER_TRY(const int threads,
             choose_threads(static_cast<int>(config.threads), options.place.local_world, *held.comm));
  set_threads(threads);
  MUSTER_TRY(const auto machines, machine_descriptions(options.gemm_path, threads, *held.comm));
  MUSTER_TRY(held.trainer,
             Trainer::create({.config = config,
                              .train = held.tokens.get(),
                              .validation = held.held_out.get(),
                              .comm = held.comm.get(),
                              .writer = {.node = options.place.node, .local_rank = options.place.local_rank},
                              .node_ranks = options.place.local_world,
                              .accepted = options.accepted,
                              .machines = machines,
                              .say = say,
                              .stop_requested = [] { return g_stop.load(std::memory_order_relaxed); }}));
  stop_on_signals(options.has_agent);
  MUSTER_TRY(const Outcome outcome, held.trainer->run());
  // Nobody leaves while another still talks: a closed connection would look like a lost peer.
  MUSTER_CHECK(held.comm->barrier());
  return outcome;
}

// train(), where what a library throws is an error as well. Caught while `held` stands: taking it down may
// wait for a disk or a peer that hangs.
Result<Outcome> train_without_throwing(const RankOptions& options, Held& held) {
  try {
    return train(options, held);
  } catch (const std::exception& error) {
    const std::string_view text = error.what();  // libtorch's goes on with where it was thrown
    return fail(is_out_of_memory(error) ? ErrorCode::resource_exhausted : ErrorCode::internal,
                std::string(text.substr(0, text.find('\n'))));
  }
}

// Says the error and leaves at once, not by way of destructors: a peer or a disk that hangs would hold this
// rank back, and its error.
[[noreturn]] void fail_rank(const RankOptions& options, const Held& held, const Error& error) {
  const bool lost = lost_a_peer(held, error);
  if (lost && held.comm) show_recent(*held.comm);
  std::cerr << error_line(options.place.rank, error.message) << std::endl;
  _exit(lost ? kExitLostPeer : exit_code(error));
}

}  // namespace

int run_rank(const RankOptions& options) {
  ignore_terminal(options.has_agent);
  Held held;
  const auto outcome = train_without_throwing(options, held);
  if (!outcome) fail_rank(options, held, outcome.error());
  return *outcome == Outcome::stopped ? kExitStopped : kExitDone;
}

}  // namespace muster::train
