// Parts of a block as teams of stages (kernels/objectives/team.h). Results are the same in every run, and the same for every part of one
// size: butterflies within warps, then over warps.
#ifndef LOSSD_KERNELS_CUDA_PART_TEAM_CUH_
#define LOSSD_KERNELS_CUDA_PART_TEAM_CUH_

#include <cstdint>

namespace lossd {

// The shuffles take int64_t, which is `long`, and double, too.
template <class T, class Combine>
__device__ T CombineLanes(T value, int lanes, Combine combine) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

template <class T>
struct SumOf {
  __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct MinOf {
  __device__ T operator()(T a, T b) const { return a < b ? a : b; }
};
template <class T>
struct MaxOf {
  __device__ T operator()(T a, T b) const { return a > b ? a : b; }
};

// A float as an integer of the same order (no NaN), and back: integers have instructions that go over a warp.
__device__ inline int OrderOf(float value) {
  const int bits = __float_as_int(value);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ inline float FloatOf(int order) {
  return __int_as_float(order < 0 ? order ^ 0x7fffffff : order);
}

// Over the lanes of a warp, all of which call.
template <class T, class Combine>
__device__ T CombineWarp(T value, Combine combine) {
  return CombineLanes(value, 32, combine);
}
__device__ inline int32_t CombineWarp(int32_t value, SumOf<int32_t>) {
  return __reduce_add_sync(~0u, value);
}
__device__ inline float CombineWarp(float value, MinOf<float>) {
  return FloatOf(__reduce_min_sync(~0u, OrderOf(value)));
}
__device__ inline float CombineWarp(float value, MaxOf<float>) {
  return FloatOf(__reduce_max_sync(~0u, OrderOf(value)));
}

// One warp.
class WarpTeam {
 public:
  __device__ int rank() const { return threadIdx.x % 32; }
  __device__ int size() const { return 32; }
  template <class T>
  __device__ T Sum(T value) {
    return CombineWarp(value, SumOf<T>());
  }
  template <class... T>
  __device__ void SumAll(T*... values) {
    ((*values = Sum(*values)), ...);
  }
  template <class T>
  __device__ T Min(T value) {
    return CombineWarp(value, MinOf<T>());
  }
  template <class T>
  __device__ T Max(T value) {
    return CombineWarp(value, MaxOf<T>());
  }
  __device__ void Sync() { __syncwarp(); }
};

// Shared memory of all parts of a block of up to kMaxWarps warps.
struct PartShared {
  static constexpr int kMaxWarps = 16;
  static constexpr int kMaxValues = 6;  // of one SumAll
  int64_t words[2][kMaxWarps][kMaxValues];
  uint32_t counters[256];  // kTeamCounters; only for a part that is the whole block
};

// `threads` threads in a row, a power of two, at least a warp. All threads of a part make the same calls; parts are free of each other.
class PartTeam {
 public:
  __device__ PartTeam(unsigned threads, PartShared* shared) : threads_(threads), shared_(shared) {}

  __device__ int rank() const { return threadIdx.x & (threads_ - 1); }
  __device__ int size() const { return static_cast<int>(threads_); }
  // The part's number in its block, by a shift: a division is many instructions.
  __device__ int index() const { return threadIdx.x >> __ffs(threads_) - 1; }

  template <class T>
  __device__ T Sum(T value) {
    SumAll(&value);
    return value;
  }
  // One barrier for all of them.
  template <class... T>
  __device__ void SumAll(T*... values) {
    static_assert(sizeof...(T) <= PartShared::kMaxValues);
    ((*values = CombineWarp(*values, SumOf<T>())), ...);
    if (threads_ == 32) return;
    int place = 0;
    (Put(*values, place++), ...);
    Sync();
    place = 0;
    ((*values = Get<T>(place++, SumOf<T>())), ...);
    half_ ^= 1;
  }
  template <class T>
  __device__ T Min(T value) {
    return Reduce(value, MinOf<T>());
  }
  template <class T>
  __device__ T Max(T value) {
    return Reduce(value, MaxOf<T>());
  }
  __device__ uint32_t* counters() { return shared_->counters; }
  __device__ void Count(uint32_t* counter) { atomicAdd(counter, 1u); }
  __device__ void Sync() {
    if (threads_ == 32) {
      __syncwarp();
    } else if (threads_ == blockDim.x) {
      __syncthreads();
    } else {
      // Barrier 0 is that of the block; the others go by the part's first two warps, so that parts of different sizes may be there at once.
      asm volatile("bar.sync %0, %1;" ::"r"(1 + (threadIdx.x & ~(threads_ - 1)) / 64), "r"(threads_)
                   : "memory");
    }
  }

 private:
  template <class T, class Combine>
  __device__ T Reduce(T value, Combine combine) {
    value = CombineWarp(value, combine);
    if (threads_ == 32) return value;
    Put(value, 0);
    Sync();
    value = Get<T>(0, combine);
    half_ ^= 1;
    return value;
  }
  template <class T>
  __device__ void Put(T value, int place) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) *Word<T>(warp, place) = value;
  }
  // Two reductions in a row use different halves: nobody writes what another still reads.
  template <class T, class Combine>
  __device__ T Get(int place, Combine combine) {
    const unsigned warps = threads_ / 32;
    const unsigned warp = threadIdx.x / 32;
    const T value = *Word<T>((warp & ~(warps - 1)) | (threadIdx.x & (warps - 1)), place);
    return CombineLanes(value, warps, combine);
  }
  template <class T>
  __device__ T* Word(int warp, int place) {
    return reinterpret_cast<T*>(&shared_->words[half_][warp][place]);
  }

  unsigned threads_;
  PartShared* shared_;
  int half_ = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PART_TEAM_CUH_
