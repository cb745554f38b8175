// Preference losses on a device: the stages between the log-probabilities and what sequence_stages.h makes of a pair's value and slopes.
//   PreferencePairStage (pairs): sums of both sequences; without sorted terms also the pair's value
//   with sorted terms: PreferenceRankStage, PreferenceValueStage
// Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_PREFERENCE_H_
#define LOSSD_KERNELS_OBJECTIVES_PREFERENCE_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/preference_options.h"
#include "kernels/objectives/preference_terms.h"
#include "kernels/objectives/sequence_problem.h"
#include "kernels/objectives/sequence_stages.h"

namespace lossd {

// Metrics of a pair by number; PreferenceMetricNames has their names in this order.
enum PreferenceMetric : int32_t {
  kPairLoss,
  kPairChosenLogp,
  kPairRejectedLogp,
  kPairChosenReward,
  kPairRejectedReward,
  kPairMargin,
  kPairAccuracy,
  kPairWpoWeight,
  kPreferenceMetrics
};

// The two lists of every sorted term, list after list.
struct SortedLists {
  int32_t lists = 0;         // 2 for each sorted term
  double* keys = nullptr;    // [lists][pairs]: by pair
  int32_t* rank = nullptr;   // [lists][pairs]: place of a pair in the list
  int32_t* order = nullptr;  // [lists][pairs]: pair at a place
};

struct PreferenceProblem {
  SequenceProblem sequences;
  PreferenceOptions<double> options;
  RowsView log_sum_p2;  // [N], with wpo where the log-probabilities are given
  SortedLists sorted;
  double* wpo_mean = nullptr;  // [2 pairs]: mean of lp - log_sum_p2; only with wpo

  // Outputs [pairs], each may be absent.
  RowsView pair_loss;
  RowsView chosen_logp;
  RowsView rejected_logp;
  RowsView chosen_reward;
  RowsView rejected_reward;

  LOSSD_HD int64_t Pairs() const { return sequences.groups; }
  LOSSD_HD int64_t Chosen(int64_t pair) const {
    return options.pairing == Pairing::kHalves ? pair : 2 * pair;
  }
  LOSSD_HD int64_t Rejected(int64_t pair) const {
    return options.pairing == Pairing::kHalves ? Pairs() + pair : 2 * pair + 1;
  }

  // Value, slopes, outputs and metrics of a pair with its sums. Called by one thread.
  LOSSD_HD void EvaluatePair(int64_t pair, SequenceFacts* chosen, SequenceFacts* rejected) const;

  // The term at a place of its two lists.
  LOSSD_HD ValueSlope<double> EvaluatePlace(const PreferenceTermOptions<double>& term, int32_t list,
                                            int64_t place) const {
    const double* above = sorted.keys + list * Pairs();
    const double* below = above + Pairs();
    const int32_t* above_order = sorted.order + list * Pairs();
    const int32_t* below_order = above_order + Pairs();
    return EvaluateSortedTerm(term, above[above_order[place]], below[below_order[place]]);
  }

  // A sorted term with its lists `list` and `list` + 1: the value of place `pair`, the derivatives of the pair itself.
  LOSSD_HD PairTerm<double> SortedTerm(const PreferenceTermOptions<double>& term, int32_t list,
                                       int64_t pair) const {
    PairTerm<double> out;
    out.value = EvaluatePlace(term, list, pair).value;
    // The differences of both sequences are sorted in one list, or x of either in its own.
    out.chosen = EvaluatePlace(term, list, sorted.rank[list * Pairs() + pair]).slope;
    out.rejected = term.type == PreferenceType::kAot
                       ? -out.chosen
                       : -EvaluatePlace(term, list, sorted.rank[(list + 1) * Pairs() + pair]).slope;
    return out;
  }

  // Keys of a pair in the lists of a sorted term.
  LOSSD_HD void WriteKeys(int64_t pair, const SequenceFacts& c, const SequenceFacts& r) const {
    int32_t list = 0;
    for (int32_t t = 0; t < options.term_count; ++t) {
      const PreferenceTermOptions<double>& term = options.terms[t];
      if (!IsSorted(term.type)) continue;
      const double share_c = c.Share(term.length_average);
      const double share_r = r.Share(term.length_average);
      const bool differences = term.type == PreferenceType::kAot;
      sorted.keys[list * Pairs() + pair] =
          differences ? c.logp * share_c - r.logp * share_r : c.X(term.length_average);
      sorted.keys[(list + 1) * Pairs() + pair] =
          differences ? c.reference * share_c - r.reference * share_r : r.X(term.length_average);
      list += 2;
    }
  }
};

LOSSD_HD void PreferenceProblem::EvaluatePair(int64_t pair, SequenceFacts* c,
                                              SequenceFacts* r) const {
  PairTerm<double> sum;
  int32_t list = 0;
  for (int32_t t = 0; t < options.term_count; ++t) {
    const PreferenceTermOptions<double>& term = options.terms[t];
    PairTerm<double> of;
    if (IsSorted(term.type)) {
      of = SortedTerm(term, list, pair);
      list += 2;
    } else {
      of = EvaluatePairTerm(options, term, c->X(term.length_average), r->X(term.length_average));
    }
    sum.value += Times(term.weight, of.value);
    sum.chosen += Times(term.weight, of.chosen) * c->Share(term.length_average);
    sum.rejected += Times(term.weight, of.rejected) * r->Share(term.length_average);
  }
  // Zhou et al. 2024 (WPO), eq. 3 with the weight alignment of TRL; a constant of the gradient.
  const double rho =
      options.wpo ? std::exp(wpo_mean[Chosen(pair)] + wpo_mean[Rejected(pair)]) : 1.0;
  const double weight = sequences.GroupWeight(pair);
  const double value = Times(weight, Times(rho, sum.value));
  sequences.group[pair].value = value;
  c->slope = Times(weight, Times(rho, sum.chosen));
  r->slope = Times(weight, Times(rho, sum.rejected));

  const PreferenceTermOptions<double>& first = options.terms[0];
  const double chosen = first.beta * c->X(first.length_average);
  const double rejected = first.beta * r->X(first.length_average);
  if (pair_loss) pair_loss.SetF32(pair, static_cast<float>(value));
  if (chosen_logp) chosen_logp.SetF32(pair, static_cast<float>(c->logp));
  if (rejected_logp) rejected_logp.SetF32(pair, static_cast<float>(r->logp));
  if (chosen_reward) chosen_reward.SetF32(pair, static_cast<float>(chosen));
  if (rejected_reward) rejected_reward.SetF32(pair, static_cast<float>(rejected));

  MetricRow metrics(sequences.group_metrics, pair);
  if (weight != 0) {
    metrics.Add(kPairLoss, static_cast<float>(value));
    metrics.Add(kPairChosenLogp, static_cast<float>(c->logp));
    metrics.Add(kPairRejectedLogp, static_cast<float>(r->logp));
    metrics.Add(kPairChosenReward, static_cast<float>(chosen));
    metrics.Add(kPairRejectedReward, static_cast<float>(rejected));
    metrics.Add(kPairMargin, static_cast<float>(chosen - rejected));
    metrics.Add(kPairAccuracy, chosen > rejected ? 1.0f : 0.0f);
    metrics.Add(kPairWpoWeight, static_cast<float>(rho));
  }
  metrics.End();
}

// Sums of a pair's two sequences, and the pair itself where nothing is sorted. Instances are pairs.
struct PreferencePairStage {
  PreferenceProblem problem;

  int64_t Instances() const { return problem.Pairs(); }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t pair) const {
    if (problem.sequences.record->code == 0) Gather(problem, team, pair);
  }

  // The same whatever the record says. The counts are right on every thread.
  template <class Team>
  LOSSD_HD static GroupCounts Gather(const PreferenceProblem& p, Team& team, int64_t pair) {
    const SequenceProblem& s = p.sequences;
    const int64_t chosen = p.Chosen(pair);
    const int64_t rejected = p.Rejected(pair);
    int64_t chosen_cut = s.End(chosen);
    int64_t rejected_cut = s.End(rejected);
    if (s.ld_alpha != 1) FindCuts(s, team, chosen, rejected, &chosen_cut, &rejected_cut);
    SequenceFacts c = SumOwnRows(team, s, chosen, Side::kFirst, chosen_cut);
    SequenceFacts r = SumOwnRows(team, s, rejected, Side::kSecond, rejected_cut);
    team.SumAll(&c.length, &c.logp, &c.reference, &r.length, &r.logp, &r.reference);
    UseSequenceReference(s, chosen, &c);
    UseSequenceReference(s, rejected, &r);
    const GroupFacts likelihood = SumLikelihood(s, team, chosen);
    double chosen_mean = 0;
    double rejected_mean = 0;
    if (p.options.wpo) {
      chosen_mean = MeanConfidence(p, team, chosen, c.length);
      rejected_mean = MeanConfidence(p, team, rejected, r.length);
    }
    if (team.rank() == 0) Evaluate(p, pair, &c, &r, likelihood, chosen_mean, rejected_mean);
    return {s.GroupWeight(pair) != 0 ? 1 : 0, likelihood.nll_tokens};
  }

 private:
  LOSSD_HD static void Evaluate(const PreferenceProblem& p, int64_t pair, SequenceFacts* c,
                                SequenceFacts* r, const GroupFacts& likelihood, double chosen_mean,
                                double rejected_mean) {
    const SequenceProblem& s = p.sequences;
    const int64_t chosen = p.Chosen(pair);
    const int64_t rejected = p.Rejected(pair);
    s.group[pair] = likelihood;
    if (p.options.wpo) {
      p.wpo_mean[chosen] = chosen_mean;
      p.wpo_mean[rejected] = rejected_mean;
    }
    if (p.sorted.lists == 0) {
      p.EvaluatePair(pair, c, r);
    } else {
      p.WriteKeys(pair, *c, *r);
    }
    s.facts[chosen] = *c;
    s.facts[rejected] = *r;
  }

  // Liu et al. 2024 (LD-DPO): what the longer sequence has beyond the shorter one counts less.
  template <class Team>
  LOSSD_HD static void FindCuts(const SequenceProblem& s, Team& team, int64_t chosen,
                                int64_t rejected, int64_t* chosen_cut, int64_t* rejected_cut) {
    const int64_t chosen_rows = CountRows(team, s, s.Begin(chosen), s.End(chosen));
    const int64_t rejected_rows = CountRows(team, s, s.Begin(rejected), s.End(rejected));
    if (chosen_rows > rejected_rows) {
      *chosen_cut = FindCut(team, s, s.Begin(chosen), s.End(chosen), rejected_rows);
    } else if (rejected_rows > chosen_rows) {
      *rejected_cut = FindCut(team, s, s.Begin(rejected), s.End(rejected), chosen_rows);
    }
  }

  // Negative log-likelihood of the chosen sequence.
  template <class Team>
  LOSSD_HD static GroupFacts SumLikelihood(const SequenceProblem& s, Team& team, int64_t sequence) {
    GroupFacts out;
    if (s.nll_coef == 0) return out;
    for (int64_t i = s.Begin(sequence) + team.rank(); i < s.End(sequence); i += team.size()) {
      if (!s.IsNllToken(i, Side::kFirst)) continue;
      out.nll -= s.Logprob(i);
      ++out.nll_tokens;
    }
    team.SumAll(&out.nll, &out.nll_tokens);
    return out;
  }

  // Mean of lp - log sum p^2: how likely the policy finds the sequence, against one that it draws itself.
  template <class Team>
  LOSSD_HD static double MeanConfidence(const PreferenceProblem& p, Team& team, int64_t sequence,
                                        int64_t length) {
    const SequenceProblem& s = p.sequences;
    double sum = 0;
    for (int64_t i = s.Begin(sequence) + team.rank(); i < s.End(sequence); i += team.size()) {
      if (!s.InMask(i)) continue;
      const float of_row = kMayHaveHead && s.statistics != nullptr ? s.statistics[i].LogSumP2()
                                                                   : p.log_sum_p2.F32(i);
      sum += static_cast<double>(s.Logprob(i)) - of_row;
    }
    sum = team.Sum(sum);
    return length > 1 ? sum / static_cast<double>(length) : sum;
  }
};

// Place of every pair in the sorted lists, rising and stable, NaN last: the number of pairs that come before it. Instances are blocks of
// kPairs pairs of a list; each reads the whole list, 8 P bytes that stay in the cache.
struct PreferenceRankStage {
  static constexpr int64_t kPairs = 256;
  SortedLists sorted;
  int64_t pairs = 0;
  const ResultRecord* record = nullptr;

  LOSSD_HD int64_t Instances() const { return sorted.lists * Blocks(); }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    if (record->code != 0) return;
    const int64_t list = instance / Blocks();
    const int64_t begin = instance % Blocks() * kPairs;
    const int64_t end = begin + kPairs < pairs ? begin + kPairs : pairs;
    const double* keys = sorted.keys + list * pairs;
    for (int64_t i = begin + team.rank(); i < end; i += team.size()) {
      int32_t place = 0;
      for (int64_t j = 0; j < pairs; ++j) place += IsBefore(keys[j], j, keys[i], i) ? 1 : 0;
      sorted.rank[list * pairs + i] = place;
      sorted.order[list * pairs + place] = static_cast<int32_t>(i);
    }
  }

 private:
  LOSSD_HD int64_t Blocks() const { return (pairs + kPairs - 1) / kPairs; }
  // A total order, so that places are a permutation whatever the keys are.
  LOSSD_HD static bool IsBefore(double a, int64_t i, double b, int64_t j) {
    if (a < b) return true;
    if (b < a) return false;
    const bool a_nan = a != a;
    const bool b_nan = b != b;
    return a_nan == b_nan ? i < j : b_nan;
  }
};

// The pairs' values from the sorted lists. Instances are blocks of kPairs pairs.
struct PreferenceValueStage {
  static constexpr int64_t kPairs = 256;
  PreferenceProblem problem;

  int64_t Instances() const { return (problem.Pairs() + kPairs - 1) / kPairs; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    if (problem.sequences.record->code != 0) return;
    const int64_t begin = instance * kPairs;
    const int64_t end = begin + kPairs < problem.Pairs() ? begin + kPairs : problem.Pairs();
    for (int64_t k = begin + team.rank(); k < end; k += team.size()) Evaluate(problem, k);
  }

  LOSSD_HD static void Evaluate(const PreferenceProblem& p, int64_t pair) {
    p.EvaluatePair(pair, p.sequences.facts + p.Chosen(pair), p.sequences.facts + p.Rejected(pair));
  }
};

static_assert(sizeof(PreferencePairStage) < 4000, "the arguments of a kernel");

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_PREFERENCE_H_
