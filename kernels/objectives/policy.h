// Policy losses on a device: row programs and stages around PolicyProblem. Plain C++: nvcc reads it.
//
// One pass over the logits, where a token needs no log-probability of another:
//   PolicySequenceStage (B)  PolicyStartStage (1)  head pass with PolicyRows  PolicyEndStage
// Two passes, where a sequence needs the current log-probabilities of its tokens:
//   head pass with PolicyStatisticsRows  PolicySequenceStage (B)  PolicyStartStage (1)  PolicyRowStage  PolicyEndStage
//   and, if a gradient is wanted, head pass with PolicyGradientRows
// The host waits in neither. A kind whose ratio or gradient is of the whole sequence adds its sums to PolicySequence.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/metrics.h"
#include "kernels/objectives/policy_problem.h"
#include "kernels/objectives/policy_terms.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Objective and gradient in the same pass.
struct PolicyRows {
  static constexpr bool kKnowsStatistics = false;
  PolicyProblem problem;

  LOSSD_HD RowStatistics KnownStatistics(int64_t) const { return RowStatistics(); }
  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics& stats) const {
    return problem.Evaluate(row, stats);
  }
};

// First of two passes: keeps the statistics.
struct PolicyStatisticsRows {
  static constexpr bool kKnowsStatistics = false;
  RowStatistics* statistics = nullptr;  // [N]

  LOSSD_HD RowStatistics KnownStatistics(int64_t) const { return RowStatistics(); }
  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics& stats) const {
    statistics[row] = stats;
    return RowCoefficients();
  }
};

// Second of two passes: the gradient from derivatives that are there already.
struct PolicyGradientRows {
  static constexpr bool kKnowsStatistics = true;
  const RowStatistics* statistics = nullptr;  // [N]
  const float* d_logprob = nullptr;           // [N]
  const float* d_entropy = nullptr;           // [N]

  LOSSD_HD RowStatistics KnownStatistics(int64_t row) const { return statistics[row]; }
  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics&) const {
    RowCoefficients out;
    out.c = -d_logprob[row];
    out.a = -d_logprob[row];
    out.h = d_entropy[row];
    out.entropy = statistics[row].Entropy();
    return out;
  }
};

// One instance for each sequence: length, factor, importance weight, drift.
struct PolicySequenceStage {
  PolicyProblem problem;

  int64_t Instances() const { return problem.sequences; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t b) const {
    const PolicyProblem& p = problem;
    // Without this a cu_seqlens that was refused would become addresses.
    if (p.record->code != 0) return;
    const int64_t begin = p.cu_seqlens ? p.cu_seqlens.Index(b) : 0;
    const int64_t end = p.cu_seqlens ? p.cu_seqlens.Index(b + 1) : p.rows;
    const bool need_x = p.options.is_row_filter || IsSequenceLevel();
    int64_t length = 0;
    double x = 0;
    double drift = 0;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
      if (p.counted[i] == 0) continue;
      ++length;
      p.sequence_of[i] = static_cast<int32_t>(b);
      const float lp = p.statistics != nullptr ? p.statistics[i].Logprob() : 0;
      if (need_x) x += static_cast<double>(p.Old(i, lp)) - p.sampler_logprob.F32(i);
      if (p.options.has_off_policy_threshold) {
        drift += static_cast<double>(p.sampler_logprob.F32(i)) - lp;
      }
    }
    length = team.Sum(length);
    x = team.Sum(x);
    drift = team.Sum(drift);
    if (team.rank() == 0) p.sequence[b] = Describe(b, length, x, drift);
  }

 private:
  LOSSD_HD bool IsSequenceLevel() const {
    return problem.options.is_level == ImportanceLevel::kSequenceSum ||
           problem.options.is_level == ImportanceLevel::kSequenceMean;
  }

  // x, drift: sums over the sequence's rows that count.
  LOSSD_HD PolicySequence Describe(int64_t b, int64_t length, double x, double drift) const {
    const PolicyOptions<float>& options = problem.options;
    PolicySequence of;
    of.length = length;
    if (length == 0) return of;  // nothing of it is read
    const double inverse_length = 1 / static_cast<double>(length);
    of.omega = LengthFactor(options.sequence_weighting, static_cast<double>(length));
    if (problem.sequence_weight) {
      of.omega = Times<double>(problem.sequence_weight.F32(b), of.omega);
    }
    if (IsSequenceLevel()) {
      const bool sum = options.is_level == ImportanceLevel::kSequenceSum;
      const ImportanceTerm<float> term = ImportanceWeight(options, sum ? x : x * inverse_length);
      of.importance_weight = term.weight;
      of.importance_out_of_bounds = term.out_of_bounds;
    }
    of.dropped = IsSequenceDropped(options, x * inverse_length);
    of.drift = static_cast<float>(drift * inverse_length);
    return of;
  }
};

// Counts, the denominator, the scales of the gradient. One instance.
struct PolicyStartStage {
  PolicyProblem problem;

  int64_t Instances() const { return 1; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    const PolicyProblem& p = problem;
    if (p.record->code != 0) return;
    int64_t count = 0;
    int64_t sequences = 0;
    for (int64_t b = team.rank(); b < p.sequences; b += team.size()) {
      count += p.sequence[b].length;
      sequences += p.sequence[b].length > 0 ? 1 : 0;
    }
    count = team.Sum(count);
    sequences = team.Sum(sequences);
    if (team.rank() != 0) return;
    p.record->count = count;
    p.record->sequence_count = sequences;
    double denominator = p.options.denominator;
    if (p.options.denominator_from == PolicyDenominator::kCount) denominator = AtLeastOne(count);
    if (p.options.denominator_from == PolicyDenominator::kSequences) {
      denominator = AtLeastOne(sequences);
    }
    const double d_loss = p.d_loss ? p.d_loss.F32(0) : 1.0;
    p.totals->inverse_denominator = 1 / denominator;
    p.totals->scale = d_loss / denominator;
    p.totals->entropy_scale = d_loss * p.options.inverse_entropy_denominator;
  }

 private:
  LOSSD_HD static double AtLeastOne(int64_t count) {
    return count > 1 ? static_cast<double>(count) : 1.0;
  }
};

// Two passes only: the objective of all rows from their statistics. Instances are blocks of kRows rows.
struct PolicyRowStage {
  static constexpr int64_t kRows = 128;
  PolicyProblem problem;

  int64_t Instances() const { return (problem.rows + kRows - 1) / kRows; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    const PolicyProblem& p = problem;
    if (p.record->code != 0) return;
    const int64_t begin = instance * kRows;
    const int64_t end = begin + kRows < p.rows ? begin + kRows : p.rows;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
      if (p.counted[i] == 0) continue;
      const RowCoefficients coefficients = p.Evaluate(i, p.statistics[i]);
      p.d_logprob[i] = -coefficients.c;
      p.d_entropy[i] = coefficients.h;
    }
  }
};

// Sums over rows in double and in a fixed order: instance 0 makes the loss and the numbers of the reply, instance 1 + m metric m.
struct PolicyEndStage {
  PolicyProblem problem;

  int64_t Instances() const { return 1 + problem.metrics.metrics; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    const PolicyProblem& p = problem;
    if (p.record->code != 0) return;
    if (instance > 0) {
      const auto metric = static_cast<int32_t>(instance - 1);
      ReduceMetric(team, p.metrics, p.counted, metric, &p.record->metrics[metric]);
      return;
    }
    const bool apart = p.options.inverse_entropy_denominator != 0 && p.options.entropy_coef != 0;
    double sum = 0;
    double entropy = 0;
    int64_t degenerate = 0;
    for (int64_t i = team.rank(); i < p.rows; i += team.size()) {
      if (p.counted[i] == 0) continue;
      const double omega = p.sequence[p.sequence_of[i]].omega;
      sum += Times(omega, static_cast<double>(p.metrics.values[kPolicyLoss * p.rows + i]));
      if (apart && (p.metrics.population[i] >> kPolicyEntropy & 1) != 0) {
        entropy += p.metrics.values[kPolicyEntropy * p.rows + i];
      }
      degenerate += p.degenerate[i];
    }
    sum = team.Sum(sum);
    entropy = team.Sum(entropy);
    degenerate = team.Sum(degenerate);
    if (team.rank() != 0) return;
    p.record->sum = sum;
    p.record->degenerate_rows = degenerate;
    if (!p.loss) return;
    double loss = sum * p.totals->inverse_denominator;
    if (apart) {
      loss -= static_cast<double>(p.options.entropy_coef) * entropy *
              static_cast<double>(p.options.inverse_entropy_denominator);
    }
    p.loss.SetF32(0, static_cast<float>(loss));
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_H_
