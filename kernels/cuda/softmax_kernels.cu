// Softmax and its gradient: one read of a row, kept in registers, while the team's next row is on its way; one reduction; one write.
#include <algorithm>

#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_packs.cuh"
#include "kernels/cuda/row_team.cuh"
#include "kernels/cuda/softmax_kernels.h"

namespace lossd {
namespace {

constexpr int kForwardPacks[2] = {4, 8};
constexpr int kBackwardPacks[2] = {2, 4};

template <class Problem>
struct SoftmaxLaunch {
  Problem problem;
  RecordTarget record;
  int cluster = 1;
};

// The largest x, and the sum of e^(x - max) relative to it; the sum is NaN where an x is NaN or infinite.
using MaxSum = float[2];

// What x - max is taken against while there may be nothing but -infinity.
__device__ __forceinline__ float FiniteBase(float max) { return max == -INFINITY ? 0.0f : max; }

// Of two parts of a row. Products are rounded before they are added, so that the parts can change places.
__device__ __forceinline__ void CombineMaxSum(MaxSum& a, const MaxSum& b) {
  const float max = fmaxf(a[0], b[0]);
  const float of_a = a[0] == max ? a[1] : __fmul_rn(a[1], FloatMath::Exp(a[0] - max));
  const float of_b = b[0] == max ? b[1] : __fmul_rn(b[1], FloatMath::Exp(b[0] - max));
  a[0] = max;
  a[1] = __fadd_rn(of_a, of_b);
}

__device__ __forceinline__ void ReduceMaxSum(RowTeam<2>& team, MaxSum& sum) {
  const MaxSum nothing = {-INFINITY, 0};
  team.Reduce(sum, nothing, [](MaxSum& a, const MaxSum& b) { CombineMaxSum(a, b); });
}

template <class Problem>
__device__ __forceinline__ bool IsMasked(const Problem& problem, int64_t row) {
  return problem.mask && !problem.mask.Mask(row);
}

template <class T, int kCount>
__device__ __forceinline__ void StoreZeros(const RowPacks<T, kCount>& place, const RowsView& to,
                                           int64_t row) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (place.Holds(k)) place.Store(to, row, k, make_uint4(0, 0, 0, 0));
  }
}

template <class T, int kCount>
__global__ void __launch_bounds__(kTeamThreads)
    SoftmaxKernel(const __grid_constant__ SoftmaxLaunch<SoftmaxForward> launch) {
  constexpr int kElements = kPackElements<T>;
  __shared__ RowTeamShared<2> shared;
  const SoftmaxForward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  const Cluster cluster(launch.cluster);
  RowTeam<2> team(cluster, &shared);
  const RowPacks<T, kCount> place(cluster, problem.width);
  uint4 x[kCount];
  uint4 next[kCount];
  place.Load(problem.x, team.team(), next);
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) x[k] = next[k];
    if (row + team.teams() < problem.rows) place.Load(problem.x, row + team.teams(), next);
    if (IsMasked(problem, row)) {
      StoreZeros(place, problem.y, row);
      continue;
    }
    MaxSum sum = {-INFINITY, 0};
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!place.Holds(k)) continue;
      float values[kElements];
      Unpack<T>(x[k], values);
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[0] = fmaxf(sum[0], values[e]);
    }
    const float base = FiniteBase(sum[0]);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!place.Holds(k)) continue;
      float values[kElements];
      Unpack<T>(x[k], values);
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[1] += FloatMath::Exp(values[e] - base);
    }
    ReduceMaxSum(team, sum);
    const float inverse = 1.0f / sum[1];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!place.Holds(k)) continue;
      float values[kElements];
      Unpack<T>(x[k], values);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        values[e] = SoftmaxValue<FloatMath>(values[e], sum[0], inverse);
      }
      place.Store(problem.y, row, k, PackOf<T>(values));
    }
  }
}

template <class T, int kCount>
__global__ void __launch_bounds__(kTeamThreads)
    SoftmaxBackwardKernel(const __grid_constant__ SoftmaxLaunch<SoftmaxBackward> launch) {
  constexpr int kElements = kPackElements<T>;
  __shared__ RowTeamShared<1> shared;
  const SoftmaxBackward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  const Cluster cluster(launch.cluster);
  RowTeam<1> team(cluster, &shared);
  const RowPacks<T, kCount> place(cluster, problem.width);
  uint4 y[kCount];
  uint4 d_y[kCount];
  uint4 next_y[kCount];
  uint4 next_d_y[kCount];
  const auto fetch = [&](int64_t row) {
    place.Load(problem.y, row, next_y);
    place.Load(problem.d_y, row, next_d_y);
  };
  fetch(team.team());
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      y[k] = next_y[k];
      d_y[k] = next_d_y[k];
    }
    if (row + team.teams() < problem.rows) fetch(row + team.teams());
    if (IsMasked(problem, row)) {
      StoreZeros(place, problem.grad_x, row);
      continue;
    }
    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      float a[kElements];
      float b[kElements];
      Unpack<T>(y[k], a);
      Unpack<T>(d_y[k], b);
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[0] += SoftmaxTerm<FloatMath>(a[e], b[e]);
    }
    team.Sum(sum);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!place.Holds(k)) continue;
      float a[kElements];
      float b[kElements];
      Unpack<T>(y[k], a);
      Unpack<T>(d_y[k], b);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        b[e] = SoftmaxGradient<FloatMath>(a[e], b[e], sum[0]);
      }
      place.Store(problem.grad_x, row, k, PackOf<T>(b));
    }
  }
}

// Any layout, any length: a block for each row, which is read twice.
__global__ void __launch_bounds__(kTeamThreads)
    AnySoftmaxKernel(const __grid_constant__ SoftmaxLaunch<SoftmaxForward> launch) {
  __shared__ RowTeamShared<2> shared;
  const SoftmaxForward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  RowTeam<2> team(Cluster(1), &shared);
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
    const bool masked = IsMasked(problem, row);
    MaxSum sum = {-INFINITY, 0};
    for (int64_t j = threadIdx.x; j < problem.width && !masked; j += blockDim.x) {
      const float x = LoadElement(problem.x, row, j);
      const MaxSum one = {x == x ? x : -INFINITY, x - x == 0.0f    ? 1.0f
                                                  : x == -INFINITY ? 0.0f
                                                                   : NAN};
      CombineMaxSum(sum, one);
    }
    if (!masked) ReduceMaxSum(team, sum);
    const float inverse = 1.0f / sum[1];
    for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
      float y = 0;
      if (!masked) y = SoftmaxValue<FloatMath>(LoadElement(problem.x, row, j), sum[0], inverse);
      StoreElement(problem.y, row, j, y);
    }
  }
}

__global__ void __launch_bounds__(kTeamThreads)
    AnySoftmaxBackwardKernel(const __grid_constant__ SoftmaxLaunch<SoftmaxBackward> launch) {
  __shared__ RowTeamShared<1> shared;
  const SoftmaxBackward& problem = launch.problem;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  RowTeam<1> team(Cluster(1), &shared);
  for (int64_t row = team.team(); row < problem.rows; row += team.teams()) {
    const bool masked = IsMasked(problem, row);
    float sum[1] = {0};
    for (int64_t j = threadIdx.x; j < problem.width && !masked; j += blockDim.x) {
      sum[0] +=
          SoftmaxTerm<FloatMath>(LoadElement(problem.y, row, j), LoadElement(problem.d_y, row, j));
    }
    if (!masked) team.Sum(sum);
    for (int64_t j = threadIdx.x; j < problem.width; j += blockDim.x) {
      float grad = 0;
      if (!masked) {
        grad = SoftmaxGradient<FloatMath>(LoadElement(problem.y, row, j),
                                          LoadElement(problem.d_y, row, j), sum[0]);
      }
      StoreElement(problem.grad_x, row, j, grad);
    }
  }
}

template <class T>
const void* ForwardKernel(int packs) {
  return packs == kForwardPacks[0]
             ? reinterpret_cast<const void*>(&SoftmaxKernel<T, kForwardPacks[0]>)
             : reinterpret_cast<const void*>(&SoftmaxKernel<T, kForwardPacks[1]>);
}
template <class T>
const void* BackwardKernel(int packs) {
  return packs == kBackwardPacks[0]
             ? reinterpret_cast<const void*>(&SoftmaxBackwardKernel<T, kBackwardPacks[0]>)
             : reinterpret_cast<const void*>(&SoftmaxBackwardKernel<T, kBackwardPacks[1]>);
}
const void* ForwardKernel(DType type, int packs) {
  if (type == DType::kF32) return ForwardKernel<float>(packs);
  return type == DType::kBF16 ? ForwardKernel<__nv_bfloat16>(packs) : ForwardKernel<__half>(packs);
}
const void* BackwardKernel(DType type, int packs) {
  if (type == DType::kF32) return BackwardKernel<float>(packs);
  return type == DType::kBF16 ? BackwardKernel<__nv_bfloat16>(packs)
                              : BackwardKernel<__half>(packs);
}

// `kernel`: that of the shape, replaced by `any` where the GPU cannot hold it or there is no shape.
template <class Problem>
cudaError_t LaunchRows(const Problem& problem, const RecordTarget& record, const void* kernel,
                       const void* any, LayerLimits& limits, cudaStream_t stream, LayerShape* shape,
                       int64_t* teams) {
  int resident = 0;
  if (shape->threads > 0) {
    const cudaError_t error = limits.Resident(kernel, shape->threads, shape->cluster, &resident);
    if (error != cudaSuccess) return error;
  }
  if (resident == 0) *shape = LayerShape();
  *teams = std::min<int64_t>(resident > 0 ? resident : AnyLayoutTeams(limits), problem.rows);
  const SoftmaxLaunch<Problem> launch = {problem, record, shape->cluster};
  return LaunchTeams(resident > 0 ? kernel : any, &launch, GridOf(*shape, *teams), stream);
}

}  // namespace

cudaError_t LaunchSoftmax(const SoftmaxForward& problem, const RecordTarget& record,
                          LayerLimits& limits, cudaStream_t stream, LayerShape* shape,
                          int64_t* teams) {
  const DType type = problem.x.dtype;
  if (IsPacked(problem.x, type) && IsPacked(problem.y, type)) {
    *shape = ChooseLayerShape(problem.width, type, kForwardPacks[0], kForwardPacks[1],
                              limits.largest_cluster());
  }
  return LaunchRows(problem, record, ForwardKernel(type, shape->packs),
                    reinterpret_cast<const void*>(&AnySoftmaxKernel), limits, stream, shape, teams);
}

cudaError_t LaunchSoftmaxBackward(const SoftmaxBackward& problem, const RecordTarget& record,
                                  LayerLimits& limits, cudaStream_t stream, LayerShape* shape,
                                  int64_t* teams) {
  const DType type = problem.y.dtype;
  if (IsPacked(problem.y, type) && IsPacked(problem.d_y, type) && IsPacked(problem.grad_x, type)) {
    *shape = ChooseLayerShape(problem.width, type, kBackwardPacks[0], kBackwardPacks[1],
                              limits.largest_cluster());
  }
  return LaunchRows(problem, record, BackwardKernel(type, shape->packs),
                    reinterpret_cast<const void*>(&AnySoftmaxBackwardKernel), limits, stream, shape,
                    teams);
}

cudaError_t PrepareSoftmax() {
  cudaError_t error = PrepareLayerKernel(reinterpret_cast<const void*>(&AnySoftmaxKernel));
  const auto then = [&error](const void* kernel) {
    if (error == cudaSuccess) error = PrepareLayerKernel(kernel);
  };
  then(reinterpret_cast<const void*>(&AnySoftmaxBackwardKernel));
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int packs : kForwardPacks) then(ForwardKernel(type, packs));
    for (const int packs : kBackwardPacks) then(BackwardKernel(type, packs));
  }
  return error;
}

}  // namespace lossd
