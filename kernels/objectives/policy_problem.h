// A policy loss call in plain numbers and pointers, and how one row of it is evaluated. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_PROBLEM_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_PROBLEM_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"
#include "kernels/objectives/metrics.h"
#include "kernels/objectives/policy_options.h"
#include "kernels/objectives/policy_sequence.h"
#include "kernels/objectives/policy_token.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Metrics by number; kPolicyMetricNames in the operation has their names in this order.
enum PolicyMetric : int32_t {
  kPolicyLoss,
  kPolicyPg,
  kPolicyRatio,
  kPolicyLogRatio,
  kPolicyBelow,
  kPolicyAbove,
  kPolicyClipLow,
  kPolicyClipHigh,
  kPolicyRatioCapped,
  kPolicyKl,
  kPolicyEntropy,
  kPolicyImportanceWeight,
  kPolicyImportanceWeightSquared,
  kPolicyImportanceOutOfBounds,
  kPolicyProbDifference,
  kPolicyMultProbError,
  kPolicySamplerK3,
  kPolicyPolicyK3,
  kPolicyJs,
  kPolicyApproxEntropy,
  kPolicyAccuracy,
  kPolicyHeadEntropy,
  kPolicyMeanLogit,
  kPolicyMetrics
};

// What the sequence stage finds out about a sequence.
struct PolicySequence {
  int64_t length = 0;           // rows that count
  double omega = 0;             // length factor times sequence_weight
  float importance_weight = 1;  // with a level of sequences
  bool importance_out_of_bounds = false;
  bool dropped = false;         // by the row filter
  float drift = 0;              // mean of sampler - lp; only with off_policy_threshold
  float mean_pg_weight = 1;     // GMPO
  SequenceRatio<float> shared;  // where the ratio is of the sequence
};

// What the start stage finds out about the call.
struct PolicyTotals {
  int64_t count = 0;      // rows that count
  int64_t sequences = 0;  // sequences with one
  double inverse_denominator = 1;
  double scale = 1;          // d_loss / D
  double entropy_scale = 0;  // d_loss / entropy_denominator
};

struct PolicyProblem {
  PolicyOptions<float> options;
  int64_t rows = 0;
  int64_t sequences = 1;
  int64_t valid_vocab = 0;  // K; for the metric mean_logit

  // Inputs [N]; those that the options don't ask for may be absent.
  RowsView target;
  RowsView advantage;
  RowsView old_logprob;  // absent: the current policy's own, as a constant
  RowsView ref_logprob;
  RowsView sampler_logprob;
  RowsView row_weight;
  RowsView pg_weight;
  RowsView entropy_mask;
  RowsView cov_selected;
  // Statistics that the caller has; absent with a head.
  RowsView given_logprob;
  RowsView given_entropy;
  RowsView given_kl_logprob;
  // Inputs [B]; cu_seqlens is [B + 1].
  RowsView cu_seqlens;
  RowsView sequence_advantage;  // if there is no advantage
  RowsView sequence_weight;
  RowsView sequence_pg_weight;
  RowsView d_loss;  // [1]
  RowsView mask;    // [N], where `counted` is null; absent: every row counts

  // Outputs, each may be absent; the last three are a head's.
  RowsView loss;  // [1]
  RowsView row_loss;
  RowsView ratio;
  RowsView importance_weight;
  RowsView kl;
  RowsView logprob;
  RowsView lse;
  RowsView entropy;

  bool head_metrics = false;

  // Workspace.
  const uint8_t* counted = nullptr;    // [N]; null: the mask says it
  int32_t* sequence_of = nullptr;      // [N], written on rows that count
  PolicySequence* sequence = nullptr;  // [B]
  PolicyTotals* totals = nullptr;      // [1]
  uint8_t* degenerate = nullptr;       // [N], written on rows that count; with a head
  MetricColumns metrics;
  RowStatistics* statistics = nullptr;  // [N]; two passes over the logits
  float* d_shared = nullptr;    // [N]; only where a gradient goes through a sequence's ratio
  uint8_t* selected = nullptr;  // [N]; only where the server selects tokens
  uint64_t* keys = nullptr;     // [N]; the same
  ResultRecord* record = nullptr;

  LOSSD_HD bool IsCounted(int64_t row) const {
    if (kMayHaveHead && counted != nullptr) return counted[row] != 0;
    return !mask || mask.Mask(row);
  }
  // Rows of a sequence, kept within those of the call: what is wrong in cu_seqlens must not become an address before it is reported.
  LOSSD_HD int64_t Begin(int64_t b) const { return cu_seqlens ? Within(cu_seqlens.Index(b)) : 0; }
  LOSSD_HD int64_t End(int64_t b) const {
    return cu_seqlens ? Within(cu_seqlens.Index(b + 1)) : rows;
  }
  // The current log-probability, in stages that run when all of them are known.
  LOSSD_HD float Logprob(int64_t row) const {
    if (kMayHaveHead && statistics != nullptr) return statistics[row].Logprob();
    return given_logprob ? given_logprob.F32(row) : 0.0f;
  }
  LOSSD_HD float Old(int64_t row, float lp) const {
    return old_logprob ? old_logprob.F32(row) : lp;
  }
  LOSSD_HD float Advantage(int64_t row, int64_t b) const {
    return advantage ? advantage.F32(row) : sequence_advantage.F32(b);
  }
  LOSSD_HD bool IsSelected(int64_t row) const {
    if (selected != nullptr) return selected[row] != 0;
    return cov_selected && cov_selected.Mask(row);
  }

  // Whether of a row's statistics more than max, sum_exp and target_d is read.
  LOSSD_HD bool ReadsAllSums() const {
    return entropy || head_metrics || options.entropy_kind == EntropyKind::kTrue ||
           options.entropy_threshold != -PolicyOptions<float>::kNever;
  }

  // Value, outputs and metrics of a row that counts, and its derivatives: of a head, or of what the caller gave. Without a log-probability
  // of its own the KL term's derivative is in d_logprob. The row's metrics have been begun and are ended by the caller. By one thread.
  LOSSD_HD PolicyTokenResult<float> EvaluateHead(int64_t row, const RowStatistics& stats,
                                                 const PolicyTotals& of_call,
                                                 MetricRow* entries) const;
  LOSSD_HD PolicyTokenResult<float> EvaluateGiven(int64_t row, const PolicyTotals& of_call,
                                                  MetricRow* entries) const;

 private:
  LOSSD_HD int64_t Within(int64_t row) const { return row < 0 ? 0 : row < rows ? row : rows; }
  LOSSD_HD PolicyTokenResult<float> Evaluate(int64_t row, float lp, float kl_lp, float entropy,
                                             const PolicyTotals& of_call, MetricRow* entries) const;
  LOSSD_HD float PolicyWeight(int64_t row, const PolicySequence& of, float importance) const;
  LOSSD_HD ImportanceTerm<float> Importance(int64_t row, const PolicySequence& of, float old) const;
  LOSSD_HD void AddMetrics(const PolicyToken<float>& token, const PolicyTokenResult<float>& result,
                           const ImportanceTerm<float>& importance, MetricRow* entries) const;
};

LOSSD_HD ImportanceTerm<float> PolicyProblem::Importance(int64_t row, const PolicySequence& of,
                                                         float old) const {
  ImportanceTerm<float> term;
  if (options.is_level == ImportanceLevel::kNone) return term;
  if (options.is_level == ImportanceLevel::kToken) {
    term = ImportanceWeight(options, static_cast<double>(old) - sampler_logprob.F32(row));
  } else {
    term = {of.importance_weight, of.importance_out_of_bounds};
  }
  if (of.dropped) term = {0, true};
  return term;
}

// W without its gates.
LOSSD_HD float PolicyProblem::PolicyWeight(int64_t row, const PolicySequence& of,
                                           float importance) const {
  if (options.kind == PolicyKind::kVespo) return 1;  // in w
  if (options.kind == PolicyKind::kGmpo) return of.mean_pg_weight;
  float weight = importance;
  if (pg_weight) weight = Times(pg_weight.F32(row), weight);
  if (sequence_pg_weight) weight = Times(sequence_pg_weight.F32(sequence_of[row]), weight);
  return weight;
}

LOSSD_HD PolicyTokenResult<float> PolicyProblem::Evaluate(int64_t row, float lp, float kl_lp,
                                                          float entropy_of_row,
                                                          const PolicyTotals& of_call,
                                                          MetricRow* entries) const {
  const int64_t b = sequence_of[row];
  const PolicySequence& of = sequence[b];
  PolicyToken<float> token;
  token.lp = lp;
  token.kl_lp = kl_lp;
  token.entropy = entropy_of_row;
  token.old = Old(row, token.lp);
  if (ref_logprob) token.reference = ref_logprob.F32(row);
  if (sampler_logprob) token.sampler = sampler_logprob.F32(row);
  token.advantage = Advantage(row, b);
  if (row_weight) token.row_weight = row_weight.F32(row);
  const ImportanceTerm<float> importance = Importance(row, of, token.old);
  token.pg_weight = PolicyWeight(row, of, importance.weight);
  if (!PassesEntropyGate(options, token.entropy) ||
      !PassesOffPolicyGate(options, token.advantage, of.drift)) {
    token.pg_weight = 0;
  }
  token.selected = IsSelected(row);
  if (entropy_mask) token.in_entropy_term = entropy_mask.Mask(row);
  token.scale = static_cast<float>(Times(of.omega, of_call.scale));
  token.entropy_scale = static_cast<float>(of_call.entropy_scale);
  token.shared = of.shared;

  PolicyTokenResult<float> result = EvaluatePolicyToken(options, token);
  if (!given_kl_logprob) result.d_logprob += result.d_kl_logprob;
  if (row_loss) row_loss.SetF32(row, result.loss);
  if (ratio) ratio.SetF32(row, result.ratio);
  if (importance_weight) importance_weight.SetF32(row, importance.weight);
  if (kl) kl.SetF32(row, result.kl);
  AddMetrics(token, result, importance, entries);
  return result;
}

LOSSD_HD PolicyTokenResult<float> PolicyProblem::EvaluateHead(int64_t row,
                                                              const RowStatistics& stats,
                                                              const PolicyTotals& of_call,
                                                              MetricRow* entries) const {
  const float lp = stats.Logprob();
  const float entropy_of_row = stats.Entropy();
  const PolicyTokenResult<float> result = Evaluate(row, lp, lp, entropy_of_row, of_call, entries);
  if (logprob) logprob.SetF32(row, lp);
  if (lse) lse.SetF32(row, stats.Lse());
  if (entropy) entropy.SetF32(row, entropy_of_row);
  degenerate[row] = stats.degenerate ? 1 : 0;
  if (head_metrics) {
    entries->Add(kPolicyAccuracy, stats.argmax == target.Index(row) ? 1.0f : 0.0f);
    entries->Add(kPolicyHeadEntropy, entropy_of_row);
    entries->Add(kPolicyMeanLogit, stats.MeanLogit(valid_vocab));
  }
  return result;
}

LOSSD_HD PolicyTokenResult<float> PolicyProblem::EvaluateGiven(int64_t row,
                                                               const PolicyTotals& of_call,
                                                               MetricRow* entries) const {
  const float lp = given_logprob.F32(row);
  return Evaluate(row, lp, given_kl_logprob ? given_kl_logprob.F32(row) : lp,
                  given_entropy ? given_entropy.F32(row) : 0.0f, of_call, entries);
}

LOSSD_HD void PolicyProblem::AddMetrics(const PolicyToken<float>& token,
                                        const PolicyTokenResult<float>& result,
                                        const ImportanceTerm<float>& importance,
                                        MetricRow* entries) const {
  const PolicyFlags& flags = result.flags;
  entries->Add(kPolicyLoss, result.loss);
  entries->Add(kPolicyPg, result.pg);
  entries->Add(kPolicyRatio, result.ratio);
  entries->Add(kPolicyLogRatio, result.log_ratio);
  entries->Add(kPolicyBelow, flags.below ? 1.0f : 0.0f);
  entries->Add(kPolicyAbove, flags.above ? 1.0f : 0.0f);
  entries->Add(kPolicyClipLow, flags.below && token.advantage < 0 ? 1.0f : 0.0f);
  entries->Add(kPolicyClipHigh, flags.above && token.advantage > 0 ? 1.0f : 0.0f);
  entries->Add(kPolicyRatioCapped, flags.capped ? 1.0f : 0.0f);
  if (options.kl_estimator != KlEstimator::kNone) entries->Add(kPolicyKl, result.kl);
  if (options.entropy_kind != EntropyKind::kNone && token.in_entropy_term) {
    entries->Add(kPolicyEntropy, result.entropy);
  }
  if (options.is_level != ImportanceLevel::kNone) {
    entries->Add(kPolicyImportanceWeight, importance.weight);
    entries->Add(kPolicyImportanceWeightSquared, importance.weight * importance.weight);
    entries->Add(kPolicyImportanceOutOfBounds, importance.out_of_bounds ? 1.0f : 0.0f);
  }
  if (sampler_logprob) {
    const MismatchMetrics<float> mismatch = Mismatch(token.lp, token.old, token.sampler);
    entries->Add(kPolicyProbDifference, mismatch.prob_difference);
    entries->Add(kPolicyMultProbError, mismatch.mult_prob_error);
    entries->Add(kPolicySamplerK3, mismatch.sampler_k3);
    entries->Add(kPolicyPolicyK3, mismatch.policy_k3);
    entries->Add(kPolicyJs, mismatch.js);
    entries->Add(kPolicyApproxEntropy, mismatch.approx_entropy);
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_PROBLEM_H_
