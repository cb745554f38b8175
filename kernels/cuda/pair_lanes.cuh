// What the lanes of a warp do together: the lean row pass of a pair.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_

#include "kernels/cuda/packed.cuh"
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

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LANES_CUH_
