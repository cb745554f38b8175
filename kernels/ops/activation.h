// Swiglu, Geglu, ReluSquared and their backward operations.
#ifndef LOSSD_KERNELS_OPS_ACTIVATION_H_
#define LOSSD_KERNELS_OPS_ACTIVATION_H_

#include "absl/status/status.h"
#include "kernels/ops/layer_op.h"
#include "lossd/v1/layers.pb.h"

namespace lossd {

class SwigluOp final : public LayerOp<v1::Swiglu> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::Swiglu& request, const Dims& dims) const override;
  absl::Status Run(const v1::Swiglu& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class SwigluBackwardOp final : public LayerOp<v1::SwigluBackward> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::SwigluBackward& request, const Dims& dims) const override;
  absl::Status Run(const v1::SwigluBackward& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class GegluOp final : public LayerOp<v1::Geglu> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::Geglu& request, const Dims& dims) const override;
  absl::Status Run(const v1::Geglu& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class GegluBackwardOp final : public LayerOp<v1::GegluBackward> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::GegluBackward& request, const Dims& dims) const override;
  absl::Status Run(const v1::GegluBackward& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class ReluSquaredOp final : public LayerOp<v1::ReluSquared> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::ReluSquared& request, const Dims& dims) const override;
  absl::Status Run(const v1::ReluSquared& request, const OpCall& op_call, LayerBackend& layers,
                   const LayerCall& call) const override;
};

class ReluSquaredBackwardOp final : public LayerOp<v1::ReluSquaredBackward> {
 public:
  using LayerOp::LayerOp;

 protected:
  absl::Status CheckRequest(const v1::ReluSquaredBackward& request,
                            const Dims& dims) const override;
  absl::Status Run(const v1::ReluSquaredBackward& request, const OpCall& op_call,
                   LayerBackend& layers, const LayerCall& call) const override;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_ACTIVATION_H_
