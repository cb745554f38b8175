#include "kernels/linear/head_backend.h"

#include "kernels/core/status_macros.h"

namespace lossd {

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
