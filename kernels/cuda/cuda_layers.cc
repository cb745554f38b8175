#include "kernels/cuda/cuda_layers.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/norm_kernels.h"
#include "kernels/cuda/rope_kernels.h"
#include "kernels/cuda/softmax_kernels.h"

namespace lossd {
namespace {

RecordTarget TargetOf(const LayerCall& call) { return {call.record, call.record_copy}; }

// "rows 660 x 128 threads", "clusters 16 x 8 x 512 threads", "any layout".
void Describe(const LayerShape& shape, int64_t teams, const LayerCall& call) {
  if (shape.threads == 0) {
    absl::StrAppend(call.plan, "any layout, ", teams, " blocks");
  } else if (shape.cluster == 1) {
    absl::StrAppend(call.plan, teams, " blocks of ", shape.threads);
  } else {
    absl::StrAppend(call.plan, teams, " clusters of ", shape.cluster, " x ", shape.threads);
  }
}

absl::Status DescribePacks(bool packed, const LayerCall& call) {
  absl::StrAppend(call.plan, packed ? "16 bytes at a time" : "any layout");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLayers>> CudaLayers::Create(CudaDevice* device) {
  auto layers = std::unique_ptr<CudaLayers>(new CudaLayers(device));
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareNormForward(), "load the norms");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareNormBackward(), "load the gradients of norms");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareActivations(), "load the activations");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareSoftmax(), "load the softmax");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareRope(), "load the rotary embedding");
  LOSSD_ASSIGN_OR_RETURN(layers->rope_scratch_,
                         DeviceBuffer::Create(sizeof(RopeScratch), "allocate rope's scratch"));
  const RopeScratch empty = {kNoBadToken, 0};
  LOSSD_RETURN_IF_CUDA_ERROR(
      cudaMemcpy(layers->rope_scratch_.data(), &empty, sizeof(empty), cudaMemcpyHostToDevice),
      "clear rope's scratch");
  return layers;
}

absl::Status CudaLayers::Clear(const LayerCall& call) {
  return CudaStatus(LaunchClearRecord(TargetOf(call), device_->stream()), "clear the record");
}

absl::Status CudaLayers::Norm(const NormForward& problem, const LayerCall& call) {
  if (problem.rows == 0) return Clear(call);
  NormPlan plan;
  LOSSD_RETURN_IF_CUDA_ERROR(PlanNorm(problem, limits_, &plan), "plan a norm");
  Describe(plan.shape, plan.teams, call);
  return CudaStatus(LaunchNorm(problem, plan, TargetOf(call), device_->stream()), "run a norm");
}

absl::Status CudaLayers::NormGradients(const NormBackward& problem, const LayerCall& call) {
  NormPlan plan;
  if (problem.rows == 0) {
    LOSSD_RETURN_IF_ERROR(Clear(call));
  } else {
    LOSSD_RETURN_IF_CUDA_ERROR(PlanNormBackward(problem, limits_, &plan), "plan a norm");
  }
  Arena& arena = device_->workspace();
  const uint64_t mark = arena.used();
  float* parts = nullptr;
  if (problem.sums_columns()) {
    const int64_t sums = (problem.grad_weight ? 1 : 0) + (problem.grad_bias ? 1 : 0);
    // A small workspace means fewer teams.
    const auto room =
        static_cast<int64_t>(arena.available() / sizeof(float)) / (sums * problem.width);
    if (plan.teams > room) plan.teams = std::max<int64_t>(room, 1);
    LOSSD_ASSIGN_OR_RETURN(
        parts, arena.AllocateArray<float>(sums * plan.teams * problem.width, "sums over rows"));
  }
  if (problem.rows > 0) {
    LOSSD_RETURN_IF_CUDA_ERROR(
        LaunchNormBackward(problem, plan, parts, TargetOf(call), device_->stream()),
        "run the gradient of a norm");
  }
  arena.ReleaseTo(mark);
  Describe(plan.shape, plan.teams, call);
  if (!problem.sums_columns()) return absl::OkStatus();
  const bool overlaps = plan.shape.threads > 0 && device_->has_clusters();
  return CudaStatus(LaunchNormColumns(problem, parts, plan.teams, overlaps, device_->stream()),
                    "add up the sums over rows");
}

absl::Status CudaLayers::Rope(const RopeProblem& problem, const LayerCall& call) {
  auto* scratch = reinterpret_cast<RopeScratch*>(rope_scratch_.data());
  if (problem.rows == 0 || problem.heads == 0 || !problem.y) {
    if (problem.rows == 0 || !problem.position) return Clear(call);
    return CudaStatus(LaunchCheckPositions(problem, TargetOf(call), scratch, device_->stream()),
                      "check positions");
  }
  bool packed = false;
  LOSSD_RETURN_IF_CUDA_ERROR(
      LaunchRope(problem, TargetOf(call), scratch, device_->stream(), &packed), "turn heads");
  return DescribePacks(packed, call);
}

absl::Status CudaLayers::Gated(const GatedForward& problem, const LayerCall& call) {
  if (problem.rows == 0 || !problem.y) return Clear(call);
  bool packed = false;
  LOSSD_RETURN_IF_CUDA_ERROR(LaunchGated(problem, TargetOf(call), device_->stream(), &packed),
                             "run a gated activation");
  return DescribePacks(packed, call);
}

absl::Status CudaLayers::GatedGradients(const GatedBackward& problem, const LayerCall& call) {
  if (problem.rows == 0) return Clear(call);
  bool packed = false;
  LOSSD_RETURN_IF_CUDA_ERROR(
      LaunchGatedBackward(problem, TargetOf(call), device_->stream(), &packed),
      "run the gradient of a gated activation");
  return DescribePacks(packed, call);
}

absl::Status CudaLayers::ReluSquared(const ReluSquaredForward& problem, const LayerCall& call) {
  if (problem.rows == 0 || !problem.y) return Clear(call);
  bool packed = false;
  LOSSD_RETURN_IF_CUDA_ERROR(LaunchReluSquared(problem, TargetOf(call), device_->stream(), &packed),
                             "run a squared ReLU");
  return DescribePacks(packed, call);
}

absl::Status CudaLayers::ReluSquaredGradient(const ReluSquaredBackward& problem,
                                             const LayerCall& call) {
  if (problem.rows == 0) return Clear(call);
  bool packed = false;
  LOSSD_RETURN_IF_CUDA_ERROR(
      LaunchReluSquaredBackward(problem, TargetOf(call), device_->stream(), &packed),
      "run the gradient of a squared ReLU");
  return DescribePacks(packed, call);
}

absl::Status CudaLayers::Softmax(const SoftmaxForward& problem, const LayerCall& call) {
  if (problem.rows == 0 || !problem.y) return Clear(call);
  LayerShape shape;
  int64_t teams = 0;
  LOSSD_RETURN_IF_CUDA_ERROR(
      LaunchSoftmax(problem, TargetOf(call), limits_, device_->stream(), &shape, &teams),
      "run a softmax");
  Describe(shape, teams, call);
  return absl::OkStatus();
}

absl::Status CudaLayers::SoftmaxGradient(const SoftmaxBackward& problem, const LayerCall& call) {
  if (problem.rows == 0) return Clear(call);
  LayerShape shape;
  int64_t teams = 0;
  LOSSD_RETURN_IF_CUDA_ERROR(
      LaunchSoftmaxBackward(problem, TargetOf(call), limits_, device_->stream(), &shape, &teams),
      "run the gradient of a softmax");
  Describe(shape, teams, call);
  return absl::OkStatus();
}

}  // namespace lossd
