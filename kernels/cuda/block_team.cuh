// A block as the team of a stage (kernels/objectives/team.h). Results are the same in every run: shuffles, then warps in order.
#ifndef LOSSD_KERNELS_CUDA_BLOCK_TEAM_CUH_
#define LOSSD_KERNELS_CUDA_BLOCK_TEAM_CUH_

#include <cstdint>

namespace lossd {

template <int Threads>
class BlockTeamOf {
 public:
  static constexpr int kThreads = Threads;
  static constexpr int kMostSums = 8;  // of SumAll
  static constexpr int kScratchWords = kMostSums * (Threads / 32 + 1);

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
    SumAll(&value);
    return value;
  }
  template <class... T>
  __device__ void SumAll(T*... values) {
    ReduceAll([](auto a, auto b) { return a + b; }, values...);
  }
  template <class T>
  __device__ T Min(T value) {
    ReduceAll([](T a, T b) { return a < b ? a : b; }, &value);
    return value;
  }
  template <class T>
  __device__ T Max(T value) {
    ReduceAll([](T a, T b) { return a > b ? a : b; }, &value);
    return value;
  }

 private:
  static constexpr int kWarps = kThreads / 32;

  // Over the warp's first kLanes lanes: in the first of them. int64_t is `long`, which the shuffles take; so is double.
  template <int kLanes, class T, class Combine>
  __device__ static T ReduceLanes(T value, Combine combine) {
    static_assert(sizeof(T) <= sizeof(int64_t));
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      value = combine(value, __shfl_down_sync(~0u, value, offset));
    }
    return value;
  }
  template <class T>
  __device__ T* Words(int number) {
    return reinterpret_cast<T*>(scratch_ + number * (kWarps + 1));
  }
  template <class Combine, class... T>
  __device__ void ReduceAll(Combine combine, T*... values) {
    static_assert(sizeof...(T) <= kMostSums);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    int number = 0;
    (
        [&] {
          const T value = ReduceLanes<32>(*values, combine);
          if (lane == 0) Words<T>(number)[warp] = value;
          ++number;
        }(),
        ...);
    __syncthreads();
    // A warp for each value.
    number = 0;
    (
        [&] {
          if (warp == number % kWarps) {
            const T value = ReduceLanes<kWarps>(Words<T>(number)[lane % kWarps], combine);
            if (lane == 0) Words<T>(number)[kWarps] = value;
          }
          ++number;
        }(),
        ...);
    __syncthreads();
    number = 0;
    ((*values = Words<T>(number++)[kWarps]), ...);
    __syncthreads();
  }

  int64_t* scratch_;
  uint32_t* counters_;
};

using BlockTeam = BlockTeamOf<256>;

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_BLOCK_TEAM_CUH_
