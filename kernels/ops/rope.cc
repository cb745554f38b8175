#include "kernels/ops/rope.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/ops/presence_rules.h"

namespace lossd {
namespace {

int64_t RotaryDim(const v1::RotaryInput& rotary, const Dims& dims) {
  return rotary.has_rotary_dim() ? rotary.rotary_dim() : dims["D"];
}

// x: the name of the tensor that is turned.
absl::Status CheckRotary(const v1::RotaryInput& rotary, const Dims& dims, absl::string_view x) {
  if (dims["D"] < 2) return FieldError(x, "of at least 2 columns", absl::StrCat(dims["D"]));
  const int64_t turned = RotaryDim(rotary, dims);
  if (turned % 2 != 0 || turned > dims["D"]) {
    return FieldError("rotary_dim", absl::StrCat("even and at most ", dims["D"]),
                      absl::StrCat(turned));
  }
  if (dims["R"] != turned / 2) {
    return FieldError("cos", absl::StrCat("of ", turned / 2, " columns, half of rotary_dim"),
                      absl::StrCat(dims["R"]));
  }
  if (!rotary.has_position() && dims["P"] != dims["N"]) {
    return FieldError("cos", absl::StrCat("of ", dims["N"], " rows where there is no position"),
                      absl::StrCat(dims["P"]));
  }
  return absl::OkStatus();
}

RopeProblem BindRope(const v1::RotaryInput& rotary, const v1::Tensor& x, const v1::Tensor& y,
                     const OpCall& call) {
  const Binding& binding = *call.binding;
  RopeProblem problem;
  problem.rows = call.dims["N"];
  problem.heads = call.dims["A"];
  problem.dim = call.dims["D"];
  problem.rotary = RotaryDim(rotary, call.dims);
  problem.interleaved = rotary.layout() == v1::ROPE_LAYOUT_INTERLEAVED;
  problem.x = MakeHeadsView(binding.View(x));
  problem.y = MakeHeadsView(binding.View(y));
  problem.cosine = BindMatrix(rotary.cos(), binding);
  problem.sine = BindMatrix(rotary.sin(), binding);
  problem.position = BindColumn(rotary.position(), binding);
  problem.position_field = call.schema->Find("position")->index;
  return problem;
}

}  // namespace

absl::Status RopeOp::CheckRequest(const v1::Rope& request, const Dims& dims) const {
  return CheckRotary(request.rotary(), dims, "x");
}

absl::Status RopeOp::Run(const v1::Rope& request, const OpCall& op_call, LayerBackend& layers,
                         const LayerCall& call) const {
  return layers.Rope(BindRope(request.rotary(), request.x(), request.y(), op_call), call);
}

absl::Status RopeBackwardOp::CheckRequest(const v1::RopeBackward& request, const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckRotary(request.rotary(), dims, "d_y"));
  return GivenIf(true, request.has_grad_x(), "grad_x", "since nothing else can be wanted");
}

absl::Status RopeBackwardOp::Run(const v1::RopeBackward& request, const OpCall& op_call,
                                 LayerBackend& layers, const LayerCall& call) const {
  RopeProblem problem = BindRope(request.rotary(), request.d_y(), request.grad_x(), op_call);
  problem.backward = true;
  return layers.Rope(problem, call);
}

}  // namespace lossd
