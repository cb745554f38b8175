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

// exp(x) - 1 for x at most 0, without cancellation near 0; -1 for -infinity.
LOSSD_VEC F32 Expm1Negative(F32 x) {
  const F32 clamped = x < -87.0f ? Splat(-87.0f) : x;
  const Expm1Parts parts = SplitExp(clamped);
  return parts.power * parts.minus_one + (parts.power - 1.0f);
}

// log(x): x = 2^e m with m in [sqrt(1/2), sqrt(2)), and log m = 2 artanh(s), s = (m - 1) / (m + 1), abs(s) < 0.172: the series' first
// term left out is below 2^-28 of it. -infinity at 0, NaN below it.
LOSSD_VEC F32 Log(F32 x) {
  const I32 tiny = x < 1.17549435e-38f;
  const F32 scaled = tiny ? x * 16777216.0f : x;
  const I32 bits = (I32)scaled - 0x3f3504f3;  // of sqrt(1/2)
  const I32 exponent = (bits >> 23) - (tiny & 24);
  const F32 m = (F32)((bits & 0x007fffff) + 0x3f3504f3);
  const F32 s = (m - 1.0f) / (m + 1.0f);
  const F32 s2 = s * s;
  F32 q = Splat(2.0f / 9);
  q = q * s2 + 2.0f / 7;
  q = q * s2 + 2.0f / 5;
  q = q * s2 + 2.0f / 3;
  const F32 e = __builtin_convertvector(exponent, F32);
  // log 2 in two parts, as in SplitExp.
  const F32 tail = q * (s2 * s) + e * 1.42860682030941723e-6f;
  const F32 value = e * 0.693145751953125f + (2.0f * s + tail);
  const F32 special = x == 0.0f ? Splat(-INFINITY) : (x < 0.0f ? Splat(NAN) : x);
  const I32 normal = (x > 0.0f) & (x <= 3.4028235e38f);
  return normal ? value : special;
}

// log(1 + x) for x above -1: the rounding of 1 + x is put right.
LOSSD_VEC F32 Log1p(F32 x) {
  const F32 u = 1.0f + x;
  const F32 lost = x - (u - 1.0f);
  return Log(u) + lost / u;
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
