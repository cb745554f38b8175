#include <algorithm>

#include "kernels/cuda/pair_lean.cuh"
#include "kernels/cuda/pair_lean.h"

namespace lossd {
namespace {

// Blocks of a cluster that every GPU with clusters takes.
constexpr int kPortableCluster = 8;
constexpr int64_t kFewRows = 16;
// Columns of a warp, at most.
constexpr int64_t kWarpColumns = int64_t{kLeanGroups} * kLeanGroupOfWarp;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Two blocks of 8 warps and a clerk each leave 112 registers for a thread, and so does this bound.
template <Divergence kKind, class T>
__global__ void __launch_bounds__(2 * 32 * (kLeanWarps + 1), 1)
    LeanPairKernel(const __grid_constant__ LeanLaunch launch) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 dynamic[];
  __shared__ LeanShared shared;
  const Cluster cluster(launch.shape.cluster);
  if (threadIdx.x == 0) {
    shared.fetched.Init();
    for (Mailbox& mailbox : shared.mailboxes) mailbox.Init();
    FenceMailboxes();
  }
  // A block must run, and its mailboxes be there, before another writes to them.
  cluster.Sync();
  if (threadIdx.x < 32 * launch.shape.warps) {
    LeanColumns<kKind, T>(launch, cluster, &shared, dynamic).Run();
  } else {
    LeanClerk<kKind, T>(launch, cluster, &shared, dynamic).Run();
  }
  // No block may end while another still writes to it.
  cluster.Sync();
#endif
}

template <class T>
LeanShape ShapeFor(int64_t columns, int cluster, int warps) {
  LeanShape shape;
  shape.cluster = cluster;
  shape.warps = warps;
  shape.slice = static_cast<int32_t>(RoundUp((columns + cluster - 1) / cluster, 64));
  shape.range = static_cast<int32_t>(RoundUp((shape.slice + warps - 1) / warps, kLeanGroupOfWarp));
  shape.shared_bytes = static_cast<int32_t>(2 * sizeof(T)) * warps * shape.range;
  return shape;
}

// Launches with one shape, unless the GPU cannot hold a cluster of it.
template <Divergence kKind, class T>
cudaError_t LaunchShape(LeanLaunch* launch, const LeanShape& shape, cudaStream_t stream,
                        bool* taken) {
  launch->shape = shape;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.cluster));
  config.blockDim = dim3(static_cast<unsigned>(32 * (shape.warps + 1)));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int resident = 0;
  cudaError_t error = cudaSuccess;
  if (shape.cluster <= kPortableCluster && launch->pair.rows <= kFewRows) {
    // They need not all run at once; what does is not worth the question.
    resident = static_cast<int>(launch->pair.rows);
  } else {
    error = cudaOccupancyMaxActiveClusters(&resident, LeanPairKernel<kKind, T>, &config);
  }
  if (error != cudaSuccess) cudaGetLastError();
  *taken = error == cudaSuccess && resident > 0;
  if (!*taken) return cudaSuccess;
  // As many clusters as run at once: each fetches its next row while it writes the present one.
  const int64_t clusters = std::min<int64_t>(resident, launch->pair.rows);
  config.gridDim = dim3(static_cast<unsigned>(clusters * shape.cluster));
  return cudaLaunchKernelEx(&config, LeanPairKernel<kKind, T>, *launch);
}

// The smallest cluster that holds a row, of small blocks if there is one.
template <Divergence kKind, class T>
cudaError_t Launch(const PairLaunch& pair, cudaStream_t stream, bool* taken) {
  LeanLaunch launch;
  launch.pair = pair;
  if (kKind == Divergence::kJsd) launch.series = MakeJsdSeries(pair.program.divergence.beta);
  const int largest = std::min(pair.shape.largest_cluster, kLeanBlocks);
  for (const int warps : {kLeanWarps, kLeanMostWarps}) {
    int cluster = 1;
    while (cluster * warps * kWarpColumns < pair.written) cluster *= 2;
    if (cluster > largest) continue;
    const LeanShape shape = ShapeFor<T>(pair.written, cluster, warps);
    const cudaError_t error = LaunchShape<kKind, T>(&launch, shape, stream, taken);
    if (error != cudaSuccess || *taken) return error;
  }
  *taken = false;
  return cudaSuccess;
}

template <Divergence kKind>
cudaError_t LaunchKind(const PairLaunch& launch, cudaStream_t stream, bool* taken) {
  const bool wide = launch.student.tile != nullptr || launch.student.values.dtype == DType::kF32;
  return wide ? Launch<kKind, float>(launch, stream, taken)
              : Launch<kKind, __nv_bfloat16>(launch, stream, taken);
}

template <Divergence kKind, class T>
cudaError_t PrepareKernel(int64_t shared_limit) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, LeanPairKernel<kKind, T>);
  const auto then = [&error](cudaError_t next) { error = error == cudaSuccess ? next : error; };
  const auto set = [&then](cudaFuncAttribute attribute, int64_t value) {
    then(cudaFuncSetAttribute(LeanPairKernel<kKind, T>, attribute, static_cast<int>(value)));
  };
  set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  set(cudaFuncAttributeMaxDynamicSharedMemorySize,
      shared_limit - static_cast<int64_t>(attributes.sharedSizeBytes));
  if (error != cudaSuccess) return error;
  // Where 16 blocks are refused, the launch takes fewer.
  if (cudaFuncSetAttribute(LeanPairKernel<kKind, T>, cudaFuncAttributeNonPortableClusterSizeAllowed,
                           1) != cudaSuccess) {
    cudaGetLastError();
  }
  return cudaSuccess;
}

template <Divergence kKind>
cudaError_t Prepare(int64_t shared_limit) {
  const cudaError_t error = PrepareKernel<kKind, float>(shared_limit);
  return error == cudaSuccess ? PrepareKernel<kKind, __nv_bfloat16>(shared_limit) : error;
}

bool IsAligned(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

// Rows of which every 16 bytes can be fetched at once.
bool IsAlignedView(const RowsView& view) {
  const int64_t bytes = static_cast<int64_t>(SizeOf(view.dtype));
  return view.lead_rank == 1 && view.lead_strides[0] >= 0 && view.width * bytes % 16 == 0 &&
         IsAligned(view.data, view.lead_strides[0] * bytes);
}

bool IsPlain(const PairValues& side) {
  if (side.kind != ValueKind::kLogits || side.bias || side.softcap > 0) return false;
  if (side.tile != nullptr) return IsAligned(side.tile, side.tile_stride * 4);
  return IsAlignedView(side.values);
}

DType TypeOf(const PairValues& side) {
  return side.tile != nullptr ? DType::kF32 : side.values.dtype;
}

// There are clusters, and the largest has room for a row.
bool Fits(const PairLaunch& launch) {
  const int64_t largest = std::min(launch.shape.largest_cluster, kLeanBlocks);
  return largest > 1 && launch.written <= largest * kLeanMostWarps * kWarpColumns;
}

}  // namespace

bool IsLeanPair(const PairLaunch& launch) {
  const DivergenceRows& program = launch.program;
  const DType type = TypeOf(launch.student);
  if (type != DType::kF32 && type != DType::kBF16) return false;
  if (launch.topk_ids || TypeOf(launch.teacher) != type) return false;
  if (!IsPlain(launch.student) || !IsPlain(launch.teacher)) return false;
  if (launch.student.columns != launch.columns || launch.teacher.columns != launch.columns) {
    return false;
  }
  if (program.divergence.kind == Divergence::kCosine || program.divergence.teacher_floor != 0 ||
      program.hard_weight != 0 || program.ReadsAllSums()) {
    return false;
  }
  if (launch.grad) {
    return launch.grad.dtype == type && IsAlignedView(launch.grad) && Fits(launch);
  }
  switch (launch.dz_mode) {
    case DzMode::kNone:
      break;
    case DzMode::kBF16:
    case DzMode::kF32: {
      const int64_t bytes = launch.dz_mode == DzMode::kF32 ? 4 : 2;
      if (type != DType::kF32 || !IsAligned(launch.dz, launch.dz_stride * bytes)) return false;
      break;
    }
    case DzMode::kF16:
    case DzMode::kMeasure:
      return false;
  }
  return Fits(launch);
}

cudaError_t LaunchLeanPair(const PairLaunch& launch, cudaStream_t stream, bool* taken) {
  *taken = false;
  switch (launch.program.divergence.kind) {
    case Divergence::kForwardKl:
      return LaunchKind<Divergence::kForwardKl>(launch, stream, taken);
    case Divergence::kReverseKl:
      return LaunchKind<Divergence::kReverseKl>(launch, stream, taken);
    case Divergence::kMixed:
      return LaunchKind<Divergence::kMixed>(launch, stream, taken);
    case Divergence::kJsd:
      return LaunchKind<Divergence::kJsd>(launch, stream, taken);
    case Divergence::kTvd:
      return LaunchKind<Divergence::kTvd>(launch, stream, taken);
    case Divergence::kCosine:
      break;
  }
  return cudaSuccess;
}

cudaError_t PrepareLeanPairKernels(int64_t shared_limit) {
  cudaError_t error = cudaSuccess;
  const auto then = [&error](cudaError_t next) { error = error == cudaSuccess ? next : error; };
  then(Prepare<Divergence::kForwardKl>(shared_limit));
  then(Prepare<Divergence::kReverseKl>(shared_limit));
  then(Prepare<Divergence::kMixed>(shared_limit));
  then(Prepare<Divergence::kJsd>(shared_limit));
  then(Prepare<Divergence::kTvd>(shared_limit));
  return error;
}

}  // namespace lossd
