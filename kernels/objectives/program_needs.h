// What a row program reads of a row's statistics, and which terms its gradient has: what kernels leave out.
#ifndef LOSSD_KERNELS_OBJECTIVES_PROGRAM_NEEDS_H_
#define LOSSD_KERNELS_OBJECTIVES_PROGRAM_NEEDS_H_

#include "kernels/objectives/objectives.h"

namespace lossd {

// By what they cost. kExp: max, sum_exp and target_d alone; kEntropy: sum_exp_d, too.
enum class StatisticsRead : int { kExp, kEntropy, kAll };

template <class Program>
StatisticsRead StatisticsReadBy(const Program&) {
  return StatisticsRead::kExp;
}
inline StatisticsRead StatisticsReadBy(const CrossEntropyRows& rows) {
  if (rows.argmax || rows.metrics || rows.smoothing != 0) return StatisticsRead::kAll;
  return rows.entropy ? StatisticsRead::kEntropy : StatisticsRead::kExp;
}
inline StatisticsRead StatisticsReadBy(const LogprobRows& rows) {
  if (rows.lse2 || rows.log_sum_p2 || rows.argmax || rows.correct || rows.max_prob ||
      rows.mean_logit || rows.vocab_stats) {
    return StatisticsRead::kAll;
  }
  return rows.entropy ? StatisticsRead::kEntropy : StatisticsRead::kExp;
}
inline StatisticsRead StatisticsReadBy(const KeepStatisticsRows& rows) {
  return rows.all_sums ? StatisticsRead::kAll : StatisticsRead::kExp;
}
inline StatisticsRead StatisticsReadBy(const PolicyRows& rows) {
  if (rows.problem.head_metrics) return StatisticsRead::kAll;
  return rows.problem.ReadsAllSums() ? StatisticsRead::kEntropy : StatisticsRead::kExp;
}

// Whether dz has no terms but c p and that of the target.
template <class Program>
bool HasPlainGradient(const Program&) {
  return false;
}
inline bool HasPlainGradient(const LogprobRows&) { return true; }
inline bool HasPlainGradient(const KeepStatisticsRows&) { return true; }
inline bool HasPlainGradient(const CrossEntropyRows& rows) { return rows.smoothing == 0; }
inline bool HasPlainGradient(const PolicyRows& rows) {
  return rows.problem.options.entropy_kind != EntropyKind::kTrue;
}
inline bool HasPlainGradient(const KeptGradientRows& rows) { return rows.d_entropy == nullptr; }
inline bool HasPlainGradient(const BackwardRows& rows) {
  return !rows.d_entropy && !rows.d_mean_logit && !rows.d_ids_logprob;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_PROGRAM_NEEDS_H_
