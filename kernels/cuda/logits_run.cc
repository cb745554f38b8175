#include "kernels/cuda/logits_run.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/logits_lean.h"
#include "kernels/cuda/row_kernels.h"

namespace lossd {
namespace {

DzMode ModeOf(const RowsView& gradient) {
  if (!gradient) return DzMode::kNone;
  switch (gradient.dtype) {
    case DType::kBF16:
      return DzMode::kBF16;
    case DType::kF16:
      return DzMode::kF16;
    default:
      return DzMode::kF32;
  }
}

// Enqueues nothing without a device.
absl::Status RunRows(const CudaMachine& machine, const RowPass& rows, const HeadPass& pass,
                     std::string* plan) {
  CudaDevice* const device = machine.device;
  if (!pass.batch_invariant) {
    const LogitsGpu gpu = {machine.largest_pair_cluster, machine.facts.shared_bytes_per_block};
    LogitsShape shape = ChooseLogitsShape(rows, pass.program, gpu);
    if (device != nullptr) {
      LOSSD_RETURN_IF_CUDA_ERROR(
          LaunchLeanLogits(rows, pass.program, gpu, device->stream(), &shape),
          "run the lean row pass");
    }
    if (shape.parts > 0) {
      absl::StrAppend(plan, "lean parts=", shape.parts, " stages=", shape.stages);
      return absl::OkStatus();
    }
  }
  const RowShape shape = ChooseRowShape(pass.head.vocab, machine.facts.has_clusters(),
                                        machine.facts.shared_bytes_per_block);
  if (device != nullptr) {
    LOSSD_RETURN_IF_CUDA_ERROR(LaunchCallersRowPass(rows, pass.program, shape, device->stream()),
                               "run the row pass");
  }
  absl::StrAppend(plan, "cluster=", shape.cluster, shape.on_chip ? " on-chip" : "",
                  pass.batch_invariant ? " batch-invariant" : "");
  return absl::OkStatus();
}

}  // namespace

absl::Status RunLogitsOn(const CudaMachine& machine, const HeadPass& pass, std::string* plan) {
  RowPass rows;
  rows.head = pass.head;
  rows.columns = pass.columns;
  rows.column_weight = pass.column_weight;
  rows.rows = pass.head.rows;
  rows.dz_mode = ModeOf(pass.gradients.logits);
  rows.record = pass.record;
  rows.counted = pass.rows.counted;
  rows.grad = pass.gradients.logits;
  if (machine.device != nullptr && (pass.columns.topk_ids || pass.columns.topk_logprob)) {
    LOSSD_RETURN_IF_CUDA_ERROR(LaunchTopK(rows, machine.device->stream()),
                               "find the largest logits");
  }
  absl::StrAppend(plan, plan->empty() ? "" : "; ", "logits ");
  return RunRows(machine, rows, pass, plan);
}

}  // namespace lossd
