// Barriers in shared memory that count bytes as well as threads, and the copies that arrive at them: from global memory, past the
// registers, and from another block of the cluster. Compute capability 9 and later; before it nothing here does anything.
#ifndef LOSSD_KERNELS_CUDA_MAILBOX_CUH_
#define LOSSD_KERNELS_CUDA_MAILBOX_CUH_

#include <cstdint>

namespace lossd {

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// A phase ends when one thread has called Expect and so many bytes have arrived, in either order; then the next one begins. Lies in
// shared memory.
class Mailbox {
 public:
  // By one thread, before any other uses it; then FenceMailboxes and a barrier.
  __device__ void Init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(&word_)) : "memory");
#endif
  }
  __device__ void Expect(uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&word_)),
        "r"(bytes)
        : "memory");
#endif
  }
  // Until the phase with this parity (0 for the first) has ended. What arrived in it is seen after it.
  __device__ void Wait(uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}\n"
          : "=r"(done)
          : "r"(SharedAddress(&word_)), "r"(parity)
          : "memory");
    }
#endif
  }

  // By one thread: `bytes` of global memory on their way to this block's shared memory; all three are multiples of 16. What was there
  // must have been read before, by the thread itself or in front of a barrier.
  __device__ void Fetch(void* to, const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(SharedAddress(to)),
        "l"(from), "r"(bytes), "r"(SharedAddress(&word_))
        : "memory");
#endif
  }

  // Writes `value` to `to` in block `rank` of the cluster, and lets it arrive at that block's mailbox. `to` and this object are this
  // block's own, which lie at the same place in every block.
  template <class T>
  __device__ void Send(T* to, const T& value, int rank) {
    static_assert(sizeof(T) % 16 == 0 && alignof(T) >= 16);
#if __CUDA_ARCH__ >= 900
    uint32_t mailbox;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(mailbox)
        : "r"(SharedAddress(&word_)), "r"(rank));
    const uint4* const parts = reinterpret_cast<const uint4*>(&value);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 16); ++i) {
      uint32_t place;
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(place)
          : "r"(SharedAddress(reinterpret_cast<const uint4*>(to) + i)), "r"(rank));
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
          "[%5];" ::"r"(place),
          "r"(parts[i].x), "r"(parts[i].y), "r"(parts[i].z), "r"(parts[i].w), "r"(mailbox)
          : "memory");
    }
#endif
  }

 private:
  uint64_t word_;
};

// By the thread that made them: mailboxes are ready for every block of the cluster after the next barrier.
__device__ __forceinline__ void FenceMailboxes() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_MAILBOX_CUH_
