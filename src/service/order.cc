#include "service/order.h"

#include "base/json.h"

namespace muster::service {
namespace {

struct Perform {
  const OrderPorts& ports;
  Finished& result;

  // Every rank's log stream exists before its runner does, and holds the reason when there is none. Its time
  // is that of the attempt, which lies within its job's, whatever the wall clock does: a prune tells by it
  // whose the stream is.
  void operator()(const LaunchOrder& order) const {
    const auto started = launch(order);
    std::optional<Error> error;
    if (!started) {
      error = started.error();
      explain_in_logs(order, *error);
    }
    result.event = control::LaunchDone{order.attempt.id, std::move(error)};
  }

  void operator()(const StopOrder& order) const { note(ports.engine.stop(order.launch, order.grace)); }

  void operator()(const ReleaseOrder& order) const {
    note(ports.engine.release(order.launch));
    if (!result.error) result.event = control::RankReleased{order.launch};
  }

  void operator()(const RefreshOrder& order) const {
    // The nodes first: what a node that has just come back still runs is then seen with it.
    auto inventory = ports.engine.inventory();
    if (!inventory) return note(inventory.error());
    auto observations = ports.engine.observe();
    if (!observations) return note(observations.error());
    result.event = control::EngineInventory{order.asked, *std::move(inventory), *std::move(observations)};
  }

  void operator()(const OutboxOrder& order) const {
    auto done = carry_out(order.outbox);
    if (!done) return note(done.error().with_context("outbox entry " + order.outbox.kind));
    result.event = control::OutboxDone{order.outbox.sequence};
  }

 private:
  void note(const Error& error) const { result.error = error; }
  void note(const Result<void>& done) const {
    if (!done) result.error = done.error();
  }

  Result<void> launch(const LaunchOrder& order) const {
    const auto& attempt = order.attempt;
    const auto now = ports.clock.now();
    const auto ranks = static_cast<int>(attempt.ranks.size());
    for (int rank = 0; rank < ranks; ++rank) {
      MUSTER_CHECK(ports.logs.create(domain::log_group(order.kind),
                                     domain::log_stream(order.job_name, rank, attempt.created),
                                     attempt.created));
    }
    MUSTER_CHECK(order.workload);
    domain::GangLaunch gang;
    gang.attempt = attempt.id;
    for (std::size_t i = 0; i < attempt.ranks.size(); ++i) {
      domain::NodeLaunch node;
      node.id = {attempt.id, static_cast<int>(i), attempt.ranks[i].incarnation};
      node.world = ranks;
      node.node = attempt.ranks[i].node;
      node.attempt_created = attempt.created;
      node.workload = *order.workload;
      gang.runner_tokens.push_back(ports.secrets.runner_token(node.id, now));
      gang.nodes.push_back(std::move(node));
    }
    return ports.engine.launch(gang);
  }

  // Best effort: the job's own record has the error too.
  void explain_in_logs(const LaunchOrder& order, const Error& error) const {
    const auto now = ports.clock.now();
    const ports::LogLine line{now, "muster: the launch failed: " + error.message};
    for (std::size_t rank = 0; rank < order.attempt.ranks.size(); ++rank) {
      const auto stream = domain::log_stream(order.job_name, static_cast<int>(rank), order.attempt.created);
      if (!ports.logs.append(domain::log_group(order.kind), stream, std::nullopt, {&line, 1}, now)) return;
    }
  }

  Result<void> carry_out(const domain::Outbox& outbox) const {
    if (outbox.kind != "forget-logs") return fail(ErrorCode::unsupported, "this program does not know it");
    MUSTER_TRY(const auto body, json::parse_object(outbox.body));
    MUSTER_TRY(const auto group, json::get_string(body, "group"));
    MUSTER_TRY(const auto prefix, json::get_string(body, "prefix"));
    MUSTER_TRY(const auto until, json::get_int(body, "until"));
    auto streams = ports.logs.streams(group, prefix);
    if (!streams && streams.error().code == ErrorCode::not_found) return {};
    if (!streams) return tl::unexpected(std::move(streams).error());
    for (const auto& stream : *streams) {
      if (stream.created.unix_ms <= until) MUSTER_CHECK(ports.logs.remove(group, stream.name));
    }
    return {};
  }
};

}  // namespace

Finished perform(const std::string& key, const Order& order, const OrderPorts& ports) {
  Finished result;
  result.key = key;
  std::visit(Perform{ports, result}, order);
  return result;
}

}  // namespace muster::service
