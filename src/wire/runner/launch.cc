// Codecs of Workload and NodeLaunch.
#include <limits>

#include "base/json.h"
#include "wire/runner/fields.h"
#include "wire/runner/messages.h"

namespace muster::wire {
namespace {

constexpr int kIntMax = std::numeric_limits<int>::max();

std::string_view word(domain::Distribution distribution) {
  return distribution == domain::Distribution::fully_replicated ? "fully_replicated" : "sharded_by_s3_key";
}
std::optional<domain::Distribution> parse_distribution(std::string_view text) {
  if (text == "fully_replicated") return domain::Distribution::fully_replicated;
  if (text == "sharded_by_s3_key") return domain::Distribution::sharded_by_s3_key;
  return std::nullopt;
}

std::string_view word(domain::Output::Form form) {
  return form == domain::Output::Form::raw ? "raw" : "tar_gz";
}
std::optional<domain::Output::Form> parse_form(std::string_view text) {
  if (text == "raw") return domain::Output::Form::raw;
  if (text == "tar_gz") return domain::Output::Form::tar_gz;
  return std::nullopt;
}

json::Object to_json(const domain::Channel& channel) {
  return {{"name", channel.name},
          {"s3_uri", channel.s3_uri},
          {"distribution", word(channel.distribution)},
          {"local_path", channel.local_path},
          {"content_type", channel.content_type},
          {"record_wrapper", channel.record_wrapper}};
}

json::Object to_json(const domain::Output& output) {
  return {{"name", output.name},       {"local_path", output.local_path}, {"s3_uri", output.s3_uri},
          {"form", word(output.form)}, {"merged", output.merged},         {"continuous", output.continuous}};
}

json::Object to_json(const domain::Workload& work) {
  json::Array channels;
  for (const auto& channel : work.channels) channels.emplace_back(to_json(channel));
  json::Array outputs;
  for (const auto& output : work.outputs) outputs.emplace_back(to_json(output));
  return {{"kind", domain::to_string(work.kind)},
          {"job_name", work.job_name},
          {"job_arn", work.job_arn},
          {"region", work.region},
          {"role_arn", work.role_arn},
          {"image", work.image},
          {"program", work.program},
          {"entrypoint", json::from_string_list(work.entrypoint)},
          {"arguments", json::from_string_list(work.arguments)},
          {"environment", json::from_string_map(work.environment)},
          {"hyperparameters", json::from_string_map(work.hyperparameters)},
          {"instance_type", work.instance_type},
          {"channels", std::move(channels)},
          {"outputs", std::move(outputs)},
          {"checkpoint",
           json::Object{{"s3_uri", work.checkpoint.s3_uri}, {"local_path", work.checkpoint.local_path}}},
          {"files", json::from_string_map(work.files)},
          {"max_runtime_ms", work.max_runtime.count()},
          {"grace_ms", work.grace.count()}};
}

void read_channel(Fields& in, domain::Channel& channel) {
  channel.name = in.text("name");
  channel.s3_uri = in.text("s3_uri");
  channel.distribution = in.word("distribution", parse_distribution);
  channel.local_path = in.text("local_path");
  channel.content_type = in.maybe_text("content_type");
  channel.record_wrapper = in.maybe_text("record_wrapper");
}

void read_output(Fields& in, domain::Output& output) {
  output.name = in.text("name");
  output.local_path = in.text("local_path");
  output.s3_uri = in.text("s3_uri");
  output.form = in.word("form", parse_form);
  output.merged = in.boolean("merged");
  output.continuous = in.boolean("continuous");
}

void read_workload(Fields& in, domain::Workload& work) {
  work.kind = in.word("kind", domain::parse_job_kind);
  work.job_name = in.text("job_name");
  work.job_arn = in.text("job_arn");
  work.region = in.text("region");
  work.role_arn = in.text("role_arn");
  work.image = in.text("image");
  work.program = in.text("program");
  work.entrypoint = in.texts("entrypoint");
  work.arguments = in.texts("arguments");
  work.environment = in.text_map("environment");
  work.hyperparameters = in.text_map("hyperparameters");
  work.instance_type = in.text("instance_type");
  in.objects("channels", [&](Fields& inner) { read_channel(inner, work.channels.emplace_back()); });
  in.objects("outputs", [&](Fields& inner) { read_output(inner, work.outputs.emplace_back()); });
  in.maybe_object("checkpoint", [&](Fields& inner) {
    work.checkpoint.s3_uri = inner.text("s3_uri");
    work.checkpoint.local_path = inner.text("local_path");
  });
  work.files = in.text_map("files");
  work.max_runtime = in.millis("max_runtime_ms");
  work.grace = in.millis("grace_ms");
}

void read_node_launch(Fields& in, domain::NodeLaunch& launch) {
  const auto id = in.text("id");
  if (const auto parsed = domain::parse_launch_id(id)) {
    launch.id = *parsed;
  } else {
    in.wrong("id", "is not a launch id such as a12-r0-i1: \"" + id + "\"");
  }
  launch.world = static_cast<int>(in.integer("world", 1, kIntMax));
  if (launch.id.rank >= launch.world) {
    in.wrong("id",
             "has rank " + std::to_string(launch.id.rank) + " in a world of " + std::to_string(launch.world));
  }
  launch.node = in.text("node");
  launch.attempt_created = in.time("attempt_created_ms");
  in.object("workload", [&](Fields& inner) { read_workload(inner, launch.workload); });
  launch.endpoint_url = in.maybe_text("endpoint_url");
  launch.credentials_uri = in.maybe_text("credentials_uri");
  launch.address = in.maybe_text("address");
  launch.interface = in.maybe_text("interface");
  in.objects("hosts", [&](Fields& inner) {
    auto& host = launch.hosts.emplace_back();
    host.name = inner.text("name");
    host.address = inner.text("address");
  });
  launch.notice = in.maybe_text("notice");
}

}  // namespace

std::string encode(const domain::Workload& workload) { return json::dump(to_json(workload)); }

Result<domain::Workload> decode_workload(std::string_view text) {
  MUSTER_TRY(const auto object, json::parse_object(text));
  Fields in(object);
  domain::Workload workload;
  read_workload(in, workload);
  if (in.error()) return tl::unexpected(in.error()->with_context("workload"));
  return workload;
}

std::string encode(const domain::NodeLaunch& launch) {
  json::Array hosts;
  for (const auto& host : launch.hosts) {
    hosts.emplace_back(json::Object{{"name", host.name}, {"address", host.address}});
  }
  return json::dump(json::Object{{"id", domain::to_string(launch.id)},
                                 {"world", launch.world},
                                 {"node", launch.node},
                                 {"attempt_created_ms", launch.attempt_created.unix_ms},
                                 {"workload", to_json(launch.workload)},
                                 {"endpoint_url", launch.endpoint_url},
                                 {"credentials_uri", launch.credentials_uri},
                                 {"address", launch.address},
                                 {"interface", launch.interface},
                                 {"hosts", std::move(hosts)},
                                 {"notice", launch.notice}});
}

Result<domain::NodeLaunch> decode_node_launch(std::string_view text) {
  MUSTER_TRY(const auto object, json::parse_object(text));
  Fields in(object);
  domain::NodeLaunch launch;
  read_node_launch(in, launch);
  if (in.error()) return tl::unexpected(in.error()->with_context("launch file"));
  return launch;
}

}  // namespace muster::wire
