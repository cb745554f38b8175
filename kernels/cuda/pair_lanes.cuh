// What the lanes of a warp do together: the lean row pass of a pair.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_

#include "kernels/cuda/packed.cuh"
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

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
