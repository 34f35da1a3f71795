#include "train/ckpt/saver.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/text.h"
#include "train/ckpt/rank_file.h"
#include "train/comm/agree.h"

namespace muster::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How long wait() looks at its own thread before it asks the others again.
constexpr std::chrono::milliseconds kPause{50};

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

Result<std::vector<json::Object>> parsed(const std::vector<std::string>& texts) {
  std::vector<json::Object> objects;
  for (const std::string& text : texts) {
    MUSTER_TRY(json::Object object, json::parse_object(text));
    objects.push_back(std::move(object));
  }
  return objects;
}

}  // namespace

Saver::Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<void> Saver::Buffer::reserve(std::uint64_t bytes) {
  if (bytes <= bytes_) return {};
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  void* mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED)
    return fail_errno("a buffer of " + std::to_string(bytes) + " bytes for checkpoints");
  data_ = static_cast<std::byte*>(mapped);
  bytes_ = bytes;
  return {};
}

Saver::Saver(SaverOptions options, Comm& comm) : options_(std::move(options)), comm_(comm) {}
Saver::~Saver() = default;

Result<void> Saver::reserve(std::uint64_t bytes) { return buffer_.reserve(bytes); }

Result<std::vector<TensorSlice>> Saver::copied(std::span<const TensorSlice> slices) {
  std::uint64_t bytes = 0;
  for (const TensorSlice& piece : slices) bytes += piece.bytes.size();
  MUSTER_CHECK(buffer_.reserve(bytes));
  std::vector<TensorSlice> copies(slices.begin(), slices.end());
  std::byte* at = buffer_.data();
  for (TensorSlice& piece : copies) {
    if (!piece.bytes.empty()) std::memcpy(at, piece.bytes.data(), piece.bytes.size());
    piece.bytes = {at, piece.bytes.size()};
    at += piece.bytes.size();
  }
  return copies;
}

Result<void> Saver::start(const CheckpointInfo& info, std::span<const TensorSlice> slices) {
  const auto start = SteadyClock::now();
  auto copies = copied(slices);
  MUSTER_CHECK(begin(info, copies ? Result<void>() : Result<void>(tl::unexpected(copies.error())),
                     copies ? *std::move(copies) : std::vector<TensorSlice>()));
  stall_s_ = seconds_since(start);
  begin_ = start;
  return {};
}

Result<void> Saver::begin(const CheckpointInfo& info, Result<void> prepared,
                          std::vector<TensorSlice> slices) {
  MUSTER_ASSERT(!in_flight());
  info_ = info;
  path_ = step_folder(options_.folder, info.step);
  slices_ = std::move(slices);
  // Nobody touches a file of the step before its old manifest is gone, in whichever folder it is.
  if (prepared) prepared = prepare_step(path_);
  room_ = Room(options_.folder, bytes_of(info.tensors), options_.when_full);
  const std::string node = std::to_string(options_.writer.node);
  MUSTER_TRY(const auto nodes, agree(prepared, node));
  first_of_node_ = std::ranges::find(nodes, node) - nodes.begin() == comm_.rank();
  phase_ = Phase::files;
  run([this]() -> Result<void> {
    MUSTER_TRY(const json::Object record, write_rank_file(path_, slices_, info_.tensors, comm_.rank(),
                                                          options_.writer.node, &progress_));
    told_ = json::dump(record);
    return {};
  });
  return {};
}

void Saver::run(std::function<Result<void>()> work) {
  if (thread_.joinable()) thread_.join();  // it has told its outcome already
  progress_at_ = SteadyClock::now();
  done_ = false;  // no thread: no lock
  thread_ = std::jthread([this, work = std::move(work)] {
    Result<void> outcome;
    try {
      outcome = work();
    } catch (const std::exception& error) {  // out of memory
      outcome = fail(ErrorCode::resource_exhausted, error.what());
    }
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
    done_ = true;
    done_changed_.notify_all();
  });
}

bool Saver::ready() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

// Every rank tells how it went, and what the others need of it; all answer alike. Precondition: ready().
Result<std::vector<std::string>> Saver::agree(const Result<void>& mine, const std::string& told) {
  const std::string context = "checkpoint " + path_;
  auto all = exchange_outcomes(
      comm_, mine ? Result<std::string>(told) : tl::unexpected(room_.explained(mine.error())));
  if (!all) return tl::unexpected(all.error().with_context(context));
  if (!all->failure) return std::move(all->told);
  discard();
  return tl::unexpected(all->failure->with_context(context));
}

// Of a save that failed on all ranks, so that none goes on to the manifest: what this rank has written.
void Saver::discard() {
  if (phase_ > Phase::manifest) return;  // it counts
  const bool manifests = first_of_node_ && phase_ > Phase::files;
  discard_step(path_, comm_.rank(), phase_ == Phase::idle ? 0 : 1,
               manifests ? std::optional(options_.writer.node) : std::nullopt);
}

Result<std::optional<SaveReport>> Saver::advance() {
  const auto start = SteadyClock::now();
  MUSTER_TRY(const bool counts, next_phase());
  stall_s_ += seconds_since(start);
  if (!counts) return std::optional<SaveReport>();
  return SaveReport{
      .step = info_.step,
      .path = path_,
      .stall_s = stall_s_,
      .seconds = std::chrono::duration<double>((comm_.rank() == 0 ? counted_at_ : start) - begin_).count()};
}

// True: the step counts from here on.
Result<bool> Saver::next_phase() {
  MUSTER_ASSERT(in_flight() && ready());
  MUSTER_TRY(auto told, agree(outcome_, told_));
  told_.clear();
  switch (phase_) {
    case Phase::idle:
      break;
    case Phase::files:
      slices_.clear();
      phase_ = Phase::node_manifests;
      if (first_of_node_) {
        run([this, told = std::move(told)]() -> Result<void> {
          MUSTER_TRY(records_, parsed(told));
          return write_node_manifest(path_, info_.step, records_, options_.writer.node);
        });
      }
      break;
    case Phase::node_manifests:
      phase_ = Phase::manifest;
      if (comm_.rank() == 0) {
        run([this]() -> Result<void> {
          MUSTER_CHECK(write_manifest(path_, info_, records_));
          counted_at_ = SteadyClock::now();
          return {};
        });
      }
      break;
    case Phase::manifest:
      phase_ = options_.keep ? Phase::choosing : Phase::idle;
      if (options_.keep && comm_.rank() == 0) run([this] { return choose_kept(); });
      return true;
    case Phase::choosing:
      phase_ = Phase::removing;
      if (first_of_node_) {
        run([this, kept = told[0]] {
          std::vector<std::int64_t> steps;
          for (const auto word : split(kept, ' ')) steps.push_back(parse_int(word).value_or(info_.step));
          return remove_checkpoints(options_.folder, steps, info_.step);
        });
      }
      break;
    case Phase::removing:
      phase_ = Phase::idle;
      break;
  }
  return false;
}

// Rank 0: its folder shows which steps are finished, so it tells what all keep.
Result<void> Saver::choose_kept() {
  MUSTER_TRY(const auto kept, kept_checkpoints(options_.folder, *options_.keep, info_.step));
  for (const std::int64_t step : kept) told_ += (told_.empty() ? "" : " ") + std::to_string(step);
  return {};
}

Result<std::optional<SaveReport>> Saver::wait() {
  std::optional<SaveReport> report;
  while (in_flight()) {
    const auto start = SteadyClock::now();
    MUSTER_TRY(const bool all, all_ready());
    stall_s_ += seconds_since(start);
    if (!all) continue;
    MUSTER_TRY(auto made, advance());
    if (made) report = std::move(made);
  }
  return report;
}

// Looks at the own thread for a moment, then asks the others.
Result<bool> Saver::all_ready() {
  enum Answer : std::int64_t { busy, done, stuck };
  std::int64_t mine = busy;
  {
    std::unique_lock lock(mutex_);
    if (done_changed_.wait_for(lock, kPause, [this] { return done_; })) mine = done;
  }
  if (const std::uint64_t progress = progress_.load(std::memory_order_relaxed); progress != progress_seen_) {
    progress_seen_ = progress;
    progress_at_ = SteadyClock::now();
  }
  if (mine == busy && SteadyClock::now() - progress_at_ > options_.stall_limit) mine = stuck;
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm_.size()));
  MUSTER_CHECK(comm_.all_gather<std::int64_t>(std::span(&mine, 1), all));
  if (std::ranges::find(all, stuck) != all.end()) {
    const auto hangs = train::agree(
        comm_, mine != stuck
                   ? Result<void>()
                   : fail(ErrorCode::io, "nothing was written for " + format_duration(options_.stall_limit) +
                                             ": the disk hangs"));
    return tl::unexpected(hangs.error().with_context("checkpoint " + path_));
  }
  return std::ranges::count(all, done) == comm_.size();
}

}  // namespace muster::train
