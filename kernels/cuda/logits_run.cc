#include "kernels/cuda/logits_run.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
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

}  // namespace

absl::Status RunLogits(const HeadPass& pass, CudaDevice& device, int largest_cluster,
                       std::string* plan) {
  RowPass rows;
  rows.head = pass.head;
  rows.columns = pass.columns;
  rows.column_weight = pass.column_weight;
  rows.rows = pass.head.rows;
  rows.dz_mode = ModeOf(pass.gradients.logits);
  rows.record = pass.record;
  rows.counted = pass.rows.counted;
  rows.grad = pass.gradients.logits;
  if (pass.columns.topk_ids || pass.columns.topk_logprob) {
    LOSSD_RETURN_IF_CUDA_ERROR(LaunchTopK(rows, device.stream()), "find the largest logits");
  }
  absl::StrAppend(plan, plan->empty() ? "" : "; ", "logits ");
  if (!pass.batch_invariant) {
    int parts = 0;
    LOSSD_RETURN_IF_CUDA_ERROR(
        LaunchLeanLogits(rows, pass.program, {largest_cluster, device.shared_bytes_per_block()},
                         device.stream(), &parts),
        "run the lean row pass");
    if (parts > 0) {
      absl::StrAppend(plan, "lean parts=", parts);
      return absl::OkStatus();
    }
  }
  const RowShape shape =
      ChooseRowShape(pass.head.vocab, device.has_clusters(), device.shared_bytes_per_block());
  LOSSD_RETURN_IF_CUDA_ERROR(LaunchCallersRowPass(rows, pass.program, shape, device.stream()),
                             "run the row pass");
  absl::StrAppend(plan, "cluster=", shape.cluster, shape.on_chip ? " on-chip" : "",
                  pass.batch_invariant ? " batch-invariant" : "");
  return absl::OkStatus();
}

}  // namespace lossd
