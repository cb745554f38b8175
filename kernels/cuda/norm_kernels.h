// Norms on a GPU. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_NORM_KERNELS_H_
#define LOSSD_KERNELS_CUDA_NORM_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layer_launch.h"
#include "kernels/layers/norm.h"

namespace lossd {

// Which kernel runs a call, and on what grid. Depends on the call's shape, types and alignment, and on the GPU.
struct NormPlan {
  const void* kernel = nullptr;
  LayerShape shape;  // threads 0: any layout, rows are read once for each pass
  int64_t teams = 0;
};
cudaError_t PlanNorm(const NormForward& problem, LayerLimits& limits, NormPlan* plan);
cudaError_t PlanNormBackward(const NormBackward& problem, LayerLimits& limits, NormPlan* plan);

// Enqueue. rows must be at least 1.
cudaError_t LaunchNorm(const NormForward& problem, const NormPlan& plan, const RecordTarget& record,
                       cudaStream_t stream);
// `parts`: [columns of sums, teams, H] fp32, one of the former for grad_weight and one for grad_bias if they are wanted; null without them.
cudaError_t LaunchNormBackward(const NormBackward& problem, const NormPlan& plan, float* parts,
                               const RecordTarget& record, cudaStream_t stream);
// The sums of `teams` parts in a fixed order, to grad_weight and grad_bias. After LaunchNormBackward, or with teams 0.
cudaError_t LaunchNormColumns(const NormBackward& problem, const float* parts, int64_t teams,
                              bool overlaps, cudaStream_t stream);

// Load the kernels.
cudaError_t PrepareNormForward();
cudaError_t PrepareNormBackward();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_NORM_KERNELS_H_
