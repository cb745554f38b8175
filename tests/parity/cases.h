// The options of every operation, one case each: what the generic tests (gradients, fuzz, devices) go through.
#ifndef LOSSD_TESTS_PARITY_CASES_H_
#define LOSSD_TESTS_PARITY_CASES_H_

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/parity/distill_cases.h"
#include "tests/parity/layer_cases.h"
#include "tests/parity/logits_cases.h"
#include "tests/parity/option_case.h"
#include "tests/parity/sequence_cases.h"

namespace lossd {

// Kinds of the policy loss beside those in OptionCases. Where factors of the value are constants of the gradient (has_constants), the unit
// tests of the objectives have the finite differences.
inline std::vector<OptionCase> PolicyKindCases() {
  const std::string op = "LinearPolicyLoss";
  const std::string tokens = "target advantage old_logprob";
  const std::string sequences = "target advantage old_logprob cu_seqlens";
  // Log-probabilities close to those of a uniform distribution, so that ratios are moderate.
  const std::string flat = "logit_scale=0.2 ";
  const std::string reinforce = flat + "kind=REINFORCE";
  const std::string clip = "clip_low=0.9 clip_high=20";
  const std::string gspo = flat + "kind=GSPO gspo_gradient=THROUGH_MEAN " + clip;
  const std::string gmpo = flat + "kind=GMPO clip_low=3 clip_high=3";
  const std::string cispo = flat + "kind=CISPO cispo_low=0.1 cispo_high=5";
  const std::string sapo = flat + "kind=SAPO";
  const std::string tv = flat + "kind=DPPO_TV clip_low=0.9 clip_high=0.9";
  const std::string kl = flat + "kind=DPPO_KL clip_low=9 clip_high=9";
  const std::string vespo = flat + "kind=VESPO";
  const std::string clip_cov = flat + "kind=CLIP_COV clip_low=1 clip_high=20 ";
  const std::string server = clip_cov + "cov_ratio=0.3 cov_low=-9 cov_high=9 cov_seed=1";
  const std::string kl_cov = flat + "kind=KL_COV kl_cov_coef=0.5 cov_ratio=0.3";
  return {
      {op, sequences, reinforce, "", "kind=GSPO gspo_gradient=THROUGH_MEAN " + clip},
      {op, sequences, gspo, "", "gspo_gradient=DETACHED", 5, true},
      {op, sequences, gspo, "", "log_ratio_clamp=SYMMETRIC log_ratio_bound=0.7"},
      {op, sequences, gspo, "", "clip_low=0.1"},
      {op, sequences, gspo, "", "sequence_weighting=INVERSE_LENGTH"},
      {op, sequences, gspo, "pg_weight", ""},
      {op, sequences + " ref_logprob", gspo + " kl_estimator=K3 kl_coef=0.3", "",
       "kl_weight=RATIO"},
      {op, sequences, reinforce, "", "kind=LUSPO " + clip},
      {op, sequences, reinforce, "", "kind=GMPO clip_low=3 clip_high=3"},
      {op, sequences, gmpo, "", "clip_low=0.2"},
      {op, sequences, gmpo, "", "clip_high=0.2", 3},
      {op, sequences, gmpo, "pg_weight sequence_pg_weight", ""},
      {op, tokens, reinforce, "", "kind=CISPO cispo_low=0.7 cispo_high=0.7"},
      {op, tokens, cispo, "", "cispo_low=0.6", 5, true},
      {op, tokens, cispo, "", "cispo_high=0.5", 5, true},
      {op, tokens, reinforce, "", "kind=SAPO"},
      {op, tokens, sapo, "", "sapo_tau_pos=2"},
      {op, tokens, sapo, "", "sapo_tau_neg=2"},
      {op, tokens, reinforce, "", "kind=DPPO_TV clip_low=0.9 clip_high=0.9", 5, true},
      {op, tokens, tv, "", "clip_low=0.05", 5, true},
      {op, tokens, tv, "", "clip_high=0.02", 3, true},
      {op, tokens, tv, "", "ratio_cap=1.1", 3, true},
      {op, tokens, reinforce, "", "kind=DPPO_KL clip_low=9 clip_high=9", 5, true},
      {op, tokens, kl, "", "clip_low=0.02", 5, true},
      {op, tokens, kl, "", "clip_high=0.001", 3, true},
      {op, tokens, reinforce, "", "kind=DRO dro_beta=0.5"},
      {op, tokens, flat + "kind=DRO dro_beta=0.5", "", "dro_beta=1.5"},
      {op, sequences, reinforce, "", "kind=VESPO", 5, true},
      {op, sequences, vespo, "pg_weight", "", 5, true},
      {op, sequences, vespo, "", "vespo_k_pos=1", 5, true},
      {op, sequences, vespo, "", "vespo_lambda_pos=1", 5, true},
      {op, sequences, vespo, "", "vespo_k_neg=1", 5, true},
      {op, sequences, vespo, "", "vespo_lambda_neg=1", 5, true},
      {op, tokens, flat + "kind=PPO clip_low=1 clip_high=20", "cov_selected", "kind=CLIP_COV"},
      {op, tokens, reinforce, "cov_selected", "kind=KL_COV kl_cov_coef=0.5"},
      {op, tokens, flat + "kind=PPO clip_low=1 clip_high=20", "",
       "kind=CLIP_COV cov_ratio=0.3 cov_low=-9 cov_high=9 cov_seed=1"},
      {op, tokens, server, "", "cov_ratio=0.8"},
      {op, tokens, server, "", "cov_low=0.1"},
      {op, tokens, server, "", "cov_high=0", 9},
      {op, tokens, server, "", "cov_seed=2"},
      {op, tokens, reinforce, "", "kind=KL_COV kl_cov_coef=0.5 cov_ratio=0.3"},
      {op, tokens, kl_cov, "", "kl_cov_coef=1.5"},
      {op, tokens, kl_cov, "", "cov_ratio=0.9"},
  };
}

// The same cases for PolicyLoss: without what is the head's, with the entropy where it is read.
inline std::vector<OptionCase> WithoutHead(const std::vector<OptionCase>& cases) {
  const auto reads_entropy = [](const std::string& options) {
    return absl::StrContains(options, "entropy_kind=TRUE") ||
           absl::StrContains(options, "entropy_threshold");
  };
  std::vector<OptionCase> out;
  for (OptionCase c : cases) {
    if (c.op != "LinearPolicyLoss") continue;
    c.op = "PolicyLoss";
    c.seed += 1;  // inputs that show every option
    c.inputs = absl::StrReplaceAll(c.inputs, {{"target ", ""}, {"target", ""}});
    c.options = absl::StrReplaceAll(c.options, {{"logit_scale=0.2", ""}});
    if (reads_entropy(c.options)) {
      absl::StrAppend(&c.inputs, " entropy");
    } else if (reads_entropy(c.added_options)) {
      absl::StrAppend(&c.added_inputs, " entropy");
    }
    out.push_back(c);
  }
  const std::string kl = "kind=REINFORCE kl_estimator=K3 kl_coef=0.3";
  out.push_back({"PolicyLoss", "advantage ref_logprob", kl, "kl_logprob", ""});
  out.push_back({"PolicyLoss", "advantage ref_logprob sampler_logprob kl_logprob", kl, "",
                 "kl_weight=SAMPLER_RATIO"});
  out.push_back({"PolicyLoss", "advantage ref_logprob old_logprob kl_logprob cu_seqlens",
                 "kind=GSPO gspo_gradient=THROUGH_MEAN clip_low=0.9 clip_high=20 "
                 "kl_estimator=K3 kl_coef=0.3",
                 "", "kl_weight=RATIO"});
  return out;
}

inline const std::vector<OptionCase>& OptionCases() {
  static const auto* const kCases = [] {
    auto* cases = new std::vector<OptionCase>{
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
        {"LinearCrossEntropy", "target", "label_smoothing=0.2", "",
         "label_smoothing_kind=MEGATRON"},
        {"LinearCrossEntropy", "target", "label_smoothing=0.2", "class_weight", ""},
        {"LinearCrossEntropy", "target", "", "", "z_loss=0.05"},
        {"LinearCrossEntropy", "target", "reduction=MEAN denominator_from=COUNT", "",
         "z_loss=0.05"},
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
        {"LinearPolicyLoss", "target advantage cu_seqlens", "kind=REINFORCE", "sequence_weight",
         ""},
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
        {"LinearPolicyLoss", "target advantage",
         "kind=REINFORCE entropy_kind=TRUE entropy_coef=0.4", "entropy_mask", ""},
        {"LinearPolicyLoss", "target advantage",
         "kind=REINFORCE entropy_kind=TRUE entropy_coef=0.4", "", "entropy_denominator=3"},
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
    const std::vector<OptionCase> kinds = PolicyKindCases();
    cases->insert(cases->end(), kinds.begin(), kinds.end());
    const std::vector<OptionCase> without_head = WithoutHead(*cases);
    cases->insert(cases->end(), without_head.begin(), without_head.end());
    const std::vector<OptionCase> on_logits = OnLogits(*cases);
    cases->insert(cases->end(), on_logits.begin(), on_logits.end());
    const std::vector<OptionCase> distill = DistillCases();
    cases->insert(cases->end(), distill.begin(), distill.end());
    const std::vector<OptionCase> sequences = SequenceCases();
    cases->insert(cases->end(), sequences.begin(), sequences.end());
    const std::vector<OptionCase> layers = LayerCases();
    cases->insert(cases->end(), layers.begin(), layers.end());
    return cases;
  }();
  return *kCases;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_PARITY_CASES_H_
