// The kernels of losses on given log-probabilities and their launch, for the files that compile them: loss_kernels.cu for any rows,
// loss_kernels_flat.cu for rows that lie evenly (LOSSD_FLAT_ROWS), which need much less code.
#ifndef LOSSD_KERNELS_CUDA_LOSS_LAUNCH_CUH_
#define LOSSD_KERNELS_CUDA_LOSS_LAUNCH_CUH_

#include <algorithm>
#include <type_traits>
#include <variant>

#include "kernels/cuda/loss_blocks.cuh"
#include "kernels/cuda/loss_kernels.h"

namespace lossd {
namespace {

template <class Call>
__global__ void __launch_bounds__(kLossThreads, 1)
    LossKernel(const __grid_constant__ LossLaunch<Call> launch) {
  extern __shared__ uint64_t tile[];
  __shared__ LossShared shared;
  LossBlock<Call>(launch, &shared, reinterpret_cast<std::byte*>(tile)).Run();
}

// Memory of a tile: only policy losses have metrics of rows.
template <class Call>
constexpr int kDynamicBytes = std::is_same_v<Call, PolicyLossCall> ? kTileBytes : 0;

int64_t LossPartBytes(const LossPlan& plan) {
  return (plan.blocks * static_cast<int64_t>(sizeof(LossPart)) + 15) / 16 * 16;
}

// A kernel that is told which rows count by the masks, not by an array.
LossCall ByMask(LossCall call) {
  std::visit(
      [](auto& of) {
        if constexpr (std::is_same_v<std::decay_t<decltype(of)>, PolicyLossCall>) {
          of.problem.counted = nullptr;
        } else {
          of.problem.sequences.counted = nullptr;
        }
      },
      call);
  return call;
}

template <class Call>
cudaError_t Launch(const LossLaunch<Call>& launch, cudaStream_t stream) {
  static_assert(sizeof(launch) < 32000, "the arguments of a kernel");
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(launch.plan.blocks);
  config.blockDim = dim3(kLossThreads);
  config.dynamicSmemBytes = kDynamicBytes<Call>;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  if (launch.plan.cluster) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = launch.plan.blocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  } else {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, LossKernel<Call>, launch);
}

template <class Call>
cudaError_t Prepare(int processors, LossLimits* limits) {
  cudaError_t error = cudaFuncSetAttribute(
      LossKernel<Call>, cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamicBytes<Call>);
  int blocks = 0;
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, LossKernel<Call>, kLossThreads,
                                                          kDynamicBytes<Call>);
  }
  limits->grid_blocks = std::min(limits->grid_blocks, blocks * processors);
  return error;
}

cudaError_t LaunchKernels(const LossRun& run, const LossPlan& plan, void* scratch,
                          cudaStream_t stream) {
  return std::visit(
      [&](const auto& call) {
        LossLaunch<std::decay_t<decltype(call)>> launch;
        launch.call = call;
        launch.elements = run.start.elements;
        launch.sequences = run.start.sequences;
        launch.fill = run.start.fill;
        launch.rows = run.head.rows;
        launch.record = run.start.record;
        launch.record_copy = run.record_copy;
        launch.scratch.parts = static_cast<LossPart*>(scratch);
        launch.scratch.tiles =
            reinterpret_cast<PolicyTile*>(static_cast<std::byte*>(scratch) + LossPartBytes(plan));
        launch.plan = plan;
        return Launch(launch, stream);
      },
      ByMask(run.loss));
}

cudaError_t PrepareKernels(int processors, LossLimits* limits) {
  cudaError_t error = Prepare<PolicyLossCall>(processors, limits);
  if (error == cudaSuccess) error = Prepare<PreferenceLossCall>(processors, limits);
  return error == cudaSuccess ? Prepare<UnpairedLossCall>(processors, limits) : error;
}

}  // namespace
}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOSS_LAUNCH_CUH_
