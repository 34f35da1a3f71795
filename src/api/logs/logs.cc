#include "api/logs/logs.h"

#include <algorithm>

#include "api/logs/detail.h"
#include "base/crypto.h"
#include "base/text.h"

namespace muster::api::logs {
namespace detail {

std::string group_arn(const Caller& caller, std::string_view group) {
  return "arn:aws:logs:" + caller.region + ":" + caller.account + ":log-group:" + std::string(group);
}

tl::unexpected<ApiError> invalid(std::string message) {
  return refuse("InvalidParameterException", std::move(message));
}

tl::unexpected<ApiError> bad_token() { return invalid("The specified nextToken is invalid."); }

tl::unexpected<ApiError> translate(const Error& error) {
  switch (error.code) {
    case ErrorCode::not_found:
      return refuse(error, "ResourceNotFoundException", 400);
    case ErrorCode::invalid_argument:
      return refuse(error, "InvalidParameterException", 400);
    default:
      return refuse(error, "ServiceUnavailableException", 503);
  }
}

ApiResult<std::string> group_of(const Object& request) {
  const auto name = json::opt_string(request, "logGroupName");
  const auto identifier = json::opt_string(request, "logGroupIdentifier");
  if (name.has_value() == identifier.has_value()) {
    return invalid(name ? "logGroupName and logGroupIdentifier were both given; give one"
                        : "logGroupName or logGroupIdentifier is needed");
  }
  if (name) return *name;
  if (!identifier->starts_with("arn:")) return *identifier;
  constexpr std::string_view kMark = ":log-group:";
  const auto at = identifier->find(kMark);
  if (at == std::string::npos)
    return invalid("logGroupIdentifier " + *identifier + " is not the ARN of a log group");
  return identifier->substr(at + kMark.size());
}

std::string make_token(char kind, const std::vector<std::string>& fields) {
  json::Array array;
  array.push_back(json::Value(std::string(1, kind)));
  for (const auto& field : fields) array.push_back(json::Value(field));
  return crypto::base64url(json::dump(array));
}

std::optional<std::vector<std::string>> read_token(char kind, std::string_view token) {
  const auto text = crypto::base64url_decode(token);
  if (!text) return std::nullopt;
  const auto value = json::parse(*text);
  if (!value || !value->is_array()) return std::nullopt;
  auto fields = json::string_list(value->get_array());
  if (fields.empty() || fields[0] != std::string(1, kind)) return std::nullopt;
  fields.erase(fields.begin());
  return fields;
}

namespace {

// The items behind the token's, at most `limit`, and a token if more remain. `key` names an item in the order
// of `items`; the token holds the last key shown, so what arrives between pages neither repeats nor hides
// others.
template <typename Item, typename Key, typename Before>
ApiResult<std::vector<Item>> page_of(std::vector<Item> items, const Object& request, Object& answer,
                                     char kind, Key key, Before before) {
  const auto limit = static_cast<std::size_t>(json::opt_int(request, "limit").value_or(50));
  if (const auto token = json::opt_string(request, "nextToken")) {
    const auto fields = read_token(kind, *token);
    if (!fields) return bad_token();
    const auto first =
        std::find_if(items.begin(), items.end(), [&](const Item& item) { return before(*fields, item); });
    items.erase(items.begin(), first);
  }
  if (items.size() > limit) {
    items.resize(limit);
    answer["nextToken"] = make_token(kind, key(items.back()));
  }
  return items;
}

}  // namespace

ApiResult<Object> describe_log_groups(ports::LogStore& store, const Object& request, const Caller& caller) {
  const auto prefix = json::opt_string(request, "logGroupNamePrefix");
  const auto pattern = json::opt_string(request, "logGroupNamePattern");
  if (prefix && pattern)
    return invalid("logGroupNamePrefix and logGroupNamePattern cannot be given together");
  auto groups = store.groups(prefix.value_or(""));
  if (!groups) return translate(groups.error());
  std::vector<std::string> wanted;
  if (const auto* list = json::opt_array(request, "logGroupIdentifiers")) {
    for (const auto& identifier : json::string_list(*list)) {
      auto name = group_of({{"logGroupIdentifier", identifier}});
      if (!name) return tl::unexpected(name.error());
      wanted.push_back(std::move(*name));
    }
  }
  const auto other_class = json::opt_string(request, "logGroupClass").value_or("STANDARD") != "STANDARD";
  std::erase_if(*groups, [&](const ports::LogGroup& group) {
    return other_class || (pattern && to_lower(group.name).find(to_lower(*pattern)) == std::string::npos) ||
           (!wanted.empty() && std::find(wanted.begin(), wanted.end(), group.name) == wanted.end());
  });
  Object answer;
  auto page = page_of(
      std::move(*groups), request, answer, 'g', [](const auto& group) { return std::vector{group.name}; },
      [](const auto& fields, const auto& group) { return fields.empty() || fields[0] < group.name; });
  if (!page) return tl::unexpected(page.error());
  json::Array list;
  for (const auto& group : *page) {
    list.push_back(Object{{"logGroupName", group.name},
                          {"creationTime", group.created.unix_ms},
                          {"metricFilterCount", 0},
                          {"arn", group_arn(caller, group.name) + ":*"},
                          {"logGroupArn", group_arn(caller, group.name)},
                          {"logGroupClass", "STANDARD"},
                          {"storedBytes", static_cast<std::int64_t>(group.bytes)}});
  }
  answer["logGroups"] = std::move(list);
  return answer;
}

ApiResult<Object> describe_log_streams(ports::LogStore& store, const Object& request, const Caller& caller) {
  auto group = group_of(request);
  if (!group) return tl::unexpected(group.error());
  const auto prefix = json::opt_string(request, "logStreamNamePrefix");
  const bool by_time = json::opt_string(request, "orderBy").value_or("") == "LastEventTime";
  const bool descending = json::opt_bool(request, "descending").value_or(false);
  if (by_time && prefix) return invalid("Cannot order by LastEventTime with a logStreamNamePrefix.");
  auto streams = store.streams(*group, prefix.value_or(""));
  if (!streams) return translate(streams.error());

  // Streams without events come first in rising order. The key orders as text: times are padded.
  const auto key = [&](const ports::LogStream& stream) {
    auto time = by_time ? std::to_string(stream.last_event.value_or(Time{0}).unix_ms) : std::string();
    return std::vector{std::string(by_time ? 20 - std::min<std::size_t>(time.size(), 20) : 0, '0') + time,
                       stream.name};
  };
  std::sort(streams->begin(), streams->end(),
            [&](const auto& a, const auto& b) { return descending ? key(b) < key(a) : key(a) < key(b); });
  Object answer;
  auto page =
      page_of(std::move(*streams), request, answer, 's', key, [&](const auto& fields, const auto& stream) {
        return descending ? key(stream) < fields : fields < key(stream);
      });
  if (!page) return tl::unexpected(page.error());
  json::Array list;
  for (const auto& stream : *page) {
    Object item{{"logStreamName", stream.name},
                {"creationTime", stream.created.unix_ms},
                {"arn", group_arn(caller, *group) + ":log-stream:" + stream.name},
                {"storedBytes", static_cast<std::int64_t>(stream.bytes)},
                {"uploadSequenceToken", std::to_string(stream.next_sequence)}};
    if (stream.first_event) item["firstEventTimestamp"] = stream.first_event->unix_ms;
    if (stream.last_event) item["lastEventTimestamp"] = stream.last_event->unix_ms;
    if (stream.last_ingested) item["lastIngestionTime"] = stream.last_ingested->unix_ms;
    list.push_back(std::move(item));
  }
  answer["logStreams"] = std::move(list);
  return answer;
}

}  // namespace detail

JsonOperations operations(ports::LogStore& store, std::shared_ptr<const Model> model) {
  using Operation = ApiResult<json::Object> (*)(ports::LogStore&, const json::Object&, const Caller&);
  const auto checked = [&store, model](std::string name, Operation operation) -> JsonOperation {
    return [&store, model, name = std::move(name), operation](
               const json::Object& request, const Caller& caller) -> ApiResult<json::Object> {
      if (const auto problems = model->check_input("logs", name, request); !problems.empty()) {
        return detail::invalid(join(problems, "; "));
      }
      return operation(store, request, caller);
    };
  };
  JsonOperations out;
  out["DescribeLogGroups"] = checked("DescribeLogGroups", detail::describe_log_groups);
  out["DescribeLogStreams"] = checked("DescribeLogStreams", detail::describe_log_streams);
  out["GetLogEvents"] = checked("GetLogEvents", detail::get_log_events);
  out["FilterLogEvents"] = checked("FilterLogEvents", detail::filter_log_events);
  return out;
}

}  // namespace muster::api::logs
