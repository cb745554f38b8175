// CLIP_COV and KL_COV without cov_selected: which tokens are selected. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_SELECT_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_SELECT_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/policy_problem.h"
#include "kernels/objectives/policy_terms.h"
#include "kernels/objectives/radix_select.h"

namespace lossd {

// The hash by which CLIP_COV draws: number `row` of the splitmix64 sequence of `seed` (Steele et al. 2014).
LOSSD_HD uint64_t SplitMix64(uint64_t seed, uint64_t row) {
  uint64_t x = seed + (row + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// Selects n = max(1, floor(cov_ratio count)) of the tokens that count by cov = (A - mean A)(lp - mean lp), in double. KL_COV: the largest,
// equal ones by smaller row. CLIP_COV: of those within (cov_low, cov_high) that are not clipped, the ones with the smallest hash.
// One instance; runs when all log-probabilities and the rows' sequences are known.
struct PolicySelectStage {
  PolicyProblem problem;

  int64_t Instances() const { return 1; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    if (problem.record->code == 0) Select(problem, team);
  }

  template <class Team>
  LOSSD_HD_CALLED static void Select(const PolicyProblem& p, Team& team) {
    double advantage = 0;
    double lp = 0;
    int64_t count = 0;
    for (int64_t i = team.rank(); i < p.rows; i += team.size()) {
      if (!p.IsCounted(i)) continue;
      advantage += p.Advantage(i, p.sequence_of[i]);
      lp += p.Logprob(i);
      ++count;
    }
    count = team.Sum(count);
    const double mean_advantage = team.Sum(advantage) / static_cast<double>(count);
    const double mean_lp = team.Sum(lp) / static_cast<double>(count);

    int64_t candidates = 0;
    for (int64_t i = team.rank(); i < p.rows; i += team.size()) {
      p.selected[i] = 0;
      if (!p.IsCounted(i)) continue;
      const float a = p.Advantage(i, p.sequence_of[i]);
      const double cov = (a - mean_advantage) * (p.Logprob(i) - mean_lp);
      if (p.options.kind == PolicyKind::kKlCov) {
        p.keys[i] = FallingKey(cov);
      } else {
        if (!IsCandidate(p, i, a, cov)) continue;
        p.keys[i] = SplitMix64(p.options.cov_seed, static_cast<uint64_t>(i));
      }
      p.selected[i] = 1;
      ++candidates;
    }
    candidates = team.Sum(candidates);
    const auto part = static_cast<int64_t>(p.options.cov_ratio * static_cast<double>(count));
    KeepSmallest(team, p.keys, p.selected, p.rows, candidates, part > 1 ? part : 1);
  }

 private:
  LOSSD_HD static bool IsCandidate(const PolicyProblem& p, int64_t i, float advantage, double cov) {
    const PolicyOptions<float>& options = p.options;
    if (!(cov > options.cov_low && cov < options.cov_high)) return false;
    const float lp = p.Logprob(i);
    const float r = RatioTerm(options, lp - p.Old(i, lp)).value;
    return !(advantage > 0 && r > options.ratio_high) && !(advantage < 0 && r < options.ratio_low);
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_SELECT_H_
