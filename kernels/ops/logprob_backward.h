// LogprobBackward: the gradient of Logprob from its lse and upstream derivatives.
#ifndef LOSSD_KERNELS_OPS_LOGPROB_BACKWARD_H_
#define LOSSD_KERNELS_OPS_LOGPROB_BACKWARD_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/logits.pb.h"

namespace lossd {

class LogprobBackwardOp final : public TypedOp<v1::LogprobBackward> {
 public:
  using TypedOp::TypedOp;
  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::LogprobBackward& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LogprobBackward& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::LogprobBackward& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LOGPROB_BACKWARD_H_
