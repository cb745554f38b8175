#include "kernels/ops/activation.h"

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/presence_rules.h"

namespace lossd {
namespace {

// Either gate and up, of one type, or gate_up.
absl::Status CheckGated(const v1::GatedInput& gated, const Dims& dims) {
  const bool merged = gated.has_gate_up();
  LOSSD_RETURN_IF_ERROR(AbsentUnless(!gated.has_gate() && !gated.has_up(), merged, "gate_up",
                                     "where gate or up is given"));
  LOSSD_RETURN_IF_ERROR(GivenIf(!merged, gated.has_gate(), "gate", "with up, or gate_up instead"));
  LOSSD_RETURN_IF_ERROR(GivenIf(!merged, gated.has_up(), "up", "with gate"));
  if (!merged) LOSSD_RETURN_IF_ERROR(CheckSameType(gated.up(), "up", gated.gate(), "gate"));
  return CheckWidth(dims["F"], merged ? "gate_up" : "gate");
}

absl::Status CheckGatedGradients(const v1::GatedInput& gated, const v1::GatedGradients& gradients) {
  const bool merged = gated.has_gate_up();
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(!merged, gradients.has_grad_gate(), "grad_gate", "where gate_up is given"));
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(!merged, gradients.has_grad_up(), "grad_up", "where gate_up is given"));
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(merged, gradients.has_grad_gate_up(), "grad_gate_up", "without gate_up"));
  LOSSD_RETURN_IF_ERROR(
      GivenIf(merged, gradients.has_grad_gate_up(), "grad_gate_up", "where gate_up is given"));
  return GivenIf(!merged && !gradients.has_grad_up(), gradients.has_grad_gate(), "grad_gate",
                 "or grad_up");
}

absl::Status CheckScales(const v1::SwigluOptions& options) {
  LOSSD_RETURN_IF_ERROR(CheckFitsFloat(options.gate_scale(), "gate_scale"));
  return CheckFitsFloat(options.down_scale(), "down_scale");
}

GatedOptions OptionsOf(const v1::SwigluOptions& options, bool rounds) {
  GatedOptions out;
  out.kind = GatedKind::kSilu;
  out.gate_scale = static_cast<float>(options.gate_scale());
  out.down_scale = static_cast<float>(options.down_scale());
  out.rounds_activation = rounds;
  return out;
}

GatedOptions OptionsOf(v1::GeluApproximation approximation, bool rounds) {
  GatedOptions out;
  out.kind =
      approximation == v1::GELU_APPROXIMATION_ERF ? GatedKind::kGeluErf : GatedKind::kGeluTanh;
  out.rounds_activation = rounds;
  return out;
}

// Columns begin ... begin + width - 1 of a matrix.
RowsView ColumnsOf(const RowsView& view, int64_t begin, int64_t width) {
  RowsView part = view;
  part.width = width;
  if (part.data != nullptr) {
    part.data = static_cast<char*>(view.data) + begin * static_cast<int64_t>(SizeOf(view.dtype));
  }
  return part;
}

// The halves of `both` if it is there, else the two.
void BindHalves(const v1::Tensor& gate, const v1::Tensor& up, const v1::Tensor& both,
                const OpCall& call, RowsView* gate_view, RowsView* up_view) {
  const RowsView merged = BindMatrix(both, *call.binding);
  const int64_t width = call.dims["F"];
  *gate_view = merged ? ColumnsOf(merged, 0, width) : BindMatrix(gate, *call.binding);
  *up_view = merged ? ColumnsOf(merged, width, width) : BindMatrix(up, *call.binding);
}

absl::Status RunGated(const v1::GatedInput& gated, const GatedOptions& options, const v1::Tensor& y,
                      const OpCall& op_call, LayerBackend& layers, const LayerCall& call) {
  GatedForward problem;
  problem.options = options;
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["F"];
  BindHalves(gated.gate(), gated.up(), gated.gate_up(), op_call, &problem.gate, &problem.up);
  problem.y = BindMatrix(y, *op_call.binding);
  return layers.Gated(problem, call);
}

absl::Status RunGatedBackward(const v1::GatedInput& gated, const GatedOptions& options,
                              const v1::Tensor& d_y, const v1::GatedGradients& gradients,
                              const OpCall& op_call, LayerBackend& layers, const LayerCall& call) {
  GatedBackward problem;
  problem.options = options;
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["F"];
  BindHalves(gated.gate(), gated.up(), gated.gate_up(), op_call, &problem.gate, &problem.up);
  problem.d_y = BindMatrix(d_y, *op_call.binding);
  BindHalves(gradients.grad_gate(), gradients.grad_up(), gradients.grad_gate_up(), op_call,
             &problem.grad_gate, &problem.grad_up);
  return layers.GatedGradients(problem, call);
}

}  // namespace

absl::Status SwigluOp::CheckRequest(const v1::Swiglu& request, const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckGated(request.gated(), dims));
  return CheckScales(request.options());
}

absl::Status SwigluOp::Run(const v1::Swiglu& request, const OpCall& op_call, LayerBackend& layers,
                           const LayerCall& call) const {
  return RunGated(request.gated(), OptionsOf(request.options(), request.gated().round_activation()),
                  request.y(), op_call, layers, call);
}

absl::Status SwigluBackwardOp::CheckRequest(const v1::SwigluBackward& request,
                                            const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckGated(request.gated(), dims));
  LOSSD_RETURN_IF_ERROR(CheckGatedGradients(request.gated(), request.gradients()));
  return CheckScales(request.options());
}

absl::Status SwigluBackwardOp::Run(const v1::SwigluBackward& request, const OpCall& op_call,
                                   LayerBackend& layers, const LayerCall& call) const {
  return RunGatedBackward(request.gated(),
                          OptionsOf(request.options(), request.gated().round_activation()),
                          request.d_y(), request.gradients(), op_call, layers, call);
}

absl::Status GegluOp::CheckRequest(const v1::Geglu& request, const Dims& dims) const {
  return CheckGated(request.gated(), dims);
}

absl::Status GegluOp::Run(const v1::Geglu& request, const OpCall& op_call, LayerBackend& layers,
                          const LayerCall& call) const {
  return RunGated(request.gated(),
                  OptionsOf(request.approximation(), request.gated().round_activation()),
                  request.y(), op_call, layers, call);
}

absl::Status GegluBackwardOp::CheckRequest(const v1::GegluBackward& request,
                                           const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckGated(request.gated(), dims));
  return CheckGatedGradients(request.gated(), request.gradients());
}

absl::Status GegluBackwardOp::Run(const v1::GegluBackward& request, const OpCall& op_call,
                                  LayerBackend& layers, const LayerCall& call) const {
  return RunGatedBackward(request.gated(),
                          OptionsOf(request.approximation(), request.gated().round_activation()),
                          request.d_y(), request.gradients(), op_call, layers, call);
}

absl::Status ReluSquaredOp::CheckRequest(const v1::ReluSquared&, const Dims& dims) const {
  return CheckWidth(dims["C"], "x");
}

absl::Status ReluSquaredOp::Run(const v1::ReluSquared& request, const OpCall& op_call,
                                LayerBackend& layers, const LayerCall& call) const {
  ReluSquaredForward problem;
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["C"];
  problem.x = BindMatrix(request.x(), *op_call.binding);
  problem.y = BindMatrix(request.y(), *op_call.binding);
  return layers.ReluSquared(problem, call);
}

absl::Status ReluSquaredBackwardOp::CheckRequest(const v1::ReluSquaredBackward& request,
                                                 const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckWidth(dims["C"], "x"));
  return GivenIf(true, request.has_grad_x(), "grad_x", "since nothing else can be wanted");
}

absl::Status ReluSquaredBackwardOp::Run(const v1::ReluSquaredBackward& request,
                                        const OpCall& op_call, LayerBackend& layers,
                                        const LayerCall& call) const {
  ReluSquaredBackward problem;
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["C"];
  problem.x = BindMatrix(request.x(), *op_call.binding);
  problem.d_y = BindMatrix(request.d_y(), *op_call.binding);
  problem.grad_x = BindMatrix(request.grad_x(), *op_call.binding);
  return layers.ReluSquaredGradient(problem, call);
}

}  // namespace lossd
