// The options of a preference loss as its formulas read them. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_PREFERENCE_OPTIONS_H_
#define LOSSD_KERNELS_OBJECTIVES_PREFERENCE_OPTIONS_H_

#include <cstdint>

#include "kernels/core/host_device.h"

namespace lossd {

// Numbers are those of the enums in preference.proto (checked at compile time where they are converted).
enum class Pairing : int32_t { kHalves = 1, kInterleaved = 2 };
enum class PreferenceType : int32_t {
  kSigmoid = 1,
  kRobust = 2,
  kHinge = 3,
  kIpo = 4,
  kExoPair = 5,
  kNcaPair = 6,
  kBcoPair = 7,
  kSppoHard = 8,
  kDiscopop = 9,
  kApoZero = 10,
  kApoDown = 11,
  kOrpo = 12,
  kAot = 13,
  kAotUnpaired = 14
};
// Sorted over the pairs of the call: no pair can be evaluated alone.
LOSSD_HD bool IsSorted(PreferenceType type) {
  return type == PreferenceType::kAot || type == PreferenceType::kAotUnpaired;
}
enum class PreferenceScore : int32_t {
  kReverseKl = 1,
  kForwardKl = 2,
  kJs = 3,
  kAlpha = 4,
  kAlphaReward = 5
};
enum class CountDenominator : int32_t { kGiven = 1, kCount = 2 };

// A list of terms travels in the arguments of a kernel.
inline constexpr int kMaxPreferenceTerms = 8;

template <class Real>
struct PreferenceTermOptions {
  PreferenceType type = PreferenceType::kSigmoid;
  bool length_average = false;
  Real weight = 1;
  Real beta = 1;             // 1/nats
  Real label_smoothing = 0;  // e
  Real margin = 0;
  Real tau = Real(0.05);
  Real bco_delta = 0;
};

template <class Real>
struct PreferenceOptions {
  PreferenceTermOptions<Real> terms[kMaxPreferenceTerms];
  int32_t term_count = 0;
  Pairing pairing = Pairing::kHalves;
  PreferenceScore score = PreferenceScore::kReverseKl;
  Real score_alpha = 0;
  Real ld_alpha = 1;
  bool wpo = false;
  Real nll_coef = 0;
  CountDenominator nll_denominator_from = CountDenominator::kGiven;
  double nll_denominator = 1;
  CountDenominator denominator_from = CountDenominator::kGiven;
  double denominator = 1;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_PREFERENCE_OPTIONS_H_
