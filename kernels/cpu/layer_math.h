// Sixteen floats as the real type of the layers' formulas (kernels/layers/real_math.h).
#ifndef LOSSD_KERNELS_CPU_LAYER_MATH_H_
#define LOSSD_KERNELS_CPU_LAYER_MATH_H_

#include <cstdint>

#include "kernels/cpu/vector_math.h"
#include "kernels/layers/real_math.h"

namespace lossd {

struct VectorMath {
  using Real = vec::F32;

  static LOSSD_VEC Real Splat(float value) { return vec::Splat(value); }
  static LOSSD_VEC Real Abs(Real x) { return (Real)((vec::I32)x & 0x7fffffff); }
  static LOSSD_VEC Real Exp(Real x) { return vec::Exp(x); }
  static LOSSD_VEC Real Reciprocal(Real x) { return 1.0f / x; }
  static LOSSD_VEC Real Erfc(Real x) { return ErfcByFraction<VectorMath>(x); }

  template <Rounding kRounding>
  static LOSSD_VEC Real Round(Real x) {
    if (kRounding == Rounding::kNone) return x;
    // A step of the 16-bit type is this many of fp32's last bits; half of it less one, plus the lowest bit that stays.
    constexpr int kBits = kRounding == Rounding::kBF16 ? 16 : 13;
    const U32 bits = (U32)x;
    const U32 up = bits + ((1u << (kBits - 1)) - 1) + ((bits >> kBits) & 1u);
    Real rounded = (Real)(up >> kBits << kBits);
    if (kRounding == Rounding::kF16) {
      const Real magnitude = Abs(x);
      // Below 2^-14 the step is 2^-24, that of fp32 at 0.5.
      const Real small = (magnitude + 0.5f) - 0.5f;
      const Real with_sign = (Real)((vec::I32)small | ((vec::I32)x & INT32_MIN));
      rounded = magnitude < 0x1p-14f ? with_sign : rounded;
      rounded = magnitude >= 65520.0f ? x * INFINITY : rounded;
    }
    return x == x ? rounded : x;
  }

 private:
  typedef uint32_t U32 __attribute__((vector_size(64)));
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_LAYER_MATH_H_
