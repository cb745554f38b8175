// The logistic function in forms that hold for every argument. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_LOGISTIC_H_
#define LOSSD_KERNELS_OBJECTIVES_LOGISTIC_H_

#include <cmath>

#include "kernels/core/host_device.h"

namespace lossd {

// A value and its derivative.
template <class Real>
struct ValueSlope {
  Real value = 0;
  Real slope = 0;
};

// 1 / (1 + e^-x). An exponential that overflows gives 0.
template <class Real>
LOSSD_HD_CALLED Real Sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

// Its derivative, sig(x) sig(-x): no cancellation at either end.
template <class Real>
LOSSD_HD Real SigmoidSlope(Real x) {
  return Sigmoid(x) * Sigmoid(-x);
}

// log sig(x) = min(x, 0) - log(1 + e^-|x|).
template <class Real>
LOSSD_HD_CALLED Real LogSigmoid(Real x) {
  const Real low = x > 0 ? Real(0) : x;  // keeps NaN
  return low - std::log1p(std::exp(-std::fabs(x)));
}

// sig and its logarithm at x and at -x, by one exponential.
template <class Real>
struct Logistic {
  Real up = 0;    // sig(x)
  Real down = 0;  // sig(-x)
  Real log_up = 0;
  Real log_down = 0;
};
template <class Real>
LOSSD_HD_CALLED Logistic<Real> LogisticOf(Real x) {
  const Real e = std::exp(-std::fabs(x));
  const Real larger = 1 / (1 + e);
  const Real smaller = e * larger;
  const Real log_larger = -std::log1p(e);
  const bool positive = x > 0;
  return {positive ? larger : smaller, positive ? smaller : larger,
          positive ? log_larger : x + log_larger, positive ? log_larger - x : log_larger};
}

// Exponents are clamped here, so that fp32 outputs stay finite.
inline constexpr double kMaxExponent = 80;

// e^min(x, 80), without a gradient beyond the clamp. NaN stays NaN.
template <class Real>
LOSSD_HD ValueSlope<Real> ClampedExp(Real x) {
  if (x > Real(kMaxExponent)) return {std::exp(Real(kMaxExponent)), Real(0)};
  const Real e = std::exp(x);
  return {e, e};
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_LOGISTIC_H_
