// A block as the team of a stage (kernels/objectives/team.h). Results are the same in every run: shuffles, then warps in order.
#ifndef LOSSD_KERNELS_CUDA_BLOCK_TEAM_CUH_
#define LOSSD_KERNELS_CUDA_BLOCK_TEAM_CUH_

#include <cstdint>

namespace lossd {

template <int Threads>
class BlockTeamOf {
 public:
  static constexpr int kThreads = Threads;
  static constexpr int kScratchWords = Threads / 32 + 1;

  // Shared memory of the block: `scratch` has kScratchWords words, `counters` kTeamCounters (null if the stage does not count).
  __device__ explicit BlockTeamOf(int64_t* scratch, uint32_t* counters = nullptr)
      : scratch_(scratch), counters_(counters) {}

  __device__ int rank() const { return threadIdx.x; }
  __device__ int size() const { return kThreads; }
  __device__ void Sync() { __syncthreads(); }
  __device__ uint32_t* counters() { return counters_; }
  __device__ void Count(uint32_t* counter) { atomicAdd(counter, 1u); }

  template <class T>
  __device__ T Sum(T value) {
    return Reduce(value, [](T a, T b) { return a + b; });
  }
  template <class... T>
  __device__ void SumAll(T*... values) {
    ((*values = Sum(*values)), ...);
  }
  template <class T>
  __device__ T Min(T value) {
    return Reduce(value, [](T a, T b) { return a < b ? a : b; });
  }
  template <class T>
  __device__ T Max(T value) {
    return Reduce(value, [](T a, T b) { return a > b ? a : b; });
  }

 private:
  static constexpr int kWarps = kThreads / 32;

  // int64_t is `long`, which the shuffles take; so is double.
  template <class T, class Combine>
  __device__ T Reduce(T value, Combine combine) {
    static_assert(sizeof(T) <= sizeof(int64_t));
    for (int offset = 16; offset > 0; offset /= 2) {
      value = combine(value, __shfl_down_sync(~0u, value, offset));
    }
    T* words = reinterpret_cast<T*>(scratch_);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kWarps; ++w) value = combine(value, words[w]);
      words[kWarps] = value;
    }
    __syncthreads();
    value = words[kWarps];
    __syncthreads();
    return value;
  }

  int64_t* scratch_;
  uint32_t* counters_;
};

using BlockTeam = BlockTeamOf<256>;

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_BLOCK_TEAM_CUH_
