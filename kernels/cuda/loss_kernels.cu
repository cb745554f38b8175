#include "kernels/cuda/loss_kernels.h"
#include "kernels/cuda/loss_launch.cuh"

namespace lossd {
namespace {

constexpr int kClusterBlocks = 8;  // every GPU with clusters has them

}  // namespace

int64_t LossScratchBytes(const LossRun& run, const LossPlan& plan) {
  const bool has_tiles = std::holds_alternative<PolicyLossCall>(run.loss);
  const int64_t tiles = has_tiles ? (run.head.rows + kLossThreads - 1) / kLossThreads : 0;
  return LossPartBytes(plan) + tiles * static_cast<int64_t>(sizeof(PolicyTile));
}

cudaError_t LaunchLoss(const LossRun& run, const LossPlan& plan, void* scratch,
                       cudaStream_t stream) {
  return run.flat ? LaunchFlatLoss(run, plan, scratch, stream)
                  : LaunchKernels(run, plan, scratch, stream);
}

cudaError_t PrepareLossKernels(bool has_clusters, int processors, LossLimits* limits) {
  limits->cluster_blocks = has_clusters ? kClusterBlocks : 0;
  limits->grid_blocks = INT32_MAX;
  const cudaError_t error = PrepareKernels(processors, limits);
  return error == cudaSuccess ? PrepareFlatLossKernels(processors, limits) : error;
}

}  // namespace lossd
