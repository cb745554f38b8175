// Divergences of two rows of logits in few instructions a column: fp32, in units of log 2, each side relative to a reference of its own
// instead of its maximum. What is added up here is what the formulas of divergence.h add up; a test compares the two. Plain C++: nvcc
// reads it.
//
// A row takes one pass (FORWARD_KL, REVERSE_KL, MIXED) or two (JSD, TVD, which need both normalised sides), and one more for its gradient.
// A column keeps two numbers from pass to pass: its logits at first, then what the next pass wants.
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
// A sum up to here is far from overflow, as are its products with d: references need not be maxima.
inline constexpr float kMostSum = 0x1p96f;

// Sums over some columns. A NaN or +infinity makes a NaN of its side's sum; a sum of 0 has no column above -infinity.
struct alignas(16) ColumnTotals {
  float student_reference = kNoReference;
  float teacher_reference = kNoReference;
  float student_sum = 0;  // of 2^d
  float teacher_sum = 0;
  float x = 0;  // of 2^d_t (d_t - d_s)
  float y = 0;  // of 2^d_s (d_s - d_t)

  // Whether the references are high enough. With the columns' maxima they are, unless a side is none.
  LOSSD_HD bool IsSafe() const { return student_sum < kMostSum && teacher_sum < kMostSum; }
};

// The reference of columns of which this is the largest logit.
LOSSD_HD float ReferenceOf(float factor, float highest) {
  return fmaxf(highest * factor, kNoReference);
}

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

// The first pass, one column of the totals' references. A column of -infinity on both sides adds nothing. *student and *teacher are the
// logits and become: of FORWARD_KL and TVD 2^d_s and 2^d_t, of REVERSE_KL 2^d_s and d_s - d_t (0 where 2^d_s is), of the others d_s and
// d_t.
template <Divergence kKind>
LOSSD_HD void AddColumn(const ColumnFactors& factors, float* student, float* teacher,
                        ColumnTotals* totals) {
  const float d_s = fmaf(*student, factors.student, -totals->student_reference);
  const float d_t = fmaf(*teacher, factors.teacher, -totals->teacher_reference);
  const float e_s = FastExp2(d_s);
  const float e_t = FastExp2(d_t);
  totals->student_sum += e_s;
  totals->teacher_sum += e_t;
  // 0 times the infinity or NaN of what has probability 0 is not looked at.
  if (kHasForward<kKind> && e_t != 0) totals->x = fmaf(e_t, d_t - d_s, totals->x);
  const float log_ratio = e_s == 0 ? 0.0f : d_s - d_t;
  if (kHasReverse<kKind>) totals->y = fmaf(e_s, log_ratio, totals->y);
  constexpr bool kKeepsLogs = kKind == Divergence::kJsd || kKind == Divergence::kMixed;
  *student = kKeepsLogs ? d_s : e_s;
  *teacher = kKeepsLogs ? d_t : kKind == Divergence::kReverseKl ? log_ratio : e_t;
}

// What normalises the sides of a row. NaN throughout if a side is none.
struct RowScales {
  float student_reference;
  float teacher_reference;
  float student_inverse;  // of the sum
  float teacher_inverse;
  float student_log;  // log2 of the sum
  float teacher_log;
};

LOSSD_HD RowScales ScalesOf(const ColumnTotals& totals) {
  const float student = totals.student_sum > 0 ? totals.student_sum : NAN;
  const float teacher = totals.teacher_sum > 0 ? totals.teacher_sum : NAN;
  RowScales out;
  out.student_reference = totals.student_reference;
  out.teacher_reference = totals.teacher_reference;
  out.student_inverse = FastReciprocal(student);
  out.teacher_inverse = FastReciprocal(teacher);
  out.student_log = log2f(student);
  out.teacher_log = log2f(teacher);
  return out;
}

// The same for columns with references of their own: q = 2^d_s student_factor, log2 q = d_s + student_offset + log2 unit. The larger offset
// is 0: logarithms of the columns' larger probabilities are near 0, and so is their rounding.
struct ColumnScales {
  float student_factor;
  float teacher_factor;
  float student_offset;
  float teacher_offset;
  float unit;
};

LOSSD_HD ColumnScales ScalesFor(const RowScales& row, float student_reference,
                                float teacher_reference) {
  const float student = student_reference - row.student_reference;
  const float teacher = teacher_reference - row.teacher_reference;
  // log2 q - log2 p = d_s - d_t + this. An error of the logarithms is the same for all columns of the row, and harmless.
  const float shift = (student - teacher) + (row.teacher_log - row.student_log);
  ColumnScales out;
  out.student_factor = FastExp2(student) * row.student_inverse;
  out.teacher_factor = FastExp2(teacher) * row.teacher_inverse;
  out.student_offset = fminf(shift, 0.0f);
  out.teacher_offset = fminf(-shift, 0.0f);
  out.unit = shift > 0 ? out.student_factor : out.teacher_factor;
  return out;
}

// Of the divergences that need no second pass; from the totals of the row.
template <Divergence kKind>
LOSSD_HD DivergenceValue<float> ValueOfTotals(const DivergenceKind<float>& kind,
                                              const RowScales& scales, float x, float y) {
  static_assert(!kIsCompared<kKind>);
  const float shift = scales.teacher_log - scales.student_log;
  DivergenceSums<float> sums;
  if (kHasForward<kKind>) sums.x = kLn2 * (x * scales.teacher_inverse - shift);
  if (kHasReverse<kKind>) sums.y = kLn2 * (y * scales.student_inverse + shift);
  return ValueOf(kind, sums);
}

// A column's JSD where r = log2 q - log2 p is small, over q and in units of log 2: its y is r (y[0] + y[1] r + ...), the column itself
// r^2 (column[0] + column[1] r + ...). The latter is of second order, where a difference of logarithms would leave nothing but rounding.
// The functions have no singularity nearer than 4.5 for any beta; their relative error here is at most 3e-5, 1e-5 for beta in 0.2 ... 1.
struct JsdSeries {
  static constexpr int kTerms = 4;
  static constexpr float kRadius = 0.5f;
  float y[kTerms] = {};
  float column[kTerms] = {};
};

// Coefficients of the polynomial through `values` at `points`.
template <int kTerms>
inline void Interpolate(const double (&points)[kTerms], double (&values)[kTerms],
                        float (&coefficients)[kTerms]) {
  // Newton's divided differences in place, then Horner's scheme on coefficients.
  for (int order = 1; order < kTerms; ++order) {
    for (int i = kTerms - 1; i >= order; --i) {
      values[i] = (values[i] - values[i - 1]) / (points[i] - points[i - order]);
    }
  }
  double sum[kTerms] = {};
  for (int i = kTerms - 1; i >= 0; --i) {
    for (int k = kTerms - 1; k > 0; --k) sum[k] = sum[k - 1] - points[i] * sum[k];
    sum[0] = values[i] - points[i] * sum[0];
  }
  for (int k = 0; k < kTerms; ++k) coefficients[k] = static_cast<float>(sum[k]);
}

// Through Chebyshev's points.
inline JsdSeries MakeJsdSeries(double beta) {
  constexpr int kTerms = JsdSeries::kTerms;
  const double ln2 = std::log(2.0);
  double points[kTerms], y[kTerms], column[kTerms];
  for (int i = 0; i < kTerms; ++i) {
    const double r = JsdSeries::kRadius * std::cos((2 * i + 1) * std::acos(0.0) / kTerms);
    const DivergenceTerms<double> logs = LogsToMixture<double>(beta, r * ln2);
    points[i] = r;
    y[i] = logs.y / ln2 / r;
    column[i] = (beta * std::exp2(-r) * logs.x + (1 - beta) * logs.y) / ln2 / (r * r);
  }
  JsdSeries out;
  Interpolate(points, y, out.y);
  Interpolate(points, column, out.column);
  return out;
}

template <int kTerms>
LOSSD_HD float Polynomial(const float (&coefficients)[kTerms], float r) {
  float sum = coefficients[kTerms - 1];
  for (int k = kTerms - 2; k >= 0; --k) sum = fmaf(sum, r, coefficients[k]);
  return sum;
}

// Of one column, in the second pass. All in units of UnitOfCompared, y and value in units of kUnitOfTerms besides.
struct ComparedColumn {
  float q;
  float y;      // of TermsOf
  float value;  // the column's part of the value
};
template <Divergence kKind>
inline constexpr float kUnitOfTerms = kKind == Divergence::kJsd ? kLn2 : 0.5f;
template <Divergence kKind>
LOSSD_HD float UnitOfCompared(const ColumnScales& scales) {
  return kKind == Divergence::kJsd ? scales.unit : 1.0f;
}

// JSD: up to a unit, with M = beta p + (1 - beta) q and g = log2 q - log2 M, y = q g, and the column, beta p (log2 p - log2 M) + (1 - beta) y, is
// M g - beta p r.
LOSSD_HD ComparedColumn CompareJsd(const ColumnScales& scales, float beta, const JsdSeries& series,
                                   float d_s, float d_t) {
  // 2 to the power of this is 0, and 0 times this is 0.
  constexpr float kLowest = -127;
  const float log_q = fmaxf(d_s + scales.student_offset, kLowest);
  const float log_p = fmaxf(d_t + scales.teacher_offset, kLowest);
  const float r = log_q - log_p;
  const float q = FastExp2(log_q);
  // The mixture has a logarithm, also where it is 0.
  const float part = fmaf(beta, FastExp2(log_p), FLT_MIN);
  const float mixture = fmaf(1 - beta, q, part);
  const float far_g = log_q - FastLog2(mixture);
  const float far_value = fmaf(-part, r, mixture * far_g);
  const float q_r = q * r;
  const bool near = fabsf(r) < JsdSeries::kRadius;
  ComparedColumn out;
  out.q = q;
  out.y = Select(near, q_r * Polynomial(series.y, r), q * far_g);
  out.value = Select(near, q_r * r * Polynomial(series.column, r), far_value);
  return out;
}

LOSSD_HD ComparedColumn CompareTvd(const ColumnScales& scales, float e_s, float e_t) {
  ComparedColumn out;
  out.q = RoundedProduct(e_s, scales.student_factor);
  const float difference = out.q - RoundedProduct(e_t, scales.teacher_factor);
  out.value = fabsf(difference);
  out.y = difference == 0 ? 0.0f : copysignf(out.q, difference);
  return out;
}

// From the two numbers of AddColumn.
template <Divergence kKind>
LOSSD_HD ComparedColumn CompareColumn(const ColumnScales& scales, float beta,
                                      const JsdSeries& series, float student, float teacher) {
  static_assert(kIsCompared<kKind>);
  return kKind == Divergence::kJsd ? CompareJsd(scales, beta, series, student, teacher)
                                   : CompareTvd(scales, student, teacher);
}

// From the sums of a second pass, over parts each of which has been multiplied by its unit.
template <Divergence kKind>
LOSSD_HD DivergenceValue<float> ValueOfCompared(const DivergenceKind<float>& kind,
                                                const RowScales& scales, float value, float y) {
  static_assert(kIsCompared<kKind>);
  // Without a distribution on both sides there is no value, whatever the columns say.
  const float unit = kUnitOfTerms<kKind> + 0.0f * (scales.student_log + scales.teacher_log);
  DivergenceSums<float> sums;
  sums.y = unit * y;
  DivergenceValue<float> out = ValueOf(kind, sums);
  // x and y of a column cancel to second order; its part of the value was made without them.
  out.value = unit * value;
  return out;
}

// dz of a column as a sum of two products, from the numbers that the pass before left: of a compared kind q and y, of the others those of
// AddColumn. dz = coefficient (-p_factor p + y_factor y - q total).
struct ColumnSlope {
  float by_p;      // of 2^d_t; of a compared kind's y
  float by_q;      // of 2^d_s; of a compared kind's q
  float by_q_log;  // of 2^d_s (d_s - d_t)
};

template <Divergence kKind>
LOSSD_HD ColumnSlope SlopeOfValue(const DivergenceKind<float>& kind, float total,
                                  const ColumnScales& scales, float coefficient) {
  ColumnSlope out = {};
  if constexpr (kIsCompared<kKind>) {
    const float q_unit = coefficient * UnitOfCompared<kKind>(scales);
    out.by_p = q_unit * kind.y_factor * kUnitOfTerms<kKind>;
    out.by_q = -q_unit * total;
  } else {
    const float q_unit = coefficient * scales.student_factor;
    const float log_factor = kHasReverse<kKind> ? kind.y_factor * kLn2 : 0.0f;
    const float shift = scales.student_offset - scales.teacher_offset;
    if (kHasForward<kKind>) out.by_p = -coefficient * kind.p_factor * scales.teacher_factor;
    out.by_q_log = q_unit * log_factor;
    out.by_q = q_unit * (kHasReverse<kKind> ? log_factor * shift - total : -total);
  }
  return out;
}

template <Divergence kKind>
LOSSD_HD float SlopeOfColumn(const ColumnSlope& slope, float student, float teacher) {
  if constexpr (kKind == Divergence::kReverseKl) {
    return student * fmaf(teacher, slope.by_q_log, slope.by_q);
  } else if constexpr (kKind == Divergence::kMixed) {
    const float e_s = FastExp2(student);
    const float by_q = fmaf(student - teacher, slope.by_q_log, slope.by_q);
    // Where q is 0 its logarithm is not looked at.
    return fmaf(e_s, e_s == 0 ? slope.by_q : by_q, slope.by_p * FastExp2(teacher));
  } else {
    return fmaf(student, slope.by_q, slope.by_p * teacher);
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_COLUMNS_H_
