// Stages, and the rows that count.
#include <algorithm>
#include <cstddef>
#include <variant>

#include "kernels/cuda/block_team.cuh"
#include "kernels/cuda/head_kernels.h"

namespace lossd {
namespace {

// Stages are chains of loads: more threads make the chains shorter.
using StageTeam = BlockTeamOf<512>;

template <class S>
__global__ void __launch_bounds__(StageTeam::kThreads)
    StageKernel(const __grid_constant__ S stage, int64_t count) {
  __shared__ int64_t scratch[StageTeam::kScratchWords];
  __shared__ uint32_t counters[kTeamCounters];
  StageTeam team(scratch, counters);
  for (int64_t instance = blockIdx.x; instance < count; instance += gridDim.x) {
    stage.Run(team, instance);
  }
}

constexpr int kStartThreads = 1024;
using StartTeam = BlockTeamOf<kStartThreads>;

// Up to so many elements are filled by the one block of the start.
constexpr int64_t kSmallFill = 1 << 16;

constexpr int kBatch = 32;

// Bit i: is_one(i), for i < count <= kBatch. The loads of several are under way at once.
template <class IsOne>
__device__ uint32_t BitsOf(int count, const IsOne& is_one) {
  constexpr int kTogether = 8;
  uint32_t bits = 0;
  for (int first = 0; first < count; first += kTogether) {
    bool ones[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) ones[k] = first + k < count && is_one(first + k);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) bits |= ones[k] ? 1u << (first + k) : 0u;
  }
  return bits;
}

// Of rows begin ... begin + count - 1: those that count.
__device__ uint32_t CountedBits(const HeadProblem& head, int64_t begin, int count) {
  uint32_t bits = count == kBatch ? ~0u : (1u << count) - 1;
  if (head.mask) bits &= BitsOf(count, [&](int i) { return head.mask.Mask(begin + i); });
  if (!head.target) return bits;
  const int64_t ignored = head.ignore_index;
  if (head.target.dtype == DType::kI32) {
    return bits & BitsOf(count, [&](int i) {
             return *head.target.Row<const int32_t>(begin + i) != ignored;
           });
  }
  return bits & BitsOf(count, [&](int i) {
           return *head.target.Row<const int64_t>(begin + i) != ignored;
         });
}

// A thread takes consecutive rows, so that a scan over threads gives each its place. 2 N reads.
__device__ void SelectRows(const HeadProblem& head, const RowSet& rows, bool in_place) {
  __shared__ int64_t warp_sums[kStartThreads / 32];
  __shared__ int64_t total;
  const int64_t each = (head.rows + kStartThreads - 1) / kStartThreads;
  const int64_t begin = min(head.rows, threadIdx.x * each);
  const int64_t end = min(head.rows, begin + each);
  int64_t mine = 0;
  for (int64_t first = begin; first < end; first += kBatch) {
    const int count = static_cast<int>(min(int64_t{kBatch}, end - first));
    const uint32_t counted = CountedBits(head, first, count);
    for (int i = 0; i < count; ++i) {
      const bool is_one = (counted >> i & 1) != 0;
      rows.counted[first + i] = is_one ? 1 : 0;
      if (in_place) rows.index[first + i] = is_one ? static_cast<int32_t>(first + i) : -1;
    }
    mine += __popc(counted);
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
  if (warp == 0) {
    static_assert(kStartThreads / 32 == 32);
    const int64_t of = warp_sums[lane];
    int64_t sum = of;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int64_t other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += other;
    }
    warp_sums[lane] = sum - of;
    if (lane == 31) *rows.count = total = sum;
  }
  __syncthreads();
  if (in_place) return;
  int64_t place = warp_sums[warp] + before - mine;
  for (int64_t i = begin; i < end; ++i) {
    if (rows.counted[i] != 0) rows.index[place++] = static_cast<int32_t>(i);
  }
  for (int64_t i = total + threadIdx.x; i < head.rows; i += kStartThreads) rows.index[i] = -1;
}

// One block: an empty record, the rows that count, the checks and, if `fills`, the outputs of the other rows.
__global__ void __launch_bounds__(kStartThreads)
    StartKernel(const __grid_constant__ HeadProblem head, const __grid_constant__ RowStart start,
                const __grid_constant__ RowSet rows, bool in_place, bool fills, StartNote* note,
                uint32_t number) {
  __shared__ int64_t scratch[StartTeam::kScratchWords];
  StartTeam team(scratch);
  // The words of an empty record are 0 but for the row.
  static_assert(offsetof(ResultRecord, row) == sizeof(int64_t));
  int64_t* words = reinterpret_cast<int64_t*>(start.record);
  for (int w = threadIdx.x; w < static_cast<int>(sizeof(ResultRecord) / sizeof(int64_t));
       w += kStartThreads) {
    words[w] = w == 1 ? -1 : 0;
  }
  __syncthreads();
  SelectRows(head, rows, in_place);
  __syncthreads();
  if (start.elements.Instances() > 0) start.elements.Run(team, 0);
  __syncthreads();
  if (start.sequences.Instances() > 0) start.sequences.Run(team, 0);
  __syncthreads();
  if (note != nullptr && threadIdx.x == 0) {
    note->code = start.record->code;
    note->field = start.record->field;
    note->row = start.record->row;
    note->count = *rows.count;
    __threadfence_system();
    *const_cast<volatile uint32_t*>(&note->number) = number;
  }
  if (!fills || start.record->code != 0 || *rows.count == head.rows) return;
  for (int64_t instance = 0; instance < start.fill.Instances(); ++instance) {
    start.fill.Run(team, instance);
  }
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
        StageKernel<<<blocks, StageTeam::kThreads, 0, stream>>>(typed, count);
        return cudaGetLastError();
      },
      stage);
}

cudaError_t LaunchStart(const HeadProblem& head, const RowStart& start, const RowSet& rows,
                        bool in_place, bool fills, StartNote* note, uint32_t number,
                        cudaStream_t stream) {
  StartKernel<<<1, kStartThreads, 0, stream>>>(head, start, rows, in_place, fills, note, number);
  return cudaGetLastError();
}

bool IsSmallFill(const FillStage& fill) {
  int64_t elements = 0;
  for (int32_t o = 0; o < fill.output_count; ++o) elements += fill.outputs[o].view.width;
  return elements == 0 || fill.rows <= kSmallFill / elements;
}

cudaError_t LaunchMakeIndex(const RowSet& rows, int64_t row_count, int64_t padded, int32_t* index,
                            cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((padded + 255) / 256);
  MakeIndexKernel<<<blocks, 256, 0, stream>>>(rows, row_count, padded, index);
  return cudaGetLastError();
}

cudaError_t PrepareStageKernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, StartKernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, MakeIndexKernel);
  return error == cudaSuccess ? PrepareStages(static_cast<Stage*>(nullptr)) : error;
}

}  // namespace lossd
