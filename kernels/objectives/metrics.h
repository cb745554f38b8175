// Metrics of a call: each row leaves its values in columns, and one team for each metric reduces a column. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_METRICS_H_
#define LOSSD_KERNELS_OBJECTIVES_METRICS_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"

namespace lossd {

// Values of up to kMaxMetrics metrics by row (or by sequence), in workspace memory. A row writes its own entries and no others, so that
// nothing is added up in an order that a scheduler chooses.
struct MetricColumns {
  float* values = nullptr;  // [metrics][rows]
  uint64_t* population =
      nullptr;  // [rows]: bit m says that the row is in the population of metric m
  int64_t rows = 0;
  int32_t metrics = 0;

  LOSSD_HD explicit operator bool() const { return metrics > 0; }

  // Must precede the Add calls of a row; a row that is skipped by the reduction's `counted` needs neither.
  LOSSD_HD void Begin(int64_t row) const { population[row] = 0; }
  LOSSD_HD void Add(int64_t row, int32_t metric, float value) const {
    values[metric * rows + row] = value;
    population[row] |= uint64_t{1} << metric;
  }
};

static_assert(kMaxMetrics <= 64, "the population is a set of 64 bits");

// Sum, count, minimum and maximum of one metric over its population, in double and in a fixed order. `counted` (null: all) masks rows
// whose entries were never written. A NaN among the values makes sum, min and max NaN. Every thread of the team must call.
template <class Team>
LOSSD_HD void ReduceMetric(Team& team, const MetricColumns& columns, const uint8_t* counted,
                           int32_t metric, MetricRecord* result) {
  double sum = 0;
  double low = INFINITY;
  double high = -INFINITY;
  int64_t count = 0;
  int64_t not_numbers = 0;
  for (int64_t i = team.rank(); i < columns.rows; i += team.size()) {
    // All three are read before any is looked at: the loads of several rows are then under way at once.
    const bool counts = counted == nullptr || counted[i] != 0;
    const uint64_t population = columns.population[i];
    const double value = columns.values[metric * columns.rows + i];
    if (!counts || (population >> metric & 1) == 0) continue;
    sum += value;
    ++count;
    if (value != value) ++not_numbers;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  sum = team.Sum(sum);
  count = team.Sum(count);
  not_numbers = team.Sum(not_numbers);
  low = team.Min(low);
  high = team.Max(high);
  if (team.rank() != 0) return;
  result->sum = count == 0 ? 0 : sum;
  result->count = count;
  result->min = count == 0 ? 0 : not_numbers > 0 ? NAN : low;
  result->max = count == 0 ? 0 : not_numbers > 0 ? NAN : high;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_METRICS_H_
