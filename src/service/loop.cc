#include "service/loop.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/assert.h"

namespace muster::service {
namespace {

// Failures in a row of one effect from which on the operator hears of it.
constexpr int kFailuresSaid = 3;

Error unavailable(std::string message) { return {ErrorCode::unavailable, std::move(message)}; }

// What must get through when the queue is crowded: stops and the word of runners.
bool is_urgent(const control::Event& event) {
  return std::holds_alternative<control::StopJob>(event) || std::holds_alternative<control::Report>(event);
}

// Facts that are reported once and must not be dropped; their number is bounded by what runs.
bool is_fact(const control::Event& event) { return std::holds_alternative<control::RankGone>(event); }

// The last change of every record, in the order of these.
domain::Commit coalesce(std::vector<domain::Change> changes) {
  std::set<std::pair<domain::RecordKind, std::string>> later;
  domain::Commit commit;
  for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
    const auto* put = std::get_if<domain::Put>(&*change);
    const auto* erase = std::get_if<domain::Erase>(&*change);
    auto id = put != nullptr ? std::pair(kind_of(put->record), key_of(put->record))
                             : std::pair(erase->kind, erase->key);
    if (later.insert(std::move(id)).second) commit.changes.push_back(std::move(*change));
  }
  std::reverse(commit.changes.begin(), commit.changes.end());
  return commit;
}

}  // namespace

// What one step gathers.
struct Loop::Batch {
  struct Answer {
    ReplyDone done;
    Result<control::Reply> reply;
  };
  Time now;
  std::vector<domain::Change> changes;
  std::vector<Answer> answers;
  std::vector<NewWatch> watches;
  std::vector<QueryItem> queries;
};

Loop::Loop(ports::Store& store, Executor& executor, const Clock& clock, Monotonic monotonic,
           LoopOptions options, Committed committed)
    : store_(store),
      executor_(executor),
      clock_(clock),
      monotonic_(std::move(monotonic)),
      options_(std::move(options)),
      committed_(std::move(committed)) {
  MUSTER_ASSERT(options_.queue_reserved < options_.queue_max && options_.batch_max > 0);
}

Result<void> Loop::open() {
  MUSTER_TRY(meta_, store_.open_epoch());
  MUSTER_CHECK(load());
  return {};
}

Time Loop::now() {
  last_now_ = std::max({last_now_, clock_.now(), state_.counters.last_time});
  return last_now_;
}

// ---- from any thread ----

// Moves from `item` only when it is taken.
std::optional<Error> Loop::enqueue(Item&& item, std::size_t limit) {
  const std::lock_guard lock(mutex_);
  if (closed_) return unavailable("the service is shutting down: try again");
  if (queue_.size() >= limit) {
    return Error{ErrorCode::resource_exhausted, std::to_string(queue_.size()) +
                                                    " requests wait for the control thread, at most " +
                                                    std::to_string(limit) + " may: try again"};
  }
  queue_.push_back(std::move(item));
  ready_.notify_one();
  return std::nullopt;
}

void Loop::post(control::Event event, ReplyDone done) {
  const auto limit = is_fact(event)     ? SIZE_MAX
                     : is_urgent(event) ? options_.queue_max
                                        : options_.queue_max - options_.queue_reserved;
  Item item = Command{std::move(event), std::move(done)};
  auto refused = enqueue(std::move(item), limit);
  if (!refused) return;
  if (auto& command = std::get<Command>(item); command.done)
    command.done(tl::unexpected(*std::move(refused)));
}

void Loop::query(Query run, std::function<void(Error)> refused) {
  Item item = QueryItem{std::move(run), std::move(refused)};
  auto refused_because = enqueue(std::move(item), options_.queue_max - options_.queue_reserved);
  if (refused_because) std::get<QueryItem>(item).refused(*std::move(refused_because));
}

void Loop::watch(domain::LaunchId launch, std::uint64_t after, Millis wait, Service::DesiredDone done) {
  Item item = NewWatch{launch, after, wait, std::move(done)};
  auto refused = enqueue(std::move(item), options_.queue_max);
  if (refused) std::get<NewWatch>(item).done(tl::unexpected(*std::move(refused)));
}

void Loop::finished(Finished result) { enqueue(Item(std::move(result)), SIZE_MAX); }

bool Loop::wait() {
  auto due = last_tick_ ? *last_tick_ + options_.tick : Millis{0};
  for (const auto& watcher : watchers_) due = std::min(due, watcher.deadline);
  const auto left = std::max(due - monotonic_(), Millis{0});
  std::unique_lock lock(mutex_);
  ready_.wait_for(lock, left, [this] { return closed_ || !queue_.empty(); });
  return !closed_;
}

void Loop::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  ready_.notify_all();
}

// ---- the step ----

std::deque<Loop::Item> Loop::drain() {
  const std::lock_guard lock(mutex_);
  if (queue_.size() <= options_.batch_max) return std::exchange(queue_, {});
  std::deque<Item> batch;
  for (std::size_t i = 0; i < options_.batch_max; ++i) {
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return batch;
}

bool Loop::step() {
  auto items = drain();
  const auto monotonic = monotonic_();
  const bool tick = !last_tick_ || monotonic >= *last_tick_ + options_.tick;
  const bool expired = std::any_of(watchers_.begin(), watchers_.end(),
                                   [&](const auto& watcher) { return monotonic >= watcher.deadline; });
  if (items.empty() && !tick && !expired) return false;
  Batch batch;
  if (!loaded_) try_load();
  batch.now = now();
  if (tick) {
    refresh_due_ = true;
    handle(batch, {control::Tick{monotonic - last_tick_.value_or(monotonic)}, {}});
    last_tick_ = monotonic;
  }
  for (auto& item : items) take(batch, std::move(item));
  if (loaded_) change(batch, control::schedule(state_, batch.now));
  // A paused loop tries the store with every tick.
  if (!batch.changes.empty() || (paused_ && tick && loaded_)) {
    if (auto written = write(batch); !written) recover(batch, written.error());
  }
  release(batch);
  return true;
}

void Loop::take(Batch& batch, Item&& item) {
  if (auto* command = std::get_if<Command>(&item)) return handle(batch, std::move(*command));
  if (auto* query = std::get_if<QueryItem>(&item)) {
    batch.queries.push_back(std::move(*query));
    return;
  }
  if (auto* watch = std::get_if<NewWatch>(&item)) {
    control::observe(state_, control::RankHeard{watch->launch});
    batch.watches.push_back(std::move(*watch));
    return;
  }
  auto& finished = std::get<Finished>(item);
  const auto order = in_flight_.extract(finished.key);
  if (order.empty()) return;  // of an earlier load: what it saw may be out of date
  settle(finished.key, order.mapped(), finished);
  if (finished.event) handle(batch, {*std::move(finished.event), {}});
}

// A failed order is tried again later and later, for ever: it does no harm. The operator hears of it.
void Loop::settle(const std::string& key, const Order& order, const Finished& result) {
  if (const auto* launch = std::get_if<LaunchOrder>(&order)) {
    const auto* done = result.event ? std::get_if<control::LaunchDone>(&*result.event) : nullptr;
    if (done != nullptr && done->error)
      say(key + " of job " + launch->job_name + " has failed: " + done->error->message);
    return;
  }
  // Each look at the engine has its own key and follows the ticks: here only its failures are counted.
  const auto name = std::holds_alternative<RefreshOrder>(order) ? std::string("look at the nodes") : key;
  if (!result.error) {
    backoff_.erase(name);
    return;
  }
  auto& backoff = backoff_[name];
  const auto wait = options_.backoff_min * (1 << std::min(backoff.failures, 16));
  const bool of_engine =
      std::holds_alternative<StopOrder>(order) || std::holds_alternative<ReleaseOrder>(order);
  backoff = {backoff.failures + 1, monotonic_() + std::min<Millis>(wait, options_.backoff_max), of_engine};
  if (backoff.failures >= kFailuresSaid) say(name + " fails and is tried again: " + result.error->message);
}

void Loop::say(std::string_view line) const {
  if (options_.note) options_.note(line);
}

std::optional<Error> Loop::away() const {
  if (fatal_) return fatal_;
  if (!loaded_) return unavailable("the state store cannot be read: try again");
  return std::nullopt;
}

std::optional<Error> Loop::refusal(const control::Event& event) {
  if (auto error = away()) return error;
  if (!std::holds_alternative<control::SubmitJob>(event)) return std::nullopt;
  if (paused_) return unavailable("the state store refuses writes: no new jobs until it accepts one");
  if (const auto shortage = store_.low_on_space()) {
    say("new jobs are refused: there is too little room on the disk of " + shortage->folder);
    return Error{ErrorCode::resource_exhausted,
                 "no new jobs until there is room: " + to_string(*shortage) +
                     "; free space there, or remove what old jobs left with: muster prune --objects"};
  }
  return std::nullopt;
}

void Loop::handle(Batch& batch, Command&& command) {
  if (auto error = refusal(command.event)) {
    if (command.done) batch.answers.push_back({std::move(command.done), tl::unexpected(*std::move(error))});
    return;
  }
  control::observe(state_, command.event);
  auto decision = control::decide(state_, command.event, batch.now);
  change(batch, decision.commit);
  if (!command.done) return;
  if (decision.reply && decision.reply->error) {
    batch.answers.push_back({std::move(command.done), tl::unexpected(*std::move(decision.reply->error))});
  } else {
    batch.answers.push_back({std::move(command.done), decision.reply.value_or(control::Reply{})});
  }
}

void Loop::change(Batch& batch, const domain::Commit& commit) {
  control::apply(state_, commit);
  batch.changes.insert(batch.changes.end(), commit.changes.begin(), commit.changes.end());
}

Result<void> Loop::write(Batch& batch) {
  domain::Commit counters;
  control::stamp(state_, counters, batch.now);
  change(batch, counters);
  const auto commit = coalesce(std::move(batch.changes));
  batch.changes.clear();
  MUSTER_TRY(meta_, store_.commit(meta_.commit_sequence, meta_.epoch, commit));
  if (std::exchange(paused_, false)) say("the state store accepts writes again");
  if (committed_) committed_(state_);
  return {};
}

// Everything that was not written is forgotten: the store says what is true.
void Loop::recover(Batch& batch, const Error& error) {
  for (auto& answer : batch.answers) {
    answer.reply = tl::unexpected(unavailable("the state store refused the write: " + error.message));
  }
  say("the state store refused a write, its requests must be repeated: " + error.message);
  paused_ = true;
  loaded_ = false;
  try_load();
}

void Loop::try_load() {
  if (fatal_) return;
  auto done = load();
  if (done) return;
  if (done.error().code == ErrorCode::failed_precondition) {
    fatal_ = done.error();
  } else {
    say("the state store cannot be read: " + done.error().message);
  }
}

Result<void> Loop::load() {
  state_ = {};
  MUSTER_TRY(const auto meta, store_.meta());
  if (meta.epoch != meta_.epoch) {
    return fail(ErrorCode::failed_precondition,
                "another muster process has taken over the state store (epoch " + std::to_string(meta.epoch) +
                    ", this one has " + std::to_string(meta_.epoch) + "): this one must end");
  }
  MUSTER_TRY(const auto records, store_.load());
  control::apply(state_, records);
  meta_ = meta;
  loaded_ = true;
  // A view of the engine that was asked for before this load may miss what was launched since.
  in_flight_.erase(refresh_key_);
  refresh_due_ = true;
  for (const auto& [key, order] : in_flight_) {
    if (const auto* launch = std::get_if<LaunchOrder>(&order)) state_.launching.insert(launch->attempt.id);
  }
  if (committed_) committed_(state_);
  return {};
}

// ---- after the commit ----

void Loop::release(Batch& batch) {
  for (auto& answer : batch.answers) answer.done(std::move(answer.reply));
  if (!away()) release_effects();
  const auto monotonic = monotonic_();
  for (auto& watch : batch.watches) {
    watchers_.push_back({watch.launch, watch.after, monotonic + watch.wait, std::move(watch.done)});
  }
  wake_watchers();
  for (auto& query : batch.queries) {
    if (auto error = away()) {
      query.refused(*std::move(error));
    } else {
      query.run(*this);
    }
  }
}

void Loop::release_effects() {
  std::set<std::string> owed;
  for (const auto& effect : control::pending(state_, now())) {
    if (const auto* launch = std::get_if<control::LaunchGang>(&effect)) {
      const auto& attempt = state_.attempts.at(launch->attempt);
      const auto& job = state_.jobs.at(attempt.job);
      issue("launch " + to_string(attempt.id), LaunchOrder{attempt, job.kind, job.name, workload_of(job)});
    } else if (const auto* stop = std::get_if<control::StopRank>(&effect)) {
      issue(*owed.insert("stop " + to_string(stop->launch)).first, StopOrder{stop->launch, stop->grace});
    } else {
      const auto& release = std::get<control::ReleaseRank>(effect);
      issue(*owed.insert("release " + to_string(release.launch)).first, ReleaseOrder{release.launch});
    }
  }
  // What is owed no longer, as a stop of a launch that has vanished, will never succeed. After a load nothing
  // is owed until the engine was seen.
  if (state_.inventory_known) {
    std::erase_if(backoff_,
                  [&](const auto& entry) { return entry.second.of_engine && !owed.contains(entry.first); });
  }
  release_outbox();
  refresh();
}

Result<domain::Workload> Loop::workload_of(const domain::Job& job) {
  auto record = store_.read(domain::RecordKind::request, to_string(job.id));
  if (!record) return fail(ErrorCode::corrupt, "its request cannot be read: " + record.error().message);
  if (!*record) return fail(ErrorCode::corrupt, "the state store has no request of job " + to_string(job.id));
  auto workload = std::get<domain::JobRequest>(**std::move(record)).workload;
  workload.max_runtime = job.max_runtime - job.ran;
  return workload;
}

void Loop::release_outbox() {
  auto in_hand = std::count_if(in_flight_.begin(), in_flight_.end(), [](const auto& order) {
    return std::holds_alternative<OutboxOrder>(order.second);
  });
  for (const auto& [sequence, outbox] : state_.outbox) {
    if (in_hand >= options_.outbox_max) return;
    if (issue("outbox " + std::to_string(sequence), OutboxOrder{outbox})) ++in_hand;
  }
}

// One look at the engine at a time, with every tick and at once after a load.
void Loop::refresh() {
  if (!refresh_due_ || in_flight_.contains(refresh_key_)) return;
  refresh_due_ = false;
  refresh_key_ = "refresh " + std::to_string(++refreshes_);
  issue(refresh_key_, RefreshOrder{state_.moment});
}

bool Loop::issue(std::string key, Order order) {
  if (in_flight_.contains(key)) return false;
  if (const auto backoff = backoff_.find(key);
      backoff != backoff_.end() && monotonic_() < backoff->second.until) {
    return false;
  }
  if (const auto* launch = std::get_if<LaunchOrder>(&order)) {
    control::observe(state_, control::LaunchBegun{launch->attempt.id});
  }
  in_flight_.emplace(key, order);
  executor_.submit(std::move(key), std::move(order));
  return true;
}

void Loop::wake_watchers() {
  const auto monotonic = monotonic_();
  std::vector<std::pair<Service::DesiredDone, Result<std::optional<domain::Desired>>>> calls;
  const auto gone = away();
  std::erase_if(watchers_, [&](Watcher& watcher) {
    if (gone) {
      calls.emplace_back(std::move(watcher.done), tl::unexpected(*gone));
      return true;
    }
    auto desired = control::desired(state_, watcher.launch);
    if (desired && desired->version == watcher.after && monotonic < watcher.deadline) return false;
    calls.emplace_back(std::move(watcher.done), std::move(desired));
    return true;
  });
  for (auto& [done, desired] : calls) done(std::move(desired));
}

void Loop::abandon() {
  const auto error = unavailable("the service is shutting down: try again");
  std::deque<Item> items;
  {
    const std::lock_guard lock(mutex_);
    items.swap(queue_);
  }
  for (auto& item : items) {
    if (auto* command = std::get_if<Command>(&item); command != nullptr && command->done) {
      command->done(tl::unexpected(error));
    } else if (auto* query = std::get_if<QueryItem>(&item)) {
      query->refused(error);
    } else if (auto* watch = std::get_if<NewWatch>(&item)) {
      watch->done(tl::unexpected(error));
    }
  }
  for (auto& watcher : std::exchange(watchers_, {})) watcher.done(tl::unexpected(error));
}

}  // namespace muster::service
