// The blocks of the lean row pass of a pair: shapes, and what the warps of a block leave for each other.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LEAN_SHARED_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LEAN_SHARED_CUH_

#include <cstdint>

#include "kernels/cuda/mailbox.cuh"
#include "kernels/cuda/pair_kernels.h"
#include "kernels/objectives/divergence_columns.h"

namespace lossd {

// Warps with columns in a block. Of 8, two blocks fit on a multiprocessor; 16 are for rows that would not fit otherwise.
inline constexpr int kLeanWarps = 8;
inline constexpr int kLeanMostWarps = 16;
inline constexpr int kLeanBlocks = 16;  // of a cluster, at most
// A thread takes its columns in groups of 8, and has up to 4 groups of each side in registers.
inline constexpr int kLeanGroup = 8;
inline constexpr int kLeanGroups = 4;
inline constexpr int kLeanGroupOfWarp = 32 * kLeanGroup;

struct LeanShape {
  int cluster = 1;
  int warps = kLeanWarps;
  int32_t slice = 0;  // columns of a block; a multiple of 64
  int32_t range = 0;  // of a warp: whole groups, of which the last warps may have fewer columns
  int32_t shared_bytes = 0;
};

struct LeanLaunch {
  PairLaunch pair;
  JsdSeries series;
  LeanShape shape;
};

// Columns that are read at once, 16 bytes.
template <class T>
inline constexpr int kLeanVector = 16 / static_cast<int>(sizeof(T));

// What the clerk tells the other warps: before a row's first sweep, ...
struct LeanTask {
  ColumnFactors factors;
  // From a few columns of the row: good for all warps, unless others lie far above.
  float student_reference;
  float teacher_reference;
  bool is_row;  // false: there are no more
};
// ... after it, ...
struct LeanAnswer {
  RowScales scales;
};
// ... and before the gradient's.
struct LeanSlope {
  void* to;  // null: no gradient is wanted
  float total;
  float coefficient;
};

struct alignas(16) LeanCompared {
  float value = 0;
  float y = 0;
};
template <int kLanes>
__device__ __forceinline__ LeanCompared AddLanes(LeanCompared sums) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sums.value = __fadd_rn(sums.value, __shfl_xor_sync(~0u, sums.value, offset));
    sums.y = __fadd_rn(sums.y, __shfl_xor_sync(~0u, sums.y, offset));
  }
  return sums;
}

struct LeanShared {
  Mailbox fetched;  // the block's columns of a row
  // From the other blocks. Two take turns: whoever sends to one again has heard from all that have read it.
  Mailbox mailboxes[2];
  ColumnTotals totals[2][kLeanBlocks];
  LeanCompared compared[2][kLeanBlocks];
  ColumnTotals totals_of_warps[kLeanMostWarps];
  LeanCompared compared_of_warps[kLeanMostWarps];
  LeanTask tasks[2];  // of this row and the next one, in turns
  LeanAnswer answer;
  LeanSlope slope;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LEAN_SHARED_CUH_
