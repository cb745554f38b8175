// Stages, and the rows that count.
#include <algorithm>
#include <variant>

#include "kernels/cuda/block_team.cuh"
#include "kernels/cuda/head_kernels.h"

namespace lossd {
namespace {

template <class S>
__global__ void __launch_bounds__(BlockTeam::kThreads)
    StageKernel(const __grid_constant__ S stage, int64_t count) {
  __shared__ int64_t scratch[BlockTeam::kThreads / 32 + 1];
  __shared__ uint32_t counters[kTeamCounters];
  BlockTeam team(scratch, counters);
  for (int64_t instance = blockIdx.x; instance < count; instance += gridDim.x) {
    stage.Run(team, instance);
  }
}

constexpr int kSelectThreads = 1024;

// One block; a thread takes consecutive rows, so that a scan over threads gives each its place. 2 N reads.
__global__ void __launch_bounds__(kSelectThreads)
    SelectRowsKernel(const __grid_constant__ HeadProblem head,
                     const __grid_constant__ RowSet rows) {
  __shared__ int64_t warp_sums[kSelectThreads / 32];
  __shared__ int64_t total;
  const int64_t each = (head.rows + kSelectThreads - 1) / kSelectThreads;
  const int64_t begin = min(head.rows, threadIdx.x * each);
  const int64_t end = min(head.rows, begin + each);
  int64_t mine = 0;
  for (int64_t i = begin; i < end; ++i) {
    const bool counted = head.IsCounted(i);
    rows.counted[i] = counted ? 1 : 0;
    mine += counted ? 1 : 0;
  }
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int64_t before = mine;  // of this warp, up to and with this thread
  for (int offset = 1; offset < 32; offset *= 2) {
    const int64_t other = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) warp_sums[warp] = before;
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t sum = 0;
    for (int64_t& of : warp_sums) {
      const int64_t next = sum + of;
      of = sum;
      sum = next;
    }
    total = sum;
    *rows.count = sum;
  }
  __syncthreads();
  int64_t place = warp_sums[warp] + before - mine;
  for (int64_t i = begin; i < end; ++i) {
    if (rows.counted[i] != 0) rows.index[place++] = static_cast<int32_t>(i);
  }
  for (int64_t i = total + threadIdx.x; i < head.rows; i += kSelectThreads) rows.index[i] = -1;
}

__global__ void MakeIndexKernel(RowSet rows, int64_t row_count, int64_t padded, int32_t* index) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= padded) return;
  int32_t value = -1;
  if (rows.host_count >= 0) {
    if (i < rows.host_count) value = rows.index[i];
  } else if (i < row_count && rows.counted[i] != 0) {
    value = static_cast<int32_t>(i);
  }
  index[i] = value;
}

template <class... Stages>
cudaError_t PrepareStages(std::variant<Stages...>*) {
  cudaError_t error = cudaSuccess;
  cudaFuncAttributes attributes;
  ((error = error == cudaSuccess ? cudaFuncGetAttributes(&attributes, StageKernel<Stages>) : error),
   ...);
  return error;
}

}  // namespace

cudaError_t LaunchStage(const Stage& stage, int64_t count, cudaStream_t stream) {
  if (count <= 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(count, 1 << 30));
  return std::visit(
      [&](const auto& typed) {
        StageKernel<<<blocks, BlockTeam::kThreads, 0, stream>>>(typed, count);
        return cudaGetLastError();
      },
      stage);
}

cudaError_t LaunchSelectRows(const HeadProblem& head, const RowSet& rows, cudaStream_t stream) {
  SelectRowsKernel<<<1, kSelectThreads, 0, stream>>>(head, rows);
  return cudaGetLastError();
}

cudaError_t LaunchMakeIndex(const RowSet& rows, int64_t row_count, int64_t padded, int32_t* index,
                            cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((padded + 255) / 256);
  MakeIndexKernel<<<blocks, 256, 0, stream>>>(rows, row_count, padded, index);
  return cudaGetLastError();
}

cudaError_t PrepareStageKernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, SelectRowsKernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, MakeIndexKernel);
  return error == cudaSuccess ? PrepareStages(static_cast<Stage*>(nullptr)) : error;
}

}  // namespace lossd
