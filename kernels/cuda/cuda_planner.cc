#include "kernels/cuda/cuda_planner.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/head_run.h"
#include "kernels/cuda/pair_run.h"

namespace lossd {

absl::StatusOr<std::unique_ptr<CudaPlanner>> CudaPlanner::Create(const DeviceDescription& device) {
  if (device.compute_capability < 80 || device.compute_capability > 129) {
    return FieldError("compute_capability", "10 times the major number plus the minor, from 80 on",
                      absl::StrCat(device.compute_capability));
  }
  if (device.workspace_bytes < CudaBackend::kMinWorkspaceBytes) {
    return FieldError("workspace_bytes", absl::StrCat("at least ", CudaBackend::kMinWorkspaceBytes),
                      absl::StrCat(device.workspace_bytes));
  }
  return absl::WrapUnique(new CudaPlanner(
      device, device.workspace_bytes - CudaBackend::ProductBytes(device.workspace_bytes),
      CudaFacts::Of(device.compute_capability / 10, device.compute_capability % 10)));
}

CudaPlanner::CudaPlanner(const DeviceDescription& device, uint64_t workspace_bytes,
                         const CudaFacts& facts)
    : Planner(device, workspace_bytes) {
  machine_.facts = facts;
  machine_.workspace = &arena();
  machine_.largest_pair_cluster = facts.has_clusters() ? 16 : 1;
  machine_.plans = this;
}

void CudaPlanner::Add(const HeadRun& run) { Planner::Add(run.Explain(), mark_); }

absl::Status CudaPlanner::RunHead(const HeadPass& pass, std::string* plan) {
  mark_ = arena().used();
  if (!pass.head.logits) return RunHeadOn(machine_, pass, plan);
  PlannedPass planned;
  planned.ways.push_back(kOnePassOverLogits);
  LOSSD_RETURN_IF_ERROR(RunHeadOn(machine_, pass, &planned.plan));
  Planner::Add(std::move(planned), mark_);
  return absl::OkStatus();
}

absl::Status CudaPlanner::RunHeadTwice(const HeadPass& first, const std::vector<StageRun>& between,
                                       const HeadPass& second, std::string* plan) {
  mark_ = arena().used();
  repeat_ = nullptr;
  LOSSD_RETURN_IF_ERROR(RunHeadTwiceOn(machine_, *this, first, between, second, plan));
  if (repeat_ != nullptr) passes().back().reasons.push_back(repeat_);
  return absl::OkStatus();
}

absl::Status CudaPlanner::RunPair(const PairPass& pass, std::string*) {
  mark_ = arena().used();
  std::string text;
  LOSSD_RETURN_IF_ERROR(RunPairOn(machine_, pass, &text));
  if (pass.student.form == PairForm::kValues) {
    PlannedPass planned;
    planned.ways.push_back("one pass over the rows of both tensors: no products");
    Planner::Add(std::move(planned), mark_);
  }
  PlannedPass& planned = passes().back();
  planned.plan = text;
  if (pass.teacher.form == PairForm::kHead) {
    const HeadProblem& teacher = pass.teacher.head;
    planned.cost.logits += 2.0 * static_cast<double>(teacher.rows) *
                           static_cast<double>(teacher.valid_columns) *
                           static_cast<double>(teacher.hidden_size);
  }
  return absl::OkStatus();
}

}  // namespace lossd
