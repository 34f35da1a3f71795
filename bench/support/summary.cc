#include "bench/support/summary.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/assert.h"
#include "base/text.h"
#include "base/time.h"

namespace muster::bench {
namespace {

// Linear between neighbours; `sorted` ascending.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(at));
  const auto above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - std::floor(at)) * (sorted[above] - sorted[below]);
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return std::string(trim(line.substr(line.find(':') + 1)));
  }
  return "unknown CPU";
}

}  // namespace

Summary summarize(std::vector<double> values) {
  MUSTER_ASSERT(!values.empty());
  std::ranges::sort(values);
  return {quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75)};
}

Summary summarize_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  MUSTER_ASSERT(a.size() == b.size());
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return summarize(std::move(ratios));
}

std::string to_string(const Summary& summary, int decimals) {
  char text[96];
  std::snprintf(text, sizeof text, "%.*f [%.*f, %.*f]", decimals, summary.median, decimals, summary.low,
                decimals, summary.high);
  return text;
}

std::string describe_machine() {
  double load = 0;
  ::getloadavg(&load, 1);
  char text[256];
  std::snprintf(text, sizeof text, "%s, %s, %ld CPUs, load %.2f",
                format_iso8601(SystemClock().now()).substr(0, 10).c_str(), cpu_model().c_str(),
                ::sysconf(_SC_NPROCESSORS_ONLN), load);
  return text;
}

}  // namespace muster::bench
