// What the lanes of a warp do together, and 16 bytes as numbers: the lean row pass of a pair.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/objectives/divergence_columns.h"

namespace lossd {

// Over the first kLanes lanes of a warp and their copies, in every lane: an exchange gives both lanes the same sum. All have the same
// references.
template <Divergence kKind, int kLanes>
__device__ __forceinline__ ColumnTotals AddLanes(ColumnTotals totals) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    ColumnTotals other;
    other.student_sum = __shfl_xor_sync(~0u, totals.student_sum, offset);
    other.teacher_sum = __shfl_xor_sync(~0u, totals.teacher_sum, offset);
    if (kHasForward<kKind>) other.x = __shfl_xor_sync(~0u, totals.x, offset);
    if (kHasReverse<kKind>) other.y = __shfl_xor_sync(~0u, totals.y, offset);
    AddTotals<kKind>(other, &totals);
  }
  return totals;
}

template <int kLanes>
__device__ __forceinline__ float HighestOfLanes(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

// Likewise, of whatever references.
template <Divergence kKind, int kLanes>
__device__ __forceinline__ ColumnTotals CombineLanes(const ColumnTotals& totals) {
  return AddLanes<kKind, kLanes>(Rebased<kKind>(totals,
                                                HighestOfLanes<kLanes>(totals.student_reference),
                                                HighestOfLanes<kLanes>(totals.teacher_reference)));
}

// 16 bytes as 4 or 8 numbers in fp32.
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

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
