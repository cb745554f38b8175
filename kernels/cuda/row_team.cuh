// The blocks that work on one row: a block, or a cluster of blocks that adds up through distributed shared memory.
#ifndef LOSSD_KERNELS_CUDA_ROW_TEAM_CUH_
#define LOSSD_KERNELS_CUDA_ROW_TEAM_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/core/result_record.h"
#include "kernels/cuda/cluster.cuh"

namespace lossd {

inline constexpr int kLargestTeam = 16;  // blocks
inline constexpr int kTeamWarps = 16;    // of a block
inline constexpr int kTeamThreads = 32 * kTeamWarps;

// Shared memory of a block: two sets of partial results, used in turn, so that a reduction takes one barrier.
template <int kValues>
struct RowTeamShared {
  float parts[2][kLargestTeam * kTeamWarps][kValues];
};

// Threads of `cluster.size()` blocks of at most kTeamThreads threads, a multiple of 32. Results have one order of the threads.
template <int kValues>
class RowTeam {
 public:
  using Shared = RowTeamShared<kValues>;

  __device__ RowTeam(const Cluster& cluster, Shared* shared)
      : cluster_(cluster), shared_(shared), warps_(static_cast<int>(blockDim.x) / 32) {
    // Nobody writes to the shared memory of a block that does not run yet.
    if (cluster_.size() > 1) cluster_.Sync();
  }

  // This thread's number in the team's block, and the team's among the teams of the grid.
  __device__ int64_t team() const { return blockIdx.x / cluster_.size(); }
  __device__ int64_t teams() const { return gridDim.x / cluster_.size(); }

  // combine(a, b) adds b to a, for arrays of kValues; `identity` adds nothing. Every thread gets the result of all threads' values.
  template <class Combine>
  __device__ void Reduce(float (&values)[kValues], const float (&identity)[kValues],
                         const Combine& combine) {
    AcrossWarp(values, combine);
    if (warps_ == 1 && cluster_.size() == 1) return;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Lane r tells block r of the cluster.
    if (lane < cluster_.size()) {
      Shared* there = cluster_.Of(shared_, lane);
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        there->parts[turn_][cluster_.rank() * warps_ + warp][v] = values[v];
      }
    }
    cluster_.Sync();
    const int count = cluster_.size() * warps_;
    const float(*parts)[kValues] = shared_->parts[turn_];
    turn_ ^= 1;
    // A few are added by every thread, many by the lanes of every warp.
    const bool few = count <= kTeamWarps;
    const int first = few ? 0 : lane;
    const int step = few ? 1 : 32;
#pragma unroll
    for (int v = 0; v < kValues; ++v) values[v] = identity[v];
    for (int part = first; part < count; part += step) {
      float other[kValues];
#pragma unroll
      for (int v = 0; v < kValues; ++v) other[v] = parts[part][v];
      combine(values, other);
    }
    if (!few) AcrossWarp(values, combine);
  }

  __device__ void Sum(float (&values)[kValues]) {
    const float zeros[kValues] = {};
    Reduce(values, zeros, [](float(&a)[kValues], const float(&b)[kValues]) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) a[v] += b[v];
    });
  }

 private:
  // All lanes get the same bits if combine does not mind which of the two comes first.
  template <class Combine>
  static __device__ void AcrossWarp(float (&values)[kValues], const Combine& combine) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      float other[kValues];
#pragma unroll
      for (int v = 0; v < kValues; ++v) other[v] = __shfl_xor_sync(~0u, values[v], offset);
      combine(values, other);
    }
  }

  const Cluster cluster_;
  Shared* const shared_;
  const int warps_;
  int turn_ = 0;
};

// An empty record and its copy, by one block.
__device__ __forceinline__ void ClearRecord(ResultRecord* record, ResultRecord* copy) {
  // Its words are 0 but for the row.
  static_assert(offsetof(ResultRecord, row) == sizeof(int64_t));
  for (int w = static_cast<int>(threadIdx.x);
       w < static_cast<int>(sizeof(ResultRecord) / sizeof(int64_t));
       w += static_cast<int>(blockDim.x)) {
    const int64_t word = w == 1 ? -1 : 0;
    reinterpret_cast<int64_t*>(record)[w] = word;
    if (copy != nullptr) reinterpret_cast<int64_t*>(copy)[w] = word;
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ROW_TEAM_CUH_
