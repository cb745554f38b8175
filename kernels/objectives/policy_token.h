// One token's policy loss, made of the terms: value, derivatives, metrics. Knows nothing of rows, sequences or memory.
// Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_TOKEN_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_TOKEN_H_

#include <cmath>

#include "kernels/core/host_device.h"
#include "kernels/objectives/policy_kinds.h"
#include "kernels/objectives/policy_options.h"
#include "kernels/objectives/policy_sequence.h"
#include "kernels/objectives/policy_terms.h"
#include "kernels/objectives/row.h"

namespace lossd {

template <class Real>
struct PolicyToken {
  Real lp = 0;                  // current log-probability
  Real kl_lp = 0;               // the one in the KL term, usually the same
  Real entropy = 0;             // of the whole distribution; read by entropy_kind TRUE only
  Real old = 0;                 // a constant: lp itself where the call has no old policy
  Real reference = 0;           // read with an estimator
  Real sampler = 0;             // read by kl_weight SAMPLER_RATIO
  Real advantage = 0;           // A
  Real row_weight = 1;          // of all terms
  Real pg_weight = 1;           // W: importance weight, pg_weight, sequence_pg_weight, gates
  bool selected = false;        // CLIP_COV, KL_COV
  bool in_entropy_term = true;  // entropy_mask
  Real scale = 1;               // d_loss omega_b / D
  Real entropy_scale = 0;       // d_loss / entropy_denominator; read only if there is one
  SequenceRatio<Real> shared;   // read where the ratio is of the sequence
};

template <class Real>
struct PolicyTokenResult {
  Real loss = 0;       // l_t
  Real pg = 0;         // W pi
  Real log_ratio = 0;  // q, unclamped
  Real ratio = 1;      // r, or the sequence's
  Real kl = 0;         // weighted, clamped, before the coefficient
  Real entropy = 0;    // H_t of the entropy kind
  // Derivatives of the call's loss. d_logprob lacks the two that follow it.
  Real d_logprob = 0;
  Real d_kl_logprob = 0;
  Real d_shared = 0;  // with respect to the mean that the sequence's ratio is made of
  Real d_entropy = 0;
  PolicyFlags flags;
};

// l = row_weight [W pi + kl_coef KL - entropy_coef H] and its derivatives. A factor of exactly 0 removes its term, so that an overflowed
// ratio behind a weight of 0 does no harm. An entropy term with its own denominator is in the derivatives, but not in l.
template <class Real>
LOSSD_HD PolicyTokenResult<Real> EvaluatePolicyToken(const PolicyOptions<Real>& options,
                                                     const PolicyToken<Real>& token) {
  PolicyTokenResult<Real> result;
  result.log_ratio = token.lp - token.old;
  PolicyArguments<Real> arguments;
  arguments.lp = token.lp;
  arguments.old = token.old;
  arguments.advantage = token.advantage;
  arguments.ratio =
      HasSequenceRatio(options) ? token.shared.ratio : RatioTerm(options, result.log_ratio);
  arguments.selected = token.selected;
  arguments.log_w = token.shared.log_w;
  result.ratio = arguments.ratio.value;
  result.flags = BoundFlags(options, arguments);
  if (options.kind == PolicyKind::kGmpo) arguments.advantage = token.shared.mean_advantage;

  Real value = 0;
  Real slope = 0;        // with respect to lp
  Real ratio_slope = 0;  // with respect to what the ratio is made of
  if (token.pg_weight != 0) {
    const Term<Real> policy = PolicyTerm(options, arguments);
    result.pg = Times(policy.value, token.pg_weight);
    value = result.pg;
    ratio_slope = Times(policy.slope, token.pg_weight);
  }
  const Real scale = Times(token.row_weight, token.scale);
  if (options.kl_estimator != KlEstimator::kNone) {
    const Term<Real> weight =
        KlWeightTerm(options.kl_weight, arguments.ratio, token.lp, token.sampler);
    const KlResult<Real> kl = KlTerm(options, token.reference - token.kl_lp, weight);
    result.kl = kl.value;
    value += Times(options.kl_coef, kl.value);
    result.d_kl_logprob = Times(scale, Times(options.kl_coef, kl.slope));
    const Real through_weight = Times(options.kl_coef, kl.weight_slope);
    (options.kl_weight == KlWeight::kRatio ? ratio_slope : slope) += through_weight;
  }
  Real entropy_slope = 0;  // of the sampled token's -p log p
  if (options.entropy_kind != EntropyKind::kNone && token.in_entropy_term) {
    Term<Real> entropy = {token.entropy, Real(0)};
    if (options.entropy_kind == EntropyKind::kSampledPlogp) entropy = SampledEntropyTerm(token.lp);
    result.entropy = entropy.value;
    const bool apart = options.inverse_entropy_denominator != 0;
    if (!apart) value -= Times(options.entropy_coef, entropy.value);
    const Real factor = -Times(options.entropy_coef, apart ? token.entropy_scale : scale);
    if (options.entropy_kind == EntropyKind::kTrue) {
      result.d_entropy = factor;
    } else {
      entropy_slope = Times(factor, entropy.slope);
    }
  }
  result.loss = Times(token.row_weight, value);
  if (SharesRatioGradient(options)) {
    result.d_shared = Times(scale, ratio_slope);
  } else {
    slope += ratio_slope;
  }
  result.d_logprob = Times(scale, slope) + entropy_slope;
  return result;
}

// How far the sampler's log-probability of a token is from the old policy's: numbers for the trainer's eye, no gradients.
template <class Real>
struct MismatchMetrics {
  Real prob_difference = 0;  // |e^old - e^sampler|
  Real mult_prob_error = 0;  // e^|x|, x = old - sampler
  Real sampler_k3 = 0;       // k3(x)
  Real policy_k3 = 0;        // k3(-x)
  Real js = 0;               // Jensen-Shannon estimate with k3
  Real approx_entropy = 0;   // -e^(lp - sampler) lp
};

template <class Real>
LOSSD_HD_CALLED MismatchMetrics<Real> Mismatch(Real lp, Real old, Real sampler) {
  MismatchMetrics<Real> out;
  const Real x = old - sampler;
  out.prob_difference = std::fabs(std::exp(old) - std::exp(sampler));
  out.mult_prob_error = std::exp(std::fabs(x));
  out.sampler_k3 = K3(x);
  out.policy_k3 = K3(-x);
  // old - m with m = log((e^old + e^sampler) / 2), from the difference alone.
  const Real shared = Real(0.6931471805599453) - std::log1p(std::exp(-std::fabs(x)));
  const Real from_larger = shared;                  // larger - m
  const Real from_smaller = shared - std::fabs(x);  // smaller - m
  out.js = (K3(from_larger) + K3(from_smaller)) / 2;
  out.approx_entropy = -Times(std::exp(lp - sampler), lp);
  return out;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_TOKEN_H_
