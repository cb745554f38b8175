// The softmax of a row of logits in few instructions a column: fp32, in units of log 2. What is added up are the sums of RowStatistics, and
// a column's gradient is that of RowCoefficients; a test compares both with their definitions. Plain C++: nvcc reads it.
//
// A column is t = raw factor - reference, where the factor is logit_scale log2(e) / temperature and the reference is the largest raw logit
// times the factor, rounded: a product and a sum in one instruction, with one rounding. What the rounding of the reference leaves of the
// largest column's t is taken off once for the whole row.
#ifndef LOSSD_KERNELS_OBJECTIVES_LOGIT_COLUMNS_H_
#define LOSSD_KERNELS_OBJECTIVES_LOGIT_COLUMNS_H_

#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/exp2.h"
#include "kernels/objectives/row.h"

namespace lossd {

// 2^it is 0, and 0 times it is 0: stands for -infinity where both are multiplied.
inline constexpr float kLowestT = -300.0f;

// Sums over some columns, with e = 2^t. The last four are kept with kAll only.
struct alignas(16) LogitSums {
  float max = -INFINITY;  // the largest raw logit; NaN if one is
  float sum = 0;          // of e
  float target = 0;       // the target's raw logit, of the columns that have it
  int32_t columns = 0;
  float sum_t = 0;           // of e t
  float sum_2 = 0;           // of e^2
  float t = 0;               // of t
  int32_t argmax = INT_MAX;  // first column of the largest logit; INT_MAX: none
};

// Without a column above -infinity there is nothing to subtract.
LOSSD_HD float LogitReference(float max, float factor) {
  return max == -INFINITY ? 0.0f : RoundedProduct(max, factor);
}

LOSSD_HD float LogitT(float raw, float factor, float reference) {
  return fmaf(raw, factor, -reference);
}

template <bool kAll>
LOSSD_HD void AddLogit(float raw, float factor, float reference, LogitSums* sums) {
  const float t = LogitT(raw, factor, reference);
  const float e = FastExp2(t);
  sums->sum += e;
  if (!kAll) return;
  sums->sum_t = fmaf(e, fmaxf(t, kLowestT), sums->sum_t);
  sums->sum_2 = fmaf(e, e, sums->sum_2);
  sums->t += t;
}

// The same columns relative to the reference of a larger maximum. One of NaN makes NaNs of all sums.
template <bool kAll>
LOSSD_HD LogitSums RebasedLogits(LogitSums sums, float max, float factor) {
  if (sums.max == max) return sums;
  const float shift = LogitReference(sums.max, factor) - LogitReference(max, factor);
  const float scale = FastExp2(shift);
  sums.max = max;
  sums.argmax = INT_MAX;
  if (kAll) {
    sums.t = fmaf(static_cast<float>(sums.columns), shift, sums.t);
    if (sums.sum != 0) {
      sums.sum_t = scale * fmaf(shift, sums.sum, sums.sum_t);
      sums.sum_2 = scale * scale * sums.sum_2;
    }
  }
  // All columns at -infinity: the scale says nothing.
  if (sums.sum != 0) sums.sum *= scale;
  return sums;
}

// Sums of two parts with one reference; a + b is b + a.
template <bool kAll>
LOSSD_HD void AddLogits(const LogitSums& other, LogitSums* sums) {
  sums->sum = AddRounded(sums->sum, other.sum);
  if (!kAll) return;
  sums->sum_t = AddRounded(sums->sum_t, other.sum_t);
  sums->sum_2 = AddRounded(sums->sum_2, other.sum_2);
  sums->t = AddRounded(sums->t, other.t);
  sums->columns += other.columns;
  sums->argmax = other.argmax < sums->argmax ? other.argmax : sums->argmax;
}

// What a row program reads, of a row's sums. The largest column then has exp(z - max) of exactly 1. Without kAll: max, sum_exp, target_d.
template <bool kAll>
LOSSD_HD RowStatistics StatisticsOfLogits(const LogitSums& row, float factor, bool owns_target) {
  RowStatistics stats;
  stats.owns_target = owns_target;
  // A NaN or +infinity logit, or none above -infinity.
  if (!(row.sum > 0)) {
    stats.max = row.max == -INFINITY ? -INFINITY : NAN;
    stats.sum_exp = stats.sum_exp_d = stats.sum_exp_2 = NAN;
    stats.sum_d = stats.weighted_d = stats.target_d = NAN;
    stats.degenerate = true;
    return stats;
  }
  const float reference = LogitReference(row.max, factor);
  const float rest = LogitT(row.max, factor, reference);
  const float top = FastExp2(rest);
  stats.max = kLn2 * reference;
  stats.sum_exp = row.sum / top;
  if (owns_target) stats.target_d = kLn2 * (LogitT(row.target, factor, reference) - rest);
  if (kAll) {
    stats.sum_exp_d = kLn2 * ((row.sum_t - RoundedProduct(rest, row.sum)) / top);
    stats.sum_exp_2 = row.sum_2 / RoundedProduct(top, top);
    stats.sum_d = kLn2 * (row.t - RoundedProduct(static_cast<float>(row.columns), rest));
    stats.argmax = row.argmax == INT_MAX ? -1 : row.argmax;
  }
  return stats;
}

// A row's gradient, from its coefficients: of each column, and of the target's.
struct LogitSlopes {
  float reference = 0;
  float weight = 0;  // of e
  float per_t = 0;   // of e t
  float offset = 0;  // of every column, taken off
  // The target's own: c (p - 1) + (c - a), so that nothing cancels where p is near 1.
  float weight_c = 0;
  float sum = 1;
  float excess = 0;
  bool has_columns = true;  // false: no column is read
};

// `sum` of e relative to `reference`; `slope`: dz / draw.
LOSSD_HD LogitSlopes SlopesOfLogits(const RowCoefficients& k, float reference, float sum,
                                    float slope) {
  const float scale = slope / sum;
  LogitSlopes out;
  out.reference = reference;
  out.weight_c = k.c * scale;
  out.weight = out.weight_c;
  if (k.h != 0) {
    out.weight -= k.h * scale * (k.entropy - logf(sum));
    out.per_t = -k.h * scale * kLn2;
  }
  out.offset = k.u * slope;
  out.sum = sum;
  out.excess = (k.c - k.a) * slope;
  out.has_columns = k.c != 0 || k.h != 0;
  return out;
}

template <bool kEntropy>
LOSSD_HD float LogitWeight(const LogitSlopes& slopes, float t) {
  return kEntropy ? fmaf(slopes.per_t, fmaxf(t, kLowestT), slopes.weight) : slopes.weight;
}

template <bool kEntropy>
LOSSD_HD float SlopeOfLogit(const LogitSlopes& slopes, float raw, float factor) {
  const float t = LogitT(raw, factor, slopes.reference);
  return fmaf(FastExp2(t), LogitWeight<kEntropy>(slopes, t), -slopes.offset);
}

template <bool kEntropy>
LOSSD_HD float SlopeOfTarget(const LogitSlopes& slopes, float raw, float factor) {
  if (!slopes.has_columns) return slopes.excess - slopes.offset;
  const float t = LogitT(raw, factor, slopes.reference);
  const float e = FastExp2(t);
  float g = fmaf(slopes.weight_c, e - slopes.sum, slopes.excess);
  if (kEntropy) g = fmaf(e, LogitWeight<kEntropy>(slopes, t) - slopes.weight_c, g);
  return g - slopes.offset;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_LOGIT_COLUMNS_H_
