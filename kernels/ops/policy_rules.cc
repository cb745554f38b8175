#include "kernels/ops/policy_rules.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/core/error.h"
#include "kernels/core/schema.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

using v1::PolicyTerms;

// What a kind asks for.
struct KindRules {
  bool clips = false;  // clip_low and clip_high required
  bool clips_ratio =
      false;  // ... and are about the ratio: clip_low at most 1, ratio_cap at least 1 + clip_high
  bool caps = false;      // ratio_cap has a meaning
  bool needs_old = true;  // old_logprob or force_on_policy
  bool clamps = true;     // log_ratio_clamp and kl_weight RATIO have a meaning
  bool needs_sequences = false;
  bool selects = false;  // cov_*
};

KindRules RulesOf(v1::PolicyKind kind) {
  KindRules rules;
  switch (kind) {
    case v1::POLICY_KIND_PPO:
      rules.clips = rules.clips_ratio = rules.caps = true;
      break;
    case v1::POLICY_KIND_REINFORCE:
    case v1::POLICY_KIND_GPG:
      rules.needs_old = rules.clamps = false;
      break;
    case v1::POLICY_KIND_GSPO:
    case v1::POLICY_KIND_LUSPO:
      rules.clips = rules.clips_ratio = rules.caps = rules.needs_sequences = true;
      break;
    case v1::POLICY_KIND_GMPO:
      rules.clips = rules.needs_sequences = true;
      rules.clamps = false;
      break;
    case v1::POLICY_KIND_DPPO_TV:
    case v1::POLICY_KIND_DPPO_KL:
      rules.clips = rules.caps = true;
      break;
    case v1::POLICY_KIND_DRO:
      rules.clamps = false;
      break;
    case v1::POLICY_KIND_VESPO:
      rules.clamps = false;
      rules.needs_sequences = true;
      break;
    case v1::POLICY_KIND_CLIP_COV:
      rules.clips = rules.selects = true;
      break;
    case v1::POLICY_KIND_KL_COV:
      rules.selects = true;
      break;
    case v1::POLICY_KIND_CISPO:
    case v1::POLICY_KIND_SAPO:
    case v1::POLICY_KIND_UNSPECIFIED:
      break;
  }
  return rules;
}

std::string KindName(const PolicyTerms& policy) {
  return ShortEnumName(v1::PolicyKind_descriptor()->FindValueByNumber(policy.kind()));
}

// Refuses a field that is present without a meaning, or absent where it has one.
absl::Status Unless(bool allowed, bool present, absl::string_view field, absl::string_view why) {
  if (allowed || !present) return absl::OkStatus();
  return FieldError(field, absl::StrCat("absent ", why), "present");
}

absl::Status Required(bool required, bool present, absl::string_view field, absl::string_view why) {
  if (!required || present) return absl::OkStatus();
  return FieldError(field, absl::StrCat("given ", why), "absent");
}

// Present exactly where `needed`.
absl::Status Exactly(bool needed, bool present, absl::string_view field, absl::string_view why) {
  if (needed == present) return absl::OkStatus();
  return needed ? Required(true, false, field, absl::StrCat("with ", why))
                : Unless(false, true, field, absl::StrCat("without ", why));
}

absl::Status CheckKind(const PolicyTerms& p, const KindRules& rules) {
  const std::string with = absl::StrCat("with kind ", KindName(p));
  LOSSD_RETURN_IF_ERROR(Required(rules.clips, p.has_clip_low(), "clip_low", with));
  LOSSD_RETURN_IF_ERROR(Unless(rules.clips, p.has_clip_low(), "clip_low", with));
  LOSSD_RETURN_IF_ERROR(Required(rules.clips, p.has_clip_high(), "clip_high", with));
  LOSSD_RETURN_IF_ERROR(Unless(rules.clips, p.has_clip_high(), "clip_high", with));
  if (rules.clips_ratio && p.clip_low() > 1) {
    return FieldError("clip_low", "at most 1", absl::StrCat(p.clip_low()));
  }
  LOSSD_RETURN_IF_ERROR(Unless(rules.caps, p.has_ratio_cap(), "ratio_cap", with));
  if (rules.clips_ratio && p.has_ratio_cap() && p.ratio_cap() < 1 + p.clip_high()) {
    return FieldError("ratio_cap",
                      absl::StrCat("at least 1 + clip_high, which is ", 1 + p.clip_high()),
                      absl::StrCat(p.ratio_cap()));
  }
  LOSSD_RETURN_IF_ERROR(Exactly(p.kind() == v1::POLICY_KIND_GSPO, p.has_gspo_gradient(),
                                "gspo_gradient", "kind GSPO"));
  const bool cispo = p.kind() == v1::POLICY_KIND_CISPO;
  LOSSD_RETURN_IF_ERROR(Exactly(cispo, p.has_cispo_high(), "cispo_high", "kind CISPO"));
  LOSSD_RETURN_IF_ERROR(Unless(cispo, p.has_cispo_low(), "cispo_low", with));
  const bool sapo = p.kind() == v1::POLICY_KIND_SAPO;
  LOSSD_RETURN_IF_ERROR(Unless(sapo, p.has_sapo_tau_pos(), "sapo_tau_pos", with));
  LOSSD_RETURN_IF_ERROR(Unless(sapo, p.has_sapo_tau_neg(), "sapo_tau_neg", with));
  LOSSD_RETURN_IF_ERROR(
      Exactly(p.kind() == v1::POLICY_KIND_DRO, p.has_dro_beta(), "dro_beta", "kind DRO"));
  const bool vespo = p.kind() == v1::POLICY_KIND_VESPO;
  LOSSD_RETURN_IF_ERROR(Unless(vespo, p.has_vespo_k_pos(), "vespo_k_pos", with));
  LOSSD_RETURN_IF_ERROR(Unless(vespo, p.has_vespo_lambda_pos(), "vespo_lambda_pos", with));
  LOSSD_RETURN_IF_ERROR(Unless(vespo, p.has_vespo_k_neg(), "vespo_k_neg", with));
  LOSSD_RETURN_IF_ERROR(Unless(vespo, p.has_vespo_lambda_neg(), "vespo_lambda_neg", with));
  if (p.kind() == v1::POLICY_KIND_LUSPO && p.sequence_weighting() != v1::SEQUENCE_WEIGHTING_ONE) {
    return FieldError("sequence_weighting", "ONE with kind LUSPO",
                      ShortEnumName(v1::SequenceWeighting_descriptor()->FindValueByNumber(
                          p.sequence_weighting())));
  }
  return absl::OkStatus();
}

absl::Status CheckSelection(const PolicyTerms& p, const KindRules& rules) {
  const std::string with = absl::StrCat("with kind ", KindName(p));
  LOSSD_RETURN_IF_ERROR(Exactly(p.kind() == v1::POLICY_KIND_KL_COV, p.has_kl_cov_coef(),
                                "kl_cov_coef", "kind KL_COV"));
  LOSSD_RETURN_IF_ERROR(Unless(rules.selects, p.has_cov_selected(), "cov_selected", with));
  LOSSD_RETURN_IF_ERROR(Unless(rules.selects, p.has_cov_ratio(), "cov_ratio", with));
  LOSSD_RETURN_IF_ERROR(
      Unless(!p.has_cov_selected(), p.has_cov_ratio(), "cov_ratio", "with cov_selected"));
  LOSSD_RETURN_IF_ERROR(Required(rules.selects && !p.has_cov_selected(), p.has_cov_ratio(),
                                 "cov_ratio", "without cov_selected"));
  const bool ranges = p.kind() == v1::POLICY_KIND_CLIP_COV && !p.has_cov_selected();
  const absl::string_view why = "kind CLIP_COV and its own selection";
  LOSSD_RETURN_IF_ERROR(Exactly(ranges, p.has_cov_low(), "cov_low", why));
  LOSSD_RETURN_IF_ERROR(Exactly(ranges, p.has_cov_high(), "cov_high", why));
  return Exactly(ranges, p.has_cov_seed(), "cov_seed", why);
}

// Ratio, advantage, upstream.
absl::Status CheckInputs(const PolicyTerms& p, const KindRules& rules, bool wants_gradient) {
  const std::string with = absl::StrCat("with kind ", KindName(p));
  if (p.has_advantage() == p.has_sequence_advantage()) {
    return FieldError("advantage", "given, or sequence_advantage, and not both",
                      p.has_advantage() ? "given twice" : "absent");
  }
  LOSSD_RETURN_IF_ERROR(Unless(rules.needs_old, p.has_force_on_policy(), "force_on_policy", with));
  LOSSD_RETURN_IF_ERROR(
      Unless(!p.force_on_policy(), p.has_old_logprob(), "old_logprob", "with force_on_policy"));
  LOSSD_RETURN_IF_ERROR(Required(rules.needs_old && !p.force_on_policy(), p.has_old_logprob(),
                                 "old_logprob", "without force_on_policy"));
  LOSSD_RETURN_IF_ERROR(Unless(rules.clamps, p.has_log_ratio_clamp(), "log_ratio_clamp", with));
  LOSSD_RETURN_IF_ERROR(Unless(p.log_ratio_clamp() != v1::LOG_RATIO_CLAMP_NONE,
                               p.has_log_ratio_bound(), "log_ratio_bound",
                               "without log_ratio_clamp"));
  return Unless(wants_gradient, p.has_d_loss(), "d_loss", "where no gradient is wanted");
}

absl::Status CheckImportance(const PolicyTerms& p) {
  const bool level = p.is_level() != v1::IMPORTANCE_LEVEL_NONE;
  LOSSD_RETURN_IF_ERROR(Exactly(level, p.has_is_mode(), "is_mode", "an is_level"));
  const absl::string_view without = "without an is_level";
  LOSSD_RETURN_IF_ERROR(Unless(level, p.has_is_log_clamp(), "is_log_clamp", without));
  LOSSD_RETURN_IF_ERROR(Unless(level, p.has_is_normalizer(), "is_normalizer", without));
  LOSSD_RETURN_IF_ERROR(Unless(level, p.has_is_row_min(), "is_row_min", without));
  LOSSD_RETURN_IF_ERROR(Unless(level, p.has_is_row_max(), "is_row_max", without));
  const bool bounds = level && p.is_mode() != v1::IMPORTANCE_MODE_RAW;
  const absl::string_view modes = "is_mode TRUNCATE or MASK";
  LOSSD_RETURN_IF_ERROR(Exactly(bounds, p.has_is_max(), "is_max", modes));
  LOSSD_RETURN_IF_ERROR(Unless(bounds, p.has_is_min(), "is_min", absl::StrCat("without ", modes)));
  if (bounds && p.is_min() > p.is_max()) {
    return FieldError("is_min", absl::StrCat("at most is_max, which is ", p.is_max()),
                      absl::StrCat(p.is_min()));
  }
  LOSSD_RETURN_IF_ERROR(
      Required(p.has_is_row_min(), p.has_is_row_max(), "is_row_max", "with is_row_min"));
  return Required(p.has_is_row_max(), p.has_is_row_min(), "is_row_min", "with is_row_max");
}

absl::Status CheckKl(const PolicyTerms& p, const KindRules& rules) {
  const bool kl = p.kl_estimator() != v1::KL_ESTIMATOR_NONE;
  const absl::string_view estimator = "a kl_estimator";
  const std::string without = absl::StrCat("without ", estimator);
  LOSSD_RETURN_IF_ERROR(Exactly(kl, p.has_ref_logprob(), "ref_logprob", estimator));
  LOSSD_RETURN_IF_ERROR(Exactly(kl, p.has_kl_coef(), "kl_coef", estimator));
  LOSSD_RETURN_IF_ERROR(Unless(kl, p.has_kl_in_clamp(), "kl_in_clamp", without));
  LOSSD_RETURN_IF_ERROR(Unless(kl, p.has_kl_out_clamp(), "kl_out_clamp", without));
  LOSSD_RETURN_IF_ERROR(Unless(kl, p.has_kl_weight(), "kl_weight", without));
  LOSSD_RETURN_IF_ERROR(Unless(kl, p.has_kl_straight_through(), "kl_straight_through", without));
  if (!rules.clamps && p.kl_weight() == v1::KL_WEIGHT_RATIO) {
    return FieldError("kl_weight", absl::StrCat("other than RATIO with kind ", KindName(p)),
                      "RATIO");
  }
  if (p.kl_straight_through() && p.kl_weight() != v1::KL_WEIGHT_NONE) {
    return FieldError("kl_straight_through", "false with a kl_weight", "true");
  }
  return absl::OkStatus();
}

absl::Status CheckEntropy(const PolicyTerms& p) {
  const bool entropy = p.entropy_kind() != v1::ENTROPY_KIND_NONE;
  LOSSD_RETURN_IF_ERROR(Exactly(entropy, p.has_entropy_coef(), "entropy_coef", "an entropy_kind"));
  const absl::string_view without = "without an entropy_kind";
  LOSSD_RETURN_IF_ERROR(Unless(entropy, p.has_entropy_mask(), "entropy_mask", without));
  return Unless(entropy, p.has_entropy_denominator(), "entropy_denominator", without);
}

// The first field that speaks of sequences, or of the sampler; empty if there is none.
absl::string_view UserOfSequences(const PolicyTerms& p, const KindRules& rules) {
  if (rules.needs_sequences) return "kind";
  if (p.has_sequence_advantage()) return "sequence_advantage";
  if (p.has_sequence_weight()) return "sequence_weight";
  if (p.has_sequence_pg_weight()) return "sequence_pg_weight";
  if (p.is_level() == v1::IMPORTANCE_LEVEL_SEQUENCE_SUM ||
      p.is_level() == v1::IMPORTANCE_LEVEL_SEQUENCE_MEAN) {
    return "is_level";
  }
  if (p.has_is_row_min()) return "is_row_min";
  if (p.has_off_policy_threshold()) return "off_policy_threshold";
  if (p.sequence_weighting() != v1::SEQUENCE_WEIGHTING_ONE) return "sequence_weighting";
  if (p.denominator_from() == v1::POLICY_DENOMINATOR_SEQUENCES) return "denominator_from";
  return "";
}

absl::string_view UserOfSampler(const PolicyTerms& p) {
  if (p.is_level() != v1::IMPORTANCE_LEVEL_NONE) return "is_level";
  if (p.has_off_policy_threshold()) return "off_policy_threshold";
  if (p.kl_weight() == v1::KL_WEIGHT_SAMPLER_RATIO) return "kl_weight";
  return "";
}

}  // namespace

absl::Status CheckPolicyTerms(const PolicyTerms& policy, bool wants_gradient) {
  const KindRules rules = RulesOf(policy.kind());
  LOSSD_RETURN_IF_ERROR(CheckKind(policy, rules));
  LOSSD_RETURN_IF_ERROR(CheckSelection(policy, rules));
  LOSSD_RETURN_IF_ERROR(CheckInputs(policy, rules, wants_gradient));
  LOSSD_RETURN_IF_ERROR(CheckImportance(policy));
  LOSSD_RETURN_IF_ERROR(CheckKl(policy, rules));
  LOSSD_RETURN_IF_ERROR(CheckEntropy(policy));
  const absl::string_view sequences = UserOfSequences(policy, rules);
  LOSSD_RETURN_IF_ERROR(Required(!sequences.empty(), policy.has_cu_seqlens(), "cu_seqlens",
                                 absl::StrCat("with this ", sequences)));
  const absl::string_view sampler = UserOfSampler(policy);
  LOSSD_RETURN_IF_ERROR(Required(!sampler.empty(), policy.has_sampler_logprob(), "sampler_logprob",
                                 absl::StrCat("with this ", sampler)));
  return Unless(policy.denominator_from() == v1::POLICY_DENOMINATOR_GIVEN, policy.has_denominator(),
                "denominator", "with another denominator_from");
}

absl::Status CheckPolicyOutputs(const PolicyTerms& policy, const v1::PolicyOutputs& outputs) {
  return Unless(policy.kl_estimator() != v1::KL_ESTIMATOR_NONE, outputs.has_kl(), "kl",
                "without a kl_estimator");
}

}  // namespace lossd
