// For tests of handlers: a service without a control thread. It keeps what was asked of it and shows what the
// test puts in. One thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "service/service.h"

namespace muster::api::testing {

class FakeService final : public service::Service {
 public:
  Result<control::Reply> call(control::Event command) override {
    if (auto* submit = std::get_if<control::SubmitJob>(&command)) {
      for (const auto& view : views) {
        if (view.job.name == submit->name && view.job.kind == submit->kind) {
          return control::Reply{.error = Error{ErrorCode::already_exists, "job " + submit->name + " exists"}};
        }
      }
      service::JobView view;
      view.job.id = domain::JobId{views.size() + 1};
      view.job.kind = submit->kind;
      view.job.name = submit->name;
      view.job.created = view.job.modified =
          Time{1'700'000'000'000 + static_cast<std::int64_t>(views.size()) * 1000};
      view.job.history.push_back({.at = view.job.created});
      view.request = submit->request;
      views.push_back(view);
      submitted = std::move(*submit);
    } else if (auto* key = std::get_if<control::AddAccessKey>(&command)) {
      keys[key->key.id] = key->key;
    } else if (const auto* report = std::get_if<control::Report>(&command)) {
      reports.push_back(report->report);
      control::Reply reply;
      if (live.count(report->report.launch) == 0) reply.answer = domain::ReportAnswer::stale;
      return reply;
    } else if (const auto* stop = std::get_if<control::StopJob>(&command)) {
      stopped = stop->name;
    } else if (const auto* prune = std::get_if<control::PruneJobs>(&command)) {
      pruned_before = prune->before;
      pruned_only = prune->only;
      control::Reply reply;
      reply.left = prune_left;
      for (const auto& view : views) reply.pruned.push_back({view.job.kind, view.job.name});
      return reply;
    }
    return control::Reply{};
  }
  Result<service::JobView> job(domain::JobKind kind, const std::string& name) override {
    for (const auto& view : views) {
      if (view.job.name == name && view.job.kind == kind) return view;
    }
    return fail(ErrorCode::not_found, "there is no job named " + name);
  }
  Result<std::vector<service::JobSummary>> jobs(domain::JobKind kind) override {
    std::vector<service::JobSummary> out;
    for (const auto& [job, request, explanation] : views) {
      if (job.kind != kind) continue;
      out.push_back({.id = job.id,
                     .kind = job.kind,
                     .name = job.name,
                     .created = job.created,
                     .modified = job.modified,
                     .phase = job.phase});
    }
    return out;
  }
  Result<std::vector<service::NodeView>> nodes() override { return node_views; }
  Result<domain::AccessKey> access_key(const std::string& id) override {
    const auto it = keys.find(id);
    if (it == keys.end()) return fail(ErrorCode::not_found, "there is no access key " + id);
    return it->second;
  }
  void watch(const domain::LaunchId& launch, std::uint64_t, Millis, DesiredDone done) override {
    if (live.count(launch) == 0) return done(std::optional<domain::Desired>());
    done(std::optional<domain::Desired>(desired));
  }
  std::optional<service::LaunchInfo> live_launch(const domain::LaunchId& launch) override {
    if (live.count(launch) == 0) return std::nullopt;
    return service::LaunchInfo{
        .job_name = "demo", .log_group = "/aws/sagemaker/TrainingJobs", .log_stream = "demo/algo-1-1"};
  }

  std::vector<service::JobView> views;
  std::vector<service::NodeView> node_views;
  control::SubmitJob submitted;
  std::string stopped;
  std::optional<Time> pruned_before;
  std::optional<std::set<control::JobName>> pruned_only;
  std::size_t prune_left = 0;
  std::map<std::string, domain::AccessKey> keys;
  std::set<domain::LaunchId> live;
  domain::Desired desired;
  std::vector<domain::RankReport> reports;
};

}  // namespace muster::api::testing
