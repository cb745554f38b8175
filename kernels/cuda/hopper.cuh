// What compute capability 9.0a adds to CUDA C++: barriers that count bytes, tensor copies, products of a warpgroup. One function for each
// instruction; PTX ISA 8, sections "mbarrier", "cp.async.bulk.tensor", "wgmma".
#ifndef LOSSD_KERNELS_CUDA_HOPPER_CUH_
#define LOSSD_KERNELS_CUDA_HOPPER_CUH_

#include <cuda.h>

#include <cstdint>

namespace lossd::hopper {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// One thread.
__device__ __forceinline__ void InitBarrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
// The initialised barriers are seen by the cluster and by the copy engine.
__device__ __forceinline__ void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for the end of the phase with this parity.
__device__ __forceinline__ void Wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
// Arrives and lets the phase wait for so many bytes more.
__device__ __forceinline__ void ArriveExpecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
// At the same barrier of a block of the cluster. It orders nothing but what the caller has waited for: a release for the cluster would be a
// fence for all of memory.
__device__ __forceinline__ void ArriveAt(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// The block's barrier of this number, for so many threads: some wait, the others only arrive.
template <int kThreads>
__device__ __forceinline__ void NamedSync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void NamedArrive(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A box at column x and row y of the map's matrix.
__device__ __forceinline__ void Copy(void* to, const CUtensorMap* map, int x, int y,
                                     uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y)
      : "memory");
}
// To the same place in all blocks of `mask`, each of which is told at its own barrier.
__device__ __forceinline__ void CopyToAll(void* to, const CUtensorMap* map, int x, int y,
                                          uint64_t* barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "h"(mask), "r"(x), "r"(y)
      : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Descriptor of an operand in shared memory whose rows are 64 numbers of 16 bits, swizzled by 128 bytes as the copy engine does it:
// groups of 8 rows follow each other. The address is a multiple of 1024 bytes, plus 32 for each 16 columns.
__device__ __forceinline__ uint64_t OperandDescriptor(const void* data) {
  constexpr uint64_t kGroupBytes = 1024;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (kGroupBytes >> 4) << 32 | uint64_t{1} << 16 |
         (static_cast<uint64_t>(SharedAddress(data)) & 0x3ffff) >> 4;
}

// The same for operands whose columns lie beside each other in memory: 64 of them in 128 bytes, swizzled, for each of the product's terms;
// groups of 8 terms follow each other, and the next 64 columns come `block_bytes` later. Each 16 terms are 2048 bytes further.
__device__ __forceinline__ uint64_t ColumnsDescriptor(const void* data, uint32_t block_bytes) {
  constexpr uint64_t kGroupBytes = 1024;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (kGroupBytes >> 4) << 32 | static_cast<uint64_t>(block_bytes >> 4) << 16 |
         (static_cast<uint64_t>(SharedAddress(data)) & 0x3ffff) >> 4;
}

__device__ __forceinline__ void BeginProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most so many committed groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// The compiler must not read accumulators before the wait.
template <int kCount>
__device__ __forceinline__ void HoldAccumulators(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d [64, 192] = a [64, 16] b^T [192, 16] (+ d if `adds`), bf16 with fp32 sums, by the four warps of a warpgroup. A thread has of rows
// lane / 4 and lane / 4 + 8 of its warp's 16 the columns 8 j + 2 (lane % 4) + {0, 1}, in d[4 j ...].
#define LOSSD_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LOSSD_F16(d, i) LOSSD_F4(d, i), LOSSD_F4(d, i + 4), LOSSD_F4(d, i + 8), LOSSD_F4(d, i + 12)
__device__ __forceinline__ void Multiply64x192(float (&d)[96], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, adds, 1, 1, 0, 0;\n"
      "}\n"
      : LOSSD_F16(d, 0), LOSSD_F16(d, 16), LOSSD_F16(d, 32), LOSSD_F16(d, 48), LOSSD_F16(d, 64),
        LOSSD_F16(d, 80)
      : "l"(a), "l"(b), "r"(adds));
}
// d [64, 256] = a b (+ d if `adds`), where the columns of b lie beside each other, and with kColumnsOfA those of the transposed a, too.
template <bool kColumnsOfA>
__device__ __forceinline__ void Multiply64x256(float (&d)[128], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, adds, 1, 1, %131, 1;\n"
      "}\n"
      : LOSSD_F16(d, 0), LOSSD_F16(d, 16), LOSSD_F16(d, 32), LOSSD_F16(d, 48), LOSSD_F16(d, 64),
        LOSSD_F16(d, 80), LOSSD_F16(d, 96), LOSSD_F16(d, 112)
      : "l"(a), "l"(b), "r"(adds), "n"(kColumnsOfA ? 1 : 0));
}
#undef LOSSD_F16
#undef LOSSD_F4

// Four 8 x 8 matrices of 16 bits, each by its rows' addresses: lanes 8 i ... 8 i + 7 give those of matrix i.
__device__ __forceinline__ void StoreMatrices(void* row, uint32_t m0, uint32_t m1, uint32_t m2,
                                              uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddress(row)),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

}  // namespace lossd::hopper

#endif  // LOSSD_KERNELS_CUDA_HOPPER_CUH_
