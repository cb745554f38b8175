// A loss on given log-probabilities in one launch: empty record, checks, fills, all stages, the record's copy.
#ifndef LOSSD_KERNELS_CUDA_LOSS_KERNELS_H_
#define LOSSD_KERNELS_CUDA_LOSS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/loss_plan.h"
#include "kernels/linear/loss_run.h"

namespace lossd {

// What a launch needs of the workspace beside what `run` has.
int64_t LossScratchBytes(const LossRun& run, const LossPlan& plan);

// Enqueues all of it. `scratch`: LossScratchBytes, 16-byte aligned.
cudaError_t LaunchLoss(const LossRun& run, const LossPlan& plan, void* scratch,
                       cudaStream_t stream);

// Loads the kernels and asks what they may use. `has_clusters`: compute capability 9.
cudaError_t PrepareLossKernels(bool has_clusters, int processors, LossLimits* limits);

// The same of run.flat, by the other two.
cudaError_t LaunchFlatLoss(const LossRun& run, const LossPlan& plan, void* scratch,
                           cudaStream_t stream);
cudaError_t PrepareFlatLossKernels(int processors, LossLimits* limits);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOSS_KERNELS_H_
