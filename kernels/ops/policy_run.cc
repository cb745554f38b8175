#include "kernels/ops/policy_run.h"

#include "kernels/core/status_macros.h"
#include "kernels/ops/policy_bind.h"

namespace lossd {

absl::Status AllocatePolicy(bool wants_d_logprob, HeadEngine* engine, PolicyProblem* problem) {
  const int64_t rows = problem->rows;
  problem->counted = engine->rows().counted;
  problem->record = engine->record();
  LOSSD_ASSIGN_OR_RETURN(problem->sequence_of,
                         engine->Allocate<int32_t>(rows, "sequence of a row"));
  LOSSD_ASSIGN_OR_RETURN(problem->sequence, engine->Allocate<PolicySequence>(
                                                problem->sequences, "facts of a sequence"));
  LOSSD_ASSIGN_OR_RETURN(problem->totals, engine->Allocate<PolicyTotals>(1, "totals"));
  problem->metrics.rows = rows;
  problem->metrics.metrics = kPolicyMetrics;
  LOSSD_ASSIGN_OR_RETURN(problem->metrics.values,
                         engine->Allocate<float>(kPolicyMetrics * rows, "metrics of a row"));
  LOSSD_ASSIGN_OR_RETURN(problem->metrics.population,
                         engine->Allocate<uint64_t>(rows, "populations of metrics"));
  if (wants_d_logprob && SharesRatioGradient(problem->options)) {
    LOSSD_ASSIGN_OR_RETURN(problem->d_shared,
                           engine->Allocate<float>(rows, "derivative through a sequence"));
  }
  if (!SelectsTokens(*problem)) return absl::OkStatus();
  LOSSD_ASSIGN_OR_RETURN(problem->selected, engine->Allocate<uint8_t>(rows, "selected rows"));
  LOSSD_ASSIGN_OR_RETURN(problem->keys, engine->Allocate<uint64_t>(rows, "keys of the selection"));
  return absl::OkStatus();
}

std::vector<StageRun> PolicyStages(const PolicyProblem& problem,
                                   const PolicyDerivatives& derivatives) {
  std::vector<StageRun> stages = {MakePolicyRun<PolicySequenceStage>(problem),
                                  MakePolicyRun<PolicyStartStage>(problem)};
  if (problem.selected != nullptr) stages.push_back(MakePolicyRun<PolicySelectStage>(problem));
  stages.push_back(MakePolicyRun<PolicyRowStage>(problem, derivatives));
  if (problem.d_shared != nullptr) {
    stages.push_back(MakePolicyRun<PolicyShareStage>(problem, derivatives.logprob));
  }
  stages.push_back(MakePolicyRun<PolicyEndStage>(problem));
  return stages;
}

}  // namespace lossd
