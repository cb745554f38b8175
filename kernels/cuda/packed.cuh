// 16 bytes as numbers of one type.
#ifndef LOSSD_KERNELS_CUDA_PACKED_CUH_
#define LOSSD_KERNELS_CUDA_PACKED_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lossd {

// 16 bytes as 4 or 8 numbers in fp32: of float, of bf16.
template <class T>
__device__ __forceinline__ void Widen(const uint4& bits, float* out) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(words[i]);
    } else {
      // The bits of a bf16 are the upper half of the same number in fp32.
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

__device__ __forceinline__ uint32_t TwoBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A NaN wins, unlike fmaxf.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

template <class T>
struct Packed;

// What the two 16-bit types have in common. Pair: the type of two numbers.
template <class Pair>
struct PackedHalves {
  static constexpr int kCount = 8;

  __device__ static Pair PairOf(uint32_t bits) { return *reinterpret_cast<const Pair*>(&bits); }
  __device__ static uint32_t BitsOf(Pair pair) { return *reinterpret_cast<const uint32_t*>(&pair); }
  __device__ static uint32_t Max(uint32_t a, uint32_t b) {
    return BitsOf(__hmax2_nan(PairOf(a), PairOf(b)));
  }
  // Number by number; a NaN wins.
  __device__ static uint4 Max(const uint4& a, const uint4& b) {
    return make_uint4(Max(a.x, b.x), Max(a.y, b.y), Max(a.z, b.z), Max(a.w, b.w));
  }
  // Of two numbers.
  __device__ static uint32_t Fold(const uint4& v) { return Max(Max(v.x, v.y), Max(v.z, v.w)); }
};

template <>
struct Packed<float> {
  static constexpr int kCount = 4;
  __device__ static uint4 Fill(float value) {
    const uint32_t bits = __float_as_uint(value);
    return make_uint4(bits, bits, bits, bits);
  }
  __device__ static void Unpack(const uint4& v, float (&out)[4]) { Widen<float>(v, out); }
  __device__ static uint4 Pack(const float (&g)[4]) {
    return make_uint4(__float_as_uint(g[0]), __float_as_uint(g[1]), __float_as_uint(g[2]),
                      __float_as_uint(g[3]));
  }
  __device__ static uint4 Max(const uint4& a, const uint4& b) {
    float x[4], y[4];
    Widen<float>(a, x);
    Widen<float>(b, y);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = MaxOrNan(x[i], y[i]);
    return Pack(x);
  }
  __device__ static float Largest(const uint4& v) {
    float x[4];
    Widen<float>(v, x);
    return MaxOrNan(MaxOrNan(x[0], x[1]), MaxOrNan(x[2], x[3]));
  }
};

template <>
struct Packed<__nv_bfloat16> : PackedHalves<__nv_bfloat162> {
  __device__ static uint4 Fill(float value) {
    const uint32_t bits = TwoBf16(value, value);
    return make_uint4(bits, bits, bits, bits);
  }
  __device__ static void Unpack(const uint4& v, float (&out)[8]) { Widen<__nv_bfloat16>(v, out); }
  __device__ static uint4 Pack(const float (&g)[8]) {
    return make_uint4(TwoBf16(g[0], g[1]), TwoBf16(g[2], g[3]), TwoBf16(g[4], g[5]),
                      TwoBf16(g[6], g[7]));
  }
  __device__ static float Largest(const uint4& v) {
    const uint32_t two = Fold(v);
    return MaxOrNan(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
  }
};

template <>
struct Packed<__half> : PackedHalves<__half2> {
  __device__ static uint32_t Two(float low, float high) {
    return BitsOf(__floats2half2_rn(low, high));
  }
  __device__ static uint4 Fill(float value) {
    const uint32_t bits = Two(value, value);
    return make_uint4(bits, bits, bits, bits);
  }
  __device__ static void Unpack(const uint4& v, float (&out)[8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(PairOf(words[i]));
      out[2 * i] = two.x;
      out[2 * i + 1] = two.y;
    }
  }
  __device__ static uint4 Pack(const float (&g)[8]) {
    return make_uint4(Two(g[0], g[1]), Two(g[2], g[3]), Two(g[4], g[5]), Two(g[6], g[7]));
  }
  __device__ static float Largest(const uint4& v) {
    const float2 two = __half22float2(PairOf(Fold(v)));
    return MaxOrNan(two.x, two.y);
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PACKED_CUH_
