// The losses of single judged sequences, value and derivative side by side. Templates over the real type: stages run them in double,
// tests take finite differences of them. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_UNPAIRED_TERMS_H_
#define LOSSD_KERNELS_OBJECTIVES_UNPAIRED_TERMS_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/objectives/logistic.h"
#include "kernels/objectives/preference_options.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Numbers as in preference.proto.
enum class UnpairedType : int32_t { kKto = 1, kApoZeroUnpaired = 2, kBco = 3 };

template <class Real>
struct UnpairedOptions {
  UnpairedType type = UnpairedType::kKto;
  Real beta = 1;  // 1/nats
  Real desirable_weight = 1;
  Real undesirable_weight = 1;
  Real bco_delta = 0;
  bool length_average = false;
  CountDenominator denominator_from = CountDenominator::kGiven;
  double denominator = 1;
};

// 1 - sig(b (x - baseline)) for a thumb up, 1 - sig(b (baseline - x)) for a thumb down. Ethayarajh et al. 2024, eq. 8 (KTO).
template <class Real>
LOSSD_HD_CALLED ValueSlope<Real> KtoLoss(Real beta, Real baseline, bool desirable, Real x) {
  const Real y = beta * (x - baseline);
  const Real slope = beta * SigmoidSlope(y);
  if (desirable) return {Sigmoid(-y), -slope};
  return {Sigmoid(y), slope};
}

// 1 - sig(b x) or sig(b x). D'Oosterlinck et al. 2024 (APO-zero), without pairs.
template <class Real>
LOSSD_HD_CALLED ValueSlope<Real> ApoZeroUnpairedLoss(Real beta, bool desirable, Real x) {
  const Real slope = beta * SigmoidSlope(beta * x);
  if (desirable) return {Sigmoid(-beta * x), -slope};
  return {Sigmoid(beta * x), slope};
}

// -ls(b x - delta) or -ls(delta - b x). Jung et al. 2024 (BCO).
template <class Real>
LOSSD_HD ValueSlope<Real> BcoLoss(Real beta, Real delta, bool desirable, Real x) {
  const Real y = beta * x - delta;
  const Logistic<Real> l = LogisticOf(y);
  if (desirable) return {-l.log_up, -beta * l.down};
  return {-l.log_down, beta * l.up};
}

// v(x) with its class weight, and dv/dx. A weight of 0 removes the sequence.
template <class Real>
LOSSD_HD ValueSlope<Real> EvaluateUnpaired(const UnpairedOptions<Real>& options, Real baseline,
                                           bool desirable, Real x) {
  ValueSlope<Real> loss;
  switch (options.type) {
    case UnpairedType::kKto:
      loss = KtoLoss(options.beta, baseline, desirable, x);
      break;
    case UnpairedType::kApoZeroUnpaired:
      loss = ApoZeroUnpairedLoss(options.beta, desirable, x);
      break;
    case UnpairedType::kBco:
      loss = BcoLoss(options.beta, options.bco_delta, desirable, x);
      break;
  }
  const Real weight = desirable ? options.desirable_weight : options.undesirable_weight;
  return {Times(weight, loss.value), Times(weight, loss.slope)};
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_UNPAIRED_TERMS_H_
