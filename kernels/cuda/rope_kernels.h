// Rotary embedding on a GPU. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_ROPE_KERNELS_H_
#define LOSSD_KERNELS_CUDA_ROPE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layer_launch.h"
#include "kernels/layers/rope.h"

namespace lossd {

// Device memory that outlives calls: the blocks of a launch look for a bad position together. Every launch leaves it as it found it.
struct RopeScratch {
  unsigned long long bad_token;  // the first one; kNoBadToken: none
  unsigned int finished;         // blocks that have looked
};
inline constexpr unsigned long long kNoBadToken = ~0ull;

// Enqueue. Rows, heads and y must be there. *packed: whether x and y are moved 16 bytes at a time.
cudaError_t LaunchRope(const RopeProblem& problem, const RecordTarget& record, RopeScratch* scratch,
                       cudaStream_t stream, bool* packed);
// Looks at the positions alone. Rows and position must be there.
cudaError_t LaunchCheckPositions(const RopeProblem& problem, const RecordTarget& record,
                                 RopeScratch* scratch, cudaStream_t stream);

// Load the kernels.
cudaError_t PrepareRope();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ROPE_KERNELS_H_
