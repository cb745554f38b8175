// What the lanes of a warp do together, and 16 bytes as numbers: the lean row pass of a pair.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/objectives/divergence_columns.h"

namespace lossd {

// Over the first kLanes lanes of a warp and their copies, in every lane: an exchange gives both lanes the same sum.
template <Divergence kKind, int kLanes>
__device__ __forceinline__ ColumnTotals CombineLanes(ColumnTotals totals) {
  float student = totals.student_reference;
  float teacher = totals.teacher_reference;
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    student = fmaxf(student, __shfl_xor_sync(~0u, student, offset));
    teacher = fmaxf(teacher, __shfl_xor_sync(~0u, teacher, offset));
  }
  totals = Rebased<kKind>(totals, student, teacher);
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
__device__ __forceinline__ float2 AddLanes(float2 sums) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sums.x = __fadd_rn(sums.x, __shfl_xor_sync(~0u, sums.x, offset));
    sums.y = __fadd_rn(sums.y, __shfl_xor_sync(~0u, sums.y, offset));
  }
  return sums;
}

// 16 bytes as fp32.
__device__ __forceinline__ void Widen(const uint4& bits, float (&out)[4]) {
  out[0] = __uint_as_float(bits.x);
  out[1] = __uint_as_float(bits.y);
  out[2] = __uint_as_float(bits.z);
  out[3] = __uint_as_float(bits.w);
}
__device__ __forceinline__ void Widen(const uint4& bits, float (&out)[8]) {
  // The bits of a bf16 are the upper half of the same number in fp32.
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ uint32_t TwoBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
