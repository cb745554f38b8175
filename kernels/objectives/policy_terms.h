// The terms of a policy loss that all kinds have in common, each with its derivative beside it; the kinds' own terms are in policy_kinds.h. Templates over the real type: kernels run them in fp32, the finite
// differences of the tests in double. Plain C++: nvcc reads it.
//
// Two rules hold everywhere. A bound is inside: on it the derivative is that of the free side. NaN is never hidden by a clamp:
// comparisons are written so that it passes through.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_TERMS_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_TERMS_H_

#include <cmath>

#include "kernels/core/host_device.h"
#include "kernels/objectives/policy_options.h"
#include "kernels/objectives/row.h"

namespace lossd {

// A value and its derivative with respect to the current log-probability lp.
template <class Real>
struct Term {
  Real value = 0;
  Real slope = 0;
};

// min(max(x, low), high), NaN stays NaN.
template <class Real>
LOSSD_HD Real Clamp(Real x, Real low, Real high) {
  if (x < low) x = low;
  return x > high ? high : x;
}

template <class Real>
LOSSD_HD bool IsOutside(Real x, Real low, Real high) {
  return x < low || x > high;
}

// r = exp(C(q)), q = lp - old. verl and OpenRLHF clamp on both sides at 20, verl's GSPO from above at 10; the others don't.
template <class Real>
LOSSD_HD Term<Real> RatioTerm(const PolicyOptions<Real>& options, Real q) {
  Real clamped = q;
  if (options.log_ratio_clamp != LogRatioClamp::kNone) {
    const Real low = options.log_ratio_clamp == LogRatioClamp::kSymmetric
                         ? -options.log_ratio_bound
                         : -PolicyOptions<Real>::kNever;
    clamped = Clamp(q, low, options.log_ratio_bound);
    if (IsOutside(q, low, options.log_ratio_bound)) return {std::exp(clamped), Real(0)};
  }
  const Real ratio = std::exp(clamped);
  return {ratio, ratio};
}

// Estimate of KL(policy, reference) from the sampled token, d = ref - lp; slope with respect to lp. Schulman 2020, "Approximating KL
// divergence"; ABS is verl's.
template <class Real>
LOSSD_HD Term<Real> KlEstimate(KlEstimator estimator, Real d) {
  switch (estimator) {
    case KlEstimator::kNone:
      return {};
    case KlEstimator::kK1:
      return {-d, Real(1)};
    case KlEstimator::kK2:
      return {d * d / 2, -d};
    case KlEstimator::kK3: {
      const Real grown = std::expm1(d);  // e^d - 1, exact where the policy is near the reference
      return {grown == PolicyOptions<Real>::kNever ? grown : grown - d, -grown};
    }
    case KlEstimator::kAbs:
      return {std::fabs(d), d > 0 ? Real(-1) : (d < 0 ? Real(1) : d)};
  }
  return {};
}

// The factor v of the estimate. RATIO: TRL's bias correction. SCORE_FUNCTION: value 1, gradient that of log p (NeMo-RL).
// SAMPLER_RATIO: exp(lp - sampler), NeMo-RL's on-policy approximation.
template <class Real>
LOSSD_HD_CALLED Term<Real> KlWeightTerm(KlWeight weight, Term<Real> ratio, Real lp, Real sampler) {
  switch (weight) {
    case KlWeight::kNone:
      return {Real(1), Real(0)};
    case KlWeight::kRatio:
      return ratio;
    case KlWeight::kScoreFunction:
      return {Real(1), Real(1)};
    case KlWeight::kSamplerRatio: {
      const Real v = std::exp(lp - sampler);
      return std::isfinite(v) ? Term<Real>{v, v} : Term<Real>{};
    }
  }
  return {};
}

// The KL term: its slopes are kept apart, since v and the estimate may be made of different log-probabilities.
template <class Real>
struct KlResult {
  Real value = 0;
  Real slope = 0;         // through d, with respect to the log-probability in it
  Real weight_slope = 0;  // through v
};

// clamp(v estimate(clamp(d))), before the coefficient. A clamp that is active takes the whole gradient away, the weight's too.
// Straight-through (verl "+"): the value as it is, the gradient that of K2 on the unclamped d.
template <class Real>
LOSSD_HD_CALLED KlResult<Real> KlTerm(const PolicyOptions<Real>& options, Real d,
                                      Term<Real> weight) {
  const Real in = options.kl_in_clamp;
  const Term<Real> estimate = KlEstimate(options.kl_estimator, Clamp(d, -in, in));
  const Real weighted = Times(weight.value, estimate.value);
  const Real out = options.kl_out_clamp;
  KlResult<Real> term;
  term.value = Clamp(weighted, -out, out);
  if (options.kl_straight_through) {
    term.slope = -d;
  } else if (!IsOutside(d, -in, in) && !IsOutside(weighted, -out, out)) {
    term.slope = Times(weight.value, estimate.slope);
    term.weight_slope = Times(weight.slope, estimate.value);
  }
  return term;
}

// -p log p of the sampled token (Megatron-RL), p = exp(lp). The entropy of the whole distribution comes from the head.
template <class Real>
LOSSD_HD_CALLED Term<Real> SampledEntropyTerm(Real lp) {
  const Real p = std::exp(lp);
  return {-Times(p, lp), -Times(p, lp + 1)};
}

template <class Real>
struct ImportanceTerm {
  Real weight = 1;
  bool out_of_bounds = false;
};

// The detached weight exp(x) of the policy term, x being the token's old - sampler, or its sum or mean over the sequence. In double:
// a weight that only fp32 cannot hold is truncated, not taken for an infinite one. TRUNCATE: truncated importance sampling (Yao et
// al. 2025); MASK: IcePop.
template <class Real>
LOSSD_HD_CALLED ImportanceTerm<Real> ImportanceWeight(const PolicyOptions<Real>& options,
                                                      double x) {
  const double clamp = options.is_log_clamp;
  double w = std::exp(Clamp(x, -clamp, clamp));
  if (!std::isfinite(w)) w = 0;
  ImportanceTerm<Real> term;
  if (options.is_mode != ImportanceMode::kRaw) {
    const double low = options.is_min;
    const double high = options.is_max;
    term.out_of_bounds = IsOutside(w, low, high);
    if (options.is_mode == ImportanceMode::kTruncate) {
      w = Clamp(w, low, high);
    } else if (term.out_of_bounds) {
      w = 0;
    }
  }
  term.weight = static_cast<Real>(w / options.is_normalizer);
  if (!std::isfinite(term.weight)) term.weight = 0;
  return term;
}

// Row filter (seq-mask-tis): whether a sequence whose mean of old - sampler is `mean_x` loses its weight.
template <class Real>
LOSSD_HD_CALLED bool IsSequenceDropped(const PolicyOptions<Real>& options, double mean_x) {
  if (!options.is_row_filter) return false;
  const double w = std::exp(mean_x);
  return !(w >= options.is_row_min && w <= options.is_row_max);
}

// The policy term counts only where the entropy is at least the threshold (TRL: the top tokens by entropy).
template <class Real>
LOSSD_HD bool PassesEntropyGate(const PolicyOptions<Real>& options, Real entropy) {
  return options.entropy_threshold == -PolicyOptions<Real>::kNever ||
         entropy >= options.entropy_threshold;
}

// ... and where A >= 0 or the sequence has not left the sampler (TRL, DeepSeek-V3.2). `drift`: mean of sampler - lp over the sequence.
template <class Real>
LOSSD_HD bool PassesOffPolicyGate(const PolicyOptions<Real>& options, Real advantage, Real drift) {
  return !options.has_off_policy_threshold || advantage >= 0 ||
         drift <= options.off_policy_threshold;
}

// Factor of a sequence with `length` tokens that count, before sequence_weight.
template <class Real>
LOSSD_HD Real LengthFactor(SequenceWeighting weighting, Real length) {
  switch (weighting) {
    case SequenceWeighting::kOne:
      return Real(1);
    case SequenceWeighting::kInverseLength:
      return 1 / (length > 1 ? length : Real(1));
    case SequenceWeighting::kLength:
      return length;
  }
  return Real(1);
}

// k3 between two samplers, k3(y) = e^y - y - 1 (metrics only).
template <class Real>
LOSSD_HD Real K3(Real y) {
  return KlEstimate(KlEstimator::kK3, y).value;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_TERMS_H_
