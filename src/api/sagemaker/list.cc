#include <algorithm>
#include <tuple>

#include "api/sagemaker/detail.h"
#include "api/sagemaker/status.h"
#include "base/crypto.h"
#include "base/text.h"

namespace muster::api::sagemaker::detail {
namespace {

using service::JobSummary;

std::string_view status_of(const JobSummary& job) { return primary_status(job.phase, job.stop, job.outcome); }

// Seconds as JSON writes them, against milliseconds as kept: compared in milliseconds.
std::optional<Time> opt_time(const json::Object& request, std::string_view name) {
  const auto seconds = json::opt_double(request, name);
  if (!seconds) return std::nullopt;
  return Time{static_cast<std::int64_t>(*seconds * 1000.0)};
}

struct Filter {
  std::optional<Time> created_after, created_before, modified_after, modified_before;
  std::string name_contains, status;

  explicit Filter(const json::Object& request)
      : created_after(opt_time(request, "CreationTimeAfter")),
        created_before(opt_time(request, "CreationTimeBefore")),
        modified_after(opt_time(request, "LastModifiedTimeAfter")),
        modified_before(opt_time(request, "LastModifiedTimeBefore")),
        name_contains(json::opt_string(request, "NameContains").value_or("")),
        status(json::opt_string(request, "StatusEquals").value_or("")) {}

  bool takes(const JobSummary& job) const {
    return !(created_after && job.created < *created_after) &&
           !(created_before && job.created > *created_before) &&
           !(modified_after && job.modified < *modified_after) &&
           !(modified_before && job.modified > *modified_before) &&
           job.name.find(name_contains) != std::string::npos && (status.empty() || status_of(job) == status);
  }
};

// What the list is ordered by, with the id to break ties.
using SortKey = std::tuple<std::string, std::int64_t, std::uint64_t>;

SortKey sort_key(const JobSummary& job, std::string_view by) {
  if (by == "Name") return {job.name, 0, job.id.value};
  if (by == "Status") return {std::string(status_of(job)), 0, job.id.value};
  return {"", job.created.unix_ms, job.id.value};
}

std::string encode_token(const SortKey& key) {
  const auto& [text, number, id] = key;
  return crypto::base64url(std::to_string(number) + " " + std::to_string(id) + " " + text);
}

std::optional<SortKey> decode_token(std::string_view token) {
  const auto plain = crypto::base64url_decode(token);
  if (!plain) return std::nullopt;
  const auto parts = split(*plain, ' ');
  if (parts.size() != 3) return std::nullopt;
  const auto number = parse_int(parts[0]);
  const auto id = parse_int(parts[1]);
  if (!number || !id) return std::nullopt;
  return SortKey{std::string(parts[2]), *number, static_cast<std::uint64_t>(*id)};
}

}  // namespace

ApiResult<json::Object> list_jobs(const Context& context, const ListWords& words, const json::Object& request,
                                  const ShowSummary& show) {
  constexpr std::int64_t kPageDefault = 10;
  const auto by = json::opt_string(request, "SortBy").value_or("CreationTime");
  const bool descending = json::opt_string(request, "SortOrder").value_or("Descending") == "Descending";
  const auto page = static_cast<std::size_t>(json::opt_int(request, "MaxResults").value_or(kPageDefault));
  std::optional<SortKey> after;
  if (const auto token = json::opt_string(request, "NextToken")) {
    after = decode_token(*token);
    if (!after) return refuse("ValidationException", "NextToken was not given out by this operation");
  }
  auto jobs = context.service.jobs(words.kind);
  if (!jobs) return translate(jobs.error());

  const Filter filter(request);
  std::vector<std::pair<SortKey, const JobSummary*>> chosen;
  for (const auto& job : *jobs) {
    if (filter.takes(job)) chosen.emplace_back(sort_key(job, by), &job);
  }
  const auto before = [&](const SortKey& a, const SortKey& b) { return descending ? b < a : a < b; };
  std::sort(chosen.begin(), chosen.end(),
            [&](const auto& a, const auto& b) { return before(a.first, b.first); });
  auto next = chosen.begin();
  if (after) {
    next = std::find_if(chosen.begin(), chosen.end(),
                        [&](const auto& job) { return before(*after, job.first); });
  }
  json::Array summaries;
  for (; next != chosen.end() && summaries.size() < page; ++next) summaries.emplace_back(show(*next->second));
  json::Object answer;
  answer[words.summaries] = std::move(summaries);
  if (next != chosen.end() && next != chosen.begin())
    answer["NextToken"] = encode_token(std::prev(next)->first);
  return answer;
}

}  // namespace muster::api::sagemaker::detail
