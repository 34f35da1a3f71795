// What every measurement prints: medians with their spread, and the machine they were taken on. Pure but for
// describe_machine().
#pragma once

#include <string>
#include <vector>

namespace muster::bench {

// Of a sample: the median, and the quartiles as its spread.
struct Summary {
  double median = 0;
  double low = 0;   // a quarter of the sample lies below
  double high = 0;  // a quarter of the sample lies above
};
// values: at least one.
Summary summarize(std::vector<double> values);
// Ratios of pairs taken one after the other: a[i] / b[i].
Summary summarize_ratio(const std::vector<double>& a, const std::vector<double>& b);

std::string to_string(const Summary& summary, int decimals = 1);  // "12.3 [11.9, 13.0]"

// "2026-11-29, AMD EPYC, 2 CPUs, load 0.42": date (UTC), CPU model, CPUs, load average of the last minute.
std::string describe_machine();

}  // namespace muster::bench
