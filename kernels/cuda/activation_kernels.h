// Gated activations and squared ReLU on a GPU. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_ACTIVATION_KERNELS_H_
#define LOSSD_KERNELS_CUDA_ACTIVATION_KERNELS_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/layer_launch.h"
#include "kernels/layers/activation.h"

namespace lossd {

// Enqueue one kernel. rows must be at least 1. *packed: whether every tensor was moved 16 bytes at a time.
cudaError_t LaunchGated(const GatedForward& problem, const RecordTarget& record,
                        cudaStream_t stream, bool* packed);
cudaError_t LaunchGatedBackward(const GatedBackward& problem, const RecordTarget& record,
                                cudaStream_t stream, bool* packed);
cudaError_t LaunchReluSquared(const ReluSquaredForward& problem, const RecordTarget& record,
                              cudaStream_t stream, bool* packed);
cudaError_t LaunchReluSquaredBackward(const ReluSquaredBackward& problem,
                                      const RecordTarget& record, cudaStream_t stream,
                                      bool* packed);

// Load the kernels.
cudaError_t PrepareActivations();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ACTIVATION_KERNELS_H_
