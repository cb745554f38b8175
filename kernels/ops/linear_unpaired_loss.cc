#include "kernels/ops/linear_unpaired_loss.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/ops/sequence_run.h"

namespace lossd {

absl::Status LinearUnpairedLossOp::CheckRequest(const v1::LinearUnpairedLoss& request,
                                                const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kRefused));
  LOSSD_RETURN_IF_ERROR(CheckGradients(request.linear(), request.gradients()));
  LOSSD_RETURN_IF_ERROR(GivenIf(true, request.head().has_target(), "target", "for lp"));
  return CheckUnpairedTerms(request.unpaired(), &request.reference(), dims,
                            WantsGradients(request.gradients()));
}

absl::StatusOr<PendingResult> LinearUnpairedLossOp::EnqueueRequest(
    const v1::LinearUnpairedLoss& request, const OpCall& call, Backend& backend) const {
  const Binding& binding = *call.binding;
  const HeadProblem head = BindHead(request.linear(), request.head(), call.dims, binding);
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, head));

  UnpairedProblem problem = BindUnpaired(request.unpaired(), request.results(), call.dims, binding);
  SequenceProblem& sequences = problem.sequences;
  sequences.mask = head.mask;
  sequences.logprob = BindColumn(request.logprob(), binding);
  sequences.lse = BindColumn(request.lse(), binding);
  sequences.entropy = BindColumn(request.entropy(), binding);
  LOSSD_RETURN_IF_ERROR(AllocateSequencesOfHead(kUnpairedMetrics,
                                                request.head_metrics() ? kUnpairedRowMetrics : 0,
                                                request.reference(), binding, &engine, &sequences));

  HeadOutputs outputs;
  outputs.gradients = BindGradients(request.gradients(), binding);
  const bool all_sums = request.head_metrics() || request.has_entropy();
  LOSSD_RETURN_IF_ERROR(
      RunSequencesOfHead(sequences, all_sums, UnpairedStages(problem), outputs, &engine));
  return engine.Finish();
}

void LinearUnpairedLossOp::FillReply(const v1::LinearUnpairedLoss& request,
                                     const ResultRecord& record, v1::OpReply* reply) const {
  const int rows = request.head_metrics() ? kUnpairedRowMetrics : 0;
  FillSequenceReply(metric_names_, kUnpairedMetrics + rows, record, reply);
  reply->set_degenerate_rows(record.degenerate_rows);
}

}  // namespace lossd
