// PolicyLoss: policy-gradient losses on log-probabilities that the caller has, value and derivatives.
#ifndef LOSSD_KERNELS_OPS_POLICY_LOSS_H_
#define LOSSD_KERNELS_OPS_POLICY_LOSS_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/core/op.h"
#include "kernels/ops/policy_bind.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// The stages of LinearPolicyLoss (objectives/policy.h) without its head.
class PolicyLossOp final : public TypedOp<v1::PolicyLoss> {
 public:
  explicit PolicyLossOp(OpSchema schema)
      : TypedOp(std::move(schema)), metric_names_(PolicyMetricNames()) {}

  const std::vector<std::string>& metric_names() const override { return metric_names_; }

 protected:
  absl::Status CheckRequest(const v1::PolicyLoss& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::PolicyLoss& request, const OpCall& call,
                                               Backend& backend) const override;
  void FillReply(const v1::PolicyLoss& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;

 private:
  std::vector<std::string> metric_names_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_POLICY_LOSS_H_
