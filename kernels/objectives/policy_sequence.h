// What a policy loss makes of a whole sequence: the ratio that its tokens share, and its share of each token's gradient. Templates over the
// real type of the options; sums are doubles. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_SEQUENCE_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_SEQUENCE_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/policy_options.h"
#include "kernels/objectives/policy_terms.h"
#include "kernels/objectives/row.h"

namespace lossd {

// The ratio of a sequence as its tokens see it.
template <class Real>
struct SequenceRatio {
  Term<Real> ratio = {
      Real(1),
      Real(
          1)};  // R or w; the slope is with respect to the mean, or to a token's own lp (GSPO DETACHED)
  Real mean_advantage = 0;  // GMPO
  Real log_w = 0;           // VESPO
};

// c = min(q, h) if A > 0, max(q, -l) if A < 0, 0 if A = 0: the clip of GMPO, in log space (Zhao et al. 2025). Slope 1 on the free side and
// on the bound.
template <class Real>
LOSSD_HD Term<double> GmpoExponent(const PolicyOptions<Real>& options, double q, Real advantage) {
  if (advantage == 0) return {};
  constexpr double kNever = PolicyOptions<double>::kNever;
  const double low = advantage > 0 ? -kNever : -static_cast<double>(options.clip_low);
  const double high = advantage > 0 ? static_cast<double>(options.clip_high) : kNever;
  return {Clamp(q, low, high), IsOutside(q, low, high) ? 0.0 : 1.0};
}

// log w of a weight in VESPO's sum, which stays finite.
LOSSD_HD_CALLED double VespoLog(double weight) {
  constexpr double kLow = -18.420680743952367;  // log 1e-8
  return Clamp(std::log(weight), kLow, 20.0);
}

// What a token's weight adds to log_importance or log_pg_weight.
template <class Real>
LOSSD_HD_CALLED double LogWeight(const PolicyOptions<Real>& options, double weight) {
  return options.kind == PolicyKind::kVespo ? VespoLog(weight) : std::log(weight);
}

// What a token adds to the exponent of its sequence's ratio.
template <class Real>
LOSSD_HD double SequenceExponent(const PolicyOptions<Real>& options, double q, Real advantage) {
  if (options.kind == PolicyKind::kGmpo) return GmpoExponent(options, q, advantage).value;
  if (options.kind == PolicyKind::kVespo) return Clamp(q, -20.0, 20.0);
  return q;
}

// Sums over the tokens of a sequence that count.
struct SequenceSums {
  int32_t length = 0;
  double importance = 0;  // old - sampler
  double drift = 0;       // sampler - lp
  double exponent = 0;    // of the ratio
  double advantage = 0;   // GMPO
  // Logarithms of the weights that tokens bring, for GMPO's geometric mean and VESPO's sum.
  double log_importance = 0;
  double log_pg_weight = 0;
};

// The weights of the policy term that belong to the sequence as a whole.
struct SequenceWeights {
  double importance = 1;  // of the levels of sequences
  double pg_weight = 1;
  bool dropped = false;  // by the row filter: the importance weight of every token is 0
};

// Geometric mean over the sequence of importance weight, pg_weight and sequence_pg_weight; 0 if one of them is. Takes their place in GMPO.
LOSSD_HD double GeometricMeanWeight(const SequenceSums& sums, const SequenceWeights& weights) {
  if (weights.dropped || weights.importance == 0 || weights.pg_weight == 0) return 0;
  const double mean = (sums.log_importance + sums.log_pg_weight) / static_cast<double>(sums.length);
  return std::exp(mean) * weights.importance * weights.pg_weight;
}

// log w of VESPO: the exponents, and the logarithms of the weights, that of a sequence once and that of a token as often as it counts.
template <class Real>
LOSSD_HD double VespoLogSum(const PolicyOptions<Real>& options, const SequenceSums& sums,
                            const SequenceWeights& weights) {
  double sum = sums.exponent + sums.log_pg_weight + VespoLog(weights.pg_weight);
  if (IsSequenceLevel(options)) {
    sum += VespoLog(weights.dropped ? 0.0 : weights.importance);
  } else if (options.is_level == ImportanceLevel::kToken) {
    sum += weights.dropped ? static_cast<double>(sums.length) * VespoLog(0) : sums.log_importance;
  }
  return Clamp(sum, VespoLog(0), 20.0);
}

// R = exp(C(mean q)) (GSPO, LUSPO), exp(mean c) (GMPO), w (VESPO). Of a sequence with at least one token.
template <class Real>
LOSSD_HD SequenceRatio<Real> MakeSequenceRatio(const PolicyOptions<Real>& options,
                                               const SequenceSums& sums,
                                               const SequenceWeights& weights) {
  SequenceRatio<Real> shared;
  const double length = static_cast<double>(sums.length);
  if (options.kind == PolicyKind::kVespo) {
    const double log_w = VespoLogSum(options, sums, weights);
    shared.log_w = static_cast<Real>(log_w);
    shared.ratio = {static_cast<Real>(std::exp(log_w)), Real(0)};
    return shared;
  }
  // GMPO has no clamp of the log-ratio: then RatioTerm is exp.
  shared.ratio = RatioTerm(options, static_cast<Real>(sums.exponent / length));
  if (options.kind == PolicyKind::kGmpo) {
    shared.mean_advantage = static_cast<Real>(sums.advantage / length);
  }
  return shared;
}

// A token's part of the gradient that the sequence shares: d_shared is the sum over its tokens of their derivatives with respect to the mean.
template <class Real>
LOSSD_HD double ShareOfToken(const PolicyOptions<Real>& options, double d_shared, int64_t length,
                             double q, Real advantage) {
  const bool free =
      options.kind != PolicyKind::kGmpo || GmpoExponent(options, q, advantage).slope != 0;
  return free ? d_shared / static_cast<double>(length) : 0.0;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_SEQUENCE_H_
