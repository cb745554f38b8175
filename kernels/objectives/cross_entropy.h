// Cross entropy: value, coefficients and sums. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_CROSS_ENTROPY_H_
#define LOSSD_KERNELS_OBJECTIVES_CROSS_ENTROPY_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"
#include "kernels/objectives/metrics.h"
#include "kernels/objectives/row.h"

namespace lossd {

// What one row's cross entropy is made of, over the real type so that tests differentiate it in double.
template <class Real>
struct CrossEntropyInput {
  Real lse = 0;
  Real hard = 0;           // lse - z_y
  Real smooth = 0;         // sum_j w_j (lse - z_j) over valid ids; only read with smoothing
  Real class_weight = 1;   // w_y
  Real weight_sum = 0;     // sum_j w_j; K without class weights
  Real row_weight = 1;     // rw
  Real token_scale = 1;    // f = sg(p_y), or 1
  Real smoothing = 0;      // s_e
  Real inverse_valid = 0;  // 1 / K
  Real z_loss = 0;         // lambda
};

// Szegedy et al. 2016, section 7 (smoothing); Chowdhery et al. 2022, section 5 (z-loss); Wu et al. 2025 (token scaling).
// ce = rw f [(1 - s) w_y (lse - z_y) + (s / K) sum_j w_j (lse - z_j)];  z term = rw f lambda lse^2. A factor of 0 removes its term.
template <class Real>
struct CrossEntropyValue {
  Real ce = 0;
  Real z_term = 0;
};

template <class Real>
LOSSD_HD CrossEntropyValue<Real> CrossEntropy(const CrossEntropyInput<Real>& in) {
  const Real scale = Times(in.row_weight, in.token_scale);
  const Real hard = Times((1 - in.smoothing) * in.class_weight, in.hard);
  const Real smooth = Times(in.smoothing * in.inverse_valid, in.smooth);
  CrossEntropyValue<Real> out;
  out.ce = Times(scale, hard + smooth);
  out.z_term = Times(scale, Times(in.z_loss, in.lse * in.lse));
  return out;
}

// Its derivative: d (g ce + g_z z_term) / dz_j = c p_j - a [j = y] - u w_j, since d lse / dz_j = p_j.
template <class Real, class Coefficients>
LOSSD_HD void CrossEntropyCoefficients(const CrossEntropyInput<Real>& in, Real g, Real g_z,
                                       Coefficients* out) {
  const Real scale = Times(in.row_weight, in.token_scale);
  const Real omega = Times(g, scale);
  const Real hard = (1 - in.smoothing) * in.class_weight;
  const Real each = in.smoothing * in.inverse_valid;
  out->c = Times(omega, hard + Times(each, in.weight_sum));
  if (in.z_loss != Real(0)) out->c += Times(Times(g_z, scale), 2 * in.z_loss * in.lse);
  out->a = Times(omega, hard);
  out->u = Times(omega, each);
  out->h = 0;
}

// Where a denominator comes from. Numbers of no protocol: the op translates.
enum class DenominatorFrom : int32_t { kGiven, kCount, kWeightSum, kSame };

// What the start stage computes for the rows, in workspace memory.
struct CrossEntropyScales {
  double inverse_denominator = 1;    // 1 / D; 0 if the sum of weights is not positive
  double inverse_z_denominator = 1;  // 1 / D_z
  double row_weight_sum = 0;         // sum over rows of w_y rw
  double class_weight_sum = 0;       // sum over valid ids of w_j
};

// One instance.
struct CrossEntropyStartStage {
  int64_t rows = 0;
  const uint8_t* counted = nullptr;  // [rows]
  const int64_t* count = nullptr;    // [1]
  RowsView target;
  RowsView row_weight;    // may be absent
  RowsView class_weight;  // [vocab_total], may be absent
  int64_t valid_vocab = 0;
  bool need_class_weight_sum = false;
  DenominatorFrom from = DenominatorFrom::kGiven;
  double denominator = 1;
  DenominatorFrom z_from = DenominatorFrom::kSame;
  double z_denominator = 1;
  const ResultRecord* record = nullptr;
  CrossEntropyScales* scales = nullptr;

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    double weights = 0;
    double classes = 0;
    if (!row_weight && !class_weight) {
      weights = team.rank() == 0 ? static_cast<double>(*count) : 0.0;
    } else if (record->code == 0) {
      // A target that is out of range must not become an address.
      for (int64_t i = team.rank(); i < rows; i += team.size()) {
        if (counted[i] == 0) continue;
        double weight = row_weight ? row_weight.F32(i) : 1;
        if (class_weight) weight *= class_weight.F32(target.Index(i));
        weights += weight;
      }
      if (class_weight && need_class_weight_sum) {
        for (int64_t j = team.rank(); j < valid_vocab; j += team.size())
          classes += class_weight.F32(j);
      }
    }
    team.SumAll(&weights, &classes);
    if (team.rank() != 0) return;
    scales->row_weight_sum = weights;
    scales->class_weight_sum = class_weight ? classes : static_cast<double>(valid_vocab);
    scales->inverse_denominator = Inverse(from, denominator, weights);
    scales->inverse_z_denominator = z_from == DenominatorFrom::kSame
                                        ? scales->inverse_denominator
                                        : Inverse(z_from, z_denominator, weights);
  }

 private:
  LOSSD_HD double Inverse(DenominatorFrom source, double given, double weights) const {
    if (source == DenominatorFrom::kCount) {
      return 1 / (*count > 1 ? static_cast<double>(*count) : 1.0);
    }
    if (source == DenominatorFrom::kWeightSum) return weights > 0 ? 1 / weights : 0;
    return 1 / given;
  }
};

// Metrics of head_metrics, in the order of the operation's names.
enum CrossEntropyMetric : int32_t {
  kMetricAccuracy,
  kMetricEntropy,
  kMetricMeanLogit,
  kCrossEntropyMetrics
};

struct CrossEntropyRows {
  static constexpr bool kKnowsStatistics = false;

  int64_t valid_vocab = 0;
  RowsView target;
  RowsView row_weight;    // may be absent
  RowsView class_weight;  // [vocab_total], may be absent
  float smoothing = 0;    // s_e
  float z_loss = 0;
  bool token_scaling = false;
  bool per_row_upstream = false;  // d_loss is [N]
  RowsView d_loss;                // may be absent: 1
  const CrossEntropyScales* scales = nullptr;
  // Outputs, each may be absent.
  RowsView row_loss;
  RowsView logprob;
  RowsView lse;
  RowsView entropy;
  RowsView argmax;
  // Workspace, [N].
  float* ce = nullptr;
  float* z_term = nullptr;  // null without z-loss
  uint8_t* degenerate = nullptr;
  MetricColumns metrics;

  LOSSD_HD RowStatistics KnownStatistics(int64_t) const { return RowStatistics(); }

  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics& stats) const {
    const CrossEntropyInput<float> in = MakeInput(row, stats);
    WriteOutputs(row, stats, in);
    return CoefficientsOf(row, in);
  }

  // The two parts of Row. Coefficients may be asked for by several threads.
  LOSSD_HD RowCoefficients Coefficients(int64_t row, const RowStatistics& stats) const {
    return CoefficientsOf(row, MakeInput(row, stats));
  }
  LOSSD_HD void Write(int64_t row, const RowStatistics& stats) const {
    WriteOutputs(row, stats, MakeInput(row, stats));
  }

 private:
  LOSSD_HD RowCoefficients CoefficientsOf(int64_t row, const CrossEntropyInput<float>& in) const {
    const double upstream = d_loss ? d_loss.F32(per_row_upstream ? row : 0) : 1.0;
    RowCoefficients out;
    CrossEntropyCoefficients(in, static_cast<float>(upstream * scales->inverse_denominator),
                             static_cast<float>(upstream * scales->inverse_z_denominator), &out);
    return out;
  }

  LOSSD_HD void WriteOutputs(int64_t row, const RowStatistics& stats,
                             const CrossEntropyInput<float>& in) const {
    const CrossEntropyValue<float> value = CrossEntropy(in);
    ce[row] = value.ce;
    if (z_term != nullptr) z_term[row] = value.z_term;
    degenerate[row] = stats.degenerate ? 1 : 0;
    if (row_loss) row_loss.SetF32(row, value.ce + value.z_term);
    if (logprob) logprob.SetF32(row, -in.hard);
    if (lse) lse.SetF32(row, in.lse);
    if (entropy) entropy.SetF32(row, stats.Entropy());
    if (argmax) argmax.SetI32(row, stats.argmax);
    if (metrics) {
      MetricRow entries(metrics, row);
      entries.Add(kMetricAccuracy, stats.argmax == target.Index(row) ? 1.0f : 0.0f);
      entries.Add(kMetricEntropy, stats.Entropy());
      entries.Add(kMetricMeanLogit, stats.MeanLogit(valid_vocab));
      entries.End();
    }
  }

  LOSSD_HD CrossEntropyInput<float> MakeInput(int64_t row, const RowStatistics& stats) const {
    CrossEntropyInput<float> in;
    const float log_sum = stats.LogSum();
    const float row_logprob = stats.Logprob();
    in.lse = stats.max + log_sum;
    in.hard = -row_logprob;
    in.inverse_valid = 1.0f / static_cast<float>(valid_vocab);
    in.smoothing = smoothing;
    if (class_weight) in.class_weight = class_weight.F32(target.Index(row));
    if (smoothing != 0) {
      in.weight_sum = static_cast<float>(scales->class_weight_sum);
      in.smooth = in.weight_sum * log_sum - (class_weight ? stats.weighted_d : stats.sum_d);
    }
    if (row_weight) in.row_weight = row_weight.F32(row);
    if (token_scaling) in.token_scale = expf(row_logprob);
    in.z_loss = z_loss;
    return in;
  }
};

// Sums over rows, in double and in a fixed order. Instance 0 makes the loss and the numbers of the reply, instance 1 + m metric m.
struct CrossEntropyEndStage {
  int64_t rows = 0;
  const uint8_t* counted = nullptr;  // [rows]
  const float* ce = nullptr;
  const float* z_term = nullptr;  // may be null
  const uint8_t* degenerate = nullptr;
  MetricColumns metrics;
  const CrossEntropyScales* scales = nullptr;
  RowsView loss;  // [1], may be absent
  ResultRecord* record = nullptr;

  int64_t Instances() const { return 1 + metrics.metrics; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    if (record->code != 0) return;
    if (instance > 0) {
      const int32_t metric = static_cast<int32_t>(instance - 1);
      ReduceMetric(team, metrics, counted, metric, &record->metrics[metric]);
      return;
    }
    double ce_sum = 0;
    double z_sum = 0;
    int64_t count = 0;
    int64_t bad = 0;
    // What lies at other rows is read, too, so that no load waits for another.
    for (int64_t i = team.rank(); i < rows; i += team.size()) {
      const bool is_one = counted[i] != 0;
      const float row_ce = ce[i];
      const float row_z = z_term != nullptr ? z_term[i] : 0.0f;
      const int64_t row_bad = degenerate[i];
      count += is_one ? 1 : 0;
      ce_sum += is_one ? row_ce : 0.0f;
      z_sum += is_one ? row_z : 0.0f;
      bad += is_one ? row_bad : 0;
    }
    team.SumAll(&ce_sum, &z_sum, &count, &bad);
    if (team.rank() != 0) return;
    record->count = count;
    record->degenerate_rows = bad;
    record->sum = ce_sum + z_sum;
    record->z_sum = z_sum;
    record->weight_sum = scales->row_weight_sum;
    if (loss) {
      loss.SetF32(0, static_cast<float>(Times(scales->inverse_denominator, ce_sum) +
                                        Times(scales->inverse_z_denominator, z_sum)));
    }
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_CROSS_ENTROPY_H_
