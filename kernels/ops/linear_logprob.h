// LinearLogprob: statistics of the softmax of each row of a linear head.
#ifndef LOSSD_KERNELS_OPS_LINEAR_LOGPROB_H_
#define LOSSD_KERNELS_OPS_LINEAR_LOGPROB_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

class LinearLogprobOp final : public TypedOp<v1::LinearLogprob> {
 public:
  using TypedOp::TypedOp;
  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::LinearLogprob& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LinearLogprob& request, const OpCall& call,
                                               Backend& backend) const override;
  void FillReply(const v1::LinearLogprob& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LINEAR_LOGPROB_H_
