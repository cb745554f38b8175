#include <algorithm>

#include "kernels/cuda/ordered_key.cuh"
#include "kernels/cuda/pair_kernel.cuh"
#include "kernels/cuda/pair_kernels.h"
#include "kernels/cuda/pair_lean.h"

namespace lossd {
namespace {

// Three blocks share a multiprocessor of an H200 (228 KB) while a block has at most 72 KB.
constexpr int64_t kComfortable = 72 * 1024;

// dz = 0 for a row of a tile that is none, by all blocks of its cluster.
__device__ void ClearPairRow(const PairLaunch& in, int64_t r, const Cluster& cluster) {
  if (in.dz_mode == DzMode::kNone || in.dz_mode == DzMode::kMeasure) return;
  const bool wide = in.dz_mode == DzMode::kF32;
  uint32_t* out =
      reinterpret_cast<uint32_t*>(static_cast<char*>(in.dz) + r * in.dz_stride * (wide ? 4 : 2));
  const int64_t words = in.written / (wide ? 1 : 2);
  for (int64_t i = cluster.rank() * kPairThreads + threadIdx.x; i < words;
       i += int64_t{kPairThreads} * cluster.size()) {
    out[i] = 0;
  }
}

// One cluster for each row.
template <PairMode kMode>
__global__ void __launch_bounds__(kPairThreads, 2)
    PairKernel(const __grid_constant__ PairLaunch launch) {
  extern __shared__ float4 dynamic[];
  __shared__ PairShared<kMode> shared;
  const Cluster cluster(launch.shape.cluster);
  const int64_t r = blockIdx.x / launch.shape.cluster;
  const int64_t row = launch.index == nullptr ? r : launch.index[r];
  const bool stopped = launch.record->code != 0;
  if (launch.index == nullptr) {
    // The caller's tensor: rows that do not count have been filled.
    if (stopped || launch.counted[row] == 0) return;
  } else if (row < 0 || stopped) {
    ClearPairRow(launch, r, cluster);
    if (launch.live != nullptr && cluster.rank() == 0 && threadIdx.x == 0) launch.live[r] = 0;
    return;
  }
  PairBlock<kMode>(launch, cluster, &shared, reinterpret_cast<char*>(dynamic), r, row).Run();
}

template <PairMode kMode>
cudaError_t Launch(const PairLaunch& launch, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(launch.rows * launch.shape.cluster));
  config.blockDim = dim3(kPairThreads);
  config.dynamicSmemBytes = static_cast<size_t>(launch.shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(launch.shape.cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = launch.shape.cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, PairKernel<kMode>, launch);
}

template <PairMode kMode>
cudaError_t Prepare(int64_t shared_limit) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, PairKernel<kMode>);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(PairKernel<kMode>, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  // LargestPairCluster tells whether it helps.
  if (cudaFuncSetAttribute(PairKernel<kMode>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
      cudaSuccess) {
    cudaGetLastError();
  }
  return cudaFuncSetAttribute(
      PairKernel<kMode>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      static_cast<int>(shared_limit - static_cast<int64_t>(attributes.sharedSizeBytes)));
}

// One block for each row: the K-th largest key digit by digit, from the top; then the entries.
__global__ void __launch_bounds__(kPairThreads)
    OverlapKernel(const __grid_constant__ PairLaunch launch,
                  const __grid_constant__ RowsView overlap) {
  __shared__ int counts[256];
  __shared__ uint32_t prefix;
  __shared__ int room;
  __shared__ int64_t scratch[kPairWarps + 1];
  const int64_t r = blockIdx.x;
  const int64_t row = launch.index[r];
  if (row < 0 || launch.record->code != 0) return;
  const int columns = launch.student.columns;
  const int width = static_cast<int>(launch.topk_ids.width);
  const PairColumns student(launch.student, false, nullptr, 0, r, row,
                            1.0f / launch.program.Temperature(row));
  const auto key = [&](int j) { return OrderedKey(student.transform()(student.Raw(j))); };
  const uint32_t lowest = OrderedKey(-INFINITY);
  bool bad = false;
  bool some = false;
  for (int j = threadIdx.x; j < columns; j += kPairThreads) {
    const float z = student.transform()(student.Raw(j));
    bad = bad || !(z < INFINITY);
    some = some || OrderedKey(z) > lowest;
  }
  const bool degenerate = __syncthreads_or(bad) || !__syncthreads_or(some);
  if (degenerate || width == 0) {
    if (threadIdx.x == 0) overlap.SetI32(row, 0);
    return;
  }
  if (threadIdx.x == 0) {
    prefix = 0;
    room = min(width, columns);
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    counts[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t above = shift == 24 ? 0 : prefix >> (shift + 8);
    for (int j = threadIdx.x; j < columns; j += kPairThreads) {
      const uint32_t k = key(j);
      if (shift == 24 || k >> (shift + 8) == above) atomicAdd(&counts[k >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255;
      while (digit > 0 && counts[digit] < room) room -= counts[digit--];
      prefix |= static_cast<uint32_t>(digit) << shift;
    }
    __syncthreads();
  }
  // `room` of the columns whose key is `prefix` are among the K largest: those of the smallest ids.
  BlockTeam team(scratch);
  int64_t in = 0;
  for (int k = 0; k < width; ++k) {
    const int64_t id = launch.topk_ids.Index(row, k);
    if (id < 0) continue;
    const uint32_t own = key(static_cast<int>(id));
    if (own < prefix) continue;
    int64_t before = 0;
    if (own == prefix) {
      for (int j = threadIdx.x; j < id; j += kPairThreads) before += key(j) == prefix ? 1 : 0;
      before = team.Sum(before);
    }
    in += own > prefix || before < room ? 1 : 0;
  }
  if (threadIdx.x == 0) overlap.SetI32(row, static_cast<int32_t>(in));
}

int64_t BytesOf(const PairValues& values) {
  return values.columns == 0      ? 0
         : values.tile != nullptr ? 4
                                  : static_cast<int64_t>(SizeOf(values.values.dtype));
}

}  // namespace

int LargestPairCluster(bool cluster_support) {
  if (!cluster_support) return 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(16);
  config.blockDim = dim3(kPairThreads);
  config.dynamicSmemBytes = static_cast<size_t>(kComfortable);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 16;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int resident = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveClusters(&resident, PairKernel<PairMode::kForward>, &config);
  // A refusal is an answer: it must not stay behind as the last error.
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && resident > 0 ? 16 : 8;
}

void ChoosePairShape(int largest_cluster, int64_t shared_limit, PairLaunch* launch) {
  const int64_t reserve = static_cast<int64_t>(sizeof(PairShared<PairMode::kTopk>)) + 256;
  const int64_t padded = (static_cast<int64_t>(launch->written) + 63) / 64 * 64;
  const int64_t student = BytesOf(launch->student);
  const int64_t teacher = BytesOf(launch->teacher);
  PairShape shape;
  shape.largest_cluster = largest_cluster;
  int64_t bytes = 0;
  for (shape.cluster = 1;; shape.cluster *= 2) {
    const int64_t slice = ((padded + shape.cluster - 1) / shape.cluster + 63) / 64 * 64;
    shape.slice = static_cast<int32_t>(slice);
    bytes = slice * (student + teacher);
    if (bytes <= kComfortable || shape.cluster >= largest_cluster) break;
  }
  shape.student_bytes = static_cast<int32_t>(shape.slice * student);
  if (bytes > shared_limit - reserve) {
    shape.on_chip = false;
    bytes = 0;
    // Blocks must not write where others of their row still read: 16 bits over 32 are for one block alone.
    if (launch->student.tile != nullptr) {
      shape.cluster = 1;
      shape.slice = static_cast<int32_t>(padded);
    }
  }
  shape.shared_bytes = static_cast<int32_t>(bytes);
  launch->shape = shape;
}

cudaError_t LaunchPairRows(const PairLaunch& launch, cudaStream_t stream, bool* lean) {
  *lean = false;
  if (launch.rows == 0) return cudaSuccess;
  if (IsLeanPair(launch)) {
    const cudaError_t error = LaunchLeanPair(launch, stream, lean);
    if (error != cudaSuccess || *lean) return error;
  }
  if (launch.topk_ids) return Launch<PairMode::kTopk>(launch, stream);
  switch (launch.program.divergence.kind) {
    case Divergence::kForwardKl:
      return Launch<PairMode::kForward>(launch, stream);
    case Divergence::kReverseKl:
      return Launch<PairMode::kReverse>(launch, stream);
    case Divergence::kMixed:
      return Launch<PairMode::kMixed>(launch, stream);
    case Divergence::kJsd:
      return Launch<PairMode::kJsd>(launch, stream);
    case Divergence::kTvd:
      return Launch<PairMode::kTvd>(launch, stream);
    case Divergence::kCosine:
      return Launch<PairMode::kCosine>(launch, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchOverlap(const PairLaunch& launch, const RowsView& overlap, cudaStream_t stream) {
  if (launch.rows == 0) return cudaSuccess;
  OverlapKernel<<<static_cast<unsigned>(launch.rows), kPairThreads, 0, stream>>>(launch, overlap);
  return cudaGetLastError();
}

cudaError_t PreparePairKernels(int64_t shared_limit) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, OverlapKernel);
  const auto then = [&error](cudaError_t next) { error = error == cudaSuccess ? next : error; };
  then(Prepare<PairMode::kForward>(shared_limit));
  then(Prepare<PairMode::kReverse>(shared_limit));
  then(Prepare<PairMode::kMixed>(shared_limit));
  then(Prepare<PairMode::kJsd>(shared_limit));
  then(Prepare<PairMode::kTvd>(shared_limit));
  then(Prepare<PairMode::kCosine>(shared_limit));
  then(Prepare<PairMode::kTopk>(shared_limit));
  then(PrepareLeanPairKernels(shared_limit));
  return error;
}

}  // namespace lossd
