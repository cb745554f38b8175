#include <algorithm>
#include <cstdint>

#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/rope_kernels.h"
#include "kernels/cuda/row_team.cuh"

namespace lossd {
namespace {

constexpr int kThreads = 256;
// Heads that a thread turns by the same angles, whose loads are under way together.
constexpr int kHeads = 4;

// A token's work is `units` of a thread each: some elements of kHeads heads.
struct RopeLaunch {
  RopeProblem problem;
  RecordTarget record;
  RopeScratch* scratch = nullptr;
  int64_t head_units = 0;  // pieces of a head: turned ones, then copied ones
  int64_t turned = 0;
  int64_t token_units = 0;
  int64_t block_tokens = 0;
};

// Every block, once, after it has looked at the positions of its tokens: the last one writes the record.
__device__ void FinishPositions(const RopeLaunch& launch) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(&launch.scratch->finished, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  ClearRecord(launch.record.record, launch.record.copy);
  __syncthreads();
  if (threadIdx.x != 0) return;
  const unsigned long long bad = atomicExch(&launch.scratch->bad_token, kNoBadToken);
  if (bad == kNoBadToken) return;
  for (ResultRecord* record : {launch.record.record, launch.record.copy}) {
    if (record == nullptr) continue;
    record->code = 3;  // INVALID_ARGUMENT
    record->field = launch.problem.position_field;
    record->row = static_cast<int64_t>(bad);
  }
}

// The token's row of the tables; -1, and a note of it, where it has none.
__device__ int64_t CheckedPosition(const RopeLaunch& launch, int64_t token) {
  const int64_t position = launch.problem.Position(token);
  if (position >= 0 && position < launch.problem.cosine.rows) return position;
  atomicMin(&launch.scratch->bad_token, static_cast<unsigned long long>(token));
  return -1;
}

template <class T>
__device__ char* PackAddress(const HeadsView& view, int64_t token, int64_t head, int64_t pack) {
  return static_cast<char*>(view.tokens.data) +
         view.Offset(token, head) * static_cast<int64_t>(sizeof(T)) + pack * kPackBytes;
}

template <int kCount>
__device__ void LoadAngles(const float* from, float (&to)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int w = 0; w < kCount / 4; ++w) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from) + w);
      to[4 * w] = four.x;
      to[4 * w + 1] = four.y;
      to[4 * w + 2] = four.z;
      to[4 * w + 3] = four.w;
    }
  } else {
    const float2 two = __ldg(reinterpret_cast<const float2*>(from));
    to[0] = two.x;
    to[1] = two.y;
  }
}

// The turned unit `unit` of up to kHeads heads: one pack of interleaved pairs, or a pack of first and one of second elements.
template <class T, bool kInterleaved>
__device__ void Turn(const RopeLaunch& launch, int64_t token, int64_t position, int64_t first_head,
                     int64_t unit) {
  constexpr int kElements = kPackElements<T>;
  constexpr int kPairs = kInterleaved ? kElements / 2 : kElements;
  const RopeProblem& problem = launch.problem;
  uint4 first[kHeads];
  uint4 second[kInterleaved ? 1 : kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (first_head + h >= problem.heads) break;
    first[h] = LoadPack(PackAddress<T>(problem.x, token, first_head + h, unit));
    if constexpr (!kInterleaved) {
      second[h] = LoadPack(PackAddress<T>(problem.x, token, first_head + h, unit + launch.turned));
    }
  }
  float cosine[kPairs];
  float sine[kPairs];
  LoadAngles(problem.cosine.Row<const float>(position) + unit * kPairs, cosine);
  LoadAngles(problem.sine.Row<const float>(position) + unit * kPairs, sine);
  const float sign = problem.backward ? -1.0f : 1.0f;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) sine[p] *= sign;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (first_head + h >= problem.heads) break;
    float a[kElements];
    Unpack<T>(first[h], a);
    if constexpr (kInterleaved) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const RopePair<FloatMath> turned =
            Rotate<FloatMath>({a[2 * p], a[2 * p + 1]}, cosine[p], sine[p]);
        a[2 * p] = turned.first;
        a[2 * p + 1] = turned.second;
      }
    } else {
      float b[kElements];
      Unpack<T>(second[h], b);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const RopePair<FloatMath> turned = Rotate<FloatMath>({a[p], b[p]}, cosine[p], sine[p]);
        a[p] = turned.first;
        b[p] = turned.second;
      }
      StorePack(PackAddress<T>(problem.y, token, first_head + h, unit + launch.turned),
                PackOf<T>(b));
    }
    StorePack(PackAddress<T>(problem.y, token, first_head + h, unit), PackOf<T>(a));
  }
}

// Blocks take some tokens after the other; the angles of a token are read once for kHeads heads.
template <class T, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) RopeKernel(const __grid_constant__ RopeLaunch launch) {
  const RopeProblem& problem = launch.problem;
  if (!problem.position && blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  const auto head_units = static_cast<uint32_t>(launch.head_units);
  const auto token_units = static_cast<uint32_t>(launch.token_units);
  const int64_t turned_packs = problem.rotary / kPackElements<T>;
  for (int64_t first = blockIdx.x * launch.block_tokens; first < problem.rows;
       first += gridDim.x * launch.block_tokens) {
    const auto tokens = static_cast<uint32_t>(min(launch.block_tokens, problem.rows - first));
    for (uint32_t i = threadIdx.x; i < tokens * token_units; i += kThreads) {
      const int64_t token = first + i / token_units;
      const uint32_t rest = i % token_units;
      const int64_t head = int64_t{rest / head_units} * kHeads;
      const int64_t unit = rest % head_units;
      const int64_t position = problem.position ? CheckedPosition(launch, token) : token;
      if (position < 0) continue;
      if (unit < launch.turned) {
        Turn<T, kInterleaved>(launch, token, position, head, unit);
        continue;
      }
      const int64_t pack = turned_packs + unit - launch.turned;
      for (int64_t h = head; h < min(head + kHeads, problem.heads); ++h) {
        StorePack(PackAddress<T>(problem.y, token, h, pack),
                  LoadPack(PackAddress<T>(problem.x, token, h, pack)));
      }
    }
  }
  if (problem.position) FinishPositions(launch);
}

// Any layout and types: a block for each token, an element or a pair at a time.
__global__ void __launch_bounds__(kThreads)
    AnyRopeKernel(const __grid_constant__ RopeLaunch launch) {
  const RopeProblem& problem = launch.problem;
  if (!problem.position && blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  const DType from = problem.x.tokens.dtype;
  const DType to = problem.y.tokens.dtype;
  const float sign = problem.backward ? -1.0f : 1.0f;
  for (int64_t token = blockIdx.x; token < problem.rows; token += gridDim.x) {
    const int64_t position = problem.position ? CheckedPosition(launch, token) : token;
    if (position < 0) continue;
    for (int64_t i = threadIdx.x; i < problem.heads * launch.head_units; i += kThreads) {
      const int64_t head = i / launch.head_units;
      const int64_t unit = i % launch.head_units;
      const int64_t x = problem.x.Offset(token, head);
      const int64_t y = problem.y.Offset(token, head);
      if (unit >= launch.turned) {
        const int64_t k = unit + launch.turned;  // behind both elements of all pairs
        StoreReal(problem.y.tokens.data, to, y + k, LoadReal(problem.x.tokens.data, from, x + k));
        continue;
      }
      const int64_t one = problem.interleaved ? 2 * unit : unit;
      const int64_t other = problem.interleaved ? one + 1 : unit + launch.turned;
      const RopePair<FloatMath> turned =
          Rotate<FloatMath>({LoadReal(problem.x.tokens.data, from, x + one),
                             LoadReal(problem.x.tokens.data, from, x + other)},
                            problem.cosine.Row<const float>(position)[unit],
                            sign * problem.sine.Row<const float>(position)[unit]);
      StoreReal(problem.y.tokens.data, to, y + one, turned.first);
      StoreReal(problem.y.tokens.data, to, y + other, turned.second);
    }
  }
  if (problem.position) FinishPositions(launch);
}

__global__ void __launch_bounds__(kThreads)
    CheckPositionsKernel(const __grid_constant__ RopeLaunch launch) {
  for (int64_t token = blockIdx.x * int64_t{kThreads} + threadIdx.x; token < launch.problem.rows;
       token += gridDim.x * int64_t{kThreads}) {
    CheckedPosition(launch, token);
  }
  FinishPositions(launch);
}

template <class T>
const void* KernelOf(bool interleaved) {
  return interleaved ? reinterpret_cast<const void*>(&RopeKernel<T, true>)
                     : reinterpret_cast<const void*>(&RopeKernel<T, false>);
}
const void* KernelOf(DType type, bool interleaved) {
  if (type == DType::kF32) return KernelOf<float>(interleaved);
  return type == DType::kBF16 ? KernelOf<__nv_bfloat16>(interleaved)
                              : KernelOf<__half>(interleaved);
}

bool IsPackedHeads(const HeadsView& view, DType type, int64_t heads) {
  return IsPacked(view.tokens, type) &&
         (heads == 1 || view.head_stride * static_cast<int64_t>(SizeOf(type)) % kPackBytes == 0);
}

bool IsPackedProblem(const RopeProblem& problem) {
  const DType type = problem.x.tokens.dtype;
  const int64_t elements = kPackBytes / static_cast<int64_t>(SizeOf(type));
  const int64_t piece = problem.interleaved ? elements : 2 * elements;
  // A pack of two interleaved fp32 pairs has two angles.
  const auto angles = [&](const RowsView& view) {
    const int64_t pairs = problem.interleaved ? elements / 2 : elements;
    return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
           (view.rows == 1 || view.lead_strides[0] % std::min<int64_t>(pairs, 4) == 0) &&
           view.lead_rank == 1;
  };
  return problem.rotary % piece == 0 && IsPackedHeads(problem.x, type, problem.heads) &&
         IsPackedHeads(problem.y, type, problem.heads) && angles(problem.cosine) &&
         angles(problem.sine) && problem.heads * problem.dim < int64_t{1} << 24;
}

cudaError_t LaunchBlocks(const void* kernel, const RopeLaunch& launch, int64_t blocks,
                         cudaStream_t stream) {
  TeamGrid grid;
  grid.threads = kThreads;
  grid.teams = std::min<int64_t>(blocks, int64_t{1} << 30);
  return LaunchTeams(kernel, &launch, grid, stream);
}

}  // namespace

cudaError_t LaunchRope(const RopeProblem& problem, const RecordTarget& record, RopeScratch* scratch,
                       cudaStream_t stream, bool* packed) {
  RopeLaunch launch;
  launch.problem = problem;
  launch.record = record;
  launch.scratch = scratch;
  *packed = IsPackedProblem(problem);
  const DType type = problem.x.tokens.dtype;
  const int64_t elements = *packed ? kPackBytes / static_cast<int64_t>(SizeOf(type)) : 1;
  // Packed interleaved pairs are turned within a pack.
  launch.turned =
      *packed && problem.interleaved ? problem.rotary / elements : problem.rotary / 2 / elements;
  launch.head_units = launch.turned + (problem.dim - problem.rotary) / elements;
  if (!*packed) {
    return LaunchBlocks(reinterpret_cast<const void*>(&AnyRopeKernel), launch, problem.rows,
                        stream);
  }
  launch.token_units = launch.head_units * ((problem.heads + kHeads - 1) / kHeads);
  launch.block_tokens = std::max<int64_t>(kThreads / launch.token_units, 1);
  return LaunchBlocks(KernelOf(type, problem.interleaved), launch,
                      (problem.rows + launch.block_tokens - 1) / launch.block_tokens, stream);
}

cudaError_t LaunchCheckPositions(const RopeProblem& problem, const RecordTarget& record,
                                 RopeScratch* scratch, cudaStream_t stream) {
  RopeLaunch launch;
  launch.problem = problem;
  launch.record = record;
  launch.scratch = scratch;
  return LaunchBlocks(reinterpret_cast<const void*>(&CheckPositionsKernel), launch,
                      (problem.rows + kThreads - 1) / kThreads, stream);
}

cudaError_t PrepareRope() {
  cudaError_t error = PrepareLayerKernel(reinterpret_cast<const void*>(&AnyRopeKernel));
  const auto then = [&error](const void* kernel) {
    if (error == cudaSuccess) error = PrepareLayerKernel(kernel);
  };
  then(reinterpret_cast<const void*>(&CheckPositionsKernel));
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool interleaved : {false, true}) then(KernelOf(type, interleaved));
  }
  return error;
}

}  // namespace lossd
