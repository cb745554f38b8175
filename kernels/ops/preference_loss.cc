#include "kernels/ops/preference_loss.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/ops/preference_rules.h"
#include "kernels/ops/sequence_run.h"

namespace lossd {

absl::Status PreferenceLossOp::CheckRequest(const v1::PreferenceLoss& request,
                                            const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckRowCount(dims));
  const bool wpo = request.preference().wpo();
  LOSSD_RETURN_IF_ERROR(GivenIf(wpo, request.has_log_sum_p2(), "log_sum_p2", "with wpo"));
  LOSSD_RETURN_IF_ERROR(AbsentUnless(wpo, request.has_log_sum_p2(), "log_sum_p2", "without wpo"));
  return CheckPreferenceTerms(request.preference(), nullptr, dims, request.has_d_logprob());
}

absl::StatusOr<PendingResult> PreferenceLossOp::EnqueueRequest(const v1::PreferenceLoss& request,
                                                               const OpCall& call,
                                                               Backend& backend) const {
  const Binding& binding = *call.binding;
  const RowsView mask = BindColumn(request.mask(), binding);
  HeadProblem rows = RowsOnly(call.dims["N"], mask);
  LOSSD_ASSIGN_OR_RETURN(const NllMaskStage nll,
                         BindNllRows(request.preference(), binding, backend, &rows));
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Create(call, backend, rows));

  PreferenceProblem problem =
      BindPreference(request.preference(), request.results(), call.dims, binding);
  problem.log_sum_p2 = BindColumn(request.log_sum_p2(), binding);
  problem.sequences.mask = mask;
  problem.sequences.given_logprob = BindColumn(request.logprob(), binding);
  problem.sequences.d_logprob = BindColumn(request.d_logprob(), binding);
  LOSSD_RETURN_IF_ERROR(AllocateSequences(kPreferenceMetrics, &engine, &problem.sequences));
  LOSSD_RETURN_IF_ERROR(AllocatePreference(&engine, &problem));
  LOSSD_RETURN_IF_ERROR(
      engine.RunLoss(PreferenceLossCall{problem, nll},
                     SequenceStages(problem.sequences, PreferenceStages(problem))));
  return engine.Finish();
}

void PreferenceLossOp::FillReply(const v1::PreferenceLoss& request, const ResultRecord& record,
                                 v1::OpReply* reply) const {
  FillPreferenceReply(request.preference(), false, metric_names_, record, reply);
}

}  // namespace lossd
