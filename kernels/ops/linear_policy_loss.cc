#include "kernels/ops/linear_policy_loss.h"

#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/core/tensor_view.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/objectives/policy.h"
#include "kernels/objectives/statistics_rows.h"
#include "kernels/ops/policy_rules.h"
#include "kernels/ops/policy_run.h"

namespace lossd {
namespace {

// A [N] column in the workspace.
RowsView MakeColumn(float* data, int64_t rows) {
  TensorView view;
  view.data = data;
  view.dtype = DType::kF32;
  view.rank = 1;
  view.shape[0] = rows;
  view.strides[0] = 1;
  view.present = true;
  return MakeRowsView(view, 0);
}

absl::Status RunOnePass(const PolicyProblem& problem, const HeadOutputs& outputs,
                        HeadEngine* engine) {
  for (const StageRun& run :
       {MakePolicyRun<PolicySequenceStage>(problem), MakePolicyRun<PolicyStartStage>(problem)}) {
    LOSSD_RETURN_IF_ERROR(engine->RunStage(run.stage, run.instances));
  }
  LOSSD_RETURN_IF_ERROR(engine->RunHead(PolicyRows{problem}, outputs));
  const StageRun end = MakePolicyRun<PolicyEndStage>(problem);
  return engine->RunStage(end.stage, end.instances);
}

absl::Status RunTwoPasses(PolicyProblem* problem, const HeadOutputs& outputs, HeadEngine* engine) {
  const int64_t rows = problem->rows;
  LOSSD_ASSIGN_OR_RETURN(problem->statistics,
                         engine->Allocate<RowStatistics>(rows, "statistics of a row"));
  KeptGradientRows gradient;
  PolicyDerivatives derivatives;
  if (outputs.gradients.any()) {
    LOSSD_ASSIGN_OR_RETURN(float* d_logprob, engine->Allocate<float>(rows, "d_logprob"));
    gradient = {problem->statistics, d_logprob};
    derivatives.logprob = MakeColumn(d_logprob, rows);
    if (problem->options.entropy_kind == EntropyKind::kTrue) {
      LOSSD_ASSIGN_OR_RETURN(float* d_entropy, engine->Allocate<float>(rows, "d_entropy"));
      gradient.d_entropy = d_entropy;
      derivatives.entropy = MakeColumn(d_entropy, rows);
    }
  }
  return engine->RunHeadTwice(KeepStatisticsRows{problem->statistics, problem->ReadsAllSums()},
                              PolicyStages(*problem, derivatives), gradient, outputs);
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

  HeadOutputs outputs;
  outputs.gradients = BindGradients(request.gradients(), binding);
  LOSSD_RETURN_IF_ERROR(AllocatePolicy(outputs.gradients.any(), &engine, &problem));
  LOSSD_ASSIGN_OR_RETURN(problem.degenerate,
                         engine.Allocate<uint8_t>(problem.rows, "degenerate rows"));
  LOSSD_RETURN_IF_ERROR(NeedsStatisticsFirst(problem) ? RunTwoPasses(&problem, outputs, &engine)
                                                      : RunOnePass(problem, outputs, &engine));
  return engine.Finish();
}

void LinearPolicyLossOp::FillReply(const v1::LinearPolicyLoss& request, const ResultRecord& record,
                                   v1::OpReply* reply) const {
  FillPolicyReply(request.policy(), request.head_metrics(), metric_names_, record, reply);
  reply->set_degenerate_rows(record.degenerate_rows);
}

}  // namespace lossd
