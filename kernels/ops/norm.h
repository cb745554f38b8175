// RmsNorm, LayerNorm and their backward operations.
#ifndef LOSSD_KERNELS_OPS_NORM_H_
#define LOSSD_KERNELS_OPS_NORM_H_

#include "absl/status/status.h"
#include "kernels/ops/layer_op.h"
#include "lossd/v1/layers.pb.h"

namespace lossd {

class RmsNormOp final : public LayerOp<v1::RmsNorm> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::RmsNorm& request, const Dims& dims) const override;
  absl::Status Run(const v1::RmsNorm& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class RmsNormBackwardOp final : public LayerOp<v1::RmsNormBackward> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::RmsNormBackward& request, const Dims& dims) const override;
  absl::Status Run(const v1::RmsNormBackward& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class LayerNormOp final : public LayerOp<v1::LayerNorm> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::LayerNorm& request, const Dims& dims) const override;
  absl::Status Run(const v1::LayerNorm& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class LayerNormBackwardOp final : public LayerOp<v1::LayerNormBackward> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::LayerNormBackward& request, const Dims& dims) const override;
  absl::Status Run(const v1::LayerNormBackward& request, const OpCall& op_call,
                   LayerBackend& layers, const LayerCall& call) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_NORM_H_
