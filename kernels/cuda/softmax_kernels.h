// Softmax on a GPU. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_SOFTMAX_KERNELS_H_
#define LOSSD_KERNELS_CUDA_SOFTMAX_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layer_launch.h"
#include "kernels/layers/softmax.h"

namespace lossd {

// Enqueue one kernel. rows must be at least 1. *shape, *teams: how the rows were spread.
cudaError_t LaunchSoftmax(const SoftmaxForward& problem, const RecordTarget& record,
                          LayerLimits& limits, cudaStream_t stream, LayerShape* shape,
                          int64_t* teams);
cudaError_t LaunchSoftmaxBackward(const SoftmaxBackward& problem, const RecordTarget& record,
                                  LayerLimits& limits, cudaStream_t stream, LayerShape* shape,
                                  int64_t* teams);

// Load the kernels.
cudaError_t PrepareSoftmax();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_SOFTMAX_KERNELS_H_
