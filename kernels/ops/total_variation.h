// TotalVariation: total variation distance of two tensors.
#ifndef LOSSD_KERNELS_OPS_TOTAL_VARIATION_H_
#define LOSSD_KERNELS_OPS_TOTAL_VARIATION_H_

#include <string>
#include <vector>

#include "kernels/core/op.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// One pass over both tensors: RunPair on values.
class TotalVariationOp final : public TypedOp<v1::TotalVariation> {
 public:
  using TypedOp<v1::TotalVariation>::TypedOp;

  const std::vector<std::string>& metric_names() const override;

 protected:
  absl::Status CheckRequest(const v1::TotalVariation& request, const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::TotalVariation& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::TotalVariation& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_TOTAL_VARIATION_H_
