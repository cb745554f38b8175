// The few functions that the layers' formulas need of a real type. Formulas are templates over such a set: FloatMath on both devices,
// DoubleMath for finite differences, and the CPU backend's VectorMath for sixteen floats at a time. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LAYERS_REAL_MATH_H_
#define LOSSD_KERNELS_LAYERS_REAL_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/core/dtype.h"
#include "kernels/core/host_device.h"

namespace lossd {

// The type that a value has in the middle of a formula: fp32, or a 16-bit type whose rounding it goes through.
enum class Rounding : int32_t { kNone, kBF16, kF16 };

constexpr Rounding RoundingOf(DType dtype) {
  return dtype == DType::kBF16  ? Rounding::kBF16
         : dtype == DType::kF16 ? Rounding::kF16
                                : Rounding::kNone;
}

// erfc(x) = e^(-x^2) t q(t) with t = 1 / (1 + 0.4 x) for x >= 0, and 2 - erfc(-x) below. q is fitted to a relative error of 1e-7 up to
// x = 13, where erfc is 0 in fp32; what e^(-x^2) loses is at most 4e-6.
template <class M>
LOSSD_HD typename M::Real ErfcByFraction(typename M::Real x) {
  const typename M::Real z = M::Abs(x);
  const typename M::Real t = M::Reciprocal(1.0f + 0.4f * z);
  typename M::Real q = M::Splat(0.04558675736f);
  q = q * t - 0.16125077009f;
  q = q * t + 0.12687271833f;
  q = q * t + 0.03943205252f;
  q = q * t + 0.11282737553f;
  q = q * t + 0.17954596877f;
  q = q * t + 0.20535504818f;
  q = q * t + 0.22596980631f;
  q = q * t + 0.22566112876f;
  const typename M::Real value = M::Exp(-(z * z)) * (q * t);
  return x < 0.0f ? 2.0f - value : value;
}

// What a set offers: Real, Splat, Abs, Exp (any argument, 0 far below 0), Reciprocal, Erfc, and Round<Rounding>. Comparisons of Reals
// work with ?:, as they do for the compiler's vectors.
struct FloatMath {
  using Real = float;

  static LOSSD_HD float Splat(float value) { return value; }
  static LOSSD_HD float Abs(float x) { return x < 0.0f ? -x : x; }

  // On a GPU two instructions; the relative error is below 2^-22 + 2^-24 abs(x).
  static LOSSD_HD float Exp(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504088896341f));
    return result;
#else
    return std::exp(x);
#endif
  }

  // On a GPU one instruction, error at most 1 unit in the last place; 0 for infinity and for a denormal result.
  static LOSSD_HD float Reciprocal(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    return 1.0f / x;
#endif
  }

  static LOSSD_HD float Erfc(float x) { return ErfcByFraction<FloatMath>(x); }

  // To nearest even, and back.
  template <Rounding kRounding>
  static LOSSD_HD float Round(float x) {
    if (kRounding == Rounding::kBF16) return RoundBF16(x);
    if (kRounding == Rounding::kF16) return RoundF16(x);
    return x;
  }

 private:
  static LOSSD_HD float RoundBF16(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("{.reg .b16 half, zero;\n\tcvt.rn.bf16.f32 half, %1;\n\tmov.b16 zero, 0;\n\tmov.b32 %0, "
        "{zero, half};}"
        : "=f"(result)
        : "f"(x));
    return result;
#else
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return x;
    bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
#endif
  }

  static LOSSD_HD float RoundF16(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("{.reg .b16 half;\n\tcvt.rn.f16.f32 half, %1;\n\tcvt.f32.f16 %0, half;}"
        : "=f"(result)
        : "f"(x));
    return result;
#else
    const float magnitude = Abs(x);
    if (!(magnitude < 65520.0f)) return magnitude >= 65520.0f ? x * INFINITY : x;
    // Below 2^-14 the step is 2^-24, that of fp32 at 0.5.
    if (magnitude < 0x1p-14f) return std::copysign((magnitude + 0.5f) - 0.5f, x);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
#endif
  }
};

// Nothing is rounded.
struct DoubleMath {
  using Real = double;

  static double Splat(float value) { return value; }
  static double Abs(double x) { return std::fabs(x); }
  static double Exp(double x) { return std::exp(x); }
  static double Reciprocal(double x) { return 1 / x; }
  static double Erfc(double x) { return std::erfc(x); }
  template <Rounding kRounding>
  static double Round(double x) {
    return x;
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LAYERS_REAL_MATH_H_
