// Rope and its backward operation.
#ifndef LOSSD_KERNELS_OPS_ROPE_H_
#define LOSSD_KERNELS_OPS_ROPE_H_

#include "absl/status/status.h"
#include "kernels/ops/layer_op.h"
#include "lossd/v1/layers.pb.h"

namespace lossd {

class RopeOp final : public LayerOp<v1::Rope> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::Rope& request, const Dims& dims) const override;
  absl::Status Run(const v1::Rope& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class RopeBackwardOp final : public LayerOp<v1::RopeBackward> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::RopeBackward& request, const Dims& dims) const override;
  absl::Status Run(const v1::RopeBackward& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_ROPE_H_
