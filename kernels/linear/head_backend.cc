#include "kernels/linear/head_backend.h"

#include "kernels/core/status_macros.h"

namespace lossd {

absl::Status AllocateRowSet(const HeadProblem& head, Arena& workspace, RowStart& start,
                            RowSet* rows) {
  LOSSD_ASSIGN_OR_RETURN(rows->index,
                         workspace.AllocateArray<int32_t>(head.rows, "the row numbers"));
  LOSSD_ASSIGN_OR_RETURN(rows->counted,
                         workspace.AllocateArray<uint8_t>(head.rows, "the row mask"));
  rows->count = &start.record->count;
  // Without a mask and ids to ignore every row counts, and nobody has to ask.
  rows->host_count = !head.mask && !head.target ? head.rows : -1;
  start.elements.counted = start.sequences.counted = start.fill.counted = rows->counted;
  start.elements.count = rows->count;
  start.elements.record = start.sequences.record = start.record;
  start.fill.record = start.record;
  return absl::OkStatus();
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
