// Sixteen floats at a time in the compiler's own vector types, and the functions that the row sweeps need of them. Everything is inlined
// into functions of one instruction set (sweeps.cc), where the compiler splits or fuses the vectors as the set has them.
#ifndef LOSSD_KERNELS_CPU_VECTOR_MATH_H_
#define LOSSD_KERNELS_CPU_VECTOR_MATH_H_

#include <cmath>
#include <cstdint>

namespace lossd::vec {

inline constexpr int kLanes = 16;

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));
typedef float F32Unaligned __attribute__((vector_size(64), aligned(4), may_alias));

#define LOSSD_VEC inline __attribute__((always_inline))

LOSSD_VEC F32 Load(const float* from) { return *reinterpret_cast<const F32Unaligned*>(from); }
LOSSD_VEC void Store(float* to, F32 value) { *reinterpret_cast<F32Unaligned*>(to) = value; }
LOSSD_VEC F32 Splat(float value) { return value - F32{}; }
LOSSD_VEC I32 Lanes() { return I32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// x = n log 2 + r with abs(r) <= log(2) / 2; gives 2^n and exp(r) - 1 = r + r^2 (1/2 + r / 6 + ...), whose first term left out is below
// 2^-27 of exp(r).
struct Expm1Parts {
  F32 power;
  F32 minus_one;
};

LOSSD_VEC Expm1Parts SplitExp(F32 x) {
  const float magic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which its last bits then hold
  const F32 shifted = x * 1.44269504088896341f + magic;
  const F32 n = shifted - magic;
  // log 2 in two parts; n has few bits, so that n times the first is exact.
  F32 r = x - n * 0.693145751953125f;
  r = r - n * 1.42860682030941723e-6f;
  F32 q = Splat(1.0f / 5040);
  q = q * r + 1.0f / 720;
  q = q * r + 1.0f / 120;
  q = q * r + 1.0f / 24;
  q = q * r + 1.0f / 6;
  q = q * r + 0.5f;
  Expm1Parts parts;
  parts.minus_one = q * (r * r) + r;
  // The low bits of `shifted` are n; the exponent field is n + 127.
  parts.power = (F32)(((I32)shifted << 23) + (127 << 23));
  return parts;
}

// exp(x), error at most about 1 unit in the last place; 0 below the smallest normal number; NaN stays NaN.
LOSSD_VEC F32 Exp(F32 x) {
  const float low = -87.33654f;
  const F32 clamped = x < low ? Splat(low) : x;
  const Expm1Parts parts = SplitExp(clamped > 88.37f ? Splat(88.37f) : clamped);
  const F32 value = parts.power * parts.minus_one + parts.power;
  return x < low ? F32{} : value;
}

// tanh(x) and its derivative 1 - tanh(x)^2, the latter without cancellation in the tails.
struct TanhParts {
  F32 tanh;
  F32 slope;
};

LOSSD_VEC TanhParts Tanh(F32 x) {
  const F32 twice = 2.0f * (x < 0.0f ? -x : x);
  const Expm1Parts parts = SplitExp(twice > 87.0f ? Splat(87.0f) : twice);
  const F32 expm1 = parts.power * parts.minus_one + (parts.power - 1.0f);
  const F32 inverse = 1.0f / (expm1 + 2.0f);
  const F32 magnitude = expm1 * inverse;
  TanhParts out;
  out.tanh = x < 0.0f ? -magnitude : magnitude;
  out.slope = 4.0f * inverse * ((expm1 + 1.0f) * inverse);
  return out;
}

// In a fixed order, in double.
LOSSD_VEC double SumLanes(F32 value) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += value[lane];
  return sum;
}

}  // namespace lossd::vec

#endif  // LOSSD_KERNELS_CPU_VECTOR_MATH_H_
