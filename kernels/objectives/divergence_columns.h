// Divergences of two rows of logits in few instructions a column: fp32, in units of log 2, each side relative to a reference of its own
// instead of its maximum. What is added up here is what the formulas of divergence.h add up; a test compares the two. Plain C++: nvcc
// reads it.
//
// A row takes one pass (FORWARD_KL, REVERSE_KL, MIXED) or two (JSD, TVD, which need both normalised sides), and one more for its gradient.
#ifndef LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_COLUMNS_H_
#define LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_COLUMNS_H_

#include <cfloat>
#include <cmath>

#include "kernels/core/host_device.h"
#include "kernels/objectives/divergence.h"
#include "kernels/objectives/exp2.h"

namespace lossd {

// Whether the divergence compares columns of normalised sides.
template <Divergence kKind>
inline constexpr bool kIsCompared = kKind == Divergence::kJsd || kKind == Divergence::kTvd;
// Whether there are sums of p (log p - log q), or of q (log q - log p).
template <Divergence kKind>
inline constexpr bool kHasForward = kKind == Divergence::kForwardKl || kKind == Divergence::kMixed;
template <Divergence kKind>
inline constexpr bool kHasReverse = kKind == Divergence::kReverseKl || kKind == Divergence::kMixed;

// Raw logit -> d: a factor (scale, inverse temperature, log2 e), then the reference.
struct ColumnFactors {
  float student = 1;
  float teacher = 1;
};

// Before a column with a logit: far below every reference, and 2^(it - any) is 0.
inline constexpr float kNoReference = -FLT_MAX;
// How far a column may lie above the reference. A sum of 2^24 columns of 2^32 is far from overflow, as are its products with d.
inline constexpr float kHeadroom = 32;

// Sums over some columns. A NaN or +infinity makes a NaN of its side's sum; a sum of 0 has no column above -infinity.
struct alignas(16) ColumnTotals {
  float student_reference = kNoReference;
  float teacher_reference = kNoReference;
  float student_sum = 0;  // of 2^d
  float teacher_sum = 0;
  float x = 0;  // of 2^d_t (d_t - d_s)
  float y = 0;  // of 2^d_s (d_s - d_t)
};

// The same sums relative to other references, none below the old one.
template <Divergence kKind>
LOSSD_HD ColumnTotals Rebased(const ColumnTotals& from, float student, float teacher) {
  const float student_factor = FastExp2(from.student_reference - student);
  const float teacher_factor = FastExp2(from.teacher_reference - teacher);
  // By so much d_t - d_s grows. Of a side without columns it says nothing.
  const float growth = (from.teacher_reference - teacher) - (from.student_reference - student);
  ColumnTotals to;
  to.student_reference = student;
  to.teacher_reference = teacher;
  to.student_sum = from.student_sum * student_factor;
  to.teacher_sum = from.teacher_sum * teacher_factor;
  if (kHasForward<kKind> && to.teacher_sum != 0) {
    to.x = teacher_factor * (from.x + from.teacher_sum * growth);
  }
  if (kHasReverse<kKind> && to.student_sum != 0) {
    to.y = student_factor * (from.y - from.student_sum * growth);
  }
  return to;
}

// Sums of two parts with the same references. The order is the caller's.
template <Divergence kKind>
LOSSD_HD void AddTotals(const ColumnTotals& other, ColumnTotals* totals) {
  totals->student_sum = AddRounded(totals->student_sum, other.student_sum);
  totals->teacher_sum = AddRounded(totals->teacher_sum, other.teacher_sum);
  if (kHasForward<kKind>) totals->x = AddRounded(totals->x, other.x);
  if (kHasReverse<kKind>) totals->y = AddRounded(totals->y, other.y);
}

// The first pass. A column of -infinity on both sides adds nothing. The references follow the columns only where one lies far above, so
// that the usual column costs no more than its sums.
template <Divergence kKind, int kCount>
LOSSD_HD void AddColumns(const ColumnFactors& factors, const float (&student)[kCount],
                         const float (&teacher)[kCount], ColumnTotals* totals) {
  float highest_student = student[0];
  float highest_teacher = teacher[0];
  for (int i = 1; i < kCount; ++i) {
    highest_student = fmaxf(highest_student, student[i]);
    highest_teacher = fmaxf(highest_teacher, teacher[i]);
  }
  highest_student *= factors.student;
  highest_teacher *= factors.teacher;
  if (highest_student - totals->student_reference > kHeadroom ||
      highest_teacher - totals->teacher_reference > kHeadroom) {
    *totals = Rebased<kKind>(*totals, fmaxf(totals->student_reference, highest_student),
                             fmaxf(totals->teacher_reference, highest_teacher));
  }
  for (int i = 0; i < kCount; ++i) {
    const float d_s = fmaf(student[i], factors.student, -totals->student_reference);
    const float d_t = fmaf(teacher[i], factors.teacher, -totals->teacher_reference);
    const float e_s = FastExp2(d_s);
    const float e_t = FastExp2(d_t);
    totals->student_sum += e_s;
    totals->teacher_sum += e_t;
    // 0 times the infinity or NaN of what has probability 0 is not looked at.
    if (kHasForward<kKind> && e_t != 0) totals->x = fmaf(e_t, d_t - d_s, totals->x);
    if (kHasReverse<kKind> && e_s != 0) totals->y = fmaf(e_s, d_s - d_t, totals->y);
  }
}

// Both sides, normalised: q = 2^d_s student_inverse, log2 q - log2 p = d_s - d_t + shift. NaN throughout if a side is none.
struct ColumnScales {
  float student_reference;
  float teacher_reference;
  float student_inverse;
  float teacher_inverse;
  float shift;
};

LOSSD_HD ColumnScales ScalesOf(const ColumnTotals& totals) {
  const float student = totals.student_sum > 0 ? totals.student_sum : NAN;
  const float teacher = totals.teacher_sum > 0 ? totals.teacher_sum : NAN;
  ColumnScales out;
  out.student_reference = totals.student_reference;
  out.teacher_reference = totals.teacher_reference;
  out.student_inverse = 1.0f / student;
  out.teacher_inverse = 1.0f / teacher;
  out.shift = log2f(teacher) - log2f(student);
  return out;
}

// Of the divergences that need no second pass.
template <Divergence kKind>
LOSSD_HD DivergenceValue<float> ValueOfTotals(const DivergenceKind<float>& kind,
                                              const ColumnTotals& totals,
                                              const ColumnScales& scales) {
  static_assert(!kIsCompared<kKind>);
  DivergenceSums<float> sums;
  if (kHasForward<kKind>) sums.x = kLn2 * (totals.x * scales.teacher_inverse - scales.shift);
  if (kHasReverse<kKind>) sums.y = kLn2 * (totals.y * scales.student_inverse + scales.shift);
  return ValueOf(kind, sums);
}

// With r = log2 q - log2 p small, the JSD's y and its whole column, both over q and in units of log 2, as power series around r = 0:
// -log(1 + beta (e^-d - 1)) and, with M = beta p + (1 - beta) q, (beta p log(p / M) + (1 - beta) q log(q / M)) / q. Each term of the
// column's own series is of second order, where a difference of logarithms would leave nothing but rounding. The nearest singularity is
// at a distance of pi or more (in nats) for every beta.
struct JsdSeries {
  static constexpr int kYTerms = 8;
  static constexpr int kColumnTerms = 7;
  static constexpr float kRadius = 0.72f;  // half a nat
  float y[kYTerms] = {};                   // of r, r^2, ...
  float column[kColumnTerms] = {};         // of r^2, r^3, ...
};

inline JsdSeries MakeJsdSeries(double beta) {
  constexpr int kOrder = JsdSeries::kYTerms + 1;
  // M / q = sum a_n d^n, its logarithm sum log_n d^n: n log_n = n a_n - sum k log_k a_(n-k).
  double a[kOrder] = {1};
  double log[kOrder] = {};
  double power = beta;  // beta (-1)^n / n!
  double by_p[kOrder] = {beta};
  for (int n = 1; n < kOrder; ++n) {
    power = -power / n;
    a[n] = by_p[n] = power;
    double sum = 0;
    for (int k = 1; k < n; ++k) sum += k * log[k] * a[n - k];
    log[n] = a[n] - sum / n;
  }
  JsdSeries out;
  const double ln2 = std::log(2.0);
  double scale = 1;  // ln2^(n - 1)
  for (int n = 1; n < kOrder; ++n, scale *= ln2) {
    out.y[n - 1] = static_cast<float>(-log[n] * scale);
    if (n < 2 || n - 2 >= JsdSeries::kColumnTerms) continue;
    double sum = by_p[n - 1];
    for (int k = 1; k <= n; ++k) sum += log[k] * a[n - k];
    out.column[n - 2] = static_cast<float>(-sum * scale);
  }
  return out;
}

// Of one column, in the second pass.
struct ComparedColumn {
  float q;
  float y;      // of TermsOf; of JSD in units of log 2
  float value;  // the column's part of the value; of JSD in units of log 2
};

// JSD: with L the larger and S = L E the smaller side, E = 2^-|r|, and w the smaller one's weight in the mixture, M = L h with
// h = 1 - w + w E; then log2 M = log2 L + log2 h, g = -log2 h, and the column is L (h g - w E |r|).
LOSSD_HD ComparedColumn CompareJsd(const ColumnFactors& factors, const ColumnScales& scales,
                                   float beta, const JsdSeries& series, float student,
                                   float teacher) {
  const float d_s = fmaf(student, factors.student, -scales.student_reference);
  const float d_t = fmaf(teacher, factors.teacher, -scales.teacher_reference);
  const float r = (d_s - d_t) + scales.shift;
  // Infinite where one side has probability 0, NaN where both have; 2^-200 is 0, and 0 times 200 is 0.
  const float size = fminf(fabsf(r), 200.0f);
  const bool above = r >= 0;
  const float w = above ? beta : 1 - beta;
  const float rest = above ? 1 - beta : beta;
  const float larger =
      FastExp2(above ? d_s : d_t) * (above ? scales.student_inverse : scales.teacher_inverse);
  const float ratio = FastExp2(-size);
  const float smaller = larger * ratio;
  const float h = fmaf(w, ratio, rest);
  const float g = -FastLog2(h);
  const float far_y = above ? g : g - size;
  const float far_value = fmaf(-w, ratio * size, h * g);

  float near_y = series.y[JsdSeries::kYTerms - 1];
  for (int n = JsdSeries::kYTerms - 2; n >= 0; --n) near_y = fmaf(near_y, r, series.y[n]);
  float near_value = series.column[JsdSeries::kColumnTerms - 1];
  for (int n = JsdSeries::kColumnTerms - 2; n >= 0; --n) {
    near_value = fmaf(near_value, r, series.column[n]);
  }
  const bool near = size < JsdSeries::kRadius;
  ComparedColumn out;
  out.q = above ? larger : smaller;
  out.y = out.q * (near ? near_y * r : far_y);
  out.value = (near ? out.q : larger) * (near ? near_value * (r * r) : far_value);
  return out;
}

LOSSD_HD ComparedColumn CompareTvd(const ColumnFactors& factors, const ColumnScales& scales,
                                   float student, float teacher) {
  const float d_s = fmaf(student, factors.student, -scales.student_reference);
  const float d_t = fmaf(teacher, factors.teacher, -scales.teacher_reference);
  ComparedColumn out;
  out.q = RoundedProduct(FastExp2(d_s), scales.student_inverse);
  const float difference = out.q - RoundedProduct(FastExp2(d_t), scales.teacher_inverse);
  const float half = 0.5f * out.q;
  out.value = 0.5f * fabsf(difference);
  out.y = difference == 0 ? 0.0f : copysignf(half, difference);
  return out;
}

template <Divergence kKind>
LOSSD_HD ComparedColumn CompareColumn(const ColumnFactors& factors, const ColumnScales& scales,
                                      float beta, const JsdSeries& series, float student,
                                      float teacher) {
  static_assert(kIsCompared<kKind>);
  return kKind == Divergence::kJsd ? CompareJsd(factors, scales, beta, series, student, teacher)
                                   : CompareTvd(factors, scales, student, teacher);
}

// From the sums of a second pass.
template <Divergence kKind>
LOSSD_HD DivergenceValue<float> ValueOfCompared(const DivergenceKind<float>& kind,
                                                const ColumnScales& scales, float value, float y) {
  static_assert(kIsCompared<kKind>);
  // Without a distribution on both sides there is no value, whatever the columns say.
  const float unit = (kKind == Divergence::kJsd ? kLn2 : 1.0f) + 0.0f * scales.shift;
  DivergenceSums<float> sums;
  sums.y = unit * y;
  DivergenceValue<float> out = ValueOf(kind, sums);
  // x and y of a column cancel to second order; its part of the value was made without them.
  out.value = unit * value;
  return out;
}

// Factor of ComparedColumn::y in dz, where dz = coefficient (g - q total).
template <Divergence kKind>
LOSSD_HD float FactorOfY(const DivergenceKind<float>& kind, float coefficient) {
  return coefficient * kind.y_factor * (kKind == Divergence::kJsd ? kLn2 : 1.0f);
}

// dz of a column of the others, coefficient (-p_factor p + q (y_factor (log q - log p) - total)), with what does not depend on the column
// drawn together.
struct ColumnSlope {
  float by_p;      // of 2^d_t
  float by_q;      // of 2^d_s
  float by_q_log;  // of 2^d_s (d_s - d_t)
};

template <Divergence kKind>
LOSSD_HD ColumnSlope SlopeOfTotals(const DivergenceKind<float>& kind,
                                   const DivergenceValue<float>& value, const ColumnScales& scales,
                                   float coefficient) {
  static_assert(!kIsCompared<kKind>);
  const float q_unit = coefficient * scales.student_inverse;
  const float log_factor = kHasReverse<kKind> ? kind.y_factor * kLn2 : 0.0f;
  ColumnSlope out;
  out.by_p = kHasForward<kKind> ? -coefficient * kind.p_factor * scales.teacher_inverse : 0.0f;
  out.by_q_log = q_unit * log_factor;
  out.by_q = q_unit * (kHasReverse<kKind> ? log_factor * scales.shift - value.total : -value.total);
  return out;
}

template <Divergence kKind>
LOSSD_HD float SlopeOfColumn(const ColumnFactors& factors, const ColumnScales& scales,
                             const ColumnSlope& slope, float student, float teacher) {
  const float d_s = fmaf(student, factors.student, -scales.student_reference);
  const float d_t = fmaf(teacher, factors.teacher, -scales.teacher_reference);
  const float e_s = FastExp2(d_s);
  float g = kHasForward<kKind> ? slope.by_p * FastExp2(d_t) : 0.0f;
  if (!kHasReverse<kKind>) return fmaf(e_s, slope.by_q, g);
  const float by_q = fmaf(d_s - d_t, slope.by_q_log, slope.by_q);
  // Where q is 0 its logarithm is not looked at.
  return fmaf(e_s, e_s == 0 ? slope.by_q : by_q, g);
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_COLUMNS_H_
