// Powers and logarithms of 2 in one instruction on a GPU. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_EXP2_H_
#define LOSSD_KERNELS_OBJECTIVES_EXP2_H_

#include <cmath>

#include "kernels/core/host_device.h"

namespace lossd {

inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kLog2E = 1.4426950408889634f;

// 2^x, 0 below the smallest normal number. One instruction on a GPU, error 2^-22 of its value.
LOSSD_HD float FastExp2(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return x < -126 ? 0.0f : exp2f(x);
#endif
}

// Of a normal number. On a GPU the error is 2^-22, of the result where that is above 1.
LOSSD_HD float FastLog2(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return log2f(x);
#endif
}

// Error 2^-23 of its value.
LOSSD_HD float FastReciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1 / x;
#endif
}

// A product that is rounded before anything is added to it: what is equal stays equal.
LOSSD_HD float RoundedProduct(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// Without contraction with the product that one of them may be: a + b is b + a on a GPU, too.
LOSSD_HD float AddRounded(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// Without a branch: a GPU takes both ways in most warps anyway.
LOSSD_HD float Select(bool first, float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
      : "=f"(result)
      : "f"(a), "f"(b), "r"(static_cast<int>(first)));
  return result;
#else
  return first ? a : b;
#endif
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_EXP2_H_
