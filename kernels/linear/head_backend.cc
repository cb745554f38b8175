#include "kernels/linear/head_backend.h"

#include <variant>

#include "kernels/core/status_macros.h"

namespace lossd {

absl::Status HeadBackend::RunLoss(LossRun& run) {
  if (const auto* preference = std::get_if<PreferenceLossCall>(&run.loss)) {
    const NllMaskStage& nll = preference->nll;
    if (nll.rows > 0) LOSSD_RETURN_IF_ERROR(RunStage(nll, nll.Instances()));
  }
  ResultRecord found;
  LOSSD_RETURN_IF_ERROR(StartRows(run.head, run.start, &run.rows, &found));
  for (const StageRun& stage : run.stages) {
    if (stage.instances > 0) LOSSD_RETURN_IF_ERROR(RunStage(stage.stage, stage.instances));
  }
  if (run.record_copy == nullptr) return absl::OkStatus();
  return RunStage(RecordCopyStage{run.start.record, run.record_copy}, 1);
}

absl::Status HeadBackend::RunHeadTwice(const HeadPass& first, const std::vector<StageRun>& between,
                                       const HeadPass& second, std::string* plan) {
  LOSSD_RETURN_IF_ERROR(RunHead(first, plan));
  for (const StageRun& run : between) LOSSD_RETURN_IF_ERROR(RunStage(run.stage, run.instances));
  return second.gradients.any() ? RunHead(second, plan) : absl::OkStatus();
}

absl::Status HeadBackend::RunPair(const PairPass&, std::string*) {
  return absl::UnimplementedError("this backend compares no distributions");
}

}  // namespace lossd
