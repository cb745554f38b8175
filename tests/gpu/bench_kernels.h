// Kernels of the benchmarks: one that does nothing, one that keeps the device busy.
#ifndef LOSSD_TESTS_GPU_BENCH_KERNELS_H_
#define LOSSD_TESTS_GPU_BENCH_KERNELS_H_

#include <cuda_runtime_api.h>

namespace lossd {

// Longer than the host takes to enqueue a call.
inline constexpr int kBusyMicroseconds = 100;

// Both enqueue and return the launch's error.
cudaError_t LaunchEmpty(cudaStream_t stream);
cudaError_t LaunchBusy(int microseconds, cudaStream_t stream);

}  // namespace lossd

#endif  // LOSSD_TESTS_GPU_BENCH_KERNELS_H_
