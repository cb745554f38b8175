// CrossEntropy: cross entropy of the caller's logits, value and gradient in one read.
#ifndef LOSSD_KERNELS_OPS_CROSS_ENTROPY_H_
#define LOSSD_KERNELS_OPS_CROSS_ENTROPY_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/logits.pb.h"

namespace lossd {

class CrossEntropyOp final : public TypedOp<v1::CrossEntropy> {
 public:
  using TypedOp::TypedOp;
  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::CrossEntropy& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::CrossEntropy& request, const OpCall& call,
                                               Backend& backend) const override;
  void FillReply(const v1::CrossEntropy& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_CROSS_ENTROPY_H_
