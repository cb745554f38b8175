// LinearCrossEntropy: cross entropy of a linear head, value and gradients in one sweep.
#ifndef LOSSD_KERNELS_OPS_LINEAR_CROSS_ENTROPY_H_
#define LOSSD_KERNELS_OPS_LINEAR_CROSS_ENTROPY_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

class LinearCrossEntropyOp final : public TypedOp<v1::LinearCrossEntropy> {
 public:
  using TypedOp::TypedOp;
  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::LinearCrossEntropy& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LinearCrossEntropy& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::LinearCrossEntropy& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LINEAR_CROSS_ENTROPY_H_
