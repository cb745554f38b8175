// See loss_launch.cuh.
#include "kernels/cuda/loss_kernels.h"
#include "kernels/cuda/loss_launch.cuh"

namespace lossd {

cudaError_t LaunchFlatLoss(const LossRun& run, const LossPlan& plan, void* scratch,
                           cudaStream_t stream) {
  return LaunchKernels(run, plan, scratch, stream);
}

cudaError_t PrepareFlatLossKernels(int processors, LossLimits* limits) {
  return PrepareKernels(processors, limits);
}

}  // namespace lossd
