#include <algorithm>

#include "kernels/core/dtype.h"
#include "kernels/cuda/layer_launch.h"
#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/row_team.cuh"

namespace lossd {
namespace {

// Blocks of a cluster that every GPU with clusters takes.
constexpr int kPortableCluster = 8;

__global__ void ClearRecordKernel(const __grid_constant__ RecordTarget target) {
  ClearRecord(target.record, target.copy);
}

// The threads that a row of `packs` needs in a cluster; 0 if there are too many.
int ThreadsFor(int64_t packs, int each, int cluster) {
  const int64_t threads = (packs + int64_t{each} * cluster - 1) / (int64_t{each} * cluster);
  const int64_t rounded = (threads + 31) / 32 * 32;
  return rounded <= kTeamThreads ? static_cast<int>(rounded) : 0;
}

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kPackBytes == 0; }

}  // namespace

LayerShape ChooseLayerShape(int64_t width, DType type, int small, int large, int largest_cluster) {
  const int64_t bytes = width * static_cast<int64_t>(SizeOf(type));
  LayerShape shape;
  if (bytes % kPackBytes != 0) return shape;
  for (const int each : {small, large}) {
    // Clusters that need not be there come last.
    const int largest =
        each == small ? std::min(largest_cluster, kPortableCluster) : largest_cluster;
    for (int cluster = 1; cluster <= largest; cluster *= 2) {
      shape.threads = ThreadsFor(bytes / kPackBytes, each, cluster);
      shape.cluster = cluster;
      shape.packs = each;
      if (shape.threads > 0) return shape;
    }
  }
  return shape;
}

bool IsPacked(const RowsView& view, DType type) {
  if (!view) return true;
  const auto size = static_cast<int64_t>(SizeOf(type));
  if (view.dtype != type || !IsAligned(view.data) || view.width * size % kPackBytes != 0) {
    return false;
  }
  for (int d = 0; d < view.lead_rank; ++d) {
    if (view.lead_shape[d] > 1 && view.lead_strides[d] * size % kPackBytes != 0) return false;
  }
  return true;
}

bool IsPackedColumns(const RowsView& view, DType type) {
  if (!view) return true;
  return (view.dtype == type || view.dtype == DType::kF32) && IsAligned(view.data) &&
         view.lead_rank == 1 && (view.lead_strides[0] == 1 || view.rows == 1);
}

TeamGrid GridOf(const LayerShape& shape, int64_t teams) {
  TeamGrid grid;
  grid.threads = shape.threads > 0 ? shape.threads : kTeamThreads;
  grid.cluster = shape.cluster;
  grid.teams = teams;
  return grid;
}

int64_t AnyLayoutTeams(const LayerLimits& limits) {
  // A multiprocessor has room for 2048 threads.
  return int64_t{limits.multiprocessors()} * (2048 / kTeamThreads);
}

cudaError_t LayerLimits::Resident(const void* kernel, int threads, int cluster, int* teams) {
  const auto [place, is_new] = resident_.try_emplace({kernel, threads, cluster}, 0);
  *teams = place->second;
  if (!is_new) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (cluster > 1) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(cluster));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.attrs = &attribute;
    config.numAttrs = 1;
    error = cudaOccupancyMaxActiveClusters(teams, kernel, &config);
    if (error == cudaErrorInvalidClusterSize || error == cudaErrorInvalidConfiguration) {
      cudaGetLastError();
      *teams = 0;
      error = cudaSuccess;
    }
  } else {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(teams, kernel, threads, 0);
    *teams *= multiprocessors_;
  }
  if (error == cudaSuccess) {
    place->second = *teams;
  } else {
    resident_.erase(place);
  }
  return error;
}

cudaError_t LaunchTeams(const void* kernel, const void* launch, const TeamGrid& grid,
                        cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.teams * grid.cluster));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.stream = stream;
  config.attrs = attributes;
  if (grid.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(grid.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (grid.overlaps) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {const_cast<void*>(launch)};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

cudaError_t PrepareLayerKernel(const void* kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  // Where 16 blocks are refused, Resident says so.
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
      cudaSuccess) {
    cudaGetLastError();
  }
  return cudaSuccess;
}

cudaError_t LaunchClearRecord(const RecordTarget& record, cudaStream_t stream) {
  return LaunchTeams(reinterpret_cast<const void*>(&ClearRecordKernel), &record, {64, 1, 1},
                     stream);
}

}  // namespace lossd
