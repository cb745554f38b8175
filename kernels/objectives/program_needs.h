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

// The option or input by which dz has terms beside c p and that of the target, such as one with the logit itself; null if it has none.
template <class Program>
const char* OtherGradientTerm(const Program&) {
  return "the objective";
}
inline const char* OtherGradientTerm(const LogprobRows&) { return nullptr; }
inline const char* OtherGradientTerm(const KeepStatisticsRows&) { return nullptr; }
inline const char* OtherGradientTerm(const CrossEntropyRows& rows) {
  return rows.smoothing == 0 ? nullptr : "label_smoothing";
}
inline const char* OtherGradientTerm(const PolicyRows& rows) {
  return rows.problem.options.entropy_kind == EntropyKind::kTrue ? "entropy_kind" : nullptr;
}
inline const char* OtherGradientTerm(const KeptGradientRows& rows) {
  return rows.d_entropy == nullptr ? nullptr : "entropy_kind";
}
inline const char* OtherGradientTerm(const BackwardRows& rows) {
  return rows.d_entropy       ? "d_entropy"
         : rows.d_mean_logit  ? "d_mean_logit"
         : rows.d_ids_logprob ? "d_ids_logprob"
                              : nullptr;
}

template <class Program>
bool HasPlainGradient(const Program& program) {
  return OtherGradientTerm(program) == nullptr;
}

// Whether rows that count often have no gradient at all: clipped tokens, advantages of 0. Known once the row program has run.
template <class Program>
bool OftenVanishes(const Program&) {
  return false;
}
inline bool OftenVanishes(const PolicyRows&) { return true; }
inline bool OftenVanishes(const KeptGradientRows&) { return true; }

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_PROGRAM_NEEDS_H_
