// Losses on single judged sequences on a device: the stage between the log-probabilities and what sequence_stages.h makes of a sequence's
// value and slope. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_UNPAIRED_H_
#define LOSSD_KERNELS_OBJECTIVES_UNPAIRED_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/sequence_problem.h"
#include "kernels/objectives/unpaired_terms.h"

namespace lossd {

// Metrics of a sequence by number; UnpairedMetricNames has their names in this order.
enum UnpairedMetric : int32_t {
  kSequenceLoss,
  kDesirableLogp,
  kUndesirableLogp,
  kDesirableReward,
  kUndesirableReward,
  kUnpairedMetrics
};

struct UnpairedProblem {
  SequenceProblem sequences;  // groups are the sequences
  UnpairedOptions<double> options;
  RowsView desirable;    // [B]
  RowsView kl_baseline;  // [1], KTO only

  // Outputs [B], each may be absent.
  RowsView sequence_loss;
  RowsView sequence_logp;
  RowsView reward;
};

// A sequence's sums and value. Instances are sequences.
struct UnpairedSequenceStage {
  UnpairedProblem problem;

  int64_t Instances() const { return problem.sequences.sequences; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t b) const {
    if (problem.sequences.record->code == 0) Gather(problem, team, b);
  }

  // The same whatever the record says. The counts are right on every thread.
  template <class Team>
  LOSSD_HD static GroupCounts Gather(const UnpairedProblem& p, Team& team, int64_t b) {
    const SequenceProblem& s = p.sequences;
    const Side side = p.desirable.Mask(b) ? Side::kFirst : Side::kSecond;
    SequenceFacts facts = SumOwnRows(team, s, b, side, s.End(b));
    team.SumAll(&facts.length, &facts.logp, &facts.reference);
    UseSequenceReference(s, b, &facts);
    if (team.rank() == 0) Evaluate(p, b, &facts);
    return {s.GroupWeight(b) != 0 ? 1 : 0, 0};
  }

 private:
  LOSSD_HD static void Evaluate(const UnpairedProblem& p, int64_t b, SequenceFacts* facts) {
    const bool average = p.options.length_average;
    const bool desirable = facts->side == Side::kFirst;
    const double x = facts->X(average);
    const double baseline = p.kl_baseline ? p.kl_baseline.F32(0) : 0.0;
    const ValueSlope<double> loss = EvaluateUnpaired(p.options, baseline, desirable, x);
    const double weight = p.sequences.GroupWeight(b);
    const double value = Times(weight, loss.value);
    const double reward = p.options.beta * x;
    facts->slope = Times(weight, loss.slope) * facts->Share(average);
    p.sequences.facts[b] = *facts;
    p.sequences.group[b] = GroupFacts();
    p.sequences.group[b].value = value;
    if (p.sequence_loss) p.sequence_loss.SetF32(b, static_cast<float>(value));
    if (p.sequence_logp) p.sequence_logp.SetF32(b, static_cast<float>(facts->logp));
    if (p.reward) p.reward.SetF32(b, static_cast<float>(reward));

    MetricRow metrics(p.sequences.group_metrics, b);
    if (weight != 0) {
      metrics.Add(kSequenceLoss, static_cast<float>(value));
      metrics.Add(desirable ? kDesirableLogp : kUndesirableLogp, static_cast<float>(facts->logp));
      metrics.Add(desirable ? kDesirableReward : kUndesirableReward, static_cast<float>(reward));
    }
    metrics.End();
  }
};

static_assert(sizeof(UnpairedSequenceStage) < 4000, "the arguments of a kernel");

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_UNPAIRED_H_
