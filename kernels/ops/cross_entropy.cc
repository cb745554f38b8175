#include "kernels/ops/cross_entropy.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/cross_entropy_bind.h"

namespace lossd {

const std::vector<std::string>& CrossEntropyOp::metric_names() const {
  return CrossEntropyMetricNames();
}

absl::Status CrossEntropyOp::CheckRequest(const v1::CrossEntropy& request, const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckLogitsHead(request.head(), dims, ShardUse::kRefused));
  return CheckCrossEntropy(request, request.has_grad_logits(), dims);
}

absl::StatusOr<PendingResult> CrossEntropyOp::EnqueueRequest(const v1::CrossEntropy& request,
                                                             const OpCall& call,
                                                             Backend& backend) const {
  const Binding& binding = *call.binding;
  HeadGradients gradients;
  gradients.logits = BindMatrix(request.grad_logits(), binding);
  return EnqueueCrossEntropy(request,
                             BindLogitsHead(request.logits(), request.head(), call.dims, binding),
                             gradients, call, backend);
}

void CrossEntropyOp::FillReply(const v1::CrossEntropy& request, const ResultRecord& record,
                               v1::OpReply* reply) const {
  FillCrossEntropyReply(request, record, reply);
}

}  // namespace lossd
