// Metrics of a call: each row leaves its values in columns, and one team for each metric reduces a column. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_METRICS_H_
#define LOSSD_KERNELS_OBJECTIVES_METRICS_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"

namespace lossd {

// Values of up to kMaxMetrics metrics by row (or by sequence). A row writes its own entries and no others (MetricRow), so that nothing is
// added up in an order that a scheduler chooses.
struct MetricColumns {
  float* values = nullptr;  // [metrics][rows]
  uint64_t* population =
      nullptr;  // [rows]: bit m says that the row is in the population of metric m
  int64_t rows = 0;
  int32_t metrics = 0;
  int64_t first = 0;  // number of the row whose entries come first

  LOSSD_HD explicit operator bool() const { return metrics > 0; }
};

static_assert(kMaxMetrics <= 64, "the population is a set of 64 bits");

// The entries of one row. End must follow the last Add; a row that is skipped by the reduction's `counted` needs neither.
class MetricRow {
 public:
  LOSSD_HD MetricRow(const MetricColumns& columns, int64_t row)
      : columns_(columns), place_(row - columns.first) {}

  LOSSD_HD void Add(int32_t metric, float value) {
    columns_.values[metric * columns_.rows + place_] = value;
    population_ |= uint64_t{1} << metric;
  }
  LOSSD_HD void End() const { columns_.population[place_] = population_; }

 private:
  const MetricColumns& columns_;
  int64_t place_;
  uint64_t population_ = 0;
};

// A metric over its population, or over a part of it.
struct MetricSums {
  double sum = 0;
  float low = INFINITY;
  float high = -INFINITY;
  int32_t count = 0;
  int32_t not_numbers = 0;

  // Nothing if not `counts`; without a branch, so that several values are under way at once.
  LOSSD_HD void Add(float value, bool counts) {
    sum += counts ? static_cast<double>(value) : 0.0;
    count += counts ? 1 : 0;
    not_numbers += counts && value != value ? 1 : 0;
    low = counts && value < low ? value : low;
    high = counts && value > high ? value : high;
  }
  LOSSD_HD void Add(const MetricSums& part) {
    sum += part.sum;
    count += part.count;
    not_numbers += part.not_numbers;
    if (part.low < low) low = part.low;
    if (part.high > high) high = part.high;
  }
  // The team's parts together, on every thread. Every thread must call.
  template <class Team>
  LOSSD_HD void Join(Team& team) {
    team.SumAll(&sum, &count, &not_numbers);
    low = team.Min(low);
    high = team.Max(high);
  }
  // A NaN among the values makes sum, min and max NaN.
  LOSSD_HD MetricRecord Result() const {
    MetricRecord result;
    if (count == 0) return result;
    result.sum = sum;
    result.count = count;
    result.min = not_numbers > 0 ? NAN : low;
    result.max = not_numbers > 0 ? NAN : high;
    return result;
  }
};

// One metric over all rows of the columns, in double and in a fixed order, on every thread. `counted` (null: all) masks rows whose entries
// were never written. Every thread of the team must call.
template <class Team>
LOSSD_HD MetricSums SumMetric(Team& team, const MetricColumns& columns, const uint8_t* counted,
                              int32_t metric) {
  MetricSums sums;
  for (int64_t i = team.rank(); i < columns.rows; i += team.size()) {
    const bool counts = counted == nullptr || counted[i] != 0;
    const uint64_t population = columns.population[i];
    const float value = columns.values[metric * columns.rows + i];
    sums.Add(value, counts && (population >> metric & 1) != 0);
  }
  sums.Join(team);
  return sums;
}

template <class Team>
LOSSD_HD void ReduceMetric(Team& team, const MetricColumns& columns, const uint8_t* counted,
                           int32_t metric, MetricRecord* result) {
  const MetricSums sums = SumMetric(team, columns, counted, metric);
  if (team.rank() == 0) *result = sums.Result();
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_METRICS_H_
