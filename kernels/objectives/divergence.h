// Divergences of two distributions over the columns of a row: value and derivative. Templates over the real type: kernels run them in
// fp32, the finite differences of the tests in double. Plain C++: nvcc reads it.
//
// p is the teacher, q the student. A column, or any other outcome, adds two terms, x and y; a row's value is forward sum x + reverse sum y.
// With g_j the derivative of the value with respect to log q_j, logits z under a softmax get dz_j = g_j - q_j sum_k g_k.
#ifndef LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_H_
#define LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"

namespace lossd {

// Numbers of the wire; the operations check it.
enum class Divergence : int32_t {
  kForwardKl = 1,
  kReverseKl = 2,
  kJsd = 3,
  kMixed = 4,
  kTvd = 5,
  kCosine = 6
};

// What the elements of a tensor are. Numbers of the wire.
enum class ValueKind : int32_t { kLogits = 1, kLogprobs = 2, kProbs = 3 };

// A divergence with its weights resolved: JSD at beta 0 or 1 and MIXED at 0 or 1 are the plain KLs, so that the other one, which may be
// infinite, is not there at all.
template <class Real>
struct DivergenceKind {
  Divergence kind = Divergence::kForwardKl;
  Real beta = 0;  // of JSD, strictly between 0 and 1
  // Factors of the sums of x and y in the value.
  Real forward = 1;
  Real reverse = 0;
  // g = -p_factor p + y_factor y, and q_factor q more where q is not under a softmax (there that part cancels).
  Real p_factor = 1;
  Real y_factor = 0;
  Real q_factor = 0;
  // FORWARD_KL of probabilities: p (log max(p, floor) - log q), 0: off.
  Real teacher_floor = 0;
};

template <class Real>
DivergenceKind<Real> MakeDivergence(Divergence kind, double beta, double mix) {
  // A weight that the real type rounds to an end is that end.
  const Real weight = static_cast<Real>(kind == Divergence::kJsd ? 1 - beta : mix);
  const Real other = static_cast<Real>(kind == Divergence::kJsd ? beta : 1 - mix);
  if (kind == Divergence::kJsd || kind == Divergence::kMixed) {
    if (weight == 1 || other == 0) kind = Divergence::kForwardKl;
    if (weight == 0 || other == 1) kind = Divergence::kReverseKl;
  }
  DivergenceKind<Real> out;
  out.kind = kind;
  const auto set = [&out](double forward, double reverse, double p, double y, double q) {
    out.forward = static_cast<Real>(forward);
    out.reverse = static_cast<Real>(reverse);
    out.p_factor = static_cast<Real>(p);
    out.y_factor = static_cast<Real>(y);
    out.q_factor = static_cast<Real>(q);
  };
  switch (kind) {
    case Divergence::kForwardKl:
      set(1, 0, 1, 0, 0);
      break;
    case Divergence::kReverseKl:
      set(0, 1, 0, 1, 1);
      break;
    case Divergence::kMixed:
      set(mix, 1 - mix, mix, 1 - mix, 1 - mix);
      break;
    case Divergence::kJsd:
      out.beta = static_cast<Real>(beta);
      set(beta, 1 - beta, 0, 1 - beta, 0);
      break;
    case Divergence::kTvd:
      set(1, 0, 0, 1, 0);
      break;
    case Divergence::kCosine:
      set(0, 0, 0, 0, 0);
      break;
  }
  return out;
}

// One side of an outcome: its probability and its logarithm, which may be far below what the probability can hold.
template <class Real>
struct Outcome {
  Real p = 0;
  Real log = 0;
};

template <class Real>
struct DivergenceTerms {
  Real x = 0;
  Real y = 0;
};

// log p - log M and log q - log M, M = beta p + (1 - beta) q, from d = log q - log p alone: the larger side's is a log1p of an expm1 that
// is at most 0, so that neither a small nor a huge d costs accuracy.
template <class Real>
LOSSD_HD DivergenceTerms<Real> LogsToMixture(Real beta, Real d) {
  const Real a = std::expm1(-std::fabs(d));
  DivergenceTerms<Real> out;
  if (d >= 0) {
    out.y = -std::log1p(beta * a);
    out.x = out.y - d;
  } else {
    out.x = -std::log1p((1 - beta) * a);
    out.y = out.x + d;
  }
  return out;
}

// FORWARD_KL x = p (log p - log q); REVERSE_KL y = q (log q - log p); JSD x = p (log p - log M), y = q (log q - log M) (Agarwal et al.
// 2024, eq. 2); TVD x = |q - p| / 2, y = q sign(q - p) / 2. What stands behind a probability of exactly 0 is not looked at.
template <class Real>
LOSSD_HD DivergenceTerms<Real> TermsOf(const DivergenceKind<Real>& kind, const Outcome<Real>& p,
                                       const Outcome<Real>& q) {
  DivergenceTerms<Real> out;
  switch (kind.kind) {
    case Divergence::kForwardKl: {
      const Real floor = kind.teacher_floor;
      const Real log_p = floor > 0 && p.p < floor ? std::log(floor) : p.log;
      out.x = p.p == 0 ? Real(0) : p.p * (log_p - q.log);
      break;
    }
    case Divergence::kReverseKl:
      out.y = q.p == 0 ? Real(0) : q.p * (q.log - p.log);
      break;
    case Divergence::kMixed:
      out.x = p.p == 0 ? Real(0) : p.p * (p.log - q.log);
      out.y = q.p == 0 ? Real(0) : q.p * (q.log - p.log);
      break;
    case Divergence::kJsd: {
      const DivergenceTerms<Real> logs = LogsToMixture(kind.beta, q.log - p.log);
      out.x = p.p == 0 ? Real(0) : p.p * logs.x;
      out.y = q.p == 0 ? Real(0) : q.p * logs.y;
      break;
    }
    case Divergence::kTvd: {
      const Real d = q.p - p.p;
      const Real half = Real(0.5);
      out.x = half * std::fabs(d);
      out.y = d > 0 ? half * q.p : d < 0 ? -half * q.p : d * 0;
      break;
    }
    case Divergence::kCosine:
      break;
  }
  return out;
}

// TVD with respect to q itself, where q is no softmax: 0 at a tie.
template <class Real>
LOSSD_HD Real TvdSlope(Real p, Real q) {
  const Real d = q - p;
  return d > 0 ? Real(0.5) : d < 0 ? Real(-0.5) : d * 0;
}

// g without the part that a softmax cancels.
template <class Real>
LOSSD_HD Real SlopeOf(const DivergenceKind<Real>& kind, Real p,
                      const DivergenceTerms<Real>& terms) {
  Real g = 0;
  if (kind.p_factor != 0) g -= kind.p_factor * p;
  if (kind.y_factor != 0) g += kind.y_factor * terms.y;
  return g;
}

// Sums over the columns of a row.
template <class Real>
struct DivergenceSums {
  Real x = 0;
  Real y = 0;
  Real p = 1;  // sum of p; 1 under a softmax
  // Cosine: of the tempered logits.
  Real dot = 0;
  Real student_square = 0;
  Real teacher_square = 0;
};

// What a row's gradient needs to know of the whole row.
template <class Real>
struct DivergenceValue {
  Real value = 0;
  // sum of g: dz_j = g_j - q_j total.
  Real total = 0;
  // Cosine: dz_j = by_teacher t_j + by_student s_j.
  Real by_teacher = 0;
  Real by_student = 0;
};

// 1 - s t / (max(|s|, 1e-8) max(|t|, 1e-8)); a norm below the bound is a constant of the gradient (torch cosine_similarity).
template <class Real>
LOSSD_HD DivergenceValue<Real> CosineOf(const DivergenceSums<Real>& sums) {
  const Real bound = Real(1e-8);
  const Real student = std::sqrt(sums.student_square);
  const Real teacher = std::sqrt(sums.teacher_square);
  const Real used_student = student < bound ? bound : student;
  const Real used_teacher = teacher < bound ? bound : teacher;
  const Real cosine = sums.dot / used_student / used_teacher;
  DivergenceValue<Real> out;
  out.value = 1 - cosine;
  out.by_teacher = -1 / used_student / used_teacher;
  if (!(student < bound)) out.by_student = cosine / student / student;
  return out;
}

template <class Real>
LOSSD_HD DivergenceValue<Real> ValueOf(const DivergenceKind<Real>& kind,
                                       const DivergenceSums<Real>& sums) {
  if (kind.kind == Divergence::kCosine) return CosineOf(sums);
  DivergenceValue<Real> out;
  if (kind.forward != 0) out.value += kind.forward * sums.x;
  if (kind.reverse != 0) out.value += kind.reverse * sums.y;
  if (kind.p_factor != 0) out.total -= kind.p_factor * sums.p;
  if (kind.y_factor != 0) out.total += kind.y_factor * sums.y;
  return out;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_H_
