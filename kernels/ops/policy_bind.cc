#include "kernels/ops/policy_bind.h"

#include "kernels/core/tensor_view.h"
#include "kernels/linear/bind_head.h"

namespace lossd {
namespace {

// The formulas' enums have the numbers of the wire.
static_assert(static_cast<int>(PolicyKind::kPpo) == v1::POLICY_KIND_PPO);
static_assert(static_cast<int>(PolicyKind::kReinforce) == v1::POLICY_KIND_REINFORCE);
static_assert(static_cast<int>(PolicyKind::kGpg) == v1::POLICY_KIND_GPG);
static_assert(static_cast<int>(PolicyKind::kGspo) == v1::POLICY_KIND_GSPO);
static_assert(static_cast<int>(PolicyKind::kLuspo) == v1::POLICY_KIND_LUSPO);
static_assert(static_cast<int>(PolicyKind::kCispo) == v1::POLICY_KIND_CISPO);
static_assert(static_cast<int>(PolicyKind::kSapo) == v1::POLICY_KIND_SAPO);
static_assert(static_cast<int>(PolicyKind::kGmpo) == v1::POLICY_KIND_GMPO);
static_assert(static_cast<int>(PolicyKind::kDppoTv) == v1::POLICY_KIND_DPPO_TV);
static_assert(static_cast<int>(PolicyKind::kDppoKl) == v1::POLICY_KIND_DPPO_KL);
static_assert(static_cast<int>(PolicyKind::kDro) == v1::POLICY_KIND_DRO);
static_assert(static_cast<int>(PolicyKind::kVespo) == v1::POLICY_KIND_VESPO);
static_assert(static_cast<int>(PolicyKind::kClipCov) == v1::POLICY_KIND_CLIP_COV);
static_assert(static_cast<int>(PolicyKind::kKlCov) == v1::POLICY_KIND_KL_COV);
static_assert(static_cast<int>(GspoGradient::kThroughMean) == v1::GSPO_GRADIENT_THROUGH_MEAN);
static_assert(static_cast<int>(GspoGradient::kDetached) == v1::GSPO_GRADIENT_DETACHED);
static_assert(static_cast<int>(LogRatioClamp::kNone) == v1::LOG_RATIO_CLAMP_NONE);
static_assert(static_cast<int>(LogRatioClamp::kSymmetric) == v1::LOG_RATIO_CLAMP_SYMMETRIC);
static_assert(static_cast<int>(LogRatioClamp::kUpper) == v1::LOG_RATIO_CLAMP_UPPER);
static_assert(static_cast<int>(ImportanceLevel::kNone) == v1::IMPORTANCE_LEVEL_NONE);
static_assert(static_cast<int>(ImportanceLevel::kToken) == v1::IMPORTANCE_LEVEL_TOKEN);
static_assert(static_cast<int>(ImportanceLevel::kSequenceSum) == v1::IMPORTANCE_LEVEL_SEQUENCE_SUM);
static_assert(static_cast<int>(ImportanceLevel::kSequenceMean) ==
              v1::IMPORTANCE_LEVEL_SEQUENCE_MEAN);
static_assert(static_cast<int>(ImportanceMode::kRaw) == v1::IMPORTANCE_MODE_RAW);
static_assert(static_cast<int>(ImportanceMode::kTruncate) == v1::IMPORTANCE_MODE_TRUNCATE);
static_assert(static_cast<int>(ImportanceMode::kMask) == v1::IMPORTANCE_MODE_MASK);
static_assert(static_cast<int>(KlEstimator::kNone) == v1::KL_ESTIMATOR_NONE);
static_assert(static_cast<int>(KlEstimator::kK1) == v1::KL_ESTIMATOR_K1);
static_assert(static_cast<int>(KlEstimator::kK2) == v1::KL_ESTIMATOR_K2);
static_assert(static_cast<int>(KlEstimator::kK3) == v1::KL_ESTIMATOR_K3);
static_assert(static_cast<int>(KlEstimator::kAbs) == v1::KL_ESTIMATOR_ABS);
static_assert(static_cast<int>(KlWeight::kNone) == v1::KL_WEIGHT_NONE);
static_assert(static_cast<int>(KlWeight::kRatio) == v1::KL_WEIGHT_RATIO);
static_assert(static_cast<int>(KlWeight::kScoreFunction) == v1::KL_WEIGHT_SCORE_FUNCTION);
static_assert(static_cast<int>(KlWeight::kSamplerRatio) == v1::KL_WEIGHT_SAMPLER_RATIO);
static_assert(static_cast<int>(EntropyKind::kNone) == v1::ENTROPY_KIND_NONE);
static_assert(static_cast<int>(EntropyKind::kTrue) == v1::ENTROPY_KIND_TRUE);
static_assert(static_cast<int>(EntropyKind::kSampledPlogp) == v1::ENTROPY_KIND_SAMPLED_PLOGP);
static_assert(static_cast<int>(SequenceWeighting::kOne) == v1::SEQUENCE_WEIGHTING_ONE);
static_assert(static_cast<int>(SequenceWeighting::kInverseLength) ==
              v1::SEQUENCE_WEIGHTING_INVERSE_LENGTH);
static_assert(static_cast<int>(SequenceWeighting::kLength) == v1::SEQUENCE_WEIGHTING_LENGTH);
static_assert(static_cast<int>(PolicyDenominator::kGiven) == v1::POLICY_DENOMINATOR_GIVEN);
static_assert(static_cast<int>(PolicyDenominator::kCount) == v1::POLICY_DENOMINATOR_COUNT);
static_assert(static_cast<int>(PolicyDenominator::kSequences) == v1::POLICY_DENOMINATOR_SEQUENCES);

// What the policy term reads.
void SetKindOptions(const v1::PolicyTerms& policy, PolicyOptions<float>* options) {
  options->kind = static_cast<PolicyKind>(policy.kind());
  options->log_ratio_clamp = static_cast<LogRatioClamp>(policy.log_ratio_clamp());
  options->log_ratio_bound = static_cast<float>(policy.log_ratio_bound());
  if (policy.has_clip_low()) {
    options->clip_low = static_cast<float>(policy.clip_low());
    options->ratio_low = static_cast<float>(1 - policy.clip_low());
  }
  if (policy.has_clip_high()) {
    options->clip_high = static_cast<float>(policy.clip_high());
    options->ratio_high = static_cast<float>(1 + policy.clip_high());
  }
  if (policy.has_ratio_cap()) options->ratio_cap = static_cast<float>(policy.ratio_cap());
  if (policy.has_cispo_high()) {
    options->ratio_low = static_cast<float>(policy.cispo_low());
    options->ratio_high = static_cast<float>(policy.cispo_high());
  }
  if (policy.has_gspo_gradient()) {
    options->gspo_gradient = static_cast<GspoGradient>(policy.gspo_gradient());
  }
  options->sapo_tau_pos = static_cast<float>(policy.sapo_tau_pos());
  options->sapo_tau_neg = static_cast<float>(policy.sapo_tau_neg());
  options->dro_beta = static_cast<float>(policy.dro_beta());
  options->vespo_k_pos = static_cast<float>(policy.vespo_k_pos());
  options->vespo_lambda_pos = static_cast<float>(policy.vespo_lambda_pos());
  options->vespo_k_neg = static_cast<float>(policy.vespo_k_neg());
  options->vespo_lambda_neg = static_cast<float>(policy.vespo_lambda_neg());
  options->kl_cov_coef = static_cast<float>(policy.kl_cov_coef());
  options->cov_ratio = policy.cov_ratio();
  options->cov_low = policy.cov_low();
  options->cov_high = policy.cov_high();
  options->cov_seed = static_cast<uint64_t>(policy.cov_seed());
}

PolicyOptions<float> MakeOptions(const v1::PolicyTerms& policy) {
  PolicyOptions<float> options;
  SetKindOptions(policy, &options);
  options.is_level = static_cast<ImportanceLevel>(policy.is_level());
  if (policy.has_is_mode()) options.is_mode = static_cast<ImportanceMode>(policy.is_mode());
  if (policy.has_is_log_clamp()) options.is_log_clamp = static_cast<float>(policy.is_log_clamp());
  options.is_min = static_cast<float>(policy.is_min());
  if (policy.has_is_max()) options.is_max = static_cast<float>(policy.is_max());
  options.is_row_filter = policy.has_is_row_min();
  options.is_row_min = static_cast<float>(policy.is_row_min());
  if (policy.has_is_row_max()) options.is_row_max = static_cast<float>(policy.is_row_max());
  options.is_normalizer = static_cast<float>(policy.is_normalizer());
  if (policy.has_entropy_threshold()) {
    options.entropy_threshold = static_cast<float>(policy.entropy_threshold());
  }
  options.has_off_policy_threshold = policy.has_off_policy_threshold();
  options.off_policy_threshold = static_cast<float>(policy.off_policy_threshold());

  options.kl_estimator = static_cast<KlEstimator>(policy.kl_estimator());
  options.kl_weight = static_cast<KlWeight>(policy.kl_weight());
  options.kl_coef = static_cast<float>(policy.kl_coef());
  if (policy.has_kl_in_clamp()) options.kl_in_clamp = static_cast<float>(policy.kl_in_clamp());
  if (policy.has_kl_out_clamp()) options.kl_out_clamp = static_cast<float>(policy.kl_out_clamp());
  options.kl_straight_through = policy.kl_straight_through();

  options.entropy_kind = static_cast<EntropyKind>(policy.entropy_kind());
  options.entropy_coef = static_cast<float>(policy.entropy_coef());
  if (policy.has_entropy_denominator()) {
    options.inverse_entropy_denominator = static_cast<float>(1 / policy.entropy_denominator());
  }

  options.sequence_weighting = static_cast<SequenceWeighting>(policy.sequence_weighting());
  options.denominator_from = static_cast<PolicyDenominator>(policy.denominator_from());
  options.denominator = policy.denominator();
  return options;
}

// Whether the request's options make the metric.
bool IsMade(const v1::PolicyTerms& policy, bool head_metrics, int metric) {
  switch (metric) {
    case kPolicyKl:
      return policy.kl_estimator() != v1::KL_ESTIMATOR_NONE;
    case kPolicyEntropy:
      return policy.entropy_kind() != v1::ENTROPY_KIND_NONE;
    case kPolicyImportanceWeight:
    case kPolicyImportanceWeightSquared:
    case kPolicyImportanceOutOfBounds:
      return policy.is_level() != v1::IMPORTANCE_LEVEL_NONE;
    case kPolicyProbDifference:
    case kPolicyMultProbError:
    case kPolicySamplerK3:
    case kPolicyPolicyK3:
    case kPolicyJs:
    case kPolicyApproxEntropy:
      return policy.has_sampler_logprob();
    case kPolicyAccuracy:
    case kPolicyHeadEntropy:
    case kPolicyMeanLogit:
      return head_metrics;
    default:
      return true;
  }
}

}  // namespace

PolicyProblem BindPolicy(const v1::PolicyTerms& policy, const v1::PolicyOutputs& outputs,
                         const Dims& dims, const Binding& binding) {
  const auto column = [&](const v1::Tensor& tensor) { return BindColumn(tensor, binding); };
  PolicyProblem problem;
  problem.options = MakeOptions(policy);
  problem.rows = dims["N"];
  problem.sequences = policy.has_cu_seqlens() ? dims["B"] : 1;
  problem.advantage = column(policy.advantage());
  problem.old_logprob = column(policy.old_logprob());
  problem.ref_logprob = column(policy.ref_logprob());
  problem.sampler_logprob = column(policy.sampler_logprob());
  problem.row_weight = column(policy.row_weight());
  problem.pg_weight = column(policy.pg_weight());
  problem.entropy_mask = column(policy.entropy_mask());
  problem.cov_selected = column(policy.cov_selected());
  problem.cu_seqlens = column(policy.cu_seqlens());
  problem.sequence_advantage = column(policy.sequence_advantage());
  problem.sequence_weight = column(policy.sequence_weight());
  problem.sequence_pg_weight = column(policy.sequence_pg_weight());
  problem.d_loss = column(policy.d_loss());
  problem.loss = column(outputs.loss());
  problem.row_loss = column(outputs.row_loss());
  problem.ratio = column(outputs.ratio());
  problem.importance_weight = column(outputs.importance_weight());
  problem.kl = column(outputs.kl());
  return problem;
}

bool SelectsTokens(const PolicyProblem& problem) { return problem.options.cov_ratio > 0; }

bool NeedsStatisticsFirst(const PolicyProblem& problem) {
  const PolicyOptions<float>& options = problem.options;
  if (options.has_off_policy_threshold || HasSequenceRatio(options) || SelectsTokens(problem)) {
    return true;
  }
  const bool sums_x = options.is_row_filter || IsSequenceLevel(options);
  return sums_x && !problem.old_logprob;
}

std::vector<std::string> PolicyMetricNames() {
  std::vector<std::string> names = {"loss",
                                    "pg",
                                    "ratio",
                                    "log_ratio",
                                    "below",
                                    "above",
                                    "clip_low",
                                    "clip_high",
                                    "ratio_capped",
                                    "kl",
                                    "entropy",
                                    "importance_weight",
                                    "importance_weight_squared",
                                    "importance_out_of_bounds",
                                    "prob_difference",
                                    "mult_prob_error",
                                    "sampler_k3",
                                    "policy_k3",
                                    "js",
                                    "approx_entropy",
                                    "accuracy",
                                    "head_entropy",
                                    "mean_logit"};
  return names;
}

static_assert(kPolicyMetrics == 23 && kPolicyMetrics <= kMaxMetrics);

void FillPolicyReply(const v1::PolicyTerms& policy, bool head_metrics,
                     const std::vector<std::string>& names, const ResultRecord& record,
                     v1::OpReply* reply) {
  reply->set_sum(record.sum);
  reply->set_count(record.count);
  reply->set_sequence_count(record.sequence_count);
  for (int m = 0; m < kPolicyMetrics; ++m) {
    if (!IsMade(policy, head_metrics, m)) continue;
    v1::Metric& metric = (*reply->mutable_metrics())[names[m]];
    metric.set_sum(record.metrics[m].sum);
    metric.set_count(record.metrics[m].count);
    metric.set_min(record.metrics[m].min);
    metric.set_max(record.metrics[m].max);
  }
}

}  // namespace lossd
