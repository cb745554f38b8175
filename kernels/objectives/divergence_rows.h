// Rows of a distillation or of a divergence of two tensors: from what the columns add up to, to losses, outputs and the factors of the
// gradient; and the sums over rows. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_ROWS_H_
#define LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_ROWS_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"
#include "kernels/objectives/checks.h"
#include "kernels/objectives/divergence_topk.h"
#include "kernels/objectives/metrics.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Where a denominator comes from: the option, max(1, rows that count), max(1, rows that count times columns).
enum class DistillDenominator : int32_t { kGiven, kCount, kElements };

// Metrics, in the order of the operation's names.
enum DistillMetric : int32_t {
  kDistillSoft,
  kDistillHard,
  kDistillAccuracy,
  kDistillEntropy,
  kDistillMeanLogit,
  kDistillMetrics
};

// What a backend finds out about a row.
struct PairStatistics {
  RowStatistics
      student;  // of all the student's valid columns, tempered; only where the row has a head
  // sum exp(T (z - max)): the student's softmax at temperature 1; only with a hard term.
  float hard_sum_exp = 1;
  float divergence = 0;    // before clamps and weights
  float student_mass = 0;  // top-k only
  float teacher_mass = 0;
  bool negative = false;  // a teacher's probability below 0
};

// dz of the row is soft times the divergence's own, plus, where hard is not 0, hard times (softmax at temperature 1 - [j = target]) with
// respect to the logits before the temperature.
struct PairCoefficients {
  float soft = 0;
  float hard = 0;

  LOSSD_HD bool IsZero() const { return soft == 0 && hard == 0; }
};

struct DivergenceRows {
  DivergenceKind<float> divergence;
  // Top-k teacher.
  TopkOptions<float> topk;
  bool topk_tempered = true;

  float temperature = 1;
  RowsView temperature_rows;  // may be absent
  bool temperature_squared = false;
  float loss_min = -INFINITY;
  float loss_max = INFINITY;
  float soft_weight = 1;
  float hard_weight = 0;
  RowsView row_weight;            // may be absent
  bool per_row_upstream = false;  // d_loss is [N]
  RowsView d_loss;                // may be absent: 1
  DistillDenominator from = DistillDenominator::kGiven;
  double denominator = 1;
  int64_t elements = 1;            // columns, for kElements
  const int64_t* count = nullptr;  // [1], rows that count
  bool has_head = true;
  int64_t valid_vocab = 0;
  RowsView target;  // may be absent
  // Outputs, each may be absent.
  RowsView row_loss;
  RowsView logprob;
  RowsView lse;
  RowsView entropy;
  RowsView student_mass;
  RowsView teacher_mass;
  // Workspace, [N].
  float* value = nullptr;
  uint8_t* degenerate = nullptr;
  uint8_t* negative = nullptr;
  MetricColumns metrics;

  LOSSD_HD float Temperature(int64_t row) const {
    return temperature_rows ? temperature_rows.F32(row) : temperature;
  }
  LOSSD_HD double InverseDenominator() const {
    if (from == DistillDenominator::kGiven) return 1 / denominator;
    const double rows = static_cast<double>(*count);
    const double number =
        from == DistillDenominator::kElements ? rows * static_cast<double>(elements) : rows;
    return number > 1 ? 1 / number : 1;
  }
  // Whether the student's statistics beyond max, sum_exp and target_d are read.
  LOSSD_HD bool ReadsAllSums() const {
    return has_head && (entropy.present || metrics.metrics > kDistillAccuracy ||
                        (topk.tail == TopkTail::kZeroOutside));
  }

  // By one thread, once for each row that counts. A factor of exactly 0 removes its term.
  LOSSD_HD PairCoefficients Row(int64_t row, const PairStatistics& in) const {
    WriteRow(row, in);
    PairCoefficients out = Factors(row, InverseDenominator());
    if (IsOutside(in.divergence)) out.soft = 0;
    return out;
  }

  // The outputs alone.
  LOSSD_HD void WriteRow(int64_t row, const PairStatistics& in) const {
    const float t = Temperature(row);
    const float squared = SquaredTemperature(row);
    const float weight = row_weight ? row_weight.F32(row) : 1.0f;
    float soft = in.divergence;
    if (soft < loss_min) soft = loss_min;
    if (soft > loss_max) soft = loss_max;
    soft *= squared;
    float hard = 0;
    if (hard_weight != 0) {
      const float value = in.student.target_d * t - logf(in.hard_sum_exp);
      hard = value > 0 ? 0.0f : -value;
    }
    const float loss = Times(weight, Times(soft_weight, soft) + Times(hard_weight, hard));
    value[row] = loss;
    if (row_loss) row_loss.SetF32(row, loss);
    degenerate[row] = in.student.degenerate ? 1 : 0;
    negative[row] = in.negative ? 1 : 0;
    if (has_head) WriteHead(row, in, soft, hard);
  }

  // Coefficients of a row whose divergence lies within the clamps: known before the row is.
  LOSSD_HD PairCoefficients Factors(int64_t row, double inverse_denominator) const {
    const float weight = row_weight ? row_weight.F32(row) : 1.0f;
    const double upstream = d_loss ? d_loss.F32(per_row_upstream ? row : 0) : 1.0;
    const float omega = Times(weight, static_cast<float>(upstream * inverse_denominator));
    PairCoefficients out;
    out.soft = Times(omega, soft_weight * SquaredTemperature(row));
    out.hard = Times(omega, hard_weight);
    return out;
  }
  // There the clamped divergence is a constant.
  LOSSD_HD bool IsOutside(float divergence) const {
    return divergence < loss_min || divergence > loss_max;
  }

 private:
  LOSSD_HD float SquaredTemperature(int64_t row) const {
    const float t = Temperature(row);
    return temperature_squared ? t * t : 1.0f;
  }
  LOSSD_HD void WriteHead(int64_t row, const PairStatistics& in, float soft, float hard) const {
    const RowStatistics& stats = in.student;
    if (logprob) logprob.SetF32(row, stats.Logprob());
    if (lse) lse.SetF32(row, stats.Lse());
    if (entropy) entropy.SetF32(row, stats.Entropy());
    if (student_mass) student_mass.SetF32(row, in.student_mass);
    if (teacher_mass) teacher_mass.SetF32(row, in.teacher_mass);
    if (!metrics) return;
    MetricRow entries(metrics, row);
    entries.Add(kDistillSoft, soft);
    if (hard_weight != 0) entries.Add(kDistillHard, hard);
    if (metrics.metrics > kDistillAccuracy) {
      if (target) {
        entries.Add(kDistillAccuracy, stats.argmax == target.Index(row) ? 1.0f : 0.0f);
      }
      entries.Add(kDistillEntropy, stats.Entropy());
      entries.Add(kDistillMeanLogit, stats.MeanLogit(valid_vocab));
    }
    entries.End();
  }
};

// Sums over rows, in double and in a fixed order. Instance 0 makes the loss and the numbers of the reply, instance 1 + m metric m.
struct DivergenceEndStage {
  int64_t rows = 0;
  const uint8_t* counted = nullptr;  // [rows]
  DivergenceRows program;
  int32_t teacher_field = 0;  // of a negative probability
  RowsView loss;              // [1], may be absent
  ResultRecord* record = nullptr;

  int64_t Instances() const { return 1 + program.metrics.metrics; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    if (record->code != 0) return;
    if (instance > 0) {
      const int32_t metric = static_cast<int32_t>(instance - 1);
      ReduceMetric(team, program.metrics, counted, metric, &record->metrics[metric]);
      return;
    }
    double sum = 0;
    int64_t count = 0;
    int64_t bad = 0;
    int64_t negative = kNoRow;
    for (int64_t i = team.rank(); i < rows; i += team.size()) {
      if (counted[i] == 0) continue;
      ++count;
      sum += program.value[i];
      bad += program.degenerate[i];
      if (program.negative[i] != 0 && negative == kNoRow) negative = i;
    }
    sum = team.Sum(sum);
    count = team.Sum(count);
    bad = team.Sum(bad);
    negative = team.Min(negative);
    if (team.rank() != 0) return;
    const double inverse = program.InverseDenominator();
    record->count = count;
    record->degenerate_rows = bad;
    record->sum = sum;
    if (loss) loss.SetF32(0, static_cast<float>(Times(inverse, sum)));
    if (negative != kNoRow) RecordError(record, teacher_field, negative);
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_ROWS_H_
