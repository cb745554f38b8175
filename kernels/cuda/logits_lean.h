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

struct LogitsShape {
  int parts = 0;   // blocks of a row; 0: the pass is not of the common case
  int stages = 0;  // rows of which a block has its slice in shared memory
};

// Depends on the request and the GPU alone.
LogitsShape ChooseLogitsShape(const RowPass& pass, const RowProgram& program, const LogitsGpu& gpu);

// Enqueues a row pass of such a shape; shape->parts becomes less where the GPU refuses so many, and 0, with nothing enqueued, where it
// refuses any.
cudaError_t LaunchLeanLogits(const RowPass& pass, const RowProgram& program, const LogitsGpu& gpu,
                             cudaStream_t stream, LogitsShape* shape);

// Load the kernels and raise their limits.
cudaError_t PrepareLeanLogitsKernels(int64_t shared_limit);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOGITS_LEAN_H_
