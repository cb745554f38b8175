// A loss on sequences (pairs of them, or single ones) in plain numbers and pointers: where the log-probabilities of their tokens come from,
// what is known of each sequence, where the results go. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_SEQUENCE_PROBLEM_H_
#define LOSSD_KERNELS_OBJECTIVES_SEQUENCE_PROBLEM_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"
#include "kernels/objectives/metrics.h"
#include "kernels/objectives/preference_options.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Metrics of a row, behind those of the groups in ResultRecord::metrics. The last one is of pairs only.
enum SequenceRowMetric : int32_t {
  kRowEntropy,
  kRowFirstMeanLogit,   // chosen, desirable
  kRowSecondMeanLogit,  // rejected, undesirable
  kRowFirstAccuracy,
  kSequenceRowMetrics
};

// Which of two kinds a sequence is.
enum class Side : int32_t { kFirst, kSecond };

// What is found out about a sequence.
struct SequenceFacts {
  Side side = Side::kFirst;
  int32_t length = 0;    // rows that count
  int64_t cut = 0;       // kappa is 1 on rows before it, ld_alpha from it on
  double logp = 0;       // L = sum of kappa lp, nats
  double reference = 0;  // the same of the reference; 0 without one
  double slope = 0;      // derivative of the sum of all group values by L

  // L - reference, an empty sequence's is 0; `average`: over the length.
  LOSSD_HD double X(bool average) const { return (logp - reference) * Share(average); }
  LOSSD_HD double Share(bool average) const {
    return average && length > 1 ? 1 / static_cast<double>(length) : 1.0;
  }
};

// What is found out about a group: a pair or a sequence.
struct GroupFacts {
  double value = 0;  // its loss after all weights
  double nll = 0;    // sum of -lp over its tokens of the likelihood term
  int32_t nll_tokens = 0;
};

struct SequenceTotals {
  double sum = 0;
  double nll_sum = 0;
  int64_t count = 0;
  int64_t nll_count = 0;
  double loss = 0;
  double scale = 0;      // d_loss / D
  double nll_scale = 0;  // d_loss nll_coef / D_nll
};

struct SequenceProblem {
  int64_t rows = 0;
  int64_t sequences = 0;
  int64_t groups = 0;       // pairs, or the sequences themselves
  int64_t valid_vocab = 0;  // K; for mean_logit

  // Inputs. [N] unless said otherwise.
  RowsView cu_seqlens;            // [sequences + 1]
  RowsView mask;                  // the request's; may be absent
  RowsView target;                // for the metric of accuracy
  RowsView given_logprob;         // the request's; absent: statistics has them
  RowsView ref_logprob;           // may be absent
  RowsView ref_sequence_logprob;  // [sequences], may be absent
  RowsView group_weight;          // [groups], may be absent
  RowsView nll_mask;              // may be absent
  RowsView d_loss;                // [1], may be absent

  // Outputs, each may be absent.
  RowsView loss;       // [1]
  RowsView d_logprob;  // [N] f32, the request's or workspace
  RowsView logprob;
  RowsView lse;
  RowsView entropy;

  double ld_alpha = 1;
  double nll_coef = 0;
  double nll_denominator = 1;
  CountDenominator nll_denominator_from = CountDenominator::kGiven;
  double denominator = 1;
  CountDenominator denominator_from = CountDenominator::kGiven;

  // Workspace.
  // [N]: rows of the mask, and those of the likelihood term alone; null: the masks say it.
  const uint8_t* counted = nullptr;
  RowStatistics* statistics = nullptr;  // [N]; null where the log-probabilities are given
  SequenceFacts* facts = nullptr;       // [sequences]
  GroupFacts* group = nullptr;          // [groups]
  SequenceTotals* totals = nullptr;     // [1]
  MetricColumns group_metrics;
  MetricColumns row_metrics;  // without metrics unless head metrics are wanted
  ResultRecord* record = nullptr;

  // Whether a row takes part in more than the likelihood term.
  LOSSD_HD bool InMask(int64_t row) const { return MayCount(row) && (!mask || mask.Mask(row)); }
  // Whether a row is a token of the likelihood term.
  LOSSD_HD bool IsNllToken(int64_t row, Side side) const {
    if (nll_coef == 0 || side != Side::kFirst || !MayCount(row)) return false;
    return nll_mask ? nll_mask.Mask(row) : InMask(row);
  }
  // Whether a row takes part in anything.
  LOSSD_HD bool IsCounted(int64_t row, Side side) const {
    if (kMayHaveHead && counted != nullptr) return counted[row] != 0;
    return InMask(row) || (side == Side::kFirst && nll_mask && nll_mask.Mask(row));
  }
  LOSSD_HD float Logprob(int64_t row) const {
    if (kMayHaveHead && statistics != nullptr) return statistics[row].Logprob();
    return given_logprob.F32(row);
  }
  LOSSD_HD double Kappa(int64_t cut, int64_t row) const { return row < cut ? 1.0 : ld_alpha; }
  // Rows of a sequence, kept within those of the call: what is wrong in cu_seqlens must not become an address before it is reported.
  LOSSD_HD int64_t Begin(int64_t sequence) const { return Within(cu_seqlens.Index(sequence)); }
  LOSSD_HD int64_t End(int64_t sequence) const { return Within(cu_seqlens.Index(sequence + 1)); }
  LOSSD_HD double GroupWeight(int64_t of) const {
    return group_weight ? static_cast<double>(group_weight.F32(of)) : 1.0;
  }

 private:
  LOSSD_HD bool MayCount(int64_t row) const {
    return !kMayHaveHead || counted == nullptr || counted[row] != 0;
  }
  LOSSD_HD int64_t Within(int64_t row) const { return row < 0 ? 0 : row < rows ? row : rows; }
};

// What the denominators of a call count, of a group.
struct GroupCounts {
  int32_t groups = 0;  // 1 if its weight is not 0
  int32_t nll_tokens = 0;
};

// Rows of a sequence that count for more than the likelihood term.
template <class Team>
LOSSD_HD int64_t CountRows(Team& team, const SequenceProblem& problem, int64_t begin, int64_t end) {
  int64_t count = 0;
  for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
    count += problem.InMask(i) ? 1 : 0;
  }
  return team.Sum(count);
}

// The first row behind `wanted` rows that count, of which begin ... end - 1 has at least as many. Halves the range: about one pass.
template <class Team>
LOSSD_HD int64_t FindCut(Team& team, const SequenceProblem& problem, int64_t begin, int64_t end,
                         int64_t wanted) {
  if (wanted == 0) return begin;
  int64_t before = 0;  // rows that count in front of begin
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    const int64_t count = before + CountRows(team, problem, begin, middle);
    if (count >= wanted) {
      end = middle;
    } else {
      begin = middle;
      before = count;
    }
  }
  return end;
}

// Length, logp and reference of the rows of a sequence that are this thread's; SumAll of the three makes the sequence's of them.
template <class Team>
LOSSD_HD SequenceFacts SumOwnRows(const Team& team, const SequenceProblem& problem,
                                  int64_t sequence, Side side, int64_t cut) {
  const int64_t end = problem.End(sequence);
  SequenceFacts facts;
  facts.side = side;
  facts.cut = cut;
  for (int64_t i = problem.Begin(sequence) + team.rank(); i < end; i += team.size()) {
    if (!problem.InMask(i)) continue;
    ++facts.length;
    const double kappa = problem.Kappa(cut, i);
    facts.logp += Times(kappa, static_cast<double>(problem.Logprob(i)));
    if (problem.ref_logprob) {
      facts.reference += Times(kappa, static_cast<double>(problem.ref_logprob.F32(i)));
    }
  }
  return facts;
}

// A reference that is given for the sequence as a whole.
LOSSD_HD void UseSequenceReference(const SequenceProblem& problem, int64_t sequence,
                                   SequenceFacts* facts) {
  if (!problem.ref_sequence_logprob || facts->length == 0) return;
  facts->reference = problem.ref_sequence_logprob.F32(sequence);
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_SEQUENCE_PROBLEM_H_
