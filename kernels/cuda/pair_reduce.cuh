// Sums and maxima over the threads of all blocks of a row, in a fixed order; every thread gets the result.
#ifndef LOSSD_KERNELS_CUDA_PAIR_REDUCE_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_REDUCE_CUH_

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/pair_side.cuh"

namespace lossd {

inline constexpr int kPairValues = 16;

// Lies at the same place in the shared memory of each block. What a block leaves here for others is overwritten two reductions later:
// the barrier of the one between tells that all have read it.
struct PairScratch {
  float warps[kPairWarps][kPairValues];
  float blocks[2][kPairValues];
  float totals[kPairValues];
};

struct AddFloats {
  __device__ float operator()(float a, float b) const { return __fadd_rn(a, b); }
};
struct MaxFloats {
  __device__ float operator()(float a, float b) const { return MaxOrNan(a, b); }
};

class PairReducer {
 public:
  __device__ PairReducer(const Cluster& cluster, PairScratch* scratch)
      : cluster_(cluster), scratch_(scratch) {}

  // All threads of all blocks must call, with the same kCount.
  template <int kCount, class Combine>
  __device__ void Run(float (&values)[kCount], Combine combine) {
    static_assert(kCount <= kPairValues);
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      for (int offset = 16; offset > 0; offset /= 2) {
        values[v] = combine(values[v], __shfl_down_sync(~0u, values[v], offset));
      }
      if (lane == 0) scratch_->warps[warp][v] = values[v];
    }
    __syncthreads();
    float* mine = scratch_->blocks[turn_];
    if (threadIdx.x < kCount) {
      float sum = scratch_->warps[0][threadIdx.x];
      for (int w = 1; w < kPairWarps; ++w) sum = combine(sum, scratch_->warps[w][threadIdx.x]);
      mine[threadIdx.x] = sum;
    }
    cluster_.Sync();
    if (threadIdx.x < kCount) {
      float sum = cluster_.Of(mine, 0)[threadIdx.x];
      for (int b = 1; b < cluster_.size(); ++b) {
        sum = combine(sum, cluster_.Of(mine, b)[threadIdx.x]);
      }
      scratch_->totals[threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kCount; ++v) values[v] = scratch_->totals[v];
    // The next call writes warps and totals behind barriers that follow these reads.
    turn_ ^= 1;
  }

 private:
  const Cluster& cluster_;
  PairScratch* scratch_;
  int turn_ = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_REDUCE_CUH_
