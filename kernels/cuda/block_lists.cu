#include "kernels/cuda/block_lists.h"

namespace lossd {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = kListedTerms;
constexpr int kGroupBlocks = kListedRows / kListedTerms;
// No mass code is above it.
constexpr int kNever = 256;

// Mass codes up to this one are below the bound.
__device__ int Threshold(float bound, float total) {
  const float mass = bound * total;
  // NaN and infinity: everything matters.
  if (!(mass < INFINITY)) return -1;
  return mass < 0x1p-126f ? 0 : static_cast<int>(__float_as_uint(mass) >> 23);
}

// A block of 64 rows and 256 blocks of columns.
__global__ void __launch_bounds__(kThreads)
    FlagsKernel(const __grid_constant__ BlockLists in, int64_t column_blocks) {
  __shared__ int thresholds[kBlock];
  __shared__ uint8_t flags[kThreads];
  const int64_t row = blockIdx.y * int64_t{kBlock};
  const int64_t first = blockIdx.x * int64_t{kThreads};
  const int64_t column = first + threadIdx.x;
  int target = -1;
  if (threadIdx.x < kBlock) {
    const int64_t r = row + threadIdx.x;
    int threshold = kNever;
    if (r < in.rows && in.factor[r] != 0) {
      threshold = Threshold(in.bound, in.total[r]);
      if (in.target[r] >= 0) target = in.target[r] / kBlock;
    }
    thresholds[threadIdx.x] = threshold;
  }
  __syncthreads();
  bool matters = false;
  if (column < column_blocks) {
    const int count = static_cast<int>(min(int64_t{kBlock}, in.rows - row));
    for (int i = 0; i < count; ++i) {
      matters = matters || in.mass[(row + i) * in.mass_stride + column] > thresholds[i];
    }
  }
  flags[threadIdx.x] = matters ? 1 : 0;
  __syncthreads();
  if (target >= first && target < first + kThreads) flags[target - first] = 1;
  __syncthreads();
  if (column < column_blocks) in.flags[blockIdx.y * column_blocks + column] = flags[threadIdx.x];
}

// The numbers of the blocks along one side for which any of a group's blocks along the other side matters, in order.
__global__ void __launch_bounds__(kThreads)
    ListsKernel(const uint8_t* flags, int64_t group_stride, int64_t step, int64_t blocks,
                int64_t others, uint16_t* lists, int32_t* counts) {
  __shared__ int warps[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int members =
      static_cast<int>(min(int64_t{kGroupBlocks}, others - blockIdx.x * int64_t{kGroupBlocks}));
  const uint8_t* of = flags + blockIdx.x * int64_t{kGroupBlocks} * group_stride;
  uint16_t* list = lists + blockIdx.x * blocks;
  int count = 0;
  for (int64_t begin = 0; begin < blocks; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    bool matters = false;
    if (i < blocks) {
      for (int m = 0; m < members; ++m) matters = matters || of[m * group_stride + i * step] != 0;
    }
    const unsigned votes = __ballot_sync(~0u, matters);
    if (lane == 0) warps[warp] = __popc(votes);
    __syncthreads();
    int place = count + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) place += warps[w];
      count += warps[w];
    }
    if (matters) list[place] = static_cast<uint16_t>(i);
    __syncthreads();
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

}  // namespace

cudaError_t LaunchBlockLists(const BlockLists& lists, cudaStream_t stream) {
  if (lists.rows == 0 || lists.columns == 0) return cudaSuccess;
  const int64_t rows = lists.RowBlocks();
  const int64_t columns = lists.ColumnBlocks();
  const dim3 grid(static_cast<unsigned>((columns + kThreads - 1) / kThreads),
                  static_cast<unsigned>(rows));
  FlagsKernel<<<grid, kThreads, 0, stream>>>(lists, columns);
  ListsKernel<<<static_cast<unsigned>(lists.RowGroups()), kThreads, 0, stream>>>(
      lists.flags, columns, 1, columns, rows, lists.columns_of, lists.column_counts);
  ListsKernel<<<static_cast<unsigned>(lists.ColumnGroups()), kThreads, 0, stream>>>(
      lists.flags, 1, columns, rows, columns, lists.rows_of, lists.row_counts);
  return cudaGetLastError();
}

cudaError_t PrepareBlockLists() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, FlagsKernel);
  return error == cudaSuccess ? cudaFuncGetAttributes(&attributes, ListsKernel) : error;
}

}  // namespace lossd
