// The pair's row pass in its common case: two rows of logits of one type without bias or cap, no term but the divergence, on a GPU with
// clusters. Several times as fast as the kernel for everything. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LEAN_H_
#define LOSSD_KERNELS_CUDA_PAIR_LEAN_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/pair_kernels.h"

namespace lossd {

// Whether the launch is of the common case. It depends on the request and the GPU alone, not on the rows.
bool IsLeanPair(const PairLaunch& launch);

// Enqueues a launch that IsLeanPair. *taken is false, and nothing happened, if the GPU cannot hold its clusters.
cudaError_t LaunchLeanPair(const PairLaunch& launch, cudaStream_t stream, bool* taken);

// Load the kernels and raise their limits.
cudaError_t PrepareLeanPairKernels(int64_t shared_limit);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LEAN_H_
