#include "kernels/ops/logprob.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/logprob_bind.h"

namespace lossd {

const std::vector<std::string>& LogprobOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status LogprobOp::CheckRequest(const v1::Logprob& request, const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckLogitsHead(request.head(), dims, ShardUse::kAllowed));
  return CheckLogprob(request, dims);
}

absl::StatusOr<PendingResult> LogprobOp::EnqueueRequest(const v1::Logprob& request,
                                                        const OpCall& call,
                                                        Backend& backend) const {
  return EnqueueLogprob(request,
                        BindLogitsHead(request.logits(), request.head(), call.dims, *call.binding),
                        call, backend);
}

void LogprobOp::FillReply(const v1::Logprob&, const ResultRecord& record,
                          v1::OpReply* reply) const {
  reply->set_count(record.count);
  reply->set_degenerate_rows(record.degenerate_rows);
}

}  // namespace lossd
