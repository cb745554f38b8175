// Barriers in shared memory (mbarrier) and the copies that they count: compute capability 9 and later.
#ifndef LOSSD_KERNELS_CUDA_MEMORY_BARRIER_CUH_
#define LOSSD_KERNELS_CUDA_MEMORY_BARRIER_CUH_

#include <cstdint>

namespace lossd {

// A barrier is a word of 64 bits; its phases end one after the other, each when `count` threads have arrived and all bytes that were
// announced are there. A phase is waited for by its parity, so that no thread may be two phases behind.
#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t SharedAddress(const void* object) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(object));
}
// Of the same object in another block of the cluster.
__device__ __forceinline__ uint32_t SharedAddressOf(const void* object, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(SharedAddress(object)), "r"(rank));
  return address;
}

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(count)
               : "memory");
}
// Before the first use by others, after all InitBarrier; the cluster's own barrier follows.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void ArriveAt(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}
__device__ __forceinline__ void ArriveExpecting(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}
// At the barrier of another block; what this thread wrote to that block's memory is seen by who waits there.
__device__ __forceinline__ void ArriveAtRank(uint64_t* barrier, int rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   SharedAddressOf(barrier, rank))
               : "memory");
}

__device__ __forceinline__ void WaitAt(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
// For what other blocks wrote before they arrived.
__device__ __forceinline__ void WaitForRanks(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// 16 bytes to the shared memory of another block.
__device__ __forceinline__ void StoreAtRank(const void* object, int rank, const uint4& value) {
  asm volatile(
      "st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddressOf(object, rank)),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
}

// From global to shared memory; addresses and size are multiples of 16. The barrier counts the bytes.
__device__ __forceinline__ void CopyBulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}
// Between plain writes to shared memory and copies to the same places.
__device__ __forceinline__ void FenceForCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_MEMORY_BARRIER_CUH_
