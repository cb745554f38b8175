#include <algorithm>
#include <type_traits>
#include <variant>

#include "kernels/cuda/logits_lean.cuh"
#include "kernels/cuda/logits_lean.h"
#include "kernels/objectives/program_needs.h"

namespace lossd {
namespace {

// The statistics alone are fastest with three small blocks on a multiprocessor, in clusters of up to 8; with a gradient a large one that has
// the next row added up in time counts for more. Measured at V 32000, 128256 and 256000 on an H200.
constexpr int kSmallBlocks = 3;
constexpr int kSmallStages = 2;
constexpr int kSmallCluster = 8;
constexpr int kLargeStages = 3;
constexpr int64_t kReservedBytes = 1024;  // of shared memory, by the GPU, for each block

template <LogitsGradient kGradient>
inline constexpr int kLeastResident = kGradient == LogitsGradient::kNone ? kSmallBlocks : 2;

template <class T, class Program, bool kAll, LogitsGradient kGradient>
__global__ void __launch_bounds__(kLogitsThreads, kLeastResident<kGradient>)
    LogitsKernel(const __grid_constant__ LeanLogitsLaunch<Program> launch) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 dynamic[];
  __shared__ LogitsShared shared;
  if (launch.pass.record->code != 0) return;
  RunLogits<T, Program, kAll, kGradient>(launch, &shared, dynamic);
#endif
}

// A kernel by its arguments, for what is done with all of them.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
struct Kernel {
  using Number = T;
  using ProgramType = Program;
  static constexpr auto kFunction = LogitsKernel<T, Program, kAll, kGradient>;
};

// How many clusters, or rows where the blocks of a row need not know of each other, run at once.
template <class K>
cudaError_t CountResident(const cudaLaunchConfig_t& config, int parts, int* resident) {
  if (config.numAttrs > 0) return cudaOccupancyMaxActiveClusters(resident, K::kFunction, &config);
  int device = 0;
  int multiprocessors = 0;
  int blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, K::kFunction, kLogitsThreads,
                                                          config.dynamicSmemBytes);
  }
  *resident = blocks * multiprocessors / parts;
  return error;
}

// Launches with so many blocks for a row, unless the GPU cannot hold them.
template <class K>
cudaError_t LaunchParts(const LeanLogitsLaunch<typename K::ProgramType>& launch, int64_t bytes,
                        cudaStream_t stream, bool* taken) {
  const int parts = launch.parts;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(parts));
  config.blockDim = dim3(kLogitsThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(parts);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = parts > 1 && !K::ProgramType::kKnowsStatistics ? 1 : 0;
  int resident = 0;
  const cudaError_t error = CountResident<K>(config, parts, &resident);
  if (error != cudaSuccess) cudaGetLastError();
  *taken = error == cudaSuccess && resident > 0;
  if (!*taken) return cudaSuccess;
  // As many as run at once: each fetches its next row while it works on the present one.
  config.gridDim =
      dim3(static_cast<unsigned>(std::min<int64_t>(resident, launch.pass.rows) * parts));
  return cudaLaunchKernelEx(&config, K::kFunction, launch);
}

bool IsAligned(const RowsView& view) {
  const auto bytes = static_cast<int64_t>(SizeOf(view.dtype));
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0) return false;
  for (int d = 0; d < view.lead_rank; ++d) {
    if (view.lead_shape[d] > 1 && view.lead_strides[d] * bytes % 16 != 0) return false;
  }
  return true;
}

// Of 16 bytes, in a row.
int64_t PlacesOf(const RowPass& pass) {
  const int64_t vector = 16 / static_cast<int64_t>(SizeOf(pass.head.logits.dtype));
  const int64_t before = IsAligned(pass.head.logits) ? 0 : vector - 1;
  return (before + pass.head.vocab + vector - 1) / vector;
}
int64_t SlicePlaces(const RowPass& pass, int blocks) {
  return (PlacesOf(pass) + blocks - 1) / blocks;
}
int64_t SliceBytes(const RowPass& pass, int blocks) { return 16 * SlicePlaces(pass, blocks); }

constexpr int64_t kFixedBytes = static_cast<int64_t>(sizeof(LogitsShared)) + 256;

// The fewest blocks that hold the stages that are best; as many as there can be where there are none, and then the stages that fit.
LogitsShape FewestBlocks(const RowPass& pass, const LogitsGpu& gpu) {
  const int largest = std::min(gpu.largest_cluster, kLogitsParts);
  const auto fewest = [&](int stages, int64_t room) {
    int blocks = 1;
    while (blocks < largest && SliceBytes(pass, blocks) * stages > room) blocks *= 2;
    return blocks;
  };
  const int64_t limit = gpu.shared_bytes - kFixedBytes;
  const int64_t small =
      (gpu.shared_bytes + kReservedBytes) / kSmallBlocks - kReservedBytes - kFixedBytes;
  if (pass.dz_mode == DzMode::kNone) {
    const int blocks = fewest(kSmallStages, small);
    if (blocks <= kSmallCluster && SliceBytes(pass, blocks) * kSmallStages <= small) {
      return {blocks, kSmallStages};
    }
  }
  const int blocks = fewest(kLargeStages, limit);
  for (int stages = kLargeStages; stages >= 2; --stages) {
    if (SliceBytes(pass, blocks) * stages <= limit) return {blocks, stages};
  }
  return {};
}

template <class K>
cudaError_t Launch(const RowPass& pass, const typename K::ProgramType& program,
                   const LogitsGpu& gpu, cudaStream_t stream, LogitsShape* shape) {
  LeanLogitsLaunch<typename K::ProgramType> launch;
  launch.pass = pass;
  launch.program = program;
  for (; shape->parts > 0; shape->parts /= 2) {
    launch.parts = shape->parts;
    launch.places = static_cast<int32_t>(SlicePlaces(pass, shape->parts));
    const auto bytes = [&] { return int64_t{16} * launch.places * shape->stages; };
    while (shape->stages > 2 && bytes() > gpu.shared_bytes - kFixedBytes) --shape->stages;
    if (bytes() > gpu.shared_bytes - kFixedBytes) shape->parts = 0;
    if (shape->parts == 0) break;
    launch.stages = shape->stages;
    bool taken = false;
    const cudaError_t error = LaunchParts<K>(launch, bytes(), stream, &taken);
    if (error != cudaSuccess || taken) return error;
  }
  return cudaSuccess;
}

// The kernels of a program. f(kernel) is called for the one that the pass needs, or with `pass` null for each.
template <class T, class F>
void ForKernels(const RowPass* pass, const CrossEntropyRows* rows, F f) {
  const bool gradient = pass != nullptr && pass->dz_mode != DzMode::kNone;
  const bool all = rows != nullptr && StatisticsReadBy(*rows) != StatisticsRead::kExp;
  const auto wanted = [&](bool with_all, bool with_gradient) {
    return pass == nullptr || (all == with_all && gradient == with_gradient);
  };
  if (wanted(false, false)) f(Kernel<T, CrossEntropyRows, false, LogitsGradient::kNone>());
  if (wanted(true, false)) f(Kernel<T, CrossEntropyRows, true, LogitsGradient::kNone>());
  if (wanted(false, true)) f(Kernel<T, CrossEntropyRows, false, LogitsGradient::kPlain>());
  if (wanted(true, true)) f(Kernel<T, CrossEntropyRows, true, LogitsGradient::kPlain>());
}
template <class T, class F>
void ForKernels(const RowPass* pass, const LogprobRows* rows, F f) {
  const bool all = rows != nullptr && StatisticsReadBy(*rows) != StatisticsRead::kExp;
  if (pass == nullptr || !all) f(Kernel<T, LogprobRows, false, LogitsGradient::kNone>());
  if (pass == nullptr || all) f(Kernel<T, LogprobRows, true, LogitsGradient::kNone>());
}
template <class T, class F>
void ForKernels(const RowPass* pass, const BackwardRows* rows, F f) {
  const bool entropy = rows != nullptr && rows->d_entropy;
  if (pass == nullptr || !entropy) f(Kernel<T, BackwardRows, false, LogitsGradient::kPlain>());
  if (pass == nullptr || entropy) f(Kernel<T, BackwardRows, false, LogitsGradient::kEntropy>());
}

template <class Program>
cudaError_t LaunchProgram(const RowPass& pass, const Program& program, const LogitsGpu& gpu,
                          cudaStream_t stream, LogitsShape* shape) {
  cudaError_t error = cudaSuccess;
  const auto launch = [&](auto kernel) {
    error = Launch<decltype(kernel)>(pass, program, gpu, stream, shape);
  };
  switch (pass.head.logits.dtype) {
    case DType::kF32:
      ForKernels<float>(&pass, &program, launch);
      break;
    case DType::kBF16:
      ForKernels<__nv_bfloat16>(&pass, &program, launch);
      break;
    case DType::kF16:
      ForKernels<__half>(&pass, &program, launch);
      break;
    default:
      break;
  }
  return error;
}

// Every row of the gradient begins at the same place within 16 bytes as the row of the logits.
bool LieAlike(const RowsView& grad, const RowsView& logits) {
  if (grad.dtype != logits.dtype) return false;
  const auto differs = [&](int64_t elements) {
    return elements * static_cast<int64_t>(SizeOf(grad.dtype)) % 16 != 0;
  };
  if ((reinterpret_cast<uintptr_t>(grad.data) - reinterpret_cast<uintptr_t>(logits.data)) % 16 != 0)
    return false;
  if (IsAligned(grad) && IsAligned(logits)) return true;
  if (grad.lead_rank != logits.lead_rank) return false;
  for (int d = 0; d < grad.lead_rank; ++d) {
    if (grad.lead_shape[d] != logits.lead_shape[d] ||
        (grad.lead_shape[d] > 1 && differs(grad.lead_strides[d] - logits.lead_strides[d]))) {
      return false;
    }
  }
  return true;
}

template <class Program>
constexpr bool kHasLean =
    std::is_same_v<Program, CrossEntropyRows> || std::is_same_v<Program, LogprobRows> ||
    std::is_same_v<Program, BackwardRows>;

bool IsLean(const RowPass& pass) {
  const RowColumns& columns = pass.columns;
  return pass.head.softcap <= 0 && pass.column_weight == nullptr && !columns.ids &&
         !columns.topk_ids && !columns.topk_logprob && pass.head.vocab_start == 0 &&
         (!pass.grad || LieAlike(pass.grad, pass.head.logits));
}
bool IsLean(const CrossEntropyRows&) { return true; }
bool IsLean(const LogprobRows& rows) { return !rows.vocab_stats; }
bool IsLean(const BackwardRows&) { return true; }

template <class K>
cudaError_t PrepareKernel(int64_t shared_limit) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, K::kFunction);
  const auto set = [&error](cudaFuncAttribute attribute, int64_t value) {
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(K::kFunction, attribute, static_cast<int>(value));
    }
  };
  set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  set(cudaFuncAttributeMaxDynamicSharedMemorySize,
      shared_limit - static_cast<int64_t>(attributes.sharedSizeBytes));
  if (error != cudaSuccess) return error;
  // Where 16 blocks are refused, the launch takes fewer.
  if (cudaFuncSetAttribute(K::kFunction, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
      cudaSuccess) {
    cudaGetLastError();
  }
  return cudaSuccess;
}

template <class Program>
void PrepareProgram(int64_t shared_limit, cudaError_t* error) {
  const auto prepare = [&](auto kernel) {
    if (*error == cudaSuccess) *error = PrepareKernel<decltype(kernel)>(shared_limit);
  };
  const Program* const none = nullptr;
  ForKernels<float>(nullptr, none, prepare);
  ForKernels<__nv_bfloat16>(nullptr, none, prepare);
  ForKernels<__half>(nullptr, none, prepare);
}

}  // namespace

LogitsShape ChooseLogitsShape(const RowPass& pass, const RowProgram& program,
                              const LogitsGpu& gpu) {
  // Barriers in memory came with clusters.
  if (gpu.largest_cluster == 1 || !IsLean(pass)) return {};
  const bool lean = std::visit(
      [](const auto& rows) {
        using Program = std::decay_t<decltype(rows)>;
        if constexpr (kHasLean<Program>) return IsLean(rows);
        return false;
      },
      program);
  return lean ? FewestBlocks(pass, gpu) : LogitsShape{};
}

cudaError_t LaunchLeanLogits(const RowPass& pass, const RowProgram& program, const LogitsGpu& gpu,
                             cudaStream_t stream, LogitsShape* shape) {
  if (pass.rows == 0 || shape->parts == 0) return cudaSuccess;
  return std::visit(
      [&](const auto& rows) {
        using Program = std::decay_t<decltype(rows)>;
        if constexpr (kHasLean<Program>) return LaunchProgram(pass, rows, gpu, stream, shape);
        return cudaErrorInvalidValue;
      },
      program);
}

cudaError_t PrepareLeanLogitsKernels(int64_t shared_limit) {
  cudaError_t error = cudaSuccess;
  PrepareProgram<CrossEntropyRows>(shared_limit, &error);
  PrepareProgram<LogprobRows>(shared_limit, &error);
  PrepareProgram<BackwardRows>(shared_limit, &error);
  return error;
}

}  // namespace lossd
