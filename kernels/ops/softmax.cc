#include "kernels/ops/softmax.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/presence_rules.h"

namespace lossd {

absl::Status SoftmaxOp::CheckRequest(const v1::Softmax&, const Dims& dims) const {
  return CheckWidth(dims["C"], "x");
}

absl::Status SoftmaxOp::Run(const v1::Softmax& request, const OpCall& op_call, LayerBackend& layers,
                            const LayerCall& call) const {
  const Binding& binding = *op_call.binding;
  SoftmaxForward problem;
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["C"];
  problem.x = BindMatrix(request.x(), binding);
  problem.mask = BindColumn(request.mask(), binding);
  problem.y = BindMatrix(request.y(), binding);
  return layers.Softmax(problem, call);
}

absl::Status SoftmaxBackwardOp::CheckRequest(const v1::SoftmaxBackward& request,
                                             const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckWidth(dims["C"], "y"));
  return GivenIf(true, request.has_grad_x(), "grad_x", "since nothing else can be wanted");
}

absl::Status SoftmaxBackwardOp::Run(const v1::SoftmaxBackward& request, const OpCall& op_call,
                                    LayerBackend& layers, const LayerCall& call) const {
  const Binding& binding = *op_call.binding;
  SoftmaxBackward problem;
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["C"];
  problem.y = BindMatrix(request.y(), binding);
  problem.d_y = BindMatrix(request.d_y(), binding);
  problem.mask = BindColumn(request.mask(), binding);
  problem.grad_x = BindMatrix(request.grad_x(), binding);
  return layers.SoftmaxGradient(problem, call);
}

}  // namespace lossd
