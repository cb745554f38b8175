// The row pass of the caller's logits in its common case: no cap, no single columns but the target's, the gradient in the logits' type.
// Several times as fast as the row pass for everything. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_LOGITS_LEAN_H_
#define LOSSD_KERNELS_CUDA_LOGITS_LEAN_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/row_kernels.h"

namespace lossd {

// What the launch needs to know of the GPU.
struct LogitsGpu {
  int largest_cluster = 1;   // blocks; 1 where there are no clusters
  int64_t shared_bytes = 0;  // that a block may have
};

// Enqueues a row pass of the common case. *parts is the number of blocks of a row; 0, and nothing happened, if the pass is not of the
// common case, which depends on the request and the GPU alone.
cudaError_t LaunchLeanLogits(const RowPass& pass, const RowProgram& program, const LogitsGpu& gpu,
                             cudaStream_t stream, int* parts);

// Load the kernels and raise their limits.
cudaError_t PrepareLeanLogitsKernels(int64_t shared_limit);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOGITS_LEAN_H_
