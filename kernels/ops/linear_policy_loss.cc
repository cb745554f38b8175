#include "kernels/ops/linear_policy_loss.h"

#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/objectives/policy.h"
#include "kernels/ops/policy_rules.h"

namespace lossd {
namespace {

absl::Status AllocateWorkspace(bool two_passes, HeadEngine* engine, PolicyProblem* problem) {
  const int64_t rows = problem->rows;
  LOSSD_ASSIGN_OR_RETURN(problem->sequence_of,
                         engine->Allocate<int32_t>(rows, "sequence of a row"));
  LOSSD_ASSIGN_OR_RETURN(problem->sequence, engine->Allocate<PolicySequence>(
                                                problem->sequences, "facts of a sequence"));
  LOSSD_ASSIGN_OR_RETURN(problem->totals, engine->Allocate<PolicyTotals>(1, "totals"));
  LOSSD_ASSIGN_OR_RETURN(problem->degenerate, engine->Allocate<uint8_t>(rows, "degenerate rows"));
  problem->metrics.rows = rows;
  problem->metrics.metrics = kPolicyMetrics;
  LOSSD_ASSIGN_OR_RETURN(problem->metrics.values,
                         engine->Allocate<float>(kPolicyMetrics * rows, "metrics of a row"));
  LOSSD_ASSIGN_OR_RETURN(problem->metrics.population,
                         engine->Allocate<uint64_t>(rows, "populations of metrics"));
  if (!two_passes) return absl::OkStatus();
  LOSSD_ASSIGN_OR_RETURN(problem->statistics,
                         engine->Allocate<RowStatistics>(rows, "statistics of a row"));
  LOSSD_ASSIGN_OR_RETURN(problem->d_logprob, engine->Allocate<float>(rows, "d_logprob"));
  LOSSD_ASSIGN_OR_RETURN(problem->d_entropy, engine->Allocate<float>(rows, "d_entropy"));
  return absl::OkStatus();
}

template <class S>
StageRun MakeRun(const PolicyProblem& problem) {
  const S stage{problem};
  return {stage, stage.Instances()};
}

template <class S>
absl::Status RunStage(const PolicyProblem& problem, HeadEngine* engine) {
  const S stage{problem};
  return engine->RunStage(stage, stage.Instances());
}

absl::Status RunOnePass(const PolicyProblem& problem, const HeadOutputs& outputs,
                        HeadEngine* engine) {
  LOSSD_RETURN_IF_ERROR(RunStage<PolicySequenceStage>(problem, engine));
  LOSSD_RETURN_IF_ERROR(RunStage<PolicyStartStage>(problem, engine));
  LOSSD_RETURN_IF_ERROR(engine->RunHead(PolicyRows{problem}, outputs));
  return RunStage<PolicyEndStage>(problem, engine);
}

absl::Status RunTwoPasses(const PolicyProblem& problem, const HeadOutputs& outputs,
                          HeadEngine* engine) {
  const std::vector<StageRun> between = {
      MakeRun<PolicySequenceStage>(problem), MakeRun<PolicyStartStage>(problem),
      MakeRun<PolicyRowStage>(problem), MakeRun<PolicyEndStage>(problem)};
  const PolicyGradientRows gradient{problem.statistics, problem.d_logprob, problem.d_entropy};
  return engine->RunHeadTwice(PolicyStatisticsRows{problem.statistics}, between, gradient, outputs);
}

}  // namespace

absl::Status LinearPolicyLossOp::CheckRequest(const v1::LinearPolicyLoss& request,
                                              const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kRefused));
  LOSSD_RETURN_IF_ERROR(CheckGradients(request.linear(), request.gradients()));
  if (!request.head().has_target()) return FieldError("target", "given", "absent");
  LOSSD_RETURN_IF_ERROR(CheckPolicyOutputs(request.policy(), request.results()));
  return CheckPolicyTerms(request.policy(), WantsGradients(request.gradients()));
}

absl::StatusOr<PendingResult> LinearPolicyLossOp::EnqueueRequest(
    const v1::LinearPolicyLoss& request, const OpCall& call, Backend& backend) const {
  const Binding& binding = *call.binding;
  const HeadProblem head = BindHead(request.linear(), request.head(), call.dims, binding);
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, head));

  PolicyProblem problem = BindPolicy(request.policy(), request.results(), call.dims, binding);
  problem.valid_vocab = head.valid_vocab;
  problem.target = head.target;
  problem.logprob = BindColumn(request.logprob(), binding);
  problem.lse = BindColumn(request.lse(), binding);
  problem.entropy = BindColumn(request.entropy(), binding);
  problem.head_metrics = request.head_metrics();
  problem.counted = engine.rows().counted;
  problem.record = engine.record();
  const bool two_passes = NeedsStatisticsFirst(problem);
  LOSSD_RETURN_IF_ERROR(AllocateWorkspace(two_passes, &engine, &problem));

  HeadOutputs outputs;
  outputs.gradients = BindGradients(request.gradients(), binding);
  LOSSD_RETURN_IF_ERROR(two_passes ? RunTwoPasses(problem, outputs, &engine)
                                   : RunOnePass(problem, outputs, &engine));
  return engine.Finish();
}

void LinearPolicyLossOp::FillReply(const v1::LinearPolicyLoss& request, const ResultRecord& record,
                                   v1::OpReply* reply) const {
  FillPolicyReply(request.policy(), request.head_metrics(), metric_names_, record, reply);
}

}  // namespace lossd
