// LinearUnpairedLoss: losses on single judged sequences from the log-probabilities of a linear head, value and gradients.
#ifndef LOSSD_KERNELS_OPS_LINEAR_UNPAIRED_LOSS_H_
#define LOSSD_KERNELS_OPS_LINEAR_UNPAIRED_LOSS_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/core/op.h"
#include "kernels/ops/unpaired_bind.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// Two sweeps over the logits, for a sequence needs the log-probabilities of all its tokens before the gradient of any; one more over a
// reference head.
class LinearUnpairedLossOp final : public TypedOp<v1::LinearUnpairedLoss> {
 public:
  explicit LinearUnpairedLossOp(OpSchema schema)
      : TypedOp(std::move(schema)), metric_names_(UnpairedMetricNames()) {}

  const std::vector<std::string>& metric_names() const override { return metric_names_; }

 protected:
  absl::Status CheckRequest(const v1::LinearUnpairedLoss& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LinearUnpairedLoss& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::LinearUnpairedLoss& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;

 private:
  std::vector<std::string> metric_names_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LINEAR_UNPAIRED_LOSS_H_
