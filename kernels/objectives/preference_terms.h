// The types of a preference loss, each with its derivatives beside it. Templates over the real type: stages run them in double (a pair is
// evaluated once, and sums over long sequences need it), tests take finite differences of them. Plain C++: nvcc reads it.
//
// x = L - ref of a sequence in nats, perhaps averaged over its length; s = score(x); d = s_chosen - s_rejected; u = beta d - margin;
// sig the logistic function, ls = log sig. A factor of exactly 0 removes its term.
#ifndef LOSSD_KERNELS_OBJECTIVES_PREFERENCE_TERMS_H_
#define LOSSD_KERNELS_OBJECTIVES_PREFERENCE_TERMS_H_

#include <cmath>

#include "kernels/core/host_device.h"
#include "kernels/objectives/logistic.h"
#include "kernels/objectives/preference_options.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Value of a term for one pair, and its derivatives with respect to the two sequences' quantities.
template <class Real>
struct PairTerm {
  Real value = 0;
  Real chosen = 0;
  Real rejected = 0;
};

// s(x) and s'(x). Wang et al. 2023 ("Beyond reverse KL", TRL's f-divergences); ALPHA_REWARD: Gupta et al. 2025 (AlphaPO).
template <class Real>
LOSSD_HD_CALLED ValueSlope<Real> ScoreOf(PreferenceScore score, Real alpha, Real x) {
  switch (score) {
    case PreferenceScore::kReverseKl:
      return {x, Real(1)};
    case PreferenceScore::kForwardKl: {
      const ValueSlope<Real> e = ClampedExp(-x);
      return {-e.value, e.slope};
    }
    case PreferenceScore::kJs:
      return {LogSigmoid(x), Sigmoid(-x)};
    case PreferenceScore::kAlpha: {
      const ValueSlope<Real> e = ClampedExp((alpha - 1) * x);
      return {e.value / (alpha - 1), e.slope};
    }
    case PreferenceScore::kAlphaReward: {
      const Real exponent = -alpha * x;
      if (exponent > Real(kMaxExponent)) {
        return {-std::expm1(Real(kMaxExponent)) / alpha, Real(0)};
      }
      return {-std::expm1(exponent) / alpha, std::exp(exponent)};
    }
  }
  return {};
}

// -(1 - e) ls(u) - e ls(-u) and its derivative by u. e = 0: Rafailov et al. 2023, eq. 7 (DPO); Meng et al. 2024 (SimPO), Xu et al. 2024
// (CPO), Melnyk et al. 2024 (AOT) put other things into u. e > 0: Mitchell 2023 (conservative DPO).
template <class Real>
LOSSD_HD ValueSlope<Real> SmoothSigmoidLoss(Real u, Real e) {
  const Logistic<Real> l = LogisticOf(u);
  return {-Times(1 - e, l.log_up) - Times(e, l.log_down), -(1 - e) * l.down + e * l.up};
}

// (-(1 - e) ls(u) + e ls(-u)) / (1 - 2e), e < 1/2. Chowdhury et al. 2024, "Provably robust DPO".
template <class Real>
LOSSD_HD_CALLED ValueSlope<Real> RobustLoss(Real u, Real e) {
  const Real scale = 1 / (1 - 2 * e);
  const Logistic<Real> l = LogisticOf(u);
  return {scale * (-Times(1 - e, l.log_up) + Times(e, l.log_down)),
          scale * (-(1 - e) * l.down - e * l.up)};
}

// max(0, 1 - u); at u = 1 the derivative is 0. Zhao et al. 2023 (SLiC-HF).
template <class Real>
LOSSD_HD ValueSlope<Real> HingeLoss(Real u) {
  if (u >= 1) return {};
  return {1 - u, Real(-1)};
}

// KL of the two-outcome model sig(u) to the labels (1 - e, e). Ji et al. 2024 (EXO), n = 2. ls(u) - ls(-u) = u.
template <class Real>
LOSSD_HD_CALLED ValueSlope<Real> ExoPairLoss(Real u, Real e) {
  const Real up = Sigmoid(u);
  const Real down = Sigmoid(-u);
  const Real log_keep = std::log1p(-e);
  const Real log_flip = std::log(e);
  return {Times(up, LogSigmoid(u) - log_keep) + Times(down, LogSigmoid(-u) - log_flip),
          Times(up * down, u - (log_keep - log_flip))};
}

// -ls(u) sig(-u / tau) + exp(ls(u / tau) - u). Lu et al. 2024 (DiscoPOP's log-ratio modulated loss): with m = sig(u / tau) the sum
// (1 - m) logistic + m exponential, whose second part is one exponential here, for its factors over- and underflow alone.
template <class Real>
LOSSD_HD_CALLED ValueSlope<Real> DiscopopLoss(Real u, Real tau) {
  const Real v = u / tau;
  const Real m = Sigmoid(v);
  const Real rest = Sigmoid(-v);  // 1 - m
  const Real ls = LogSigmoid(u);
  const ValueSlope<Real> e = ClampedExp(LogSigmoid(v) - u);
  const Real mixed = -Times(rest, ls);
  const Real slope = -Sigmoid(-u) * rest + Times(m * rest / tau, ls);
  return {mixed + e.value, slope + e.slope * (rest / tau - 1)};
}

// Types on u = beta d - margin: their derivative by d has the factor beta.
template <class Real>
LOSSD_HD ValueSlope<Real> MarginLoss(const PreferenceTermOptions<Real>& term, Real u) {
  switch (term.type) {
    case PreferenceType::kRobust:
      return RobustLoss(u, term.label_smoothing);
    case PreferenceType::kHinge:
      return HingeLoss(u);
    case PreferenceType::kExoPair:
      return ExoPairLoss(u, term.label_smoothing);
    case PreferenceType::kDiscopop:
      return DiscopopLoss(u, term.tau);
    default:
      return SmoothSigmoidLoss(u, term.label_smoothing);
  }
}

// (d - 1 / (2 beta))^2. Azar et al. 2023, eq. 17 (IPO).
template <class Real>
LOSSD_HD PairTerm<Real> IpoLoss(Real beta, Real d) {
  const Real gap = d - 1 / (2 * beta);
  return {gap * gap, 2 * gap, -2 * gap};
}

// -ls(b s_c) - ls(-b s_c) / 2 - ls(-b s_r) / 2. Chen et al. 2024 (NCA), two responses.
template <class Real>
LOSSD_HD_CALLED PairTerm<Real> NcaPairLoss(Real beta, Real chosen, Real rejected) {
  const Real c = beta * chosen;
  const Real r = beta * rejected;
  return {-LogSigmoid(c) - LogSigmoid(-c) / 2 - LogSigmoid(-r) / 2,
          beta * (Sigmoid(c) / 2 - Sigmoid(-c)), beta * Sigmoid(r) / 2};
}

// -ls(b s_c - delta) - ls(delta - b s_r). Jung et al. 2024 (BCO); TRL's bco_pair and Liger have delta 0.
template <class Real>
LOSSD_HD_CALLED PairTerm<Real> BcoPairLoss(Real beta, Real delta, Real chosen, Real rejected) {
  const Real c = beta * chosen - delta;
  const Real r = beta * rejected - delta;
  return {-LogSigmoid(c) - LogSigmoid(-r), -beta * Sigmoid(-c), beta * Sigmoid(r)};
}

// (s_c - 1 / (2b))^2 + (s_r + 1 / (2b))^2. Wu et al. 2024 (SPPO), hard labels.
template <class Real>
LOSSD_HD PairTerm<Real> SppoHardLoss(Real beta, Real chosen, Real rejected) {
  const Real c = chosen - 1 / (2 * beta);
  const Real r = rejected + 1 / (2 * beta);
  return {c * c + r * r, 2 * c, 2 * r};
}

// 1 - sig(b x_c) + sig(b x_r). D'Oosterlinck et al. 2024 (APO-zero).
template <class Real>
LOSSD_HD_CALLED PairTerm<Real> ApoZeroLoss(Real beta, Real chosen, Real rejected) {
  const Real c = beta * chosen;
  const Real r = beta * rejected;
  return {Sigmoid(-c) + Sigmoid(r), -beta * SigmoidSlope(c), beta * SigmoidSlope(r)};
}

// sig(b x_c) + 1 - sig(b (x_c - x_r)). The same (APO-down).
template <class Real>
LOSSD_HD_CALLED PairTerm<Real> ApoDownLoss(Real beta, Real chosen, Real rejected) {
  const Real c = beta * chosen;
  const Real d = beta * (chosen - rejected);
  const Real slope = beta * SigmoidSlope(d);
  return {Sigmoid(c) + Sigmoid(-d), beta * SigmoidSlope(c) - slope, slope};
}

// -b ls(o), o the log of the odds ratio of a = min(x_c, -1e-6) and c = min(x_r, -1e-6); 1 - e^a = -expm1(a). Hong et al. 2024 (ORPO),
// eq. 6. The clamp keeps a probability of 1 finite and takes its gradient away.
template <class Real>
LOSSD_HD_CALLED PairTerm<Real> OrpoLoss(Real beta, Real chosen, Real rejected) {
  const Real most = Real(-1e-6);
  const bool certain_c = chosen > most;
  const bool certain_r = rejected > most;
  const Real a = certain_c ? most : chosen;
  const Real c = certain_r ? most : rejected;
  const Real not_a = -std::expm1(a);
  const Real not_c = -std::expm1(c);
  const Real odds = (a - c) - (std::log(not_a) - std::log(not_c));
  const Real slope = beta * Sigmoid(-odds);
  return {-beta * LogSigmoid(odds), certain_c ? Real(0) : -slope / not_a,
          certain_r ? Real(0) : slope / not_c};
}

// A term of a pair from its x (averaged already if the term averages), with derivatives by x. Not for terms that are sorted.
template <class Real>
LOSSD_HD PairTerm<Real> EvaluatePairTerm(const PreferenceOptions<Real>& options,
                                         const PreferenceTermOptions<Real>& term, Real x_chosen,
                                         Real x_rejected) {
  const ValueSlope<Real> c = ScoreOf(options.score, options.score_alpha, x_chosen);
  const ValueSlope<Real> r = ScoreOf(options.score, options.score_alpha, x_rejected);
  PairTerm<Real> out;
  switch (term.type) {
    case PreferenceType::kIpo:
      out = IpoLoss(term.beta, c.value - r.value);
      break;
    case PreferenceType::kNcaPair:
      out = NcaPairLoss(term.beta, c.value, r.value);
      break;
    case PreferenceType::kBcoPair:
      out = BcoPairLoss(term.beta, term.bco_delta, c.value, r.value);
      break;
    case PreferenceType::kSppoHard:
      out = SppoHardLoss(term.beta, c.value, r.value);
      break;
    case PreferenceType::kApoZero:
      return ApoZeroLoss(term.beta, x_chosen, x_rejected);
    case PreferenceType::kApoDown:
      return ApoDownLoss(term.beta, x_chosen, x_rejected);
    case PreferenceType::kOrpo:
      return OrpoLoss(term.beta, x_chosen, x_rejected);
    default: {
      const ValueSlope<Real> loss = MarginLoss(term, term.beta * (c.value - r.value) - term.margin);
      out = {loss.value, term.beta * loss.slope, -term.beta * loss.slope};
    }
  }
  out.chosen = Times(c.slope, out.chosen);
  out.rejected = Times(r.slope, out.rejected);
  return out;
}

// A sorted term at one position: u = beta (above - below), the two sorted lists' elements there. Derivative by `above`; that by `below` is
// its negative. Melnyk et al. 2024 (AOT), with the logistic loss.
template <class Real>
LOSSD_HD ValueSlope<Real> EvaluateSortedTerm(const PreferenceTermOptions<Real>& term, Real above,
                                             Real below) {
  const ValueSlope<Real> loss =
      SmoothSigmoidLoss(term.beta * (above - below), term.label_smoothing);
  return {loss.value, term.beta * loss.slope};
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_PREFERENCE_TERMS_H_
