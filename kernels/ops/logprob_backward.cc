#include "kernels/ops/logprob_backward.h"

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/logprob_bind.h"

namespace lossd {

const std::vector<std::string>& LogprobBackwardOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status LogprobBackwardOp::CheckRequest(const v1::LogprobBackward& request,
                                             const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckLogitsHead(request.head(), dims, ShardUse::kAllowed));
  LOSSD_RETURN_IF_ERROR(CheckLogprobBackward(request, dims));
  if (!request.has_grad_logits()) return FieldError("grad_logits", "given", "absent");
  return absl::OkStatus();
}

absl::StatusOr<PendingResult> LogprobBackwardOp::EnqueueRequest(const v1::LogprobBackward& request,
                                                                const OpCall& call,
                                                                Backend& backend) const {
  const Binding& binding = *call.binding;
  HeadGradients gradients;
  gradients.logits = BindMatrix(request.grad_logits(), binding);
  return EnqueueLogprobBackward(
      request, BindLogitsHead(request.logits(), request.head(), call.dims, binding), gradients,
      call, backend);
}

void LogprobBackwardOp::FillReply(const v1::LogprobBackward&, const ResultRecord& record,
                                  v1::OpReply* reply) const {
  reply->set_count(record.count);
}

}  // namespace lossd
