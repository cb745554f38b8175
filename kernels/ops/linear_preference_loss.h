// LinearPreferenceLoss: losses on pairs of sequences from the log-probabilities of a linear head, value and gradients.
#ifndef LOSSD_KERNELS_OPS_LINEAR_PREFERENCE_LOSS_H_
#define LOSSD_KERNELS_OPS_LINEAR_PREFERENCE_LOSS_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/core/op.h"
#include "kernels/ops/preference_bind.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// Two sweeps over the logits, for a pair needs the log-probabilities of all its tokens before the gradient of any; one more over a
// reference head.
class LinearPreferenceLossOp final : public TypedOp<v1::LinearPreferenceLoss> {
 public:
  explicit LinearPreferenceLossOp(OpSchema schema)
      : TypedOp(std::move(schema)), metric_names_(PreferenceMetricNames()) {}

  const std::vector<std::string>& metric_names() const override { return metric_names_; }

 protected:
  absl::Status CheckRequest(const v1::LinearPreferenceLoss& request,
                            const Dims& dims) const override;
  absl::StatusOr<PendingResult> EnqueueRequest(const v1::LinearPreferenceLoss& request,
                                               const OpCall& call, Backend& backend) const override;
  void FillReply(const v1::LinearPreferenceLoss& request, const ResultRecord& record,
                 v1::OpReply* reply) const override;

 private:
  std::vector<std::string> metric_names_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LINEAR_PREFERENCE_LOSS_H_
