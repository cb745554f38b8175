// The rules between the fields of a policy loss: a legal request of each kind, and each way to break it by one field.
#include "kernels/ops/policy_rules.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "kernels/core/error.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

const char kPpo[] =
    "kind: POLICY_KIND_PPO advantage {} old_logprob {} clip_low: 0.2 clip_high: 0.28 ";
const char kReinforce[] = "kind: POLICY_KIND_REINFORCE advantage {} ";
const char kKl[] = "ref_logprob {} kl_estimator: KL_ESTIMATOR_K3 kl_coef: 0.1 ";
const char kToken[] = "sampler_logprob {} is_level: IMPORTANCE_LEVEL_TOKEN ";
const char kEntropy[] = "entropy_kind: ENTROPY_KIND_TRUE entropy_coef: 0.1 ";

std::string Check(const std::string& text, bool wants_gradient = true) {
  v1::PolicyTerms policy;
  if (!google::protobuf::TextFormat::ParseFromString(text, &policy)) return "not parsed: " + text;
  return Refusal(CheckPolicyTerms(policy, wants_gradient));
}

struct Case {
  std::string text;
  std::string field;  // empty: legal
};

void Expect(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    EXPECT_EQ(Check(c.text), c.field.empty() ? "OK" : "INVALID_ARGUMENT " + c.field) << c.text;
  }
}

TEST(PolicyRulesTest, PolicyTermAndRatio) {
  const std::string ppo = kPpo;
  const std::string reinforce = kReinforce;
  Expect({
      {ppo, ""},
      {reinforce, ""},
      {reinforce + "old_logprob {}", ""},
      {"kind: POLICY_KIND_GPG advantage {}", ""},
      {"kind: POLICY_KIND_PPO advantage {} old_logprob {} clip_high: 0.2", "clip_low"},
      {"kind: POLICY_KIND_PPO advantage {} old_logprob {} clip_low: 0.2", "clip_high"},
      {"kind: POLICY_KIND_PPO advantage {} old_logprob {} clip_low: 1.1 clip_high: 0.2",
       "clip_low"},
      {"kind: POLICY_KIND_PPO advantage {} old_logprob {} clip_low: 1 clip_high: 0.2", ""},
      {"kind: POLICY_KIND_PPO advantage {} clip_low: 0.2 clip_high: 0.2", "old_logprob"},
      {"kind: POLICY_KIND_PPO advantage {} clip_low: 0.2 clip_high: 0.2 force_on_policy: true", ""},
      {ppo + "force_on_policy: true", "old_logprob"},
      {ppo + "force_on_policy: false", ""},
      {reinforce + "force_on_policy: true", "force_on_policy"},
      {reinforce + "clip_low: 0.2", "clip_low"},
      {reinforce + "clip_high: 0.2", "clip_high"},
      {ppo + "ratio_cap: 1.28", ""},
      {ppo + "ratio_cap: 1.27", "ratio_cap"},
      {reinforce + "ratio_cap: 3", "ratio_cap"},
      {ppo + "sequence_advantage {} cu_seqlens {}", "advantage"},
      {"kind: POLICY_KIND_REINFORCE", "advantage"},
      {ppo + "log_ratio_clamp: LOG_RATIO_CLAMP_SYMMETRIC log_ratio_bound: 3", ""},
      {ppo + "log_ratio_clamp: LOG_RATIO_CLAMP_NONE log_ratio_bound: 3", "log_ratio_bound"},
      {ppo + "log_ratio_bound: 3", "log_ratio_bound"},
      {reinforce + "log_ratio_clamp: LOG_RATIO_CLAMP_UPPER", "log_ratio_clamp"},
      {ppo + "gspo_gradient: GSPO_GRADIENT_DETACHED", "gspo_gradient"},
      {ppo + "cispo_low: 0.2", "cispo_low"},
      {ppo + "cispo_high: 2", "cispo_high"},
      {ppo + "sapo_tau_pos: 1", "sapo_tau_pos"},
      {ppo + "sapo_tau_neg: 1", "sapo_tau_neg"},
      {ppo + "dro_beta: 1", "dro_beta"},
      {ppo + "vespo_k_pos: 1", "vespo_k_pos"},
      {ppo + "vespo_lambda_pos: 1", "vespo_lambda_pos"},
      {ppo + "vespo_k_neg: 1", "vespo_k_neg"},
      {ppo + "vespo_lambda_neg: 1", "vespo_lambda_neg"},
      {ppo + "kl_cov_coef: 1", "kl_cov_coef"},
      {ppo + "cov_selected {}", "cov_selected"},
      {ppo + "cov_ratio: 0.5", "cov_ratio"},
      {ppo + "cov_low: 1", "cov_low"},
      {ppo + "cov_high: 1", "cov_high"},
      {ppo + "cov_seed: 1", "cov_seed"},
  });
}

TEST(PolicyRulesTest, WeightsOfThePolicyTerm) {
  const std::string ppo = kPpo;
  const std::string token = ppo + kToken;
  Expect({
      {ppo + "sampler_logprob {}", ""},
      {ppo + "is_level: IMPORTANCE_LEVEL_NONE", ""},
      {token, "is_mode"},
      {token + "is_mode: IMPORTANCE_MODE_RAW", ""},
      {ppo + "is_level: IMPORTANCE_LEVEL_TOKEN is_mode: IMPORTANCE_MODE_RAW", "sampler_logprob"},
      {ppo + "is_mode: IMPORTANCE_MODE_RAW", "is_mode"},
      {ppo + "is_log_clamp: 3", "is_log_clamp"},
      {ppo + "is_min: 0", "is_min"},
      {ppo + "is_max: 3", "is_max"},
      {ppo + "is_row_min: 0.5", "is_row_min"},
      {ppo + "is_row_max: 0.5", "is_row_max"},
      {ppo + "is_normalizer: 2", "is_normalizer"},
      {token + "is_mode: IMPORTANCE_MODE_RAW is_min: 0", "is_min"},
      {token + "is_mode: IMPORTANCE_MODE_RAW is_max: 2", "is_max"},
      {token + "is_mode: IMPORTANCE_MODE_RAW is_log_clamp: 9 is_normalizer: 2", ""},
      {token + "is_mode: IMPORTANCE_MODE_TRUNCATE", "is_max"},
      {token + "is_mode: IMPORTANCE_MODE_MASK is_max: 2", ""},
      {token + "is_mode: IMPORTANCE_MODE_MASK is_max: 2 is_min: 2", ""},
      {token + "is_mode: IMPORTANCE_MODE_MASK is_max: 2 is_min: 2.1", "is_min"},
      {token + "is_mode: IMPORTANCE_MODE_RAW cu_seqlens {} is_row_min: 0.5", "is_row_max"},
      {token + "is_mode: IMPORTANCE_MODE_RAW cu_seqlens {} is_row_max: 0.5", "is_row_min"},
      {token + "is_mode: IMPORTANCE_MODE_RAW cu_seqlens {} is_row_min: 0.5 is_row_max: 2", ""},
      {token + "is_mode: IMPORTANCE_MODE_RAW is_row_min: 0.5 is_row_max: 2", "cu_seqlens"},
      {ppo + "entropy_threshold: 1", ""},
      {ppo + "off_policy_threshold: 1 cu_seqlens {}", "sampler_logprob"},
      {ppo + "off_policy_threshold: 1 sampler_logprob {}", "cu_seqlens"},
      {ppo + "off_policy_threshold: 1 sampler_logprob {} cu_seqlens {}", ""},
      {ppo + "pg_weight {} row_weight {}", ""},
  });
}

TEST(PolicyRulesTest, KlAndEntropy) {
  const std::string ppo = kPpo;
  const std::string kl = ppo + kKl;
  const std::string entropy = ppo + kEntropy;
  Expect({
      {kl, ""},
      {ppo + "ref_logprob {}", "ref_logprob"},
      {ppo + "kl_estimator: KL_ESTIMATOR_K1 kl_coef: 0", "ref_logprob"},
      {ppo + "kl_estimator: KL_ESTIMATOR_K1 ref_logprob {}", "kl_coef"},
      {ppo + "kl_estimator: KL_ESTIMATOR_NONE", ""},
      {ppo + "kl_coef: 0", "kl_coef"},
      {ppo + "kl_in_clamp: 1", "kl_in_clamp"},
      {ppo + "kl_out_clamp: 1", "kl_out_clamp"},
      {ppo + "kl_weight: KL_WEIGHT_NONE", "kl_weight"},
      {ppo + "kl_straight_through: false", "kl_straight_through"},
      {kl + "kl_in_clamp: 20 kl_out_clamp: 10 kl_straight_through: true", ""},
      {kl + "kl_weight: KL_WEIGHT_RATIO", ""},
      {std::string(kReinforce) + kKl + "kl_weight: KL_WEIGHT_RATIO", "kl_weight"},
      {std::string(kReinforce) + kKl + "kl_weight: KL_WEIGHT_SCORE_FUNCTION", ""},
      {kl + "kl_weight: KL_WEIGHT_SAMPLER_RATIO", "sampler_logprob"},
      {kl + "kl_weight: KL_WEIGHT_SCORE_FUNCTION kl_straight_through: true", "kl_straight_through"},
      {kl + "kl_weight: KL_WEIGHT_NONE kl_straight_through: true", ""},
      {entropy, ""},
      {entropy + "entropy_mask {} entropy_denominator: 3", ""},
      {ppo + "entropy_kind: ENTROPY_KIND_TRUE", "entropy_coef"},
      {ppo + "entropy_coef: 0", "entropy_coef"},
      {ppo + "entropy_mask {}", "entropy_mask"},
      {ppo + "entropy_denominator: 3", "entropy_denominator"},
  });
}

TEST(PolicyRulesTest, Aggregation) {
  const std::string ppo = kPpo;
  Expect({
      {ppo + "denominator: 7", ""},
      {ppo + "denominator: 7 denominator_from: POLICY_DENOMINATOR_COUNT", "denominator"},
      {ppo + "denominator_from: POLICY_DENOMINATOR_COUNT", ""},
      {ppo + "denominator_from: POLICY_DENOMINATOR_SEQUENCES", "cu_seqlens"},
      {ppo + "sequence_weighting: SEQUENCE_WEIGHTING_ONE", ""},
      {ppo + "sequence_weighting: SEQUENCE_WEIGHTING_LENGTH", "cu_seqlens"},
      {ppo + "sequence_weighting: SEQUENCE_WEIGHTING_INVERSE_LENGTH cu_seqlens {}", ""},
      {ppo + "sequence_weight {}", "cu_seqlens"},
      {ppo + "sequence_pg_weight {}", "cu_seqlens"},
      {ppo + "cu_seqlens {}", ""},
      {ppo + "d_loss {}", ""},
      {ppo + kToken + "is_mode: IMPORTANCE_MODE_RAW cu_seqlens {}", ""},
      {ppo + "sampler_logprob {} is_mode: IMPORTANCE_MODE_RAW is_level: "
             "IMPORTANCE_LEVEL_SEQUENCE_SUM",
       "cu_seqlens"},
  });
  EXPECT_EQ(Check(ppo + "d_loss {}", false), "INVALID_ARGUMENT d_loss");
  v1::PolicyTerms policy;
  v1::PolicyOutputs outputs;
  outputs.mutable_kl();
  EXPECT_EQ(Refusal(CheckPolicyOutputs(policy, outputs)), "INVALID_ARGUMENT kl");
  policy.set_kl_estimator(v1::KL_ESTIMATOR_K1);
  EXPECT_EQ(Refusal(CheckPolicyOutputs(policy, outputs)), "OK");
}

TEST(PolicyRulesTest, OptionsOfTheKinds) {
  const std::string old = " advantage {} old_logprob {} ";
  const std::string clip = old + "clip_low: 0.2 clip_high: 0.28 ";
  const std::vector<std::string> legal = {
      "kind: POLICY_KIND_GSPO cu_seqlens {} gspo_gradient: GSPO_GRADIENT_DETACHED" + clip,
      "kind: POLICY_KIND_LUSPO cu_seqlens {} ratio_cap: 3" + clip,
      "kind: POLICY_KIND_CISPO cispo_high: 5" + old,
      "kind: POLICY_KIND_SAPO sapo_tau_pos: 1" + old,
      "kind: POLICY_KIND_GMPO cu_seqlens {}" + clip,
      "kind: POLICY_KIND_DPPO_TV ratio_cap: 1.1" + clip,
      "kind: POLICY_KIND_DPPO_KL" + clip,
      "kind: POLICY_KIND_DRO dro_beta: 1" + old,
      "kind: POLICY_KIND_VESPO cu_seqlens {} vespo_k_neg: 1" + old,
      "kind: POLICY_KIND_CLIP_COV cov_ratio: 0.1 cov_low: 1 cov_high: 2 cov_seed: 3" + clip,
      "kind: POLICY_KIND_CLIP_COV cov_selected {}" + clip,
      "kind: POLICY_KIND_KL_COV cov_ratio: 0.1 kl_cov_coef: 1" + old,
  };
  for (const std::string& text : legal) EXPECT_EQ(Check(text), "OK") << text;
  Expect({
      {"kind: POLICY_KIND_GSPO cu_seqlens {}" + clip, "gspo_gradient"},
      {"kind: POLICY_KIND_GSPO gspo_gradient: GSPO_GRADIENT_DETACHED" + clip, "cu_seqlens"},
      {"kind: POLICY_KIND_LUSPO cu_seqlens {} sequence_weighting: SEQUENCE_WEIGHTING_LENGTH" + clip,
       "sequence_weighting"},
      {"kind: POLICY_KIND_CISPO" + old, "cispo_high"},
      {"kind: POLICY_KIND_CISPO cispo_high: 5 " + clip, "clip_low"},
      {"kind: POLICY_KIND_GMPO cu_seqlens {} log_ratio_clamp: LOG_RATIO_CLAMP_UPPER" + clip,
       "log_ratio_clamp"},
      {"kind: POLICY_KIND_GMPO cu_seqlens {} ratio_cap: 3" + clip, "ratio_cap"},
      {"kind: POLICY_KIND_DRO" + old, "dro_beta"},
      {"kind: POLICY_KIND_DRO dro_beta: 1 kl_weight: KL_WEIGHT_RATIO" + old + kKl, "kl_weight"},
      {"kind: POLICY_KIND_VESPO" + old, "cu_seqlens"},
      {"kind: POLICY_KIND_CLIP_COV cov_ratio: 0.1 cov_low: 1 cov_high: 2" + clip, "cov_seed"},
      {"kind: POLICY_KIND_CLIP_COV cov_selected {} cov_low: 1" + clip, "cov_low"},
      {"kind: POLICY_KIND_CLIP_COV cov_selected {} cov_ratio: 1" + clip, "cov_ratio"},
      {"kind: POLICY_KIND_CLIP_COV" + clip, "cov_ratio"},
      {"kind: POLICY_KIND_CLIP_COV cov_selected {} ratio_cap: 3" + clip, "ratio_cap"},
      {"kind: POLICY_KIND_KL_COV cov_ratio: 0.1" + old, "kl_cov_coef"},
      {"kind: POLICY_KIND_KL_COV cov_ratio: 0.1 kl_cov_coef: 1 cov_seed: 1" + old, "cov_seed"},
  });
}

}  // namespace
}  // namespace lossd
