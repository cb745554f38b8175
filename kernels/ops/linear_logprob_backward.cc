#include "kernels/ops/linear_logprob_backward.h"

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/logprob_bind.h"

namespace lossd {

const std::vector<std::string>& LinearLogprobBackwardOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status LinearLogprobBackwardOp::CheckRequest(const v1::LinearLogprobBackward& request,
                                                   const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kAllowed));
  LOSSD_RETURN_IF_ERROR(CheckLogprobBackward(request, dims));
  LOSSD_RETURN_IF_ERROR(CheckGradients(request.linear(), request.gradients()));
  if (!WantsGradients(request.gradients())) {
    return FieldError("grad_hidden", "given where no other gradient is", "absent");
  }
  return absl::OkStatus();
}

absl::StatusOr<PendingResult> LinearLogprobBackwardOp::EnqueueRequest(
    const v1::LinearLogprobBackward& request, const OpCall& call, Backend& backend) const {
  return EnqueueLogprobBackward(
      request, BindHead(request.linear(), request.head(), call.dims, *call.binding),
      BindGradients(request.gradients(), *call.binding), call, backend);
}

void LinearLogprobBackwardOp::FillReply(const v1::LinearLogprobBackward&,
                                        const ResultRecord& record, v1::OpReply* reply) const {
  reply->set_count(record.count);
}

}  // namespace lossd
