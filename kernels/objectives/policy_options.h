// The options of a policy loss as its formulas read them. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_OPTIONS_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_OPTIONS_H_

#include <cstdint>
#include <limits>

#include "kernels/core/host_device.h"

namespace lossd {

// Numbers are those of the enums in policy.proto (checked at compile time where they are converted).
enum class PolicyKind : int32_t {
  kPpo = 1,
  kReinforce = 2,
  kGpg = 3,
  kGspo = 4,
  kLuspo = 5,
  kCispo = 6,
  kSapo = 7,
  kGmpo = 8,
  kDppoTv = 9,
  kDppoKl = 10,
  kDro = 11,
  kVespo = 12,
  kClipCov = 13,
  kKlCov = 14
};
enum class GspoGradient : int32_t { kThroughMean = 1, kDetached = 2 };
enum class LogRatioClamp : int32_t { kNone = 1, kSymmetric = 2, kUpper = 3 };
enum class ImportanceLevel : int32_t { kNone = 1, kToken = 2, kSequenceSum = 3, kSequenceMean = 4 };
enum class ImportanceMode : int32_t { kRaw = 1, kTruncate = 2, kMask = 3 };
enum class KlEstimator : int32_t { kNone = 1, kK1 = 2, kK2 = 3, kK3 = 4, kAbs = 5 };
enum class KlWeight : int32_t { kNone = 1, kRatio = 2, kScoreFunction = 3, kSamplerRatio = 4 };
enum class EntropyKind : int32_t { kNone = 1, kTrue = 2, kSampledPlogp = 3 };
enum class SequenceWeighting : int32_t { kOne = 1, kInverseLength = 2, kLength = 3 };
enum class PolicyDenominator : int32_t { kGiven = 1, kCount = 2, kSequences = 3 };

// A bound that is not asked for is infinite, so that no formula needs to know whether it is there.
template <class Real>
struct PolicyOptions {
  static constexpr Real kNever = std::numeric_limits<Real>::infinity();

  PolicyKind kind = PolicyKind::kPpo;
  LogRatioClamp log_ratio_clamp = LogRatioClamp::kNone;
  Real log_ratio_bound = 20;  // nats
  Real ratio_low = 0;         // 1 - clip_low; CISPO: cispo_low
  Real ratio_high = kNever;   // 1 + clip_high; CISPO: cispo_high
  Real clip_low = kNever;     // as given: GMPO, DPPO
  Real clip_high = kNever;
  Real ratio_cap = kNever;  // dual clip, delta
  GspoGradient gspo_gradient = GspoGradient::kThroughMean;
  Real sapo_tau_pos = 1;
  Real sapo_tau_neg = Real(1.05);
  Real dro_beta = 0;
  Real vespo_k_pos = 2;
  Real vespo_lambda_pos = 3;
  Real vespo_k_neg = 3;
  Real vespo_lambda_neg = 2;
  Real kl_cov_coef = 0;

  // Selection by the server.
  double cov_ratio = 0;
  double cov_low = 0;
  double cov_high = 0;
  uint64_t cov_seed = 0;

  ImportanceLevel is_level = ImportanceLevel::kNone;
  ImportanceMode is_mode = ImportanceMode::kRaw;
  Real is_log_clamp = kNever;  // nats
  Real is_min = 0;
  Real is_max = kNever;
  bool is_row_filter = false;
  Real is_row_min = 0;
  Real is_row_max = kNever;
  Real is_normalizer = 1;

  Real entropy_threshold = -kNever;  // nats; -infinity: no gate
  bool has_off_policy_threshold = false;
  Real off_policy_threshold = kNever;  // nats

  KlEstimator kl_estimator = KlEstimator::kNone;
  KlWeight kl_weight = KlWeight::kNone;
  Real kl_coef = 0;
  Real kl_in_clamp = kNever;   // nats
  Real kl_out_clamp = kNever;  // nats
  bool kl_straight_through = false;

  EntropyKind entropy_kind = EntropyKind::kNone;
  Real entropy_coef = 0;
  // Reciprocal of entropy_denominator; 0: the term is part of the token's loss.
  Real inverse_entropy_denominator = 0;

  SequenceWeighting sequence_weighting = SequenceWeighting::kOne;
  PolicyDenominator denominator_from = PolicyDenominator::kGiven;
  double denominator = 1;
};

// Kinds whose ratio is of the whole sequence.
template <class Real>
LOSSD_HD bool HasSequenceRatio(const PolicyOptions<Real>& options) {
  return options.kind == PolicyKind::kGspo || options.kind == PolicyKind::kLuspo ||
         options.kind == PolicyKind::kGmpo || options.kind == PolicyKind::kVespo;
}

// ... and whose gradient goes through the mean over the sequence, so that its tokens share it.
template <class Real>
LOSSD_HD bool SharesRatioGradient(const PolicyOptions<Real>& options) {
  return options.kind == PolicyKind::kLuspo || options.kind == PolicyKind::kGmpo ||
         (options.kind == PolicyKind::kGspo && options.gspo_gradient == GspoGradient::kThroughMean);
}

template <class Real>
LOSSD_HD bool IsSequenceLevel(const PolicyOptions<Real>& options) {
  return options.is_level == ImportanceLevel::kSequenceSum ||
         options.is_level == ImportanceLevel::kSequenceMean;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_OPTIONS_H_
