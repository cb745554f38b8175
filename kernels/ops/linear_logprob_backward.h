// LinearLogprobBackward: gradients of the statistics of LinearLogprob.
#ifndef LOSSD_KERNELS_OPS_LINEAR_LOGPROB_BACKWARD_H_
#define LOSSD_KERNELS_OPS_LINEAR_LOGPROB_BACKWARD_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

class LinearLogprobBackwardOp final : public TypedOp<v1::LinearLogprobBackward> {
 public:
  using TypedOp::TypedOp;
  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::LinearLogprobBackward& request,
                            const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LinearLogprobBackward& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::LinearLogprobBackward& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LINEAR_LOGPROB_BACKWARD_H_
