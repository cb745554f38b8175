#include "kernels/ops/norm.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/presence_rules.h"

namespace lossd {
namespace {

absl::Status CheckOptions(const v1::RmsNormOptions& options, bool has_weight) {
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(has_weight, options.has_weight_offset(), "weight_offset", "without weight"));
  LOSSD_RETURN_IF_ERROR(CheckFitsFloat(options.weight_offset(), "weight_offset"));
  return CheckFitsFloat(options.eps(), "eps");
}

NormOptions OptionsOf(const v1::RmsNormOptions& options) {
  NormOptions out;
  out.kind = NormKind::kRms;
  out.eps = static_cast<float>(options.eps());
  out.weight_offset = static_cast<float>(options.weight_offset());
  out.rounds_rstd = options.casting() == v1::RMS_NORM_CASTING_INPUT;
  out.rounds_normalized = options.casting() != v1::RMS_NORM_CASTING_GEMMA;
  return out;
}

NormOptions LayerOptions(double eps) {
  NormOptions out;
  out.kind = NormKind::kLayer;
  out.eps = static_cast<float>(eps);
  return out;
}

// Something is wanted, grad_weight has a weight, a mode has its gradient.
template <class M>
absl::Status CheckGradientsOf(const M& request, bool has_bias_gradient) {
  LOSSD_RETURN_IF_ERROR(AbsentUnless(request.has_weight(), request.has_grad_weight(), "grad_weight",
                                     "without weight"));
  LOSSD_RETURN_IF_ERROR(GivenIf(!request.has_grad_weight() && !has_bias_gradient,
                                request.has_grad_x(), "grad_x", "or another gradient"));
  return AbsentUnless(request.has_grad_weight(),
                      request.grad_weight_mode() != v1::GRAD_MODE_OVERWRITE, "grad_weight_mode",
                      "without grad_weight");
}

}  // namespace

absl::Status RmsNormOp::CheckRequest(const v1::RmsNorm& request, const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckWidth(dims["H"], "x"));
  if (request.has_residual()) {
    LOSSD_RETURN_IF_ERROR(CheckSameType(request.residual(), "residual", request.x(), "x"));
  }
  LOSSD_RETURN_IF_ERROR(AbsentUnless(request.has_residual(), request.has_residual_out(),
                                     "residual_out", "without residual"));
  return CheckOptions(request.options(), request.has_weight());
}

absl::Status RmsNormOp::Run(const v1::RmsNorm& request, const OpCall& op_call, LayerBackend& layers,
                            const LayerCall& call) const {
  const Binding& binding = *op_call.binding;
  NormForward problem;
  problem.options = OptionsOf(request.options());
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["H"];
  problem.x = BindMatrix(request.x(), binding);
  problem.residual = BindMatrix(request.residual(), binding);
  problem.weight = BindColumn(request.weight(), binding);
  problem.y = BindMatrix(request.y(), binding);
  problem.residual_out = BindMatrix(request.residual_out(), binding);
  problem.rstd = BindColumn(request.rstd(), binding);
  return layers.Norm(problem, call);
}

absl::Status RmsNormBackwardOp::CheckRequest(const v1::RmsNormBackward& request,
                                             const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckWidth(dims["H"], "d_y"));
  LOSSD_RETURN_IF_ERROR(CheckGradientsOf(request, false));
  LOSSD_RETURN_IF_ERROR(AbsentUnless(request.has_grad_x(), request.has_d_residual_out(),
                                     "d_residual_out", "without grad_x"));
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(!request.has_rstd(), request.options().has_eps(), "eps", "where rstd is given"));
  return CheckOptions(request.options(), request.has_weight());
}

absl::Status RmsNormBackwardOp::Run(const v1::RmsNormBackward& request, const OpCall& op_call,
                                    LayerBackend& layers, const LayerCall& call) const {
  const Binding& binding = *op_call.binding;
  NormBackward problem;
  problem.options = OptionsOf(request.options());
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["H"];
  problem.d_y = BindMatrix(request.d_y(), binding);
  problem.x = BindMatrix(request.x(), binding);
  problem.weight = BindColumn(request.weight(), binding);
  problem.rstd = BindColumn(request.rstd(), binding);
  problem.d_residual_out = BindMatrix(request.d_residual_out(), binding);
  problem.grad_x = BindMatrix(request.grad_x(), binding);
  problem.grad_weight = BindColumn(request.grad_weight(), binding);
  problem.accumulate_weight = request.grad_weight_mode() == v1::GRAD_MODE_ACCUMULATE;
  return layers.NormGradients(problem, call);
}

absl::Status LayerNormOp::CheckRequest(const v1::LayerNorm& request, const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckWidth(dims["H"], "x"));
  return CheckFitsFloat(request.eps(), "eps");
}

absl::Status LayerNormOp::Run(const v1::LayerNorm& request, const OpCall& op_call,
                              LayerBackend& layers, const LayerCall& call) const {
  const Binding& binding = *op_call.binding;
  NormForward problem;
  problem.options = LayerOptions(request.eps());
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["H"];
  problem.x = BindMatrix(request.x(), binding);
  problem.weight = BindColumn(request.weight(), binding);
  problem.bias = BindColumn(request.bias(), binding);
  problem.y = BindMatrix(request.y(), binding);
  problem.mean = BindColumn(request.mean(), binding);
  problem.rstd = BindColumn(request.rstd(), binding);
  return layers.Norm(problem, call);
}

absl::Status LayerNormBackwardOp::CheckRequest(const v1::LayerNormBackward& request,
                                               const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckWidth(dims["H"], "d_y"));
  LOSSD_RETURN_IF_ERROR(CheckGradientsOf(request, request.has_grad_bias()));
  LOSSD_RETURN_IF_ERROR(AbsentUnless(request.has_grad_bias(),
                                     request.grad_bias_mode() != v1::GRAD_MODE_OVERWRITE,
                                     "grad_bias_mode", "without grad_bias"));
  LOSSD_RETURN_IF_ERROR(GivenIf(request.has_mean(), request.has_rstd(), "rstd", "with mean"));
  LOSSD_RETURN_IF_ERROR(GivenIf(request.has_rstd(), request.has_mean(), "mean", "with rstd"));
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(!request.has_rstd(), request.has_eps(), "eps", "where mean and rstd are given"));
  return CheckFitsFloat(request.eps(), "eps");
}

absl::Status LayerNormBackwardOp::Run(const v1::LayerNormBackward& request, const OpCall& op_call,
                                      LayerBackend& layers, const LayerCall& call) const {
  const Binding& binding = *op_call.binding;
  NormBackward problem;
  problem.options = LayerOptions(request.eps());
  problem.rows = op_call.dims["N"];
  problem.width = op_call.dims["H"];
  problem.d_y = BindMatrix(request.d_y(), binding);
  problem.x = BindMatrix(request.x(), binding);
  problem.weight = BindColumn(request.weight(), binding);
  problem.mean = BindColumn(request.mean(), binding);
  problem.rstd = BindColumn(request.rstd(), binding);
  problem.grad_x = BindMatrix(request.grad_x(), binding);
  problem.grad_weight = BindColumn(request.grad_weight(), binding);
  problem.grad_bias = BindColumn(request.grad_bias(), binding);
  problem.accumulate_weight = request.grad_weight_mode() == v1::GRAD_MODE_ACCUMULATE;
  problem.accumulate_bias = request.grad_bias_mode() == v1::GRAD_MODE_ACCUMULATE;
  return layers.NormGradients(problem, call);
}

}  // namespace lossd
