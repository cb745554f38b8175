// LinearDistillLoss: divergence of a linear head from a teacher, and cross entropy, value and gradients.
#ifndef LOSSD_KERNELS_OPS_LINEAR_DISTILL_LOSS_H_
#define LOSSD_KERNELS_OPS_LINEAR_DISTILL_LOSS_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// One sweep over the logits of student and teacher: RunPair, with a teacher of a head of its own, of logits, or of a list of ids.
class LinearDistillLossOp final : public TypedOp<v1::LinearDistillLoss> {
 public:
  using TypedOp<v1::LinearDistillLoss>::TypedOp;

  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::LinearDistillLoss& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LinearDistillLoss& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::LinearDistillLoss& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LINEAR_DISTILL_LOSS_H_
