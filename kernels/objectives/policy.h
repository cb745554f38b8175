// Policy losses on a device: row programs and stages around PolicyProblem. Plain C++: nvcc reads it.
//
// One pass over the logits, where a token needs no log-probability of another (token kinds; CLIP_COV and KL_COV with cov_selected):
//   PolicySequenceStage (B)  PolicyStartStage (1)  head pass with PolicyRows  PolicyEndStage
// Two passes, where a sequence or the selection needs the current log-probabilities of its tokens: GSPO, LUSPO, GMPO, VESPO; CLIP_COV and
// KL_COV without cov_selected; off_policy_threshold; sums of old - sampler where old is the current policy:
//   head pass with KeepStatisticsRows
//   PolicySequenceStage (B)   lengths, importance weights, the ratio that a sequence's tokens share
//   PolicyStartStage (1)      denominator, scales
//   PolicySelectStage (1)     CLIP_COV, KL_COV: policy_select.h
//   PolicyRowStage            values, outputs, metrics and derivatives of the tokens
//   PolicyShareStage (B)      where the gradient goes through a sequence's mean: adds its part to each token
//   PolicyEndStage            sums
//   and, if a gradient is wanted, head pass with KeptGradientRows
// Without a head (PolicyLoss) the same stages run on what the caller gave, on a GPU in one launch (kernels/cuda/loss_kernel.cuh). The host
// waits in none of them.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/metrics.h"
#include "kernels/objectives/policy_problem.h"
#include "kernels/objectives/policy_sequence.h"
#include "kernels/objectives/policy_terms.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Objective and gradient in the same pass.
struct PolicyRows {
  static constexpr bool kKnowsStatistics = false;
  PolicyProblem problem;

  LOSSD_HD RowStatistics KnownStatistics(int64_t) const { return RowStatistics(); }
  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics& stats) const {
    MetricRow entries(problem.metrics, row);
    const PolicyTokenResult<float> result =
        problem.EvaluateHead(row, stats, *problem.totals, &entries);
    entries.End();
    RowCoefficients out;
    out.c = -result.d_logprob;
    out.a = -result.d_logprob;
    out.h = result.d_entropy;
    out.entropy = stats.Entropy();
    return out;
  }
};

// One instance for each sequence: length, factor, importance weight, drift, shared ratio.
struct PolicySequenceStage {
  PolicyProblem problem;

  int64_t Instances() const { return problem.sequences; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t b) const {
    if (problem.record->code == 0) Gather(problem, team, b);
  }

  // The same whatever the record says. Returns the sequence's length, on every thread.
  template <class Team>
  LOSSD_HD static int32_t Gather(const PolicyProblem& p, Team& team, int64_t b) {
    const int64_t end = p.End(b);
    SequenceSums sums;
    for (int64_t i = p.Begin(b) + team.rank(); i < end; i += team.size()) {
      if (!p.IsCounted(i)) continue;
      p.sequence_of[i] = static_cast<int32_t>(b);
      Add(p, i, b, &sums);
    }
    // What the options do not ask for is 0 everywhere.
    if (HasSequenceRatio(p.options)) {
      team.SumAll(&sums.length, &sums.exponent);
    } else {
      team.SumAll(&sums.length);
    }
    if (SumsImportance(p.options) || p.options.has_off_policy_threshold) {
      team.SumAll(&sums.importance, &sums.drift);
    }
    if (SumsWeights(p.options)) {
      team.SumAll(&sums.advantage, &sums.log_importance, &sums.log_pg_weight);
    }
    if (team.rank() == 0) p.sequence[b] = Describe(p, b, sums);
    return sums.length;
  }

 private:
  LOSSD_HD static bool SumsImportance(const PolicyOptions<float>& options) {
    return options.is_row_filter || IsSequenceLevel(options);
  }
  LOSSD_HD static bool SumsWeights(const PolicyOptions<float>& options) {
    return options.kind == PolicyKind::kGmpo || options.kind == PolicyKind::kVespo;
  }
  // What row i adds.
  LOSSD_HD static void Add(const PolicyProblem& p, int64_t i, int64_t b, SequenceSums* sums) {
    const PolicyOptions<float>& options = p.options;
    ++sums->length;
    const float lp = p.Logprob(i);
    if (SumsImportance(options)) {
      sums->importance += static_cast<double>(p.Old(i, lp)) - p.sampler_logprob.F32(i);
    }
    if (options.has_off_policy_threshold) {
      sums->drift += static_cast<double>(p.sampler_logprob.F32(i)) - lp;
    }
    if (!HasSequenceRatio(options)) return;
    const float a = p.Advantage(i, b);
    sums->exponent += SequenceExponent(options, static_cast<double>(lp) - p.Old(i, lp), a);
    if (!SumsWeights(options)) return;
    sums->advantage += a;
    if (p.pg_weight) sums->log_pg_weight += LogWeight(options, p.pg_weight.F32(i));
    if (options.is_level == ImportanceLevel::kToken) {
      const double x = static_cast<double>(p.Old(i, lp)) - p.sampler_logprob.F32(i);
      sums->log_importance += LogWeight(options, ImportanceWeight(options, x).weight);
    }
  }

  LOSSD_HD static PolicySequence Describe(const PolicyProblem& p, int64_t b,
                                          const SequenceSums& sums) {
    const PolicyOptions<float>& options = p.options;
    PolicySequence of;
    of.length = sums.length;
    if (of.length == 0) return of;  // nothing of it is read
    const double inverse_length = 1 / static_cast<double>(of.length);
    of.omega = LengthFactor(options.sequence_weighting, static_cast<double>(of.length));
    if (p.sequence_weight) of.omega = Times<double>(p.sequence_weight.F32(b), of.omega);
    const double mean_x = sums.importance * inverse_length;
    if (IsSequenceLevel(options)) {
      const bool sum = options.is_level == ImportanceLevel::kSequenceSum;
      const ImportanceTerm<float> term = ImportanceWeight(options, sum ? sums.importance : mean_x);
      of.importance_weight = term.weight;
      of.importance_out_of_bounds = term.out_of_bounds;
    }
    of.dropped = IsSequenceDropped(options, mean_x);
    of.drift = static_cast<float>(sums.drift * inverse_length);
    if (!HasSequenceRatio(options)) return of;
    SequenceWeights weights;
    weights.importance = of.importance_weight;
    weights.dropped = of.dropped;
    if (p.sequence_pg_weight) weights.pg_weight = p.sequence_pg_weight.F32(b);
    of.shared = MakeSequenceRatio(options, sums, weights);
    of.mean_pg_weight = static_cast<float>(GeometricMeanWeight(sums, weights));
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
    team.SumAll(&count, &sequences);
    if (team.rank() != 0) return;
    p.record->count = count;
    p.record->sequence_count = sequences;
    *p.totals = MakeTotals(p, count, sequences);
  }

  // From the numbers of rows and of sequences that count.
  LOSSD_HD static PolicyTotals MakeTotals(const PolicyProblem& p, int64_t count,
                                          int64_t sequences) {
    const PolicyOptions<float>& options = p.options;
    double denominator = options.denominator;
    if (options.denominator_from == PolicyDenominator::kCount) denominator = AtLeastOne(count);
    if (options.denominator_from == PolicyDenominator::kSequences) {
      denominator = AtLeastOne(sequences);
    }
    const double d_loss = p.d_loss ? p.d_loss.F32(0) : 1.0;
    PolicyTotals totals;
    totals.count = count;
    totals.sequences = sequences;
    totals.inverse_denominator = 1 / denominator;
    totals.scale = d_loss / denominator;
    totals.entropy_scale = d_loss * options.inverse_entropy_denominator;
    return totals;
  }

 private:
  LOSSD_HD static double AtLeastOne(int64_t count) {
    return count > 1 ? static_cast<double>(count) : 1.0;
  }
};

// Where the derivatives of the tokens go, [N] each; absent ones are not wanted.
struct PolicyDerivatives {
  RowsView logprob;
  RowsView entropy;
  RowsView kl_logprob;
};

// The objective of all rows from what is known of them; not with one pass over the logits. Instances are blocks of kRows rows.
struct PolicyRowStage {
  static constexpr int64_t kRows = 128;
  PolicyProblem problem;
  PolicyDerivatives derivatives;

  int64_t Instances() const { return (problem.rows + kRows - 1) / kRows; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    const PolicyProblem& p = problem;
    if (p.record->code != 0) return;
    const int64_t begin = instance * kRows;
    const int64_t end = begin + kRows < p.rows ? begin + kRows : p.rows;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
      if (p.IsCounted(i)) RunRow(p, derivatives, i, *p.totals, p.metrics);
    }
  }

  // A row that counts, by one thread.
  LOSSD_HD static void RunRow(const PolicyProblem& p, const PolicyDerivatives& derivatives,
                              int64_t i, const PolicyTotals& totals, const MetricColumns& metrics) {
    MetricRow entries(metrics, i);
    const PolicyTokenResult<float> result =
        kMayHaveHead && p.statistics != nullptr
            ? p.EvaluateHead(i, p.statistics[i], totals, &entries)
            : p.EvaluateGiven(i, totals, &entries);
    entries.End();
    if (derivatives.logprob) derivatives.logprob.SetF32(i, result.d_logprob);
    if (derivatives.entropy) derivatives.entropy.SetF32(i, result.d_entropy);
    if (derivatives.kl_logprob) derivatives.kl_logprob.SetF32(i, result.d_kl_logprob);
    if (p.d_shared != nullptr) p.d_shared[i] = result.d_shared;
  }
};

// The gradient that goes through the mean of a sequence, in equal parts to its tokens. One instance for each sequence.
struct PolicyShareStage {
  PolicyProblem problem;
  RowsView d_logprob;  // [N]

  int64_t Instances() const { return problem.sequences; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t b) const {
    if (problem.record->code == 0) Share(problem, d_logprob, team, b);
  }

  template <class Team>
  LOSSD_HD static void Share(const PolicyProblem& p, const RowsView& d_logprob, Team& team,
                             int64_t b) {
    const int64_t begin = p.Begin(b);
    const int64_t end = p.End(b);
    double sum = 0;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
      if (p.IsCounted(i)) sum += p.d_shared[i];
    }
    sum = team.Sum(sum);
    const int64_t length = p.sequence[b].length;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
      if (!p.IsCounted(i)) continue;
      double q = 0;
      float advantage = 0;
      if (p.options.kind == PolicyKind::kGmpo) {  // others do not ask
        const float lp = p.Logprob(i);
        q = static_cast<double>(lp) - p.Old(i, lp);
        advantage = p.Advantage(i, b);
      }
      const double share = ShareOfToken(p.options, sum, length, q, advantage);
      d_logprob.SetF32(i, static_cast<float>(d_logprob.F32(i) + share));
    }
  }
};

static_assert(sizeof(PolicyRowStage) < 4096 && sizeof(PolicyRows) < 4096,
              "arguments of a kernel, which have 4 KB on older drivers");

// Sums over rows.
struct PolicySums {
  double loss = 0;         // weighted by sequence
  double entropy = 0;      // with a denominator of its own
  int32_t degenerate = 0;  // rows

  LOSSD_HD void Add(const PolicySums& part) {
    loss += part.loss;
    entropy += part.entropy;
    degenerate += part.degenerate;
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
    const PolicySums sums = SumRows(p, team, p.metrics, 0, p.rows);
    if (team.rank() == 0) Finish(p, sums, *p.totals);
  }

  // Rows begin ... end - 1, whose metrics are there, on every thread. Every thread must call.
  template <class Team>
  LOSSD_HD static PolicySums SumRows(const PolicyProblem& p, Team& team,
                                     const MetricColumns& metrics, int64_t begin, int64_t end) {
    PolicySums sums;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
      if (p.IsCounted(i)) sums.Add(SumsOfRow(p, metrics, i));
    }
    Join(p, team, &sums);
    return sums;
  }

  // The team's parts together, on every thread. Every thread must call.
  template <class Team>
  LOSSD_HD static void Join(const PolicyProblem& p, Team& team, PolicySums* sums) {
    team.SumAll(&sums->loss);
    if (HasEntropyApart(p)) team.SumAll(&sums->entropy);
    if (kMayHaveHead && p.degenerate != nullptr) team.SumAll(&sums->degenerate);
  }

  // What a row that counts adds.
  LOSSD_HD static PolicySums SumsOfRow(const PolicyProblem& p, const MetricColumns& metrics,
                                       int64_t i) {
    const int64_t place = i - metrics.first;
    const double omega = p.sequence[p.sequence_of[i]].omega;
    PolicySums sums;
    sums.loss =
        Times(omega, static_cast<double>(metrics.values[kPolicyLoss * metrics.rows + place]));
    if (HasEntropyApart(p) && (metrics.population[place] >> kPolicyEntropy & 1) != 0) {
      sums.entropy = metrics.values[kPolicyEntropy * metrics.rows + place];
    }
    if (kMayHaveHead && p.degenerate != nullptr) sums.degenerate = p.degenerate[i];
    return sums;
  }

  // By one thread.
  LOSSD_HD static void Finish(const PolicyProblem& p, const PolicySums& sums,
                              const PolicyTotals& totals) {
    p.record->sum = sums.loss;
    p.record->degenerate_rows = sums.degenerate;
    if (!p.loss) return;
    double loss = sums.loss * totals.inverse_denominator;
    if (HasEntropyApart(p)) {
      loss -= static_cast<double>(p.options.entropy_coef) * sums.entropy *
              static_cast<double>(p.options.inverse_entropy_denominator);
    }
    p.loss.SetF32(0, static_cast<float>(loss));
  }

 private:
  LOSSD_HD static bool HasEntropyApart(const PolicyProblem& p) {
    return p.options.inverse_entropy_denominator != 0 && p.options.entropy_coef != 0;
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_H_
