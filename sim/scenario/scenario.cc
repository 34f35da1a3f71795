#include "sim/scenario/scenario.h"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "sim/world/world.h"

namespace muster::sim {
namespace {

// The words of a line; "quoted text" is one word with its quotes taken off.
std::deque<std::string> words_of(std::string_view line) {
  std::deque<std::string> words;
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] == '#') break;
    if (line[i] == ' ' || line[i] == '\t') {
      ++i;
      continue;
    }
    const bool quoted = line[i] == '"';
    if (quoted) ++i;
    const auto end = quoted ? line.find('"', i) : line.find_first_of(" \t", i);
    words.emplace_back(line.substr(i, end == std::string_view::npos ? end : end - i));
    i = end == std::string_view::npos ? line.size() : end + (quoted ? 1 : 0);
  }
  return words;
}

// "250ms", "3s", "2min", "1h".
std::optional<Millis> duration_of(std::string_view text) {
  const auto digits = text.find_first_not_of("0123456789");
  const auto number = parse_int(text.substr(0, digits));
  if (!number || digits == std::string_view::npos) return std::nullopt;
  const auto unit = text.substr(digits);
  const std::int64_t factor = unit == "ms"    ? 1
                              : unit == "s"   ? 1'000
                              : unit == "min" ? 60'000
                              : unit == "h"   ? 3'600'000
                                              : 0;
  if (factor == 0) return std::nullopt;
  return Millis{*number * factor};
}

struct Malformed {
  std::string what;
};

class Player {
 public:
  ScenarioResult play(std::string_view text) {
    int number = 0;
    for (const auto line : split(text, '\n')) {
      ++number;
      line_ = number;
      words_ = words_of(line);
      if (words_.empty()) continue;
      try {
        statement();
      } catch (const Malformed& malformed) {
        fail(malformed.what + "; the line is: " + std::string(trim(line)));
      }
    }
    if (expectations_ == 0) fail("expects nothing");
    if (!world_) return std::move(result_);
    for (const auto& violation : world_->checkers().violations()) fail("violation: " + violation);
    result_.history = world_->history();
    return std::move(result_);
  }

 private:
  // ---- reading ----
  void fail(const std::string& what) {
    result_.failures.push_back("line " + std::to_string(line_) + ": " + what);
  }
  bool next_is(std::string_view word) const { return !words_.empty() && words_.front() == word; }
  bool accept(std::string_view word) {
    if (!next_is(word)) return false;
    words_.pop_front();
    return true;
  }
  std::string word(std::string_view what) {
    if (words_.empty()) throw Malformed{"a " + std::string(what) + " is missing at the end"};
    auto result = std::move(words_.front());
    words_.pop_front();
    return result;
  }
  int number(std::string_view what) {
    const auto text = word(what);
    const auto value = parse_int(text);
    if (!value || *value < 0 || *value > 1'000'000)
      throw Malformed{"\"" + text + "\" is not a " + std::string(what)};
    return static_cast<int>(*value);
  }
  Millis duration() {
    const auto text = word("time");
    const auto value = duration_of(text);
    if (!value) throw Malformed{"\"" + text + "\" is not a time such as 3s"};
    return *value;
  }
  int rank() {
    const auto text = word("host");
    const auto value = text.starts_with("algo-") ? parse_int(text.substr(5)) : std::nullopt;
    if (!value || *value < 1) throw Malformed{"\"" + text + "\" is not a host such as algo-2"};
    return static_cast<int>(*value) - 1;
  }
  World& world() {
    if (!world_) throw Malformed{"the first statement must be: cluster N nodes"};
    return *world_;
  }
  const JobPlan& plan(const std::string& name) {
    const auto found = plans_.find(name);
    if (found == plans_.end()) throw Malformed{"no job " + name + " was submitted"};
    return found->second;
  }

  // ---- statements ----
  void statement() {
    const auto verb = word("statement");
    if (verb == "cluster") {
      cluster();
    } else if (verb == "at") {
      // What happens at an instant is over before the next expectation.
      world().run_until(duration());
      action();
      world().run_until(world().timeline().elapsed());
    } else if (verb == "expect") {
      ++expectations_;
      expectation();
    } else {
      throw Malformed{"\"" + verb + "\" is not one of: cluster, at, expect"};
    }
    if (!words_.empty()) throw Malformed{"\"" + words_.front() + "\" is not understood"};
  }

  void cluster() {
    WorldOptions options;
    options.nodes = number("number of nodes");
    if (!accept("nodes") && !accept("node")) throw Malformed{"say: cluster N nodes"};
    options.jitter = false;
    world_ = std::make_unique<World>(options);
    world_->run_until(Millis{0});
  }

  void action() {
    const auto verb = word("action");
    if (verb == "nothing") return;
    if (verb == "submit") return submit();
    if (verb == "stop") return stop();
    if (verb == "prune") return world().prune();
    if (verb == "lose") return world().engine().node_dies(word("node"));
    if (verb == "part") return world().engine().node_parts(word("node"));
    if (verb == "return") return world().engine().node_returns(word("node"));
    if (verb == "musterd") return musterd();
    if (verb == "commits") return commits();
    if (verb == "launches") return launches();
    if (verb == "clock") return clock();
    job_action(verb);
  }

  // submit NAME [processing] N nodes [OPTION VALUE ...]
  void submit() {
    JobPlan job;
    job.name = word("job name");
    if (accept("processing")) job.kind = domain::JobKind::processing;
    job.nodes = number("number of nodes");
    if (!accept("nodes") && !accept("node")) throw Malformed{"say: submit NAME N nodes"};
    job.program.start = Millis{1'000};
    job.program.staging = Millis{1'000};
    job.program.upload = Millis{0};
    while (!words_.empty()) option(job);
    plans_.emplace(job.name, job);
    last_.reset();
    world().submit(job, [this](const auto& reply) { last_ = reply; });
  }

  void option(JobPlan& job) {
    const auto name = word("option");
    if (name == "retries") {
      job.retries = number("number of retries");
    } else if (name == "max-runtime") {
      job.max_runtime = duration();
    } else if (name == "grace") {
      job.grace = duration();
    } else if (name == "start") {
      job.program.start = duration();
    } else if (name == "staging") {
      job.program.staging = duration();
    } else if (name == "upload") {
      job.program.upload = duration();
    } else if (name == "deaf") {
      job.program.deaf = true;
    } else if (name == "lingers") {
      job.program.lingers = true;
    } else if (name == "staging-fails") {
      job.program.staging_fails = true;
      job.program.failing_rank = rank();
    } else if (name == "upload-fails") {
      job.program.upload_fails = true;
      job.program.failing_rank = rank();
    } else {
      throw Malformed{"\"" + name + "\" is not an option of submit"};
    }
  }

  void stop() {
    const auto name = word("job name");
    const auto known = plans_.find(name);
    const auto kind = known == plans_.end() ? domain::JobKind::training : known->second.kind;
    last_.reset();
    world().stop(kind, name, [this](const auto& reply) { last_ = reply; });
  }

  // musterd dies [before|after the next commit] for 5s
  void musterd() {
    constexpr auto kForm = "say: musterd dies [before|after the next commit] for TIME";
    if (!accept("dies")) throw Malformed{kForm};
    if (accept("in")) {
      for (const auto* part : {"the", "middle", "of", "the", "next", "launch", "for"}) {
        if (!accept(part)) throw Malformed{"say: musterd dies in the middle of the next launch for TIME"};
      }
      return world().crash_in_launch(duration());
    }
    const bool before = accept("before");
    const bool after = !before && accept("after");
    if ((before || after) && (!accept("the") || !accept("next") || !accept("commit"))) throw Malformed{kForm};
    if (!accept("for")) throw Malformed{kForm};
    if (before || after) return world().crash_at_commit(after, duration());
    world().crash(duration(), "the scenario says so");
  }
  void commits() {
    const auto how = word("word");
    if (how != "fail" && how != "work") throw Malformed{"say: commits fail, or: commits work"};
    world().commits_fail(how == "fail");
  }
  // launches fail [for-good] "reason" | launches work
  void launches() {
    if (accept("work")) return world().launches_fail(std::nullopt);
    if (!accept("fail")) throw Malformed{"say: launches fail \"reason\", or: launches work"};
    const auto code = accept("for-good") ? ErrorCode::not_found : ErrorCode::io;
    world().launches_fail(Error{code, word("reason")});
  }
  // clock steps [back] 1h
  void clock() {
    if (!accept("steps")) throw Malformed{"say: clock steps [back] TIME"};
    const bool back = accept("back");
    const auto by = duration();
    world().timeline().step_wall_clock(back ? -by : by);
  }

  // NAME exits CODE on HOST|every node ["reason"]  |  NAME runner HOST dies|hangs
  void job_action(const std::string& name) {
    const auto& job = plan(name);
    if (accept("runner")) {
      auto* runner = world().runner(name, rank());
      const bool hangs = accept("hangs");
      if (!hangs && !accept("dies")) throw Malformed{"say: NAME runner algo-N dies, or hangs"};
      if (runner == nullptr) return fail("no such runner is alive");
      return hangs ? world().hang_runner(runner->launch().id) : world().kill_runner(runner->launch().id);
    }
    if (!accept("exits")) throw Malformed{"\"" + name + "\" is no action"};
    domain::RankExit exit;
    exit.exit_code = number("exit code");
    if (!accept("on")) throw Malformed{"say: NAME exits CODE on every node, or: on algo-N"};
    int first = 0;
    int last = job.nodes - 1;
    if (accept("every")) {
      if (!accept("node")) throw Malformed{"say: on every node"};
    } else {
      first = last = rank();
    }
    if (!words_.empty()) (exit.exit_code == 0 ? exit.message : exit.reason) = word("reason");
    for (int i = first; i <= last; ++i) {
      auto* runner = world().runner(name, i);
      if (runner == nullptr || runner->phase() != domain::RankPhase::running) {
        return fail(name + " runs no command on " + domain::host_name(i));
      }
      runner->end_command(exit);
    }
  }

  // ---- expectations ----
  void expectation() {
    const auto subject = word("subject");
    if (subject == "refused") return expect_refusal();
    if (subject == "accepted") {
      if (!last_ || !*last_)
        fail(last_ ? "it was refused: " + last_->error().message : "nobody has answered yet");
      return;
    }
    if (subject == "no") {
      if (!accept("answer")) throw Malformed{"say: expect no answer"};
      if (last_) fail("it was answered");
      return;
    }
    expect_job(subject);
  }

  void expect_refusal() {
    if (!last_) return fail("nobody has answered yet");
    if (*last_) return fail("it was accepted");
    while (!words_.empty())
      expect_in(last_->error().message + " (" + std::string(to_string(last_->error().code)) + ")");
  }

  void expect_in(const std::string& text) {
    const auto part = word("text");
    if (text.find(part) == std::string::npos) fail("\"" + part + "\" is not in \"" + text + "\"");
  }

  std::optional<domain::Job> find(const std::string& name) {
    const auto& durable = world().durable();
    const auto id = durable.names.find({plan(name).kind, name});
    if (id == durable.names.end()) return std::nullopt;
    if (const auto live = durable.jobs.find(id->second); live != durable.jobs.end()) return live->second;
    return world().ended_jobs().at(name);
  }

  // NAME absent | NAME PHASE [stopping] [attempt N] [on NODE...] ["explanation"]
  // NAME ended OUTCOME [CAUSE] ["reason"]
  void expect_job(const std::string& name) {
    const auto job = find(name);
    if (accept("absent")) {
      if (job) fail(name + " is " + std::string(to_string(job->phase)));
      return;
    }
    if (!job) {
      words_.clear();
      return fail(name + " does not exist");
    }
    const auto phase = word("phase");
    if (!domain::parse_phase(phase)) throw Malformed{"\"" + phase + "\" is not a phase"};
    if (phase != to_string(job->phase)) {
      words_.clear();
      return fail(name + " is " + std::string(to_string(job->phase)) + ": " + job->history.back().message);
    }
    if (job->phase == domain::Phase::ended) return expect_end(*job);
    while (!words_.empty()) expect_fact(*job);
  }

  void expect_fact(const domain::Job& job) {
    if (accept("stopping")) {
      if (!job.stop) fail(job.name + " is not stopping");
    } else if (accept("attempt")) {
      const int wanted = number("attempt");
      if (job.attempts != wanted) fail(job.name + " is at attempt " + std::to_string(job.attempts));
    } else if (accept("on")) {
      std::string nodes;
      if (const auto attempt = world().durable().attempts.find(job.attempt);
          attempt != world().durable().attempts.end()) {
        for (const auto& rank : attempt->second.ranks) nodes += (nodes.empty() ? "" : " ") + rank.node;
      }
      std::string wanted;
      while (!words_.empty() && words_.front().starts_with("node-"))
        wanted += (wanted.empty() ? "" : " ") + word("node");
      if (nodes != wanted) fail(job.name + " is on " + (nodes.empty() ? "no node" : nodes));
    } else if (world().state() == nullptr) {
      throw Malformed{"musterd is down and explains nothing"};
    } else {
      expect_in(control::explain(*world().state(), job.id, world().timeline().now()));
    }
  }

  void expect_end(const domain::Job& job) {
    const auto outcome = word("outcome");
    if (outcome != to_string(job.end->outcome)) {
      fail(job.name + " has " + std::string(to_string(job.end->outcome)) + ": " + job.history.back().message);
    }
    if (!words_.empty() && domain::parse_cause(words_.front())) {
      const auto cause = word("cause");
      if (cause != to_string(job.end->cause)) fail("the cause is " + std::string(to_string(job.end->cause)));
    }
    while (!words_.empty()) {
      if (accept("attempt")) {
        const int wanted = number("attempt");
        if (job.attempts != wanted) fail(job.name + " ended in attempt " + std::to_string(job.attempts));
      } else {
        expect_in(job.end->reason + " | " + job.end->exit_message + " | " + job.history.back().message);
      }
    }
  }

  std::deque<std::string> words_;
  int line_ = 0;
  int expectations_ = 0;
  ScenarioResult result_;
  std::map<std::string, JobPlan> plans_;
  std::optional<Result<control::Reply>> last_;
  std::unique_ptr<World> world_;
};

}  // namespace

ScenarioResult run_scenario(std::string_view text) { return Player().play(text); }

ScenarioResult run_scenario_file(const std::string& path) {
  const auto text = read_file(path, 1 << 20);
  if (!text) return {{text.error().message}, {}};
  return run_scenario(*text);
}

}  // namespace muster::sim
