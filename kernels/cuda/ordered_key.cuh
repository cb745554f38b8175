// Numbers as integers of the same order.
#ifndef LOSSD_KERNELS_CUDA_ORDERED_KEY_CUH_
#define LOSSD_KERNELS_CUDA_ORDERED_KEY_CUH_

#include <cstdint>

namespace lossd {

// Rises with the number; +0 and -0 are one. A positive NaN is above all.
__device__ __forceinline__ uint32_t OrderedKey(float z) {
  const uint32_t bits = __float_as_uint(z + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float FromKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ORDERED_KEY_CUH_
