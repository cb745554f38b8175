// Softmax and its backward operation.
#ifndef LOSSD_KERNELS_OPS_SOFTMAX_H_
#define LOSSD_KERNELS_OPS_SOFTMAX_H_

#include "absl/status/status.h"
#include "kernels/ops/layer_op.h"
#include "lossd/v1/layers.pb.h"

namespace lossd {

class SoftmaxOp final : public LayerOp<v1::Softmax> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::Softmax& request, const Dims& dims) const override;
  absl::Status Run(const v1::Softmax& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class SoftmaxBackwardOp final : public LayerOp<v1::SoftmaxBackward> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::SoftmaxBackward& request, const Dims& dims) const override;
  absl::Status Run(const v1::SoftmaxBackward& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_SOFTMAX_H_
