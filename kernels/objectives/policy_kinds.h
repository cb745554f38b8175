// The policy term of each kind, with its derivative beside it. Rules as in policy_terms.h. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_POLICY_KINDS_H_
#define LOSSD_KERNELS_OBJECTIVES_POLICY_KINDS_H_

#include <cmath>

#include "kernels/core/host_device.h"
#include "kernels/objectives/policy_options.h"
#include "kernels/objectives/policy_terms.h"
#include "kernels/objectives/row.h"

namespace lossd {

// What a policy term is made of.
template <class Real>
struct PolicyArguments {
  Real lp = 0;
  Real old = 0;
  Real advantage = 0;     // A; GMPO: its mean over the sequence
  Term<Real> ratio;       // r with its derivative, or the sequence's
  bool selected = false;  // CLIP_COV, KL_COV
  Real log_w = 0;         // VESPO: log w
};

// -min(min(r, cap if A < 0) A, clamp(r, 1 - l, 1 + h) A). Schulman et al. 2017, eq. 7; the cap is the dual clip of Ye et al. 2020
// (verl, NeMo-RL, OpenRLHF: 3) and the two-sided delta of TRL and Liger. `high` >= 1 + h >= `low`.
template <class Real>
LOSSD_HD Term<Real> PpoTerm(const PolicyOptions<Real>& options, const Term<Real>& ratio,
                            Real advantage) {
  if (advantage == 0) return {};
  const Real r = ratio.value;
  if (advantage > 0) {
    const bool clipped = r > options.ratio_high;
    const Real used = clipped ? options.ratio_high : r;
    return {-advantage * used, clipped ? Real(0) : -advantage * ratio.slope};
  }
  const bool clipped = IsOutside(r, options.ratio_low, options.ratio_cap);
  const Real used = Clamp(r, options.ratio_low, options.ratio_cap);
  return {-advantage * used, clipped ? Real(0) : -advantage * ratio.slope};
}

// -A c lp with a constant c. A factor of 0 stands against lp = -infinity. c = 1: Williams 1992 (REINFORCE); Chu et al. 2025 (GPG) has
// the same token term.
template <class Real>
LOSSD_HD Term<Real> WeightedLogprobTerm(Real advantage, Real c, Real lp) {
  const Real factor = Times(advantage, c);
  return {-Times(factor, lp), -factor};
}

// -A sg(clamp(r, low, high)) lp. MiniMax 2025 (CISPO); TRL and Liger bound by [0, high], verl and NeMo-RL by [1 - l, 1 + h].
template <class Real>
LOSSD_HD Term<Real> CispoTerm(const PolicyOptions<Real>& options, Real r, Real advantage, Real lp) {
  return WeightedLogprobTerm(advantage, Clamp(r, options.ratio_low, options.ratio_high), lp);
}

// -A (4 / tau) s, s = sigmoid(tau (r - 1)); derivative -4 A s (1 - s) r'. Gao et al. 2025 (SAPO), as in TRL.
template <class Real>
LOSSD_HD_CALLED Term<Real> SapoTerm(const PolicyOptions<Real>& options, Term<Real> ratio,
                                    Real advantage) {
  if (advantage == 0) return {};
  const Real tau = advantage > 0 ? options.sapo_tau_pos : options.sapo_tau_neg;
  const Real x = tau * (ratio.value - 1);
  const Real e = std::exp(-std::fabs(x));
  const Real s = (x < 0 ? e : Real(1)) / (1 + e);
  const Real bend = e / ((1 + e) * (1 + e));  // s (1 - s): exactly 0 where the ratio overflows
  return {-advantage * (4 / tau) * s, -4 * advantage * Times(bend, ratio.slope)};
}

// Whether a token keeps its gradient under DPPO: it must not have moved by more than the bounds in the direction that its advantage pushes
// to. TV: by probability; KL: by the divergence of (token, all others) between old and current policy, with 1e-8 against probability 1.
// verl. NaN is kept, so that the loss shows it.
template <class Real>
LOSSD_HD_CALLED bool IsKeptByDppo(const PolicyOptions<Real>& options, Real lp, Real old,
                                  Real advantage) {
  const Real p = lp > 0 ? Real(1) : std::exp(lp);
  const Real p_old = old > 0 ? Real(1) : std::exp(old);
  if (options.kind == PolicyKind::kDppoTv) {
    return advantage > 0 ? !(p - p_old > options.clip_high) : !(p - p_old < -options.clip_low);
  }
  // 1 - p without cancellation.
  const Real rest = lp > 0 ? Real(0) : -std::expm1(lp);
  const Real rest_old = old > 0 ? Real(0) : -std::expm1(old);
  const Real tiny = Real(1e-8);
  const Real k =
      Times(p_old, old - lp) + Times(rest_old, std::log((rest_old + tiny) / (rest + tiny)));
  return advantage > 0 ? !(k > options.clip_high) || p <= p_old
                       : !(k > options.clip_low) || p >= p_old;
}

// -A sg(min(r, cap)) lp on kept tokens.
template <class Real>
LOSSD_HD Term<Real> DppoTerm(const PolicyOptions<Real>& options, const PolicyArguments<Real>& x) {
  if (!IsKeptByDppo(options, x.lp, x.old, x.advantage)) return {};
  const Real r = x.ratio.value;
  const Real c = r > options.ratio_cap ? options.ratio_cap : r;
  return WeightedLogprobTerm(x.advantage, c, x.lp);
}

// -A lp + (beta / 2) q^2: the one kind that pulls tokens without advantage, too. Richemond et al. 2024 (DRO).
template <class Real>
LOSSD_HD_CALLED Term<Real> DroTerm(const PolicyOptions<Real>& options, Real q, Real advantage,
                                   Real lp) {
  const Term<Real> reinforce = WeightedLogprobTerm(advantage, Real(1), lp);
  const Real pull = Times(options.dro_beta, q);
  return {reinforce.value + Times(q, pull) / 2, reinforce.slope + pull};
}

// phi = exp(lambda + k log w - lambda w), a constant of the gradient; 0 if it is not finite. TRL (VESPO).
template <class Real>
LOSSD_HD_CALLED Real VespoFactor(const PolicyOptions<Real>& options, Real log_w, Real advantage) {
  const Real k = advantage >= 0 ? options.vespo_k_pos : options.vespo_k_neg;
  const Real lambda = advantage >= 0 ? options.vespo_lambda_pos : options.vespo_lambda_neg;
  const Real phi = std::exp(lambda + k * log_w - lambda * std::exp(log_w));
  return std::isfinite(phi) ? phi : Real(0);
}

// -A r, plus coef |q| on selected tokens, with or without advantage. Cui et al. 2025 (KL-Cov).
template <class Real>
LOSSD_HD Term<Real> KlCovTerm(const PolicyOptions<Real>& options, const PolicyArguments<Real>& x) {
  Term<Real> term = {-Times(x.advantage, x.ratio.value), -Times(x.advantage, x.ratio.slope)};
  if (!x.selected) return term;
  const Real q = x.lp - x.old;
  const Real sign = q > 0 ? Real(1) : (q < 0 ? Real(-1) : q);
  term.value += Times(options.kl_cov_coef, std::fabs(q));
  term.slope += Times(options.kl_cov_coef, sign);
  return term;
}

// pi. The slope is with respect to lp, or to the logarithm of a ratio that the sequence shares (SharesRatioGradient).
template <class Real>
LOSSD_HD Term<Real> PolicyTerm(const PolicyOptions<Real>& options, const PolicyArguments<Real>& x) {
  switch (options.kind) {
    case PolicyKind::kPpo:
    case PolicyKind::kGspo:   // Zheng et al. 2025: PPO with the sequence's ratio
    case PolicyKind::kLuspo:  // the same, aggregated without the lengths
      return PpoTerm(options, x.ratio, x.advantage);
    case PolicyKind::kReinforce:
    case PolicyKind::kGpg:
      return WeightedLogprobTerm(x.advantage, Real(1), x.lp);
    case PolicyKind::kCispo:
      return CispoTerm(options, x.ratio.value, x.advantage, x.lp);
    case PolicyKind::kSapo:
      return SapoTerm(options, x.ratio, x.advantage);
    case PolicyKind::kGmpo:  // Zhao et al. 2025: the clip is inside the ratio (GmpoExponent)
      return {-Times(x.advantage, x.ratio.value), -Times(x.advantage, x.ratio.slope)};
    case PolicyKind::kDppoTv:
    case PolicyKind::kDppoKl:
      return DppoTerm(options, x);
    case PolicyKind::kDro:
      return DroTerm(options, x.lp - x.old, x.advantage, x.lp);
    case PolicyKind::kVespo:
      return WeightedLogprobTerm(x.advantage, VespoFactor(options, x.log_w, x.advantage), x.lp);
    case PolicyKind::kClipCov:  // Cui et al. 2025 (Clip-Cov)
      return x.selected ? Term<Real>{} : PpoTerm(options, x.ratio, x.advantage);
    case PolicyKind::kKlCov:
      return KlCovTerm(options, x);
  }
  return {};
}

// Flags of the metrics: which side of its bounds a token is on. Kinds without bounds are on neither.
struct PolicyFlags {
  bool below = false;
  bool above = false;
  bool capped = false;
};

template <class Real>
LOSSD_HD PolicyFlags BoundFlags(const PolicyOptions<Real>& options,
                                const PolicyArguments<Real>& x) {
  const Real r = x.ratio.value;
  PolicyFlags flags;
  switch (options.kind) {
    case PolicyKind::kPpo:
    case PolicyKind::kGspo:
    case PolicyKind::kLuspo:
    case PolicyKind::kClipCov:
      flags.capped = x.advantage < 0 && r > options.ratio_cap;
      flags.below = r < options.ratio_low;
      flags.above = r > options.ratio_high;
      break;
    case PolicyKind::kCispo:
      flags.below = r < options.ratio_low;
      flags.above = r > options.ratio_high;
      break;
    case PolicyKind::kGmpo:
      flags.below = x.lp - x.old < -options.clip_low;
      flags.above = x.lp - x.old > options.clip_high;
      break;
    case PolicyKind::kDppoTv:
    case PolicyKind::kDppoKl: {
      const bool kept = IsKeptByDppo(options, x.lp, x.old, x.advantage);
      flags.below = !kept && x.advantage < 0;
      flags.above = !kept && x.advantage > 0;
      flags.capped = kept && r > options.ratio_cap;
      break;
    }
    default:
      break;
  }
  return flags;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_POLICY_KINDS_H_
