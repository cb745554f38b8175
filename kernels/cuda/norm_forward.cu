// Norms: one read of a row, kept in registers, while the team's next row is on its way; the sum over the row; one write.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/norm_kernels.h"
#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_packs.cuh"
#include "kernels/cuda/row_team.cuh"

namespace lossd {
namespace {

// Packs of a thread: without and with a residual, whose row is in registers too.
constexpr int kPacks[2] = {4, 8};
constexpr int kResidualPacks[2] = {2, 4};

struct NormLaunch {
  NormForward problem;
  RecordTarget record;
  int cluster = 1;
};

// x + residual, rounded; residual_out is written.
template <class T, int kCount>
__device__ void AddResidual(const NormForward& problem, const RowPacks<T, kCount>& place,
                            int64_t row, uint4 (&x)[kCount], const uint4 (&residual)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    float a[kPackElements<T>];
    float b[kPackElements<T>];
    Unpack<T>(x[k], a);
    Unpack<T>(residual[k], b);
#pragma unroll
    for (int e = 0; e < kPackElements<T>; ++e) a[e] += b[e];
    x[k] = PackOf<T>(a);
    if (problem.residual_out && place.Holds(k)) place.Store(problem.residual_out, row, k, x[k]);
  }
}

// A team for each row; 2 to 4 times the row's bytes are moved.
template <class T, int kCount, NormKind kKind, bool kRounds, bool kResidual>
__global__ void __launch_bounds__(kTeamThreads)
    NormKernel(const __grid_constant__ NormLaunch launch) {
  constexpr int kElements = kPackElements<T>;
  constexpr bool kLayer = kKind == NormKind::kLayer;
  constexpr Rounding kRounding = kRounds ? RealType<T>::kRounding : Rounding::kNone;
  __shared__ RowTeamShared<1> shared;
  const NormForward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  const Cluster cluster(launch.cluster);
  RowTeam<1> team(cluster, &shared);
  const RowPacks<T, kCount> place(cluster, problem.width);
  const auto columns = static_cast<float>(problem.width);
  const bool weight_is_f32 = problem.weight.dtype == DType::kF32;
  const bool bias_is_f32 = problem.bias.dtype == DType::kF32;

  uint4 x[kCount];
  uint4 next_x[kCount];
  uint4 next_residual[kResidual ? kCount : 1];
  const auto fetch = [&](int64_t row) {
    place.Load(problem.x, row, next_x);
    if constexpr (kResidual) place.Load(problem.residual, row, next_residual);
  };
  fetch(team.team());
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) x[k] = next_x[k];
    if constexpr (kResidual) AddResidual(problem, place, row, x, next_residual);
    if (row + team.teams() < problem.rows) fetch(row + team.teams());

    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      float values[kElements];
      Unpack<T>(x[k], values);
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[0] += kLayer ? values[e] : values[e] * values[e];
    }
    team.Sum(sum);
    float mean = 0;
    if constexpr (kLayer) {
      mean = sum[0] / columns;
      sum[0] = 0;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (!place.Holds(k)) continue;  // zeros are no columns
        float values[kElements];
        Unpack<T>(x[k], values);
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[0] += (values[e] - mean) * (values[e] - mean);
      }
      team.Sum(sum);
    }
    const float rstd = InverseRoot(problem.options, sum[0] / columns, RealType<T>::kDType);
    if (threadIdx.x == 0 && cluster.rank() == 0) {
      if (problem.mean) problem.mean.SetF32(row, mean);
      if (problem.rstd) problem.rstd.SetF32(row, rstd);
    }
    if (!problem.y) continue;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!place.Holds(k)) continue;
      float values[kElements];
      Unpack<T>(x[k], values);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        values[e] = Normalized<FloatMath, kRounding>(values[e], mean, rstd);
      }
      if (problem.weight) {
        float weight[kElements];
        LoadShared<T>(problem.weight.data, weight_is_f32, place.pack(k), weight);
#pragma unroll
        for (int e = 0; e < kElements; ++e) values[e] *= problem.options.weight_offset + weight[e];
      }
      if (kLayer && problem.bias) {
        float bias[kElements];
        LoadShared<T>(problem.bias.data, bias_is_f32, place.pack(k), bias);
#pragma unroll
        for (int e = 0; e < kElements; ++e) values[e] += bias[e];
      }
      place.Store(problem.y, row, k, PackOf<T>(values));
    }
  }
}

// Any layout, any length: a block for each row, which is read once for each sum and once more.
__global__ void __launch_bounds__(kTeamThreads)
    AnyNormKernel(const __grid_constant__ NormLaunch launch) {
  __shared__ RowTeamShared<1> shared;
  const NormForward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  RowTeam<1> team(Cluster(1), &shared);
  const bool layer = problem.options.kind == NormKind::kLayer;
  const DType type = problem.x.dtype;
  const auto columns = static_cast<float>(problem.width);
  const bool kept = problem.residual_out && problem.residual_out.dtype == type;
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
    const int64_t x_at = problem.x.Offset(row);
    const auto value = [&](int64_t j, bool first) {
      if (!first && kept) return LoadElement(problem.residual_out, row, j);
      const float x = LoadReal(problem.x.data, type, x_at + j);
      if (!problem.residual) return x;
      return RoundTo(type, x + LoadElement(problem.residual, row, j));
    };
    float sum[1] = {0};
    for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
      const float s = value(j, true);
      if (problem.residual_out) StoreElement(problem.residual_out, row, j, s);
      sum[0] += layer ? s : s * s;
    }
    team.Sum(sum);
    float mean = 0;
    if (layer) {
      mean = sum[0] / columns;
      sum[0] = 0;
      for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
        const float d = value(j, false) - mean;
        sum[0] += d * d;
      }
      team.Sum(sum);
    }
    const float rstd = InverseRoot(problem.options, sum[0] / columns, type);
    if (threadIdx.x == 0) {
      if (problem.mean) problem.mean.SetF32(row, mean);
      if (problem.rstd) problem.rstd.SetF32(row, rstd);
    }
    if (!problem.y) continue;
    for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
      float y = Normalized<FloatMath, Rounding::kNone>(value(j, false), mean, rstd);
      if (problem.options.rounds_normalized) y = RoundTo(type, y);
      if (problem.weight) y *= problem.options.weight_offset + LoadColumn(problem.weight, j);
      if (problem.bias) y += LoadColumn(problem.bias, j);
      StoreElement(problem.y, row, j, y);
    }
  }
}

template <class T, int kCount>
const void* KernelOf(NormKind kind, bool rounds, bool residual) {
  constexpr bool kMayRound = RealType<T>::kRounding != Rounding::kNone;
  if constexpr (kCount == kPacks[0] || kCount == kPacks[1]) {
    if (kind == NormKind::kLayer) {
      return reinterpret_cast<const void*>(&NormKernel<T, kCount, NormKind::kLayer, false, false>);
    }
    if (!residual) {
      return rounds ? reinterpret_cast<const void*>(
                          &NormKernel<T, kCount, NormKind::kRms, kMayRound, false>)
                    : reinterpret_cast<const void*>(
                          &NormKernel<T, kCount, NormKind::kRms, false, false>);
    }
  }
  if constexpr (kCount == kResidualPacks[0] || kCount == kResidualPacks[1]) {
    return rounds
               ? reinterpret_cast<const void*>(
                     &NormKernel<T, kCount, NormKind::kRms, kMayRound, true>)
               : reinterpret_cast<const void*>(&NormKernel<T, kCount, NormKind::kRms, false, true>);
  }
  return nullptr;
}

template <class T>
const void* KernelOf(int packs, NormKind kind, bool rounds, bool residual) {
  if (packs == 2) return KernelOf<T, 2>(kind, rounds, residual);
  if (packs == 4) return KernelOf<T, 4>(kind, rounds, residual);
  return KernelOf<T, 8>(kind, rounds, residual);
}

const void* KernelOf(DType type, int packs, NormKind kind, bool rounds, bool residual) {
  if (type == DType::kF32) return KernelOf<float>(packs, kind, rounds, residual);
  if (type == DType::kBF16) return KernelOf<__nv_bfloat16>(packs, kind, rounds, residual);
  return KernelOf<__half>(packs, kind, rounds, residual);
}

bool IsPackedProblem(const NormForward& problem) {
  const DType type = problem.x.dtype;
  for (const RowsView* view : {&problem.x, &problem.residual, &problem.y, &problem.residual_out}) {
    if (!IsPacked(*view, type)) return false;
  }
  return IsPackedColumns(problem.weight, type) && IsPackedColumns(problem.bias, type);
}

}  // namespace

cudaError_t PlanNorm(const NormForward& problem, LayerLimits& limits, NormPlan* plan) {
  const DType type = problem.x.dtype;
  const bool residual = problem.residual.present;
  const int(&packs)[2] = residual ? kResidualPacks : kPacks;
  if (IsPackedProblem(problem)) {
    plan->shape =
        ChooseLayerShape(problem.width, type, packs[0], packs[1], limits.largest_cluster());
  }
  if (plan->shape.threads > 0) {
    plan->kernel = KernelOf(type, plan->shape.packs, problem.options.kind,
                            problem.options.rounds_normalized, residual);
    int resident = 0;
    const cudaError_t error =
        limits.Resident(plan->kernel, plan->shape.threads, plan->shape.cluster, &resident);
    if (error != cudaSuccess) return error;
    plan->teams = std::min<int64_t>(resident, problem.rows);
    if (plan->teams > 0) return cudaSuccess;
  }
  plan->shape = LayerShape();
  plan->kernel = reinterpret_cast<const void*>(&AnyNormKernel);
  plan->teams = std::min<int64_t>(AnyLayoutTeams(limits), problem.rows);
  return cudaSuccess;
}

cudaError_t LaunchNorm(const NormForward& problem, const NormPlan& plan, const RecordTarget& record,
                       cudaStream_t stream) {
  const NormLaunch launch = {problem, record, plan.shape.cluster};
  return LaunchTeams(plan.kernel, &launch, GridOf(plan.shape, plan.teams), stream);
}

cudaError_t PrepareNormForward() {
  cudaError_t error = PrepareLayerKernel(reinterpret_cast<const void*>(&AnyNormKernel));
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool rounds : {false, true}) {
      for (const int i : {0, 1}) {
        for (const void* kernel :
             {KernelOf(type, kPacks[i], NormKind::kRms, rounds, false),
              KernelOf(type, kPacks[i], NormKind::kLayer, rounds, false),
              KernelOf(type, kResidualPacks[i], NormKind::kRms, rounds, true)}) {
          if (error == cudaSuccess) error = PrepareLayerKernel(kernel);
        }
      }
    }
  }
  return error;
}

}  // namespace lossd
