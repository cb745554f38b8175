// Sixteen bytes of a row at a time, as fp32 in registers.
#ifndef LOSSD_KERNELS_CUDA_PACKS_CUH_
#define LOSSD_KERNELS_CUDA_PACKS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/layers/real_math.h"

namespace lossd {

// The type of an element on the device.
template <class T>
struct RealType;
template <>
struct RealType<float> {
  static constexpr DType kDType = DType::kF32;
  static constexpr Rounding kRounding = Rounding::kNone;
};
template <>
struct RealType<__nv_bfloat16> {
  static constexpr DType kDType = DType::kBF16;
  static constexpr Rounding kRounding = Rounding::kBF16;
};
template <>
struct RealType<__half> {
  static constexpr DType kDType = DType::kF16;
  static constexpr Rounding kRounding = Rounding::kF16;
};

constexpr int kPackBytes = 16;
template <class T>
inline constexpr int kPackElements = kPackBytes / static_cast<int>(sizeof(T));

// Of memory that is read once: it does not displace what the first-level cache holds.
__device__ __forceinline__ uint4 LoadPack(const void* from) {
  uint4 bits;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from)
               : "memory");
  return bits;
}

__device__ __forceinline__ void StorePack(void* to, uint4 bits) { *static_cast<uint4*>(to) = bits; }

template <class T>
__device__ __forceinline__ void UnpackWord(uint32_t word, float* values);
template <>
__device__ __forceinline__ void UnpackWord<float>(uint32_t word, float* values) {
  values[0] = __uint_as_float(word);
}
template <>
__device__ __forceinline__ void UnpackWord<__nv_bfloat16>(uint32_t word, float* values) {
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000u);
}
template <>
__device__ __forceinline__ void UnpackWord<__half>(uint32_t word, float* values) {
  const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
  values[0] = pair.x;
  values[1] = pair.y;
}

template <class T>
__device__ __forceinline__ void Unpack(uint4 bits, float (&values)[kPackElements<T>]) {
  constexpr int kWord = kPackElements<T> / 4;
  UnpackWord<T>(bits.x, values);
  UnpackWord<T>(bits.y, values + kWord);
  UnpackWord<T>(bits.z, values + 2 * kWord);
  UnpackWord<T>(bits.w, values + 3 * kWord);
}

// One rounding to nearest even.
template <class T>
__device__ __forceinline__ uint32_t PackWord(const float* values);
template <>
__device__ __forceinline__ uint32_t PackWord<float>(const float* values) {
  return __float_as_uint(values[0]);
}
template <>
__device__ __forceinline__ uint32_t PackWord<__nv_bfloat16>(const float* values) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(values[0], values[1]);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t PackWord<__half>(const float* values) {
  const __half2 pair = __floats2half2_rn(values[0], values[1]);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <class T>
__device__ __forceinline__ uint4 PackOf(const float (&values)[kPackElements<T>]) {
  constexpr int kWord = kPackElements<T> / 4;
  uint4 bits;
  bits.x = PackWord<T>(values);
  bits.y = PackWord<T>(values + kWord);
  bits.z = PackWord<T>(values + 2 * kWord);
  bits.w = PackWord<T>(values + 3 * kWord);
  return bits;
}

// Elements of a small array that many rows read, of type T or fp32.
template <class T>
__device__ __forceinline__ void LoadShared(const void* from, bool is_f32, int64_t pack,
                                           float (&values)[kPackElements<T>]) {
  constexpr int kElements = kPackElements<T>;
  if (sizeof(T) == sizeof(float) || is_f32) {
    const float4* words = static_cast<const float4*>(from) + pack * (kElements / 4);
#pragma unroll
    for (int w = 0; w < kElements / 4; ++w) {
      const float4 four = __ldg(words + w);
      values[4 * w] = four.x;
      values[4 * w + 1] = four.y;
      values[4 * w + 2] = four.z;
      values[4 * w + 3] = four.w;
    }
    return;
  }
  Unpack<T>(__ldg(static_cast<const uint4*>(from) + pack), values);
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PACKS_CUH_
