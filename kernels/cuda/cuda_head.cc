#include "kernels/cuda/cuda_head.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/head_kernels.h"
#include "kernels/cuda/head_run.h"
#include "kernels/cuda/pair_kernels.h"
#include "kernels/cuda/row_kernels.h"

namespace lossd {

absl::StatusOr<std::unique_ptr<CudaHead>> CudaHead::Create(CudaDevice* device,
                                                           uint64_t product_bytes) {
  auto head = std::unique_ptr<CudaHead>(new CudaHead(device));
  LOSSD_ASSIGN_OR_RETURN(head->products_, CublasLt::Create(product_bytes));
  device->SetAlgorithmTable(head->products_.Describe());
  // The runtime would load them at first use, in the middle of a request.
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareStageKernels(), "load the stages");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareHeadKernels(), "load the kernels");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareTopKKernel(), "load the kernels");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareRowKernels(device->shared_bytes_per_block()),
                             "load the row kernels");
  LOSSD_RETURN_IF_CUDA_ERROR(PreparePairKernels(device->shared_bytes_per_block()),
                             "load the pair's row kernels");
  return head;
}

absl::Status CudaHead::SelectRows(const HeadProblem& head, RowSet* rows) {
  Arena& arena = device_->workspace();
  LOSSD_ASSIGN_OR_RETURN(rows->index, arena.AllocateArray<int32_t>(head.rows, "the row numbers"));
  LOSSD_ASSIGN_OR_RETURN(rows->counted, arena.AllocateArray<uint8_t>(head.rows, "the row mask"));
  rows->host_count = -1;
  LOSSD_RETURN_IF_CUDA_ERROR(LaunchSelectRows(head, *rows, device_->stream()), "select rows");
  // Without a mask and ids to ignore every row counts, and nobody has to ask.
  if (!head.mask && !head.target) rows->host_count = head.rows;
  return absl::OkStatus();
}

absl::Status CudaHead::RunStage(const Stage& stage, int64_t count) {
  return CudaStatus(LaunchStage(stage, count, device_->stream()), "run a stage");
}

absl::Status CudaHead::RunHead(const HeadPass& pass, std::string* plan) {
  // The arrays of a pass are scratch of that pass: the next one may have them.
  const uint64_t used = device_->workspace().used();
  HeadRun run(pass, *device_, products_);
  const absl::Status status = run.Run();
  device_->workspace().ReleaseTo(used);
  if (status.ok()) absl::StrAppend(plan, plan->empty() ? "" : "; ", run.Describe());
  return status;
}

}  // namespace lossd
