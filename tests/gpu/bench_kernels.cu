#include <cstdint>

#include "tests/gpu/bench_kernels.h"

namespace lossd {
namespace {

__global__ void EmptyKernel() {}

__global__ void BusyKernel(int64_t nanoseconds) {
  int64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

}  // namespace

cudaError_t LaunchEmpty(cudaStream_t stream) {
  EmptyKernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t LaunchBusy(int microseconds, cudaStream_t stream) {
  BusyKernel<<<1, 1, 0, stream>>>(int64_t{1000} * microseconds);
  return cudaGetLastError();
}

}  // namespace lossd
