#include "kernels/ops/linear_distill_loss.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/ops/distill_bind.h"
#include "kernels/ops/distill_rules.h"
#include "kernels/ops/divergence_bind.h"

namespace lossd {

const std::vector<std::string>& LinearDistillLossOp::metric_names() const {
  static const auto* const kNames =
      new std::vector<std::string>{"soft", "hard", "accuracy", "entropy", "mean_logit"};
  return *kNames;
}

absl::Status LinearDistillLossOp::CheckRequest(const v1::LinearDistillLoss& request,
                                               const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kRefused));
  LOSSD_RETURN_IF_ERROR(CheckGradients(request.linear(), request.gradients()));
  LOSSD_RETURN_IF_ERROR(CheckDistill(request, dims));
  return CheckReduction(ReductionOf(request, request.outputs().has_loss(),
                                    request.has_d_loss() ? &request.d_loss() : nullptr),
                        WantsGradients(request.gradients()), dims);
}

absl::StatusOr<PendingResult> LinearDistillLossOp::EnqueueRequest(
    const v1::LinearDistillLoss& request, const OpCall& call, Backend& backend) const {
  const Binding& binding = *call.binding;
  const HeadProblem head = BindHead(request.linear(), request.head(), call.dims, binding);
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, head));
  PairPass pass = BindDistill(request, head, call.dims, binding);
  const int32_t metrics = request.head_metrics() ? kDistillMetrics : kDistillAccuracy;
  LOSSD_RETURN_IF_ERROR(AllocateDivergence(head.rows, metrics, &engine, &pass.program));
  LOSSD_RETURN_IF_ERROR(engine.RunPair(pass));

  DivergenceEndStage end;
  end.rows = head.rows;
  end.counted = engine.rows().counted;
  end.program = pass.program;
  end.loss = BindColumn(request.outputs().loss(), binding);
  end.record = engine.record();
  LOSSD_RETURN_IF_ERROR(engine.RunStage(end, end.Instances()));
  return engine.Finish();
}

void LinearDistillLossOp::FillReply(const v1::LinearDistillLoss& request,
                                    const ResultRecord& record, v1::OpReply* reply) const {
  reply->set_sum(record.sum);
  reply->set_count(record.count);
  reply->set_degenerate_rows(record.degenerate_rows);
  for (int32_t m = 0; m < kDistillMetrics; ++m) {
    if (m == kDistillHard && !(request.distill().hard_weight() > 0)) continue;
    if (m >= kDistillAccuracy && !request.head_metrics()) continue;
    if (m == kDistillAccuracy && !request.head().has_target()) continue;
    v1::Metric& metric = (*reply->mutable_metrics())[metric_names()[m]];
    metric.set_sum(record.metrics[m].sum);
    metric.set_count(record.metrics[m].count);
    metric.set_min(record.metrics[m].min);
    metric.set_max(record.metrics[m].max);
  }
}

}  // namespace lossd
