#include "kernels/ops/linear_preference_loss.h"

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/ops/preference_rules.h"
#include "kernels/ops/sequence_run.h"

namespace lossd {

absl::Status LinearPreferenceLossOp::CheckRequest(const v1::LinearPreferenceLoss& request,
                                                  const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kRefused));
  LOSSD_RETURN_IF_ERROR(CheckGradients(request.linear(), request.gradients()));
  LOSSD_RETURN_IF_ERROR(GivenIf(true, request.head().has_target(), "target", "for lp"));
  return CheckPreferenceTerms(request.preference(), &request.reference(), dims,
                              WantsGradients(request.gradients()));
}

absl::StatusOr<PendingResult> LinearPreferenceLossOp::EnqueueRequest(
    const v1::LinearPreferenceLoss& request, const OpCall& call, Backend& backend) const {
  const Binding& binding = *call.binding;
  HeadProblem head = BindHead(request.linear(), request.head(), call.dims, binding);
  LOSSD_ASSIGN_OR_RETURN(const NllMaskStage nll,
                         BindNllRows(request.preference(), binding, backend, &head));
  if (nll.rows > 0) LOSSD_RETURN_IF_ERROR(backend.head->RunStage(nll, nll.Instances()));
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, head));

  PreferenceProblem problem =
      BindPreference(request.preference(), request.results(), call.dims, binding);
  SequenceProblem& sequences = problem.sequences;
  sequences.mask = BindColumn(request.head().mask(), binding);
  sequences.logprob = BindColumn(request.logprob(), binding);
  sequences.lse = BindColumn(request.lse(), binding);
  sequences.entropy = BindColumn(request.entropy(), binding);
  LOSSD_RETURN_IF_ERROR(AllocateSequencesOfHead(
      kPreferenceMetrics, request.head_metrics() ? static_cast<int>(kSequenceRowMetrics) : 0,
      request.reference(), binding, &engine, &sequences));
  LOSSD_RETURN_IF_ERROR(AllocatePreference(&engine, &problem));

  HeadOutputs outputs;
  outputs.gradients = BindGradients(request.gradients(), binding);
  const bool all_sums = request.head_metrics() || request.has_entropy() || problem.options.wpo;
  LOSSD_RETURN_IF_ERROR(
      RunSequencesOfHead(sequences, all_sums, PreferenceStages(problem), outputs, &engine));
  return engine.Finish();
}

void LinearPreferenceLossOp::FillReply(const v1::LinearPreferenceLoss& request,
                                       const ResultRecord& record, v1::OpReply* reply) const {
  FillPreferenceReply(request.preference(), request.head_metrics(), metric_names_, record, reply);
  reply->set_degenerate_rows(record.degenerate_rows);
}

}  // namespace lossd
