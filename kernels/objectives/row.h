// What the engine tells an objective about a row of the head, and what the objective answers. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_ROW_H_
#define LOSSD_KERNELS_OBJECTIVES_ROW_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"

namespace lossd {

// Kernels for calls without a head define LOSSD_WITHOUT_HEAD, and have no code for what only a head leaves: statistics of rows, and an array of
// the rows that count.
#if defined(__CUDA_ARCH__) && defined(LOSSD_WITHOUT_HEAD)
inline constexpr bool kMayHaveHead = false;
#else
inline constexpr bool kMayHaveHead = true;
#endif

// Sums over the valid columns of one row of logits z, all relative to the row's maximum so that a common offset costs nothing; or to
// another logit of the row, and then largest_d says how far the maximum is above it, where it is asked for.
// fp32 from unrounded logits. Names as in the columns of vocab_stats.
struct RowStatistics {
  float max = 0;        // m
  float largest_d = 0;  // largest z - m
  float sum_exp = 1;    // S = sum exp(z - m)
  float sum_exp_d = 0;  // sum exp(z - m) (z - m)
  float sum_exp_2 = 1;  // sum exp(2 (z - m))
  float sum_d = 0;      // sum (z - m)
  float weighted_d =
      0;  // sum w_j (z_j - m), where w_j = 0 gives 0; only with HeadPass::column_weight
  float target_d = 0;   // z_y - m; 0 if the target is absent or on another shard
  int32_t argmax = -1;  // global id, smallest among equals
  bool owns_target = false;
  // Every real statistic is NaN then; but max is -infinity if all valid columns are, or if there is none.
  bool degenerate = false;

  LOSSD_HD float LogSum() const { return logf(sum_exp); }
  LOSSD_HD float Lse() const { return max + logf(sum_exp); }
  // At most 0.
  LOSSD_HD float Logprob() const {
    const float value = target_d - logf(sum_exp);
    return value > 0 ? 0.0f : value;  // keeps NaN
  }
  LOSSD_HD float Entropy() const {
    const float value = logf(sum_exp) - sum_exp_d / sum_exp;
    return value < 0 ? 0.0f : value;
  }
  LOSSD_HD float LogSumP2() const { return logf(sum_exp_2) - 2 * logf(sum_exp); }
  LOSSD_HD float Lse2() const { return 2 * max + logf(sum_exp_2); }
  LOSSD_HD float MaxProb() const { return expf(largest_d) / sum_exp; }
  // valid: number of valid ids, K.
  LOSSD_HD float MeanLogit(int64_t valid) const { return max + sum_d / static_cast<float>(valid); }
};

// Gradient of a row: dz_j = c p_j - a [j = y] - u w_j - h p_j (log p_j + entropy), with w_j = 1 without class weights.
// The row's upstream gradient and denominator are in the coefficients; the engine multiplies by logit_scale, softcap' and 1/temperature.
struct RowCoefficients {
  float c = 0;
  float a = 0;
  float u = 0;
  float h = 0;
  float entropy = 0;

  // Then the gradient is exactly 0, whatever the logits are; unless RowColumns::d_ids_logprob has entries other than 0.
  LOSSD_HD bool IsZero() const { return c == 0 && a == 0 && u == 0 && h == 0; }
};

// x times y, where an x of exactly 0 removes the term: 0 * infinity is 0.
template <class Real>
LOSSD_HD Real Times(Real x, Real y) {
  return x == Real(0) ? Real(0) : x * y;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_ROW_H_
