#include "kernels/ops/linear_logprob.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/logprob_bind.h"

namespace lossd {

const std::vector<std::string>& LinearLogprobOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status LinearLogprobOp::CheckRequest(const v1::LinearLogprob& request,
                                           const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kAllowed));
  return CheckLogprob(request, dims);
}

absl::StatusOr<PendingResult> LinearLogprobOp::EnqueueRequest(const v1::LinearLogprob& request,
                                                              const OpCall& call,
                                                              Backend& backend) const {
  return EnqueueLogprob(
      request, BindHead(request.linear(), request.head(), call.dims, *call.binding), call, backend);
}

void LinearLogprobOp::FillReply(const v1::LinearLogprob&, const ResultRecord& record,
                                v1::OpReply* reply) const {
  reply->set_count(record.count);
  reply->set_degenerate_rows(record.degenerate_rows);
}

}  // namespace lossd
