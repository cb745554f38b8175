// Row programs of objectives that need the statistics of all rows before the gradient of any: the first keeps them, stages make of them the
// derivatives by row, the second turns these into dz. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_STATISTICS_ROWS_H_
#define LOSSD_KERNELS_OBJECTIVES_STATISTICS_ROWS_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/row.h"

namespace lossd {

struct KeepStatisticsRows {
  static constexpr bool kKnowsStatistics = false;
  RowStatistics* statistics = nullptr;  // [N]
  bool all_sums = true;  // false: max, sum_exp and target_d are all that is read later

  LOSSD_HD RowStatistics KnownStatistics(int64_t) const { return RowStatistics(); }
  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics& stats) const {
    statistics[row] = stats;
    return RowCoefficients();
  }
};

// dz = d ([j = y] - p) - e p (log p + H): d and e are the derivatives of the loss by the row's log-probability and entropy.
struct KeptGradientRows {
  static constexpr bool kKnowsStatistics = true;
  const RowStatistics* statistics = nullptr;  // [N]
  const float* d_logprob = nullptr;           // [N]
  const float* d_entropy = nullptr;           // [N], may be null: 0

  LOSSD_HD RowStatistics KnownStatistics(int64_t row) const { return statistics[row]; }
  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics&) const {
    RowCoefficients out;
    out.c = -d_logprob[row];
    out.a = -d_logprob[row];
    if (d_entropy != nullptr) {
      out.h = d_entropy[row];
      out.entropy = statistics[row].Entropy();
    }
    return out;
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_STATISTICS_ROWS_H_
