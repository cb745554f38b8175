// KlDivergence: Kullback-Leibler divergence of two tensors, in either direction.
#ifndef LOSSD_KERNELS_OPS_KL_DIVERGENCE_H_
#define LOSSD_KERNELS_OPS_KL_DIVERGENCE_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// One pass over both tensors: RunPair on values.
class KlDivergenceOp final : public TypedOp<v1::KlDivergence> {
 public:
  using TypedOp<v1::KlDivergence>::TypedOp;

  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::KlDivergence& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::KlDivergence& request, const OpCall& call,
                                               Backend& backend) const override;
  void FillReply(const v1::KlDivergence& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_KL_DIVERGENCE_H_
