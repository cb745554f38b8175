// Gradients of norms: a team takes row after row, the next one on its way, and keeps the sums over its rows in registers. A second kernel
// adds up the teams' sums in their order.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/norm_kernels.h"
#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_packs.cuh"
#include "kernels/cuda/row_team.cuh"

namespace lossd {
namespace {

constexpr int kPacks[2] = {2, 4};

struct NormBackwardLaunch {
  NormBackward problem;
  RecordTarget record;
  int cluster = 1;
  float* weight_parts = nullptr;  // [teams, H], null: not wanted
  float* bias_parts = nullptr;
};

// mean and rstd of a row where the caller gives them.
struct RowScale {
  float mean = 0;
  float rstd = 0;
};
template <NormKind kKind>
__device__ RowScale GivenScale(const NormBackward& problem, int64_t row) {
  RowScale scale;
  if (!problem.rstd) return scale;
  scale.rstd = problem.rstd.F32(row);
  if (kKind == NormKind::kLayer) scale.mean = problem.mean.F32(row);
  return scale;
}

// The elements of one pack with their upstream gradients.
template <class T>
struct NormPack {
  static constexpr int kElements = kPackElements<T>;
  float x[kElements];
  float d_y[kElements];
  float m[kElements];  // d_y (weight_offset + weight)

  __device__ NormPack(const NormBackward& problem, bool weight_is_f32, int64_t pack, uint4 x_bits,
                      uint4 d_y_bits) {
    Unpack<T>(x_bits, x);
    Unpack<T>(d_y_bits, d_y);
    float weight[kElements];
    if (problem.weight) LoadShared<T>(problem.weight.data, weight_is_f32, pack, weight);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      m[e] = problem.weight ? d_y[e] * (problem.options.weight_offset + weight[e]) : d_y[e];
    }
  }
};

// Sums over the columns of a row: of (x - mean)^2, of m (x - mean), and for LayerNorm of m.
template <NormKind kKind>
inline constexpr int kRowSums = kKind == NormKind::kLayer ? 3 : 2;

template <class T, int kCount, NormKind kKind, bool kRounds>
__global__ void __launch_bounds__(kTeamThreads)
    NormBackwardKernel(const __grid_constant__ NormBackwardLaunch launch) {
  constexpr int kElements = kPackElements<T>;
  constexpr bool kLayer = kKind == NormKind::kLayer;
  constexpr Rounding kRounding = kRounds ? RealType<T>::kRounding : Rounding::kNone;
  // Long rows have too few registers for two.
  constexpr bool kFetchesAhead = kCount == kPacks[0];
  __shared__ RowTeamShared<kRowSums<kKind>> shared;
  const NormBackward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
#if __CUDA_ARCH__ >= 900
  // The kernel that adds up may take its place as soon as there is one; it waits for the end of this one.
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  const Cluster cluster(launch.cluster);
  RowTeam<kRowSums<kKind>> team(cluster, &shared);
  const RowPacks<T, kCount> place(cluster, problem.width);
  const float by_columns = 1.0f / static_cast<float>(problem.width);
  const bool weight_is_f32 = problem.weight.dtype == DType::kF32;

  float weight_sums[kCount][kElements] = {};
  float bias_sums[kLayer ? kCount : 1][kElements] = {};
  uint4 x[kCount];
  uint4 d_y[kCount];
  RowScale scale;
  uint4 next_x[kCount];
  uint4 next_d_y[kCount];
  RowScale next_scale;
  const auto fetch = [&](int64_t row) {
    next_scale = GivenScale<kKind>(problem, row);
    place.Load(problem.x, row, next_x);
    place.Load(problem.d_y, row, next_d_y);
  };
  if (kFetchesAhead) fetch(team.team());
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
    if (!kFetchesAhead) fetch(row);
    scale = next_scale;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      x[k] = next_x[k];
      d_y[k] = next_d_y[k];
    }
    if (kFetchesAhead && row + team.teams() < problem.rows) fetch(row + team.teams());
    uint4 more[kCount];
    if (problem.d_residual_out) place.Load(problem.d_residual_out, row, more);

    float sums[kRowSums<kKind>] = {};
    if (kLayer && !problem.rstd) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        float values[kElements];
        Unpack<T>(x[k], values);
#pragma unroll
        for (int e = 0; e < kElements; ++e) sums[0] += values[e];
      }
      team.Sum(sums);
      scale.mean = sums[0] * by_columns;
      sums[0] = 0;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!place.Holds(k)) continue;
      const NormPack<T> pack(problem, weight_is_f32, place.pack(k), x[k], d_y[k]);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const float d = pack.x[e] - scale.mean;
        sums[0] += d * d;
        sums[1] += pack.m[e] * d;
        if constexpr (kLayer) sums[2] += pack.m[e];
      }
    }
    team.Sum(sums);
    if (!problem.rstd) {
      scale.rstd = InverseRoot(problem.options, sums[0] * by_columns, RealType<T>::kDType);
    }
    const float by_dot = sums[1] * scale.rstd * by_columns;
    float by_mean = 0;
    if constexpr (kLayer) by_mean = sums[2] * by_columns;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!place.Holds(k)) continue;
      const NormPack<T> pack(problem, weight_is_f32, place.pack(k), x[k], d_y[k]);
      float grad[kElements];
      float add[kElements] = {};
      if (problem.d_residual_out) Unpack<T>(more[k], add);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        grad[e] =
            NormGradient<FloatMath>(pack.m[e], pack.x[e], scale.mean, scale.rstd, by_mean, by_dot) +
            add[e];
        weight_sums[k][e] +=
            pack.d_y[e] * Normalized<FloatMath, kRounding>(pack.x[e], scale.mean, scale.rstd);
        if constexpr (kLayer) bias_sums[k][e] += pack.d_y[e];
      }
      if (problem.grad_x) place.Store(problem.grad_x, row, k, PackOf<T>(grad));
    }
  }
  const int64_t at = team.team() * problem.width;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (!place.Holds(k)) continue;
    const int64_t column = int64_t{place.pack(k)} * kElements;
#pragma unroll
    for (int e = 0; e < kElements; e += 4) {
      const auto store = [&](float* parts, const float* sums) {
        if (parts == nullptr) return;
        *reinterpret_cast<float4*>(parts + at + column + e) =
            make_float4(sums[e], sums[e + 1], sums[e + 2], sums[e + 3]);
      };
      store(launch.weight_parts, weight_sums[k]);
      if constexpr (kLayer) store(launch.bias_parts, bias_sums[k]);
    }
  }
}

// Any layout, any length: a block for each row, which is read once for each sum and once more; sums over rows in memory.
__global__ void __launch_bounds__(kTeamThreads)
    AnyNormBackwardKernel(const __grid_constant__ NormBackwardLaunch launch) {
  __shared__ RowTeamShared<3> shared;
  const NormBackward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  RowTeam<3> team(Cluster(1), &shared);
  const bool layer = problem.options.kind == NormKind::kLayer;
  const DType type = problem.x.dtype;
  const float by_columns = 1.0f / static_cast<float>(problem.width);
  const int64_t parts_at = team.team() * problem.width;
  const auto add_part = [&](float* parts, int64_t row, int64_t j, float value) {
    if (parts == nullptr) return;
    float* part = parts + parts_at + j;
    *part = row == team.team() ? value : *part + value;  // the team's first row
  };
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
    const auto upstream = [&](float d_y, int64_t j) {
      if (!problem.weight) return d_y;
      return d_y * (problem.options.weight_offset + LoadColumn(problem.weight, j));
    };
    RowScale scale = layer ? GivenScale<NormKind::kLayer>(problem, row)
                           : GivenScale<NormKind::kRms>(problem, row);
    float sums[3] = {};
    if (layer && !problem.rstd) {
      for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
        sums[0] += LoadElement(problem.x, row, j);
      }
      team.Sum(sums);
      scale.mean = sums[0] * by_columns;
      sums[0] = sums[1] = sums[2] = 0;
    }
    for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
      const float d = LoadElement(problem.x, row, j) - scale.mean;
      const float m = upstream(LoadElement(problem.d_y, row, j), j);
      sums[0] += d * d;
      sums[1] += m * d;
      sums[2] += m;
    }
    team.Sum(sums);
    if (!problem.rstd) scale.rstd = InverseRoot(problem.options, sums[0] * by_columns, type);
    const float by_dot = sums[1] * scale.rstd * by_columns;
    const float by_mean = layer ? sums[2] * by_columns : 0;
    for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
      const float x = LoadElement(problem.x, row, j);
      const float d_y = LoadElement(problem.d_y, row, j);
      float n = Normalized<FloatMath, Rounding::kNone>(x, scale.mean, scale.rstd);
      if (problem.options.rounds_normalized) n = RoundTo(type, n);
      add_part(launch.weight_parts, row, j, d_y * n);
      add_part(launch.bias_parts, row, j, d_y);
      if (!problem.grad_x) continue;
      float grad =
          NormGradient<FloatMath>(upstream(d_y, j), x, scale.mean, scale.rstd, by_mean, by_dot);
      if (problem.d_residual_out) grad += LoadElement(problem.d_residual_out, row, j);
      StoreElement(problem.grad_x, row, j, grad);
    }
  }
}

// The teams' sums of a column, in groups of teams and then group by group.
struct ColumnsLaunch {
  const float* parts[2] = {};  // [teams, width] each
  RowsView to[2];              // [width]; absent: nothing to do
  bool accumulate[2] = {};
  int64_t teams = 0;
  int64_t width = 0;
  int64_t column_blocks = 0;
};

constexpr int kColumns = 32;
constexpr int kGroups = 16;

__global__ void __launch_bounds__(kColumns* kGroups)
    ColumnsKernel(const __grid_constant__ ColumnsLaunch launch) {
  __shared__ float groups[kGroups][kColumns];
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const int which = static_cast<int>(blockIdx.x / launch.column_blocks);
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int group = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t j = blockIdx.x % launch.column_blocks * kColumns + column;
  float sum = 0;
  if (j < launch.width) {
    const float* part = launch.parts[which] + j;
#pragma unroll 4
    for (int64_t team = group; team < launch.teams; team += kGroups) {
      sum += part[team * launch.width];
    }
  }
  groups[group][column] = sum;
  __syncthreads();
  if (group != 0 || j >= launch.width) return;
  for (int g = 1; g < kGroups; ++g) sum += groups[g][column];
  const RowsView& to = launch.to[which];
  const int64_t at = to.Offset(j);
  if (launch.accumulate[which]) sum += LoadReal(to.data, to.dtype, at);
  StoreReal(to.data, to.dtype, at, sum);
}

template <class T, int kCount>
const void* KernelOf(NormKind kind, bool rounds) {
  constexpr bool kMayRound = RealType<T>::kRounding != Rounding::kNone;
  if (kind == NormKind::kLayer) {
    return reinterpret_cast<const void*>(&NormBackwardKernel<T, kCount, NormKind::kLayer, false>);
  }
  return rounds
             ? reinterpret_cast<const void*>(
                   &NormBackwardKernel<T, kCount, NormKind::kRms, kMayRound>)
             : reinterpret_cast<const void*>(&NormBackwardKernel<T, kCount, NormKind::kRms, false>);
}

template <class T>
const void* KernelOf(int packs, NormKind kind, bool rounds) {
  return packs == kPacks[0] ? KernelOf<T, kPacks[0]>(kind, rounds)
                            : KernelOf<T, kPacks[1]>(kind, rounds);
}

const void* KernelOf(DType type, int packs, NormKind kind, bool rounds) {
  if (type == DType::kF32) return KernelOf<float>(packs, kind, rounds);
  if (type == DType::kBF16) return KernelOf<__nv_bfloat16>(packs, kind, rounds);
  return KernelOf<__half>(packs, kind, rounds);
}

bool IsPackedProblem(const NormBackward& problem) {
  const DType type = problem.x.dtype;
  for (const RowsView* view :
       {&problem.x, &problem.d_y, &problem.d_residual_out, &problem.grad_x}) {
    if (!IsPacked(*view, type)) return false;
  }
  return IsPackedColumns(problem.weight, type);
}

}  // namespace

cudaError_t PlanNormBackward(const NormBackward& problem, LayerLimits& limits, NormPlan* plan) {
  const DType type = problem.x.dtype;
  if (IsPackedProblem(problem)) {
    plan->shape =
        ChooseLayerShape(problem.width, type, kPacks[0], kPacks[1], limits.largest_cluster());
  }
  if (plan->shape.threads > 0) {
    plan->kernel =
        KernelOf(type, plan->shape.packs, problem.options.kind, problem.options.rounds_normalized);
    int resident = 0;
    const cudaError_t error =
        limits.Resident(plan->kernel, plan->shape.threads, plan->shape.cluster, &resident);
    if (error != cudaSuccess) return error;
    plan->teams = std::min<int64_t>(resident, problem.rows);
    if (plan->teams > 0) return cudaSuccess;
  }
  plan->shape = LayerShape();
  plan->kernel = reinterpret_cast<const void*>(&AnyNormBackwardKernel);
  plan->teams = std::min<int64_t>(AnyLayoutTeams(limits), problem.rows);
  return cudaSuccess;
}

cudaError_t LaunchNormBackward(const NormBackward& problem, const NormPlan& plan, float* parts,
                               const RecordTarget& record, cudaStream_t stream) {
  NormBackwardLaunch launch = {problem, record, plan.shape.cluster, nullptr, nullptr};
  if (problem.grad_weight) launch.weight_parts = parts;
  if (problem.grad_bias) {
    launch.bias_parts = problem.grad_weight ? parts + plan.teams * problem.width : parts;
  }
  return LaunchTeams(plan.kernel, &launch, GridOf(plan.shape, plan.teams), stream);
}

cudaError_t LaunchNormColumns(const NormBackward& problem, const float* parts, int64_t teams,
                              bool overlaps, cudaStream_t stream) {
  ColumnsLaunch launch;
  launch.teams = teams;
  launch.width = problem.width;
  launch.column_blocks = (problem.width + kColumns - 1) / kColumns;
  int count = 0;
  const auto add = [&](const RowsView& to, bool accumulate) {
    if (!to) return;
    launch.parts[count] = parts + count * teams * problem.width;
    launch.to[count] = to;
    launch.accumulate[count] = accumulate;
    ++count;
  };
  add(problem.grad_weight, problem.accumulate_weight);
  add(problem.grad_bias, problem.accumulate_bias);
  TeamGrid grid;
  grid.threads = kColumns * kGroups;
  grid.teams = count * launch.column_blocks;
  grid.overlaps = overlaps;
  return LaunchTeams(reinterpret_cast<const void*>(&ColumnsKernel), &launch, grid, stream);
}

cudaError_t PrepareNormBackward() {
  cudaError_t error = PrepareLayerKernel(reinterpret_cast<const void*>(&AnyNormBackwardKernel));
  if (error == cudaSuccess) {
    error = PrepareLayerKernel(reinterpret_cast<const void*>(&ColumnsKernel));
  }
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int packs : kPacks) {
      for (const bool rounds : {false, true}) {
        for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
          if (error == cudaSuccess) error = PrepareLayerKernel(KernelOf(type, packs, kind, rounds));
        }
      }
    }
  }
  return error;
}

}  // namespace lossd
