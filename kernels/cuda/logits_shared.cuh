// What the warps of a block share in the row pass of the caller's logits (logits_lean.cuh), and sums over a warp.
#ifndef LOSSD_KERNELS_CUDA_LOGITS_SHARED_CUH_
#define LOSSD_KERNELS_CUDA_LOGITS_SHARED_CUH_

#include <cstdint>

#include "kernels/cuda/ordered_key.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/objectives/logit_columns.h"

namespace lossd {

inline constexpr int kLogitsWarps = 8;
inline constexpr int kColumnThreads = 32 * kLogitsWarps;
inline constexpr int kLogitsThreads = kColumnThreads + 32;
inline constexpr int kLogitsParts = 16;  // blocks of a row, at most
inline constexpr int kLogitsStages = 4;  // rows in shared memory, at most

// kPlain: c p - u and the target's. kEntropy: with the term of h, too.
enum class LogitsGradient { kNone, kPlain, kEntropy };

template <class Program>
struct LeanLogitsLaunch {
  RowPass pass;
  Program program;
  int32_t parts = 1;   // blocks of a row
  int32_t places = 0;  // of 16 bytes, in a slice
  int32_t stages = 2;  // with a gradient and three or more, a row is added up ahead
};

// What the eight warps need to know of a row's slice. Of its places those from `begin` to `end` hold columns and nothing else.
struct LogitsSlice {
  int64_t row;   // -1: there are no more
  uint4* to;     // the gradient's first place
  float factor;  // of logit_columns.h
  int column;    // of the first number of place 0; below 0 where the row starts behind it
  int begin;     // 1 where place 0 is shared with the row before, else 0
  int end;
  int tail;    // place in which the valid columns end; -1: in none of this slice
  int target;  // column; INT_MAX: none
  int owner;   // block that has it; -1: none
};

// One of each for every stage.
struct LogitsShared {
  LogitSums warps[kLogitsStages][kLogitsWarps];
  LogitSums blocks[kLogitsStages][kLogitsParts];  // written by the other blocks
  LogitSlopes answers[kLogitsStages];
  LogitsSlice slices[kLogitsStages];
  float target[kLogitsStages];  // raw logit
  // The slice is there; it is no more needed; the warps' sums, the blocks' sums, the answer are there.
  uint64_t full[kLogitsStages];
  uint64_t empty[kLogitsStages];
  uint64_t summed[kLogitsStages];
  uint64_t exchanged[kLogitsStages];
  uint64_t answered[kLogitsStages];
};

// Sums over the warp: of a in lanes 0 ... 7, b in 8 ... 15, c in 16 ... 23, d in 24 ... 31.
__device__ __forceinline__ float SumFour(float a, float b, float c, float d) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool upper = (lane & 16) != 0;
  const float first = AddRounded(upper ? c : a, __shfl_xor_sync(~0u, upper ? a : c, 16));
  const float second = AddRounded(upper ? d : b, __shfl_xor_sync(~0u, upper ? b : d, 16));
  const bool odd = (lane & 8) != 0;
  float sum = AddRounded(odd ? second : first, __shfl_xor_sync(~0u, odd ? first : second, 8));
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) {
    sum = AddRounded(sum, __shfl_xor_sync(~0u, sum, offset));
  }
  return sum;
}

__device__ __forceinline__ float WarpLargest(float value) {
  return FromKey(__reduce_max_sync(~0u, OrderedKey(value)));
}

// Of the first kLanes lanes and their copies, in every lane.
template <bool kAll, int kLanes>
__device__ __forceinline__ LogitSums CombineLanes(LogitSums sums, float factor) {
  sums = RebasedLogits<kAll>(sums, WarpLargest(sums.max), factor);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    LogitSums other;
    other.sum = __shfl_xor_sync(~0u, sums.sum, offset);
    if (kAll) {
      other.sum_t = __shfl_xor_sync(~0u, sums.sum_t, offset);
      other.sum_2 = __shfl_xor_sync(~0u, sums.sum_2, offset);
      other.t = __shfl_xor_sync(~0u, sums.t, offset);
      other.columns = __shfl_xor_sync(~0u, sums.columns, offset);
      other.argmax = __shfl_xor_sync(~0u, sums.argmax, offset);
    }
    AddLogits<kAll>(other, &sums);
  }
  return sums;
}

// Which stage a row has, by its number among those of the cluster, and the parity of that stage's barriers.
class LogitsTurn {
 public:
  __device__ explicit LogitsTurn(int stages) : stages_(stages) {}
  __device__ int stage() const { return stage_; }
  __device__ int parity() const { return parity_; }
  __device__ void Next() {
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  int stages_;
  int stage_ = 0;
  int parity_ = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOGITS_SHARED_CUH_
