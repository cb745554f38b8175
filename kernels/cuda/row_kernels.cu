#include <algorithm>
#include <type_traits>
#include <variant>

#include "kernels/cuda/row_kernel.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/objectives/program_needs.h"

namespace lossd {
namespace {

// From here on a launch is one of clusters that stay.
constexpr int64_t kManyRows = 64;

__device__ float WarpMax(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

__device__ float WarpMaxOrNan(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = MaxOrNan(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

// The sums of all lanes, in the first, relative to their largest maximum.
template <bool kAll>
__device__ RowSums WarpSum(RowSums sums) {
  sums.MoveTo<kAll>(WarpMaxOrNan(sums.max));
  for (int offset = 16; offset > 0; offset /= 2) {
    RowSums other;
    other.sum_exp = __shfl_down_sync(~0u, sums.sum_exp, offset);
    if constexpr (!kAll) {
      sums.Add<kAll>(other);
      continue;
    }
    other.sum_exp_d = __shfl_down_sync(~0u, sums.sum_exp_d, offset);
    other.sum_exp_2 = __shfl_down_sync(~0u, sums.sum_exp_2, offset);
    other.sum_d = __shfl_down_sync(~0u, sums.sum_d, offset);
    other.weighted_d = __shfl_down_sync(~0u, sums.weighted_d, offset);
    other.weights = __shfl_down_sync(~0u, sums.weights, offset);
    other.columns = __shfl_down_sync(~0u, sums.columns, offset);
    other.argmax = __shfl_down_sync(~0u, sums.argmax, offset);
    sums.Add<kAll>(other);
  }
  return sums;
}

// The row's sums, in the leader's first thread; after a cluster barrier inside. `turn`: 0 and 1 by rows.
template <bool kAll>
__device__ RowSums RowTotal(const Cluster& cluster, RowShared* shared, int turn,
                            const RowSums& mine) {
  const RowSums warp_sums = WarpSum<kAll>(mine);
  if (threadIdx.x % 32 == 0) shared->warp_sums[threadIdx.x / 32] = warp_sums;
  __syncthreads();
  // A lane for each warp, then a lane for each block: remote shared memory is far, so that it is read by all lanes at once.
  if (threadIdx.x < 32) {
    const RowSums block =
        WarpSum<kAll>(threadIdx.x < kRowWarps ? shared->warp_sums[threadIdx.x] : RowSums());
    if (threadIdx.x == 0) shared->sums[turn] = block;
  }
  cluster.Sync();
  if (cluster.rank() != 0 || threadIdx.x >= 32) return RowSums();
  const int block = static_cast<int>(threadIdx.x);
  return WarpSum<kAll>(block < cluster.size() ? *cluster.Of(&shared->sums[turn], block)
                                              : RowSums());
}

__device__ RowStatistics MakeStatistics(const RowPass& pass, const RowSums& sums, bool owns_target,
                                        float target_z) {
  const float max = sums.max;
  RowStatistics stats;
  stats.max = max;
  stats.sum_exp = sums.sum_exp;
  stats.sum_exp_d = sums.sum_exp_d;
  stats.sum_exp_2 = sums.sum_exp_2;
  stats.sum_d = sums.sum_d;
  stats.weighted_d = sums.weighted_d;
  stats.owns_target = owns_target;
  if (owns_target) stats.target_d = target_z - max;
  if (sums.argmax != INT_MAX) stats.argmax = static_cast<int>(pass.head.vocab_start) + sums.argmax;
  // A NaN or +infinity logit, or none above -infinity: each makes a NaN of z - max. No column at all: the sum is 0.
  if (!(sums.sum_exp > 0)) {
    const float nan = NAN;
    if (!(max == -INFINITY)) stats.max = nan;
    stats.sum_exp = stats.sum_exp_d = stats.sum_exp_2 = nan;
    stats.sum_d = stats.weighted_d = stats.target_d = nan;
    stats.argmax = -1;
    stats.degenerate = true;
  }
  return stats;
}

// log p of the row's ids and of its largest logits.
template <RowMode kMode>
__device__ void WriteColumns(const RowPass& pass, const RowBlock<kMode>& block,
                             const RowAnswer& answer, int64_t row, int rank) {
  const RowColumns& columns = pass.columns;
  if (columns.ids_logprob) {
    float* out = columns.ids_logprob.Row<float>(row);
    for (int k = threadIdx.x; k < columns.ids.width; k += kRowThreads) {
      const int64_t id = columns.ids.Index(row, k);
      if (id < 0) {
        if (rank == 0) out[k] = 0;
        continue;
      }
      const int column = static_cast<int>(id - pass.head.vocab_start);
      if (!block.Owns(column)) continue;
      const float value = block.transform()(block.Raw(column)) - answer.max - answer.log_sum;
      out[k] = answer.degenerate ? NAN : value > 0 ? 0.0f : value;
    }
  }
  if (rank != 0) return;
  if (columns.topk_ids && answer.degenerate) {
    int32_t* out = columns.topk_ids.Row<int32_t>(row);
    for (int k = threadIdx.x; k < columns.topk_ids.width; k += kRowThreads) out[k] = -1;
  }
  if (columns.topk_logprob) {
    float* out = columns.topk_logprob.Row<float>(row);
    for (int k = threadIdx.x; k < columns.topk_logprob.width; k += kRowThreads) {
      const float value = out[k] - answer.max - answer.log_sum;
      out[k] = answer.degenerate ? NAN : value > 0 ? 0.0f : value;
    }
  }
}

template <RowMode kMode>
__device__ void* DzRow(const RowPass& pass, int64_t r) {
  if constexpr (kMode == RowMode::kCallers) return RowAddress(pass.grad, r);
  const int64_t width = pass.dz_mode == DzMode::kF32 ? 4 : 2;
  return static_cast<char*>(pass.dz) + r * pass.dz_stride * width;
}

__device__ bool WritesDz(const RowPass& pass) {
  return pass.dz_mode != DzMode::kNone && pass.dz_mode != DzMode::kMeasure;
}

// Number of the row in the call; -1: none, or one that does not count.
template <RowMode kMode>
__device__ int64_t RowNumber(const RowPass& pass, int64_t r) {
  if constexpr (kMode == RowMode::kCallers) return pass.counted[r] != 0 ? r : -1;
  return pass.index[r];
}

// dz = 0 for a row that is none, by all blocks of its cluster.
template <RowMode kMode>
__device__ void ClearRow(const RowPass& pass, int64_t r, const Cluster& cluster) {
  if (!WritesDz(pass)) return;
  if constexpr (kMode == RowMode::kCallers) {
    const float zeros[4] = {};
    void* const row = RowAddress(pass.grad, r);
    const int width = static_cast<int>(pass.head.vocab);
    for (int j = 4 * (cluster.rank() * kRowThreads + static_cast<int>(threadIdx.x)); j < width;
         j += 4 * kRowThreads * cluster.size()) {
      StoreFour(row, pass.grad.dtype, width, j, zeros);
    }
    return;
  }
  const int64_t columns = (pass.head.vocab + 63) / 64 * 64;
  const int64_t words = columns / (pass.dz_mode == DzMode::kF32 ? 1 : 2);
  uint32_t* out = static_cast<uint32_t*>(DzRow<kMode>(pass, r));
  for (int64_t i = cluster.rank() * kRowThreads + threadIdx.x; i < words;
       i += int64_t{kRowThreads} * cluster.size()) {
    out[i] = 0;
  }
}

// Whether the row has a gradient at all.
__device__ bool IsLive(const RowPass& pass, const RowCoefficients& coefficients, int64_t row) {
  if (!coefficients.IsZero()) return true;
  if (!pass.columns.d_ids_logprob) return false;
  const float* d = pass.columns.d_ids_logprob.Row<const float>(row);
  for (int64_t k = 0; k < pass.columns.ids.width; ++k) {
    if (d[k] != 0 && pass.columns.ids.Index(row, k) >= 0) return true;
  }
  return false;
}

// What the leader's thread makes of a row's statistics.
template <class Program, RowMode kMode>
__device__ RowAnswer MakeAnswer(const RowPass& pass, const Program& program,
                                const RowStatistics& stats, bool leader, int64_t r, int64_t row) {
  RowAnswer answer;
  answer.coefficients = program.Row(row, stats);
  answer.max = stats.max;
  answer.inverse_sum = 1.0f / stats.sum_exp;
  answer.log_sum = logf(stats.sum_exp);
  answer.degenerate = stats.degenerate;
  if (!leader) return answer;
  if (pass.live != nullptr) pass.live[r] = IsLive(pass, answer.coefficients, row) ? 1 : 0;
  if (kMode == RowMode::kEverything && pass.dz_mode == DzMode::kMeasure) {
    pass.stored[row] = {answer.coefficients, stats.max, stats.sum_exp};
  }
  return answer;
}

// A row whose statistics are known: each block asks the program itself, whose Row writes nothing then, while its slice is on the way.
template <class Program, RowMode kMode>
__device__ void AnswerKnownRow(const RowLaunch& launch, const Program& program,
                               const Cluster& cluster, RowBlock<kMode>* block, RowShared* shared,
                               int turn, int64_t r, int64_t row) {
  if (threadIdx.x == 0) {
    shared->answer = MakeAnswer<Program, kMode>(launch.pass, program, program.KnownStatistics(row),
                                                cluster.rank() == 0, r, row);
  }
  block->Load(false);
  if (block->IsMine(block->target())) shared->target_raw[turn] = block->Raw(block->target());
  // Every block has read its slice: only then may dz be written over the row.
  cluster.Sync();
}

// Statistics, then the coefficients, in `shared->answer` of all blocks. With `alone` the row ends here: only the leader knows, and `next`, a
// row's logits or null, is fetched as soon as the last sweep has read the slice.
template <class Program, RowMode kMode>
__device__ void AnswerRow(const RowLaunch& launch, const Program& program, const Cluster& cluster,
                          RowBlock<kMode>* block, RowShared* shared, int turn, int64_t r,
                          int64_t row, bool alone, const float* next) {
  const RowPass& pass = launch.pass;
  const bool leader = cluster.rank() == 0 && threadIdx.x == 0;
  const float warp_max = WarpMaxOrNan(block->Load(true));
  if (block->IsMine(block->target())) shared->target_raw[turn] = block->Raw(block->target());
  const RowSums mine = block->Sum(warp_max, launch.all_sums);
  if (alone && next != nullptr) block->FetchRow(next);
  const RowSums sums = RowTotal<kMode != RowMode::kLean>(cluster, shared, turn, mine);
  if (leader) {
    const bool owns_target = block->target() >= 0;
    float target_z = 0;
    if (owns_target) {
      const int owner = block->target() / static_cast<int>(launch.shape.slice);
      target_z = block->transform()(*cluster.Of(&shared->target_raw[turn], owner));
    }
    const RowStatistics stats = MakeStatistics(pass, sums, owns_target, target_z);
    const RowAnswer answer = MakeAnswer<Program, kMode>(pass, program, stats, true, r, row);
    if (alone) return;
    for (int b = 0; b < cluster.size(); ++b) *cluster.Of(&shared->answer, b) = answer;
  }
  if (!alone) cluster.Sync();
}

// A cluster takes rows r, r + clusters, ... What a block leaves in its `shared` for the leader it writes again two rows later: the barrier of
// the row between tells that it has been read.
template <class Program, RowMode kMode>
__global__ void __launch_bounds__(kRowThreads, 3)
    RowKernel(const __grid_constant__ RowLaunch launch, const __grid_constant__ Program program) {
  constexpr bool kLean = kMode == RowMode::kLean;
  constexpr bool kCallers = kMode == RowMode::kCallers;
  extern __shared__ float4 dynamic[];
  __shared__ RowShared shared;
  const RowPass& pass = launch.pass;
  const Cluster cluster(launch.shape.cluster);
  float* buffer = reinterpret_cast<float*>(dynamic);
  const int64_t clusters = gridDim.x / launch.shape.cluster;
  const bool stopped = pass.record->code != 0;
  const bool on_chip = kLean || launch.shape.on_chip;
  const bool has_ids = !kLean && pass.columns.d_ids_logprob.present;
  // Nothing of the row is wanted but its statistics.
  const bool alone = kLean && pass.dz_mode == DzMode::kNone;
  bool fetched = false;
  int turn = 0;
  for (int64_t r = blockIdx.x / launch.shape.cluster; r < pass.rows; r += clusters) {
    const int64_t row = RowNumber<kMode>(pass, r);
    if (kCallers && stopped) return;
    if (row < 0 || stopped) {
      if (fetched) WaitForFetches();
      fetched = false;
      ClearRow<kMode>(pass, r, cluster);
      if (pass.live != nullptr && cluster.rank() == 0 && threadIdx.x == 0) pass.live[r] = 0;
      continue;
    }
    turn ^= 1;
    RowBlock<kMode> block(launch, buffer, cluster.rank(), r, row);
    if (!fetched) {
      // The row before has been read by all threads.
      __syncthreads();
      block.Fetch();
    }
    const bool more = !kCallers && on_chip && r + clusters < pass.rows;
    const float* const next_row = pass.logits + (r + clusters) * pass.logits_stride;
    if constexpr (Program::kKnowsStatistics) {
      AnswerKnownRow<Program, kMode>(launch, program, cluster, &block, &shared, turn, r, row);
    } else {
      AnswerRow<Program, kMode>(launch, program, cluster, &block, &shared, turn, r, row, alone,
                                more ? next_row : nullptr);
    }
    if (alone && !Program::kKnowsStatistics) {
      fetched = more;
      continue;
    }
    const RowAnswer answer = shared.answer;
    if constexpr (!kLean) WriteColumns(pass, block, answer, row, cluster.rank());
    // Entries of ids are made from the slice after the sweep.
    fetched = more && !has_ids;
    const float* next = fetched ? next_row : nullptr;
    if (pass.dz_mode == DzMode::kNone) {
      // WriteColumns reads what other threads fetched.
      fetched = fetched && (kLean || !pass.columns.ids_logprob);
      if (fetched) block.FetchRow(next);
      continue;
    }

    if (!on_chip && has_ids) {
      // dz will cover the logits: keep those of the ids.
      for (int k = threadIdx.x; k < pass.columns.ids.width; k += kRowThreads) {
        const int column = static_cast<int>(pass.columns.ids.Index(row, k) - pass.head.vocab_start);
        if (block.Owns(column)) buffer[k] = block.Raw(column);
      }
    }
    __syncthreads();
    const bool scaled = kMode == RowMode::kEverything && pass.dz_mode == DzMode::kF16;
    const float scale = scaled ? *pass.dz_scale : 1.0f;
    const float largest = RowGradient<kMode>(block, answer, next)
                              .Run(kLean || WritesDz(pass) ? DzRow<kMode>(pass, r) : nullptr, scale,
                                   shared.target_raw[turn]);
    if (kMode != RowMode::kEverything || pass.dz_mode != DzMode::kMeasure) continue;
    const float warp_largest = WarpMax(largest);
    if (threadIdx.x % 32 == 0) atomicMax(pass.dz_max, __float_as_uint(warp_largest));
  }
  WaitForFetches();
  // No block may end while another reads its shared memory.
  if (alone) cluster.Sync();
}

// Whether a program reads more than max, sum_exp and target_d. A maximum is a maximum here.
template <class Program>
bool ReadsAllSums(const Program& program) {
  return StatisticsReadBy(program) != StatisticsRead::kExp;
}

// The common case: the loss and log-probabilities, gradients in bf16, and nothing rarer.
template <class Program>
bool IsLean(const RowPass& pass, const Program& program, const RowShape& shape) {
  const RowColumns& columns = pass.columns;
  return shape.on_chip && !pass.head.bias && pass.head.softcap <= 0 &&
         pass.column_weight == nullptr && !columns.ids_logprob && !columns.d_ids_logprob &&
         !columns.topk_ids && !columns.topk_logprob && !ReadsAllSums(program) &&
         HasPlainGradient(program) &&
         (pass.dz_mode == DzMode::kNone || pass.dz_mode == DzMode::kBF16);
}

// Programs that have a lean kernel.
template <class Program>
constexpr bool kHasLean =
    !std::is_same_v<Program, BackwardRows> && !std::is_same_v<Program, StoredRows>;

// Programs of operations on the caller's logits.
template <class Program>
constexpr bool kTakesLogits =
    std::is_same_v<Program, CrossEntropyRows> || std::is_same_v<Program, LogprobRows> ||
    std::is_same_v<Program, BackwardRows>;

template <RowMode kMode, class Program>
cudaError_t LaunchKernel(const RowPass& pass, const Program& program, const RowShape& shape,
                         cudaStream_t stream) {
  if (pass.rows == 0) return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(pass.rows * shape.cluster));
  config.blockDim = dim3(kRowThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  if (pass.rows >= kManyRows && shape.on_chip && shape.cluster > 1) {
    // As many clusters as run at once: each fetches its next row while it writes the present one.
    int resident = 0;
    const cudaError_t error =
        cudaOccupancyMaxActiveClusters(&resident, RowKernel<Program, kMode>, &config);
    if (error != cudaSuccess) return error;
    if (resident > 0 && resident < pass.rows) {
      config.gridDim = dim3(static_cast<unsigned>(resident * shape.cluster));
    }
  }
  return cudaLaunchKernelEx(&config, RowKernel<Program, kMode>,
                            RowLaunch{pass, shape, ReadsAllSums(program)}, program);
}

template <class Program>
cudaError_t Launch(const RowPass& pass, const Program& program, const RowShape& shape,
                   cudaStream_t stream) {
  if constexpr (kHasLean<Program>) {
    if (IsLean(pass, program, shape)) {
      return LaunchKernel<RowMode::kLean>(pass, program, shape, stream);
    }
  }
  return LaunchKernel<RowMode::kEverything>(pass, program, shape, stream);
}

template <class Program, RowMode kMode>
cudaError_t PrepareKernel(int64_t shared_limit) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, RowKernel<Program, kMode>);
  if (error != cudaSuccess) return error;
  // As many blocks on a multiprocessor as its shared memory has slices.
  error = cudaFuncSetAttribute(RowKernel<Program, kMode>,
                               cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(
      RowKernel<Program, kMode>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      static_cast<int>(shared_limit - static_cast<int64_t>(attributes.sharedSizeBytes)));
}

template <class Program>
cudaError_t Prepare(int64_t shared_limit) {
  if constexpr (kHasLean<Program>) {
    const cudaError_t error = PrepareKernel<Program, RowMode::kLean>(shared_limit);
    if (error != cudaSuccess) return error;
  }
  if constexpr (kTakesLogits<Program>) {
    const cudaError_t error = PrepareKernel<Program, RowMode::kCallers>(shared_limit);
    if (error != cudaSuccess) return error;
  }
  return PrepareKernel<Program, RowMode::kEverything>(shared_limit);
}

template <class... Programs>
cudaError_t PrepareAll(std::variant<Programs...>*, int64_t shared_limit) {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? Prepare<Programs>(shared_limit) : error), ...);
  return error;
}

}  // namespace

RowShape ChooseRowShape(int64_t vocab, bool cluster_support, int64_t shared_limit) {
  // Three blocks share a multiprocessor of an H200 (228 KB) while a slice has at most 72 KB.
  constexpr int64_t kComfortable = 72 * 1024;
  const int64_t reserve = static_cast<int64_t>(sizeof(RowShared)) + 256;
  const int64_t padded = (vocab + 63) / 64 * 64;
  RowShape shape;
  const int largest = cluster_support ? 8 : 1;
  for (shape.cluster = 1;; shape.cluster *= 2) {
    shape.slice = ((padded + shape.cluster - 1) / shape.cluster + 63) / 64 * 64;
    shape.shared_bytes = shape.slice * 4;
    if (shape.shared_bytes <= kComfortable || shape.cluster == largest) break;
  }
  if (shape.shared_bytes > shared_limit - reserve) {
    shape.cluster = 1;
    shape.slice = padded;
    shape.on_chip = false;
    shape.shared_bytes = 1024 * 4;  // raw logits of up to 1024 ids
  }
  return shape;
}

cudaError_t LaunchRowPass(const RowPass& pass, const RowProgram& program, const RowShape& shape,
                          cudaStream_t stream) {
  return std::visit([&](const auto& rows) { return Launch(pass, rows, shape, stream); }, program);
}

cudaError_t LaunchCallersRowPass(const RowPass& pass, const RowProgram& program,
                                 const RowShape& shape, cudaStream_t stream) {
  return std::visit(
      [&](const auto& rows) {
        using Program = std::decay_t<decltype(rows)>;
        if constexpr (kTakesLogits<Program>) {
          return LaunchKernel<RowMode::kCallers>(pass, rows, shape, stream);
        } else {
          return cudaErrorInvalidValue;
        }
      },
      program);
}

cudaError_t LaunchStoredRowPass(const RowPass& pass, const StoredRows& program,
                                const RowShape& shape, cudaStream_t stream) {
  return Launch(pass, program, shape, stream);
}

cudaError_t PrepareRowKernels(int64_t shared_limit) {
  const cudaError_t error = PrepareAll(static_cast<RowProgram*>(nullptr), shared_limit);
  return error == cudaSuccess ? Prepare<StoredRows>(shared_limit) : error;
}

}  // namespace lossd
