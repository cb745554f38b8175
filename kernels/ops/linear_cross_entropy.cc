#include "kernels/ops/linear_cross_entropy.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/cross_entropy_bind.h"

namespace lossd {

const std::vector<std::string>& LinearCrossEntropyOp::metric_names() const {
  return CrossEntropyMetricNames();
}

absl::Status LinearCrossEntropyOp::CheckRequest(const v1::LinearCrossEntropy& request,
                                                const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kRefused));
  LOSSD_RETURN_IF_ERROR(CheckCrossEntropy(request, WantsGradients(request.gradients()), dims));
  return CheckGradients(request.linear(), request.gradients());
}

absl::StatusOr<PendingResult> LinearCrossEntropyOp::EnqueueRequest(
    const v1::LinearCrossEntropy& request, const OpCall& call, Backend& backend) const {
  return EnqueueCrossEntropy(request,
                             BindHead(request.linear(), request.head(), call.dims, *call.binding),
                             BindGradients(request.gradients(), *call.binding), call, backend);
}

void LinearCrossEntropyOp::FillReply(const v1::LinearCrossEntropy& request,
                                     const ResultRecord& record, v1::OpReply* reply) const {
  FillCrossEntropyReply(request, record, reply);
}

}  // namespace lossd
