// Copies that go from global to shared memory past the registers. A thread waits for its own.
#ifndef LOSSD_KERNELS_CUDA_ASYNC_COPY_CUH_
#define LOSSD_KERNELS_CUDA_ASYNC_COPY_CUH_

#include <cstdint>

namespace lossd {

// 16 bytes; both addresses are multiples of 16.
__device__ __forceinline__ void FetchVector(void* to, const void* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
// The first `bytes` of them; the others become 0.
__device__ __forceinline__ void FetchPart(void* to, const void* from, int bytes) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void WaitForFetches() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// The copies since the last call are a group.
__device__ __forceinline__ void EndGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups but the last kPending.
template <int kPending>
__device__ __forceinline__ void WaitForGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ASYNC_COPY_CUH_
