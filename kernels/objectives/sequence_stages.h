// What losses on pairs and losses on single sequences have in common: the rows that count, the two sweeps' row programs, totals, derivatives
// of the rows, results. Plain C++: nvcc reads it.
//
//   NllMaskStage (only with nll_mask, before the rows are selected)   reference head with LogprobRows
//   head pass with KeepStatisticsRows   stages of the loss: facts of sequences and groups   SequenceTotalsStage (1)
//   SequenceRowStage (sequences)   head pass with KeptGradientRows, if a gradient is wanted   SequenceEndStage
// Where the log-probabilities are given there is no head pass, and on a GPU everything is one launch (kernels/cuda/loss_kernel.cuh). The host
// waits nowhere.
#ifndef LOSSD_KERNELS_OBJECTIVES_SEQUENCE_STAGES_H_
#define LOSSD_KERNELS_OBJECTIVES_SEQUENCE_STAGES_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/metrics.h"
#include "kernels/objectives/row.h"
#include "kernels/objectives/sequence_problem.h"

namespace lossd {

// Whether sequence b of 2P is the first of its pair.
LOSSD_HD bool IsChosen(Pairing pairing, int64_t pairs, int64_t b) {
  return pairing == Pairing::kHalves ? b < pairs : b % 2 == 0;
}

// The rows that are read at all: those of the mask, and those of nll_mask in chosen sequences. Runs before anything has been checked, so
// that it reads nothing outside its inputs whatever cu_seqlens says. Instances are blocks of kRows rows.
struct NllMaskStage {
  static constexpr int64_t kRows = 1024;
  int64_t rows = 0;
  int64_t pairs = 0;
  Pairing pairing = Pairing::kHalves;
  RowsView cu_seqlens;  // [2 pairs + 1]
  RowsView mask;        // may be absent
  RowsView nll_mask;
  uint8_t* read = nullptr;  // [rows]

  int64_t Instances() const { return (rows + kRows - 1) / kRows; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    const int64_t begin = instance * kRows;
    const int64_t end = begin + kRows < rows ? begin + kRows : rows;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) read[i] = IsRead(i) ? 1 : 0;
  }

  LOSSD_HD bool IsRead(int64_t row) const {
    if (!mask || mask.Mask(row)) return true;
    return nll_mask.Mask(row) && IsChosen(pairing, pairs, SequenceOf(row));
  }

 private:
  // The last sequence that begins at the row or before it.
  LOSSD_HD int64_t SequenceOf(int64_t row) const {
    int64_t low = 0;
    int64_t high = 2 * pairs;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (cu_seqlens.Index(middle) <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Sums and counts of all groups, the denominators, the scales of the gradient, the loss. One instance.
struct SequenceTotalsStage {
  SequenceProblem problem;

  int64_t Instances() const { return 1; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    const SequenceProblem& p = problem;
    if (p.record->code != 0) return;
    int64_t count = 0;
    int64_t nll_count = 0;
    for (int64_t g = team.rank(); g < p.groups; g += team.size()) {
      count += p.GroupWeight(g) != 0 ? 1 : 0;
      nll_count += p.group[g].nll_tokens;
    }
    team.SumAll(&count, &nll_count);
    SequenceTotals totals = MakeScales(p, count, nll_count);
    AddGroups(p, team, &totals);
    if (team.rank() == 0) *p.totals = totals;
  }

  // What the gradient needs: the scales from the counts.
  LOSSD_HD static SequenceTotals MakeScales(const SequenceProblem& p, int64_t count,
                                            int64_t nll_count) {
    const double d_loss = p.d_loss ? p.d_loss.F32(0) : 1.0;
    SequenceTotals totals;
    totals.count = count;
    totals.nll_count = nll_count;
    totals.scale = d_loss * InverseDenominator(p, totals);
    totals.nll_scale = d_loss * NllFactor(p, totals);
    return totals;
  }

  // What the loss needs besides. Every thread must call.
  template <class Team>
  LOSSD_HD static void AddGroups(const SequenceProblem& p, Team& team, SequenceTotals* totals) {
    for (int64_t g = team.rank(); g < p.groups; g += team.size()) {
      totals->sum += p.group[g].value;
      totals->nll_sum += p.group[g].nll;
    }
    team.SumAll(&totals->sum, &totals->nll_sum);
    totals->loss = totals->sum * InverseDenominator(p, *totals);
    if (p.nll_coef != 0) totals->loss += NllFactor(p, *totals) * totals->nll_sum;
  }

 private:
  LOSSD_HD static double InverseDenominator(const SequenceProblem& p,
                                            const SequenceTotals& totals) {
    return Inverse(p.denominator_from, p.denominator, totals.count);
  }
  LOSSD_HD static double NllFactor(const SequenceProblem& p, const SequenceTotals& totals) {
    if (p.nll_coef == 0) return 0;
    return p.nll_coef * Inverse(p.nll_denominator_from, p.nll_denominator, totals.nll_count);
  }
  LOSSD_HD static double Inverse(CountDenominator from, double given, int64_t count) {
    if (from == CountDenominator::kGiven) return 1 / given;
    return count > 1 ? 1 / static_cast<double>(count) : 1.0;
  }
};

// Derivatives, statistics and head metrics of a sequence's rows. Instances are sequences.
struct SequenceRowStage {
  SequenceProblem problem;

  int64_t Instances() const { return problem.sequences; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t b) const {
    if (problem.record->code == 0) RunRows(problem, team, b, *problem.totals);
  }

  // The same by the scales of `totals`.
  template <class Team>
  LOSSD_HD static void RunRows(const SequenceProblem& p, const Team& team, int64_t b,
                               const SequenceTotals& totals) {
    const SequenceFacts facts = p.facts[b];
    const int64_t end = p.End(b);
    for (int64_t i = p.Begin(b) + team.rank(); i < end; i += team.size()) {
      if (!p.IsCounted(i, facts.side)) continue;
      const bool in_mask = p.InMask(i);
      if (p.d_logprob) {
        double d = 0;
        if (in_mask) d = Times(totals.scale, Times(p.Kappa(facts.cut, i), facts.slope));
        if (p.IsNllToken(i, facts.side)) d -= totals.nll_scale;
        p.d_logprob.SetF32(i, static_cast<float>(d));
      }
      if (kMayHaveHead && p.statistics != nullptr) WriteStatistics(p, i, in_mask, facts.side);
    }
  }

 private:
  // Rows of the likelihood term alone have no statistics in the reply.
  LOSSD_HD static void WriteStatistics(const SequenceProblem& p, int64_t i, bool in_mask,
                                       Side side) {
    const RowStatistics& stats = p.statistics[i];
    if (p.logprob) p.logprob.SetF32(i, in_mask ? stats.Logprob() : 0);
    if (p.lse) p.lse.SetF32(i, in_mask ? stats.Lse() : 0);
    if (p.entropy) p.entropy.SetF32(i, in_mask ? stats.Entropy() : 0);
    if (!p.row_metrics) return;
    MetricRow metrics(p.row_metrics, i);
    if (in_mask) {
      const bool first = side == Side::kFirst;
      metrics.Add(kRowEntropy, stats.Entropy());
      metrics.Add(first ? kRowFirstMeanLogit : kRowSecondMeanLogit, stats.MeanLogit(p.valid_vocab));
      if (first && p.row_metrics.metrics > kRowFirstAccuracy) {
        metrics.Add(kRowFirstAccuracy, stats.argmax == p.target.Index(i) ? 1.0f : 0.0f);
      }
    }
    metrics.End();
  }
};

// Results: instance 0 the loss and the numbers of the reply, 1 + m metric m of the groups, then those of the rows. After the last sweep: the
// record's count is that of the rows until here.
struct SequenceEndStage {
  SequenceProblem problem;

  int64_t Instances() const {
    return 1 + problem.group_metrics.metrics + problem.row_metrics.metrics;
  }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    if (problem.record->code == 0) Finish(problem, team, instance, *problem.totals);
  }

  // The same from `totals`.
  template <class Team>
  LOSSD_HD static void Finish(const SequenceProblem& p, Team& team, int64_t instance,
                              const SequenceTotals& totals) {
    if (instance > 0) {
      const auto metric = static_cast<int32_t>(instance - 1);
      MetricRecord* result = &p.record->metrics[metric];
      if (!kMayHaveHead || metric < p.group_metrics.metrics) {
        ReduceMetric(team, p.group_metrics, nullptr, metric, result);
      } else {
        ReduceMetric(team, p.row_metrics, p.counted, metric - p.group_metrics.metrics, result);
      }
      return;
    }
    int64_t degenerate = 0;
    if (kMayHaveHead && p.statistics != nullptr) {
      for (int64_t i = team.rank(); i < p.rows; i += team.size()) {
        if (p.counted[i] != 0 && p.statistics[i].degenerate) ++degenerate;
      }
    }
    degenerate = team.Sum(degenerate);
    if (team.rank() != 0) return;
    p.record->sum = totals.sum;
    p.record->count = totals.count;
    p.record->nll_sum = totals.nll_sum;
    p.record->nll_count = totals.nll_count;
    p.record->degenerate_rows = degenerate;
    if (p.loss) p.loss.SetF32(0, static_cast<float>(totals.loss));
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_SEQUENCE_STAGES_H_
