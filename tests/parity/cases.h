// The options of every operation, one case each: what the generic tests (gradients, fuzz, devices) go through.
#ifndef LOSSD_TESTS_PARITY_CASES_H_
#define LOSSD_TESTS_PARITY_CASES_H_

#include <vector>

#include "tests/parity/option_case.h"
#include "tests/parity/sequence_cases.h"

namespace lossd {

inline const std::vector<OptionCase>& OptionCases() {
  static const auto* const kCases = new std::vector<OptionCase>{
      // The head.
      {"LinearCrossEntropy", "target", "", "bias", ""},
      {"LinearCrossEntropy", "target", "", "mask", ""},
      {"LinearCrossEntropy", "target", "", "temperature_rows", ""},
      {"LinearCrossEntropy", "target", "", "", "ignore_index=3"},
      {"LinearCrossEntropy", "target bias", "", "", "logit_scale=0.7"},
      {"LinearCrossEntropy", "target bias", "", "", "softcap=1.5"},
      {"LinearCrossEntropy", "target bias", "", "", "temperature=0.6"},
      {"LinearCrossEntropy", "target", "ignore_index=10", "", "valid_vocab=10"},
      {"LinearCrossEntropy", "target bias", "", "temperature_rows", "softcap=2 logit_scale=1.3"},
      // Cross entropy.
      {"LinearCrossEntropy", "target", "", "row_weight", ""},
      {"LinearCrossEntropy", "target", "", "class_weight", ""},
      {"LinearCrossEntropy", "target", "", "d_loss", ""},
      {"LinearCrossEntropy", "target", "", "", "label_smoothing=0.2"},
      {"LinearCrossEntropy", "target", "label_smoothing=0.2", "", "label_smoothing_kind=MEGATRON"},
      {"LinearCrossEntropy", "target", "label_smoothing=0.2", "class_weight", ""},
      {"LinearCrossEntropy", "target", "", "", "z_loss=0.05"},
      {"LinearCrossEntropy", "target", "reduction=MEAN denominator_from=COUNT", "", "z_loss=0.05"},
      {"LinearCrossEntropy", "target class_weight",
       "z_loss=0.05 reduction=MEAN denominator_from=WEIGHT_SUM", "", "z_denominator_from=COUNT"},
      {"LinearCrossEntropy", "target", "z_loss=0.05 reduction=MEAN denominator=3", "",
       "z_denominator_from=GIVEN z_denominator=2"},
      {"LinearCrossEntropy", "target", "", "", "reduction=MEAN denominator=3"},
      {"LinearCrossEntropy", "target", "", "", "reduction=MEAN denominator_from=COUNT"},
      {"LinearCrossEntropy", "target class_weight row_weight", "", "",
       "reduction=MEAN denominator_from=WEIGHT_SUM"},
      // Derivatives of the statistics.
      {"LinearLogprobBackward", "target d_lse", "", "d_logprob", ""},
      {"LinearLogprobBackward", "target d_logprob", "", "entropy d_entropy", ""},
      {"LinearLogprobBackward", "target d_logprob", "", "d_lse", ""},
      {"LinearLogprobBackward", "target d_logprob", "", "d_mean_logit", ""},
      {"LinearLogprobBackward", "target d_logprob", "", "ids d_ids_logprob", ""},
      {"LinearLogprobBackward", "target d_logprob entropy d_entropy", "", "", "softcap=2"},
      {"LinearLogprobBackward", "target d_logprob entropy d_entropy", "", "temperature_rows", ""},
      {"LinearLogprobBackward", "target d_logprob d_mean_logit", "ignore_index=10", "",
       "valid_vocab=10"},
      // Policy terms. clip bounds are wide so that some tokens are inside.
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "d_loss", ""},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "mask", ""},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "row_weight", ""},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "pg_weight", ""},
      {"LinearPolicyLoss", "target advantage cu_seqlens", "kind=REINFORCE", "sequence_weight", ""},
      {"LinearPolicyLoss", "target advantage cu_seqlens", "kind=REINFORCE", "sequence_pg_weight",
       ""},
      {"LinearPolicyLoss", "target advantage cu_seqlens", "kind=REINFORCE", "",
       "sequence_weighting=INVERSE_LENGTH"},
      {"LinearPolicyLoss", "target advantage cu_seqlens", "kind=REINFORCE", "",
       "sequence_weighting=LENGTH"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "", "denominator=5"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "", "denominator_from=COUNT"},
      {"LinearPolicyLoss", "target advantage cu_seqlens", "kind=REINFORCE", "",
       "denominator_from=SEQUENCES"},
      {"LinearPolicyLoss", "target advantage old_logprob",
       "kind=PPO clip_low=0.9 clip_high=0.1 logit_scale=0.2", "", "ratio_cap=1.15", 3},
      {"LinearPolicyLoss", "target advantage old_logprob",
       "kind=PPO clip_low=0.9 clip_high=20 logit_scale=0.2", "",
       "log_ratio_clamp=SYMMETRIC log_ratio_bound=0.5"},
      {"LinearPolicyLoss", "target advantage old_logprob",
       "kind=PPO clip_low=0.9 clip_high=20 logit_scale=0.2", "",
       "log_ratio_clamp=UPPER log_ratio_bound=0.1", 3},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "ref_logprob",
       "kl_estimator=K1 kl_coef=0.3"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "ref_logprob",
       "kl_estimator=K2 kl_coef=0.3"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "ref_logprob",
       "kl_estimator=K3 kl_coef=0.3"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "ref_logprob",
       "kl_estimator=ABS kl_coef=0.3"},
      {"LinearPolicyLoss", "target advantage ref_logprob",
       "kind=REINFORCE kl_estimator=K2 kl_coef=0.3", "", "kl_in_clamp=1"},
      {"LinearPolicyLoss", "target advantage ref_logprob",
       "kind=REINFORCE kl_estimator=K2 kl_coef=0.3", "", "kl_out_clamp=0.5"},
      {"LinearPolicyLoss", "target advantage ref_logprob old_logprob",
       "kind=PPO clip_low=0.9 clip_high=20 kl_estimator=K3 kl_coef=0.3", "", "kl_weight=RATIO"},
      {"LinearPolicyLoss", "target advantage ref_logprob sampler_logprob",
       "kind=REINFORCE kl_estimator=K3 kl_coef=0.3", "", "kl_weight=SAMPLER_RATIO"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "",
       "entropy_kind=TRUE entropy_coef=0.4"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "",
       "entropy_kind=SAMPLED_PLOGP entropy_coef=0.4"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE entropy_kind=TRUE entropy_coef=0.4",
       "entropy_mask", ""},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE entropy_kind=TRUE entropy_coef=0.4",
       "", "entropy_denominator=3"},
      {"LinearPolicyLoss", "target advantage old_logprob sampler_logprob", "kind=REINFORCE", "",
       "is_level=TOKEN is_mode=RAW"},
      {"LinearPolicyLoss", "target advantage old_logprob sampler_logprob",
       "kind=REINFORCE is_level=TOKEN is_mode=RAW", "", "is_log_clamp=0.5"},
      {"LinearPolicyLoss", "target advantage old_logprob sampler_logprob",
       "kind=REINFORCE is_level=TOKEN is_mode=RAW", "", "is_normalizer=2"},
      {"LinearPolicyLoss", "target advantage old_logprob sampler_logprob",
       "kind=PPO clip_low=0.9 clip_high=20 logit_scale=0.2", "",
       "is_level=TOKEN is_mode=TRUNCATE is_max=1.2"},
      {"LinearPolicyLoss", "target advantage old_logprob sampler_logprob cu_seqlens",
       "kind=PPO clip_low=0.9 clip_high=20 logit_scale=0.2", "",
       "is_level=SEQUENCE_MEAN is_mode=RAW"},
      {"LinearPolicyLoss", "target advantage old_logprob sampler_logprob cu_seqlens",
       "kind=PPO clip_low=0.9 clip_high=20 logit_scale=0.2", "",
       "is_level=SEQUENCE_SUM is_mode=MASK is_min=0.5 is_max=2"},
      {"LinearPolicyLoss", "target advantage", "kind=REINFORCE", "", "entropy_threshold=2"},
      {"LinearPolicyLoss", "target advantage sampler_logprob cu_seqlens", "kind=REINFORCE", "",
       "off_policy_threshold=0.3"},
  };
  static const auto* const kAllCases = new std::vector<OptionCase>([] {
    std::vector<OptionCase> all = *kCases;
    for (const OptionCase& c : SequenceCases()) all.push_back(c);
    return all;
  }());
  return *kAllCases;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_PARITY_CASES_H_
