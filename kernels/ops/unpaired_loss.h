// UnpairedLoss: losses on single judged sequences from log-probabilities that the caller has, value and derivatives.
#ifndef LOSSD_KERNELS_OPS_UNPAIRED_LOSS_H_
#define LOSSD_KERNELS_OPS_UNPAIRED_LOSS_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/core/op.h"
#include "kernels/ops/unpaired_bind.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// A few stages and no product.
class UnpairedLossOp final : public TypedOp<v1::UnpairedLoss> {
 public:
  explicit UnpairedLossOp(OpSchema schema)
      : TypedOp(std::move(schema)), metric_names_(UnpairedMetricNames()) {}

  const std::vector<std::string>& metric_names() const override { return metric_names_; }

 protected:
  absl::Status CheckRequest(const v1::UnpairedLoss& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::UnpairedLoss& request, const OpCall& call,
                                               Backend& backend) const override;
  void FillReply(const v1::UnpairedLoss& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;

 private:
  std::vector<std::string> metric_names_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_UNPAIRED_LOSS_H_
