#include "kernels/ops/unpaired_loss.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/ops/sequence_run.h"

namespace lossd {

absl::Status UnpairedLossOp::CheckRequest(const v1::UnpairedLoss& request, const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckRowCount(dims));
  return CheckUnpairedTerms(request.unpaired(), nullptr, dims, request.has_d_logprob());
}

absl::StatusOr<PendingResult> UnpairedLossOp::EnqueueRequest(const v1::UnpairedLoss& request,
                                                             const OpCall& call,
                                                             Backend& backend) const {
  const Binding& binding = *call.binding;
  const RowsView mask = BindColumn(request.mask(), binding);
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine,
                         HeadEngine::Create(call, backend, RowsOnly(call.dims["N"], mask)));
  UnpairedProblem problem = BindUnpaired(request.unpaired(), request.results(), call.dims, binding);
  problem.sequences.mask = mask;
  problem.sequences.given_logprob = BindColumn(request.logprob(), binding);
  problem.sequences.d_logprob = BindColumn(request.d_logprob(), binding);
  LOSSD_RETURN_IF_ERROR(AllocateSequences(kUnpairedMetrics, &engine, &problem.sequences));
  LOSSD_RETURN_IF_ERROR(engine.RunLoss(UnpairedLossCall{problem},
                                       SequenceStages(problem.sequences, UnpairedStages(problem))));
  return engine.Finish();
}

void UnpairedLossOp::FillReply(const v1::UnpairedLoss&, const ResultRecord& record,
                               v1::OpReply* reply) const {
  FillSequenceReply(metric_names_, kUnpairedMetrics, record, reply);
}

}  // namespace lossd
