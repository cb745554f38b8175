"""rms_norm, layer_norm, rope, swiglu, geglu, relu_squared, softmax: rows [..., H] in, a result of the same type out.

Each backward is an operation of its own that computes again what it needs; beside the inputs only the norms' statistics of rows and the
softmax's result are kept. Inputs are never written. Weights with a main_grad get their gradient there (help(lossd.functional)).
"""

import torch

from ..errors import field_error
from .autograd import Call


class _Layer(torch.autograd.Function):
    """keep: outputs for the backward beside y. saved: the inputs and outputs that it needs."""

    @staticmethod
    def forward(ctx, call, keep, saved, *inputs):
        needed = any(call.needs.values())
        reply = call.run(inputs, ("y",) + (keep if needed else ()), False)
        ctx.call, ctx.saved = call, saved
        if needed:
            known = {**dict(zip(call.needs, inputs)), **reply.outputs}
            ctx.save_for_backward(*(known[name] for name in saved))
        return reply["y"]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_y):
        call = ctx.call
        saved = dict(zip(ctx.saved, ctx.saved_tensors))
        options = {name: value for name, value in call.options.items() if not (name == "eps" and "rstd" in saved)}
        reply = call.run((), (), True, call.backward_op, options, d_y=d_y, **saved)
        return (None, None, None, *call.gradients(reply))


class _AddNorm(torch.autograd.Function):
    """rms_norm with a residual, whose gradient is that of x."""

    @staticmethod
    def forward(ctx, call, x, weight, residual):
        needed = any(call.needs.values())
        reply = call.run((x, weight, residual), ("y", "residual_out") + ("rstd",) * needed, False)
        ctx.call, ctx.of_x, ctx.of_residual = call, call.needs["x"], call.needs.pop("residual")
        call.needs["x"] = ctx.of_x or ctx.of_residual
        ctx.set_materialize_grads(False)
        if needed:
            ctx.save_for_backward(reply["residual_out"], weight, reply["rstd"])
        return reply["y"], reply["residual_out"]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_y, d_residual_out):
        call = ctx.call
        x, weight, rstd = ctx.saved_tensors
        options = {name: value for name, value in call.options.items() if name != "eps"}
        reply = call.run((x, weight), (), True, call.backward_op, options, rstd=rstd,
                         d_y=torch.zeros_like(x) if d_y is None else d_y,
                         d_residual_out=d_residual_out if call.needs["x"] else None)
        grad_x, grad_weight = call.gradients(reply)
        return None, grad_x if ctx.of_x else None, grad_weight, grad_x if ctx.of_residual else None


def rms_norm(x, weight=None, *, client, residual=None, **options):
    """Root mean square norm of each row: x / sqrt(mean(x^2) + eps) * (weight_offset + weight).

    Args:
      x: [..., H], float32, bfloat16 or float16; the result has its type. weight: [H], of any of these types, or None.
      residual: [..., H] of x's type, or None. It is added to x before the norm; then (y, x + residual) is returned.
      options: `eps` (1e-6), `weight_offset` (0; Gemma and zero-centred gamma: 1), `casting`: "llama" (default; Hugging Face LlamaRMSNorm),
        "gemma" (GemmaRMSNorm, Transformer Engine: one rounding), "input" (Liger's "none").
    Gradients flow to x, residual and weight. Raises LossdError, which names the field.
    """
    call = Call(client, "rms_norm", {"x": x, "weight": weight, "residual": residual}, options,
                backward_op_name="rms_norm_backward", wait=False)
    if residual is not None:
        return _AddNorm.apply(call, x, weight, residual)
    del call.needs["residual"]
    return _Layer.apply(call, ("rstd",), ("x", "weight", "rstd"), x, weight)


def layer_norm(x, weight=None, bias=None, *, client, **options):
    """Layer norm of each row, as torch.nn.functional.layer_norm over the last dimension.

    Args:
      x: [..., H], float32, bfloat16 or float16; the result has its type. weight, bias: [H] or None.
      options: `eps` (1e-5).
    Gradients flow to x, weight and bias. Raises LossdError, which names the field.
    """
    call = Call(client, "layer_norm", {"x": x, "weight": weight, "bias": bias}, options, backward_op_name="layer_norm_backward", wait=False)
    return _Layer.apply(call, ("mean", "rstd"), ("x", "weight", "mean", "rstd"), x, weight, bias)


def rope(x, cos, sin, position=None, *, client, layout="half_split", **options):
    """Rotary position embedding of heads [..., A, D]; query and key heads may lie in one tensor.

    Args:
      x: [..., A, D], float32, bfloat16 or float16: tokens, then heads. Hugging Face's [B, A, S, D] is x.transpose(1, 2) here, no copy.
      cos, sin: [P, R / 2] float32, the angles of each position; of Hugging Face's tables the first half of the last dimension.
      position: int32 or int64 [...], the row of cos and sin for each token; None: token n has row n.
      layout: "half_split" (Hugging Face's rotate_half) or "interleaved" (GPT-J, Llama 4).
      options: `rotary_dim` (D): elements from there on are copied.
    The gradient flows to x. Raises LossdError, which names the field.
    """
    call = Call(client, "rope", {"x": x}, {**options, "cos": cos, "sin": sin, "position": position, "layout": layout},
                backward_op_name="rope_backward", wait=False)
    return _Layer.apply(call, (), (), x)


def swiglu(gate, up=None, *, client, **options):
    """silu(gate) * up: the gated activation of Llama's feed-forward layer.

    Args:
      gate, up: [..., F] of one type, float32, bfloat16 or float16. Without up, gate is [..., 2F]: both, gate first.
      options: `gate_scale`, `down_scale` (1), `round_activation` (False; True: bit by bit what eager PyTorch gives).
    Gradients flow to both. Raises LossdError, which names the field.
    """
    return _gated("swiglu", gate, up, client, options)


def geglu(gate, up=None, *, client, **options):
    """gelu(gate) * up: the gated activation of Gemma's feed-forward layer.

    Args:
      gate, up: as in swiglu.
      options: `approximation`: "tanh" (default) or "erf" (torch's default gelu); `round_activation`.
    Gradients flow to both. Raises LossdError, which names the field.
    """
    return _gated("geglu", gate, up, client, options)


def _gated(name, gate, up, client, options):
    if up is None and not isinstance(gate, torch.Tensor):
        raise field_error("gate", "a tensor", type(gate).__name__)
    inputs = {"gate_up": gate} if up is None else {"gate": gate, "up": up}
    call = Call(client, name, inputs, options, backward_op_name=name + "_backward", wait=False)
    return _Layer.apply(call, (), tuple(inputs), *inputs.values())


def relu_squared(x, *, client):
    """max(x, 0)^2.

    Args:
      x: [..., C], float32, bfloat16 or float16; the result has its type.
    The gradient flows to x. Raises LossdError, which names the field.
    """
    call = Call(client, "relu_squared", {"x": x}, {}, backward_op_name="relu_squared_backward", wait=False)
    return _Layer.apply(call, (), ("x",), x)


def softmax(x, *, client, mask=None):
    """torch.softmax over the last dimension; only the result is kept for the backward.

    Args:
      x: [..., C], float32, bfloat16 or float16; the result has its type.
      mask: [...]; rows where it is False are 0, whatever lies in them.
    The gradient flows to x. Raises LossdError, which names the field.
    """
    call = Call(client, "softmax", {"x": x}, {"mask": mask}, backward_op_name="softmax_backward", wait=False)
    return _Layer.apply(call, (), ("y",), x)
