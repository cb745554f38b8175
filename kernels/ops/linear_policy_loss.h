// LinearPolicyLoss: policy-gradient losses on the log-probabilities of a linear head, value and gradients.
#ifndef LOSSD_KERNELS_OPS_LINEAR_POLICY_LOSS_H_
#define LOSSD_KERNELS_OPS_LINEAR_POLICY_LOSS_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/core/op.h"
#include "kernels/ops/policy_bind.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// One sweep over the logits where every token's objective needs only that token, two where a sequence or the selection needs the current
// log-probabilities of its tokens first (objectives/policy.h).
class LinearPolicyLossOp final : public TypedOp<v1::LinearPolicyLoss> {
 public:
  explicit LinearPolicyLossOp(OpSchema schema)
      : TypedOp(std::move(schema)), metric_names_(PolicyMetricNames()) {}

  const std::vector<std::string>& metric_names() const override { return metric_names_; }

 protected:
  absl::Status CheckRequest(const v1::LinearPolicyLoss& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LinearPolicyLoss& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::LinearPolicyLoss& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;

 private:
  std::vector<std::string> metric_names_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LINEAR_POLICY_LOSS_H_
