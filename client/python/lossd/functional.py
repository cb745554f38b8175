"""Log-probabilities and losses of a linear head as differentiable torch functions. Logits are never in memory.

    loss = lossd.linear_cross_entropy(hidden, weight, target, client=client, reduction="mean", denominator_from="count")
    loss.backward()

hidden is [..., H], weight [V, H] (as in nn.Linear), target [...] of int32 or int64; the caller aligns them, nothing is shifted. All tensors
of a call lie on one device. Gradients flow to hidden, weight and bias. Every further field of the operation is a keyword of its name in
lossd.ops (help(lossd.ops.linear_cross_entropy)); `batch_invariant`, `workspace_limit`, `gradient_filter` and `timeout` too.

CPU tensors are copied into shared memory unless they lie there (client.empty, client.share). CUDA tensors are read and written where they
are: the server's device waits for the current stream, and the call returns when the results are there.

When gradients are computed (`backward`):
  "recompute": in the backward, from the inputs. Right under checkpointing, double use and any upstream gradient; the logits product is
    computed twice (8NHV in all). Default for losses of rows, and where weight or bias has a main_grad.
  "forward": in the forward, in one pass (6NHV), held until the backward scales them by the upstream gradient. Default for a scalar loss.
    One backward through a graph; not together with main_grad.
  "fused": as "forward", but with the upstream gradient `d_loss` given in the call: main_grad has its gradient when the call returns, and
    the backward hands the other gradients over as they are, whatever gradient it is given. Not inside a checkpointed region.

main_grad: if weight (or bias) has this attribute, its gradient is added to that tensor (float32 as in Megatron-LM, or any model type) and
grad_added_to_main_grad is set to True; .grad stays None. dummy_grad=True hands autograd a gradient of undefined contents in its place, for
hooks that want to see one.
"""

import torch

from .calls import ENVELOPE, run_op
from .errors import field_error
from .library import load

__all__ = ["linear_logprob", "linear_cross_entropy", "policy_loss"]

# Statistics whose derivative LinearLogprobBackward takes, as d_<name>.
_DIFFERENTIABLE = ("logprob", "entropy", "lse", "mean_logit", "ids_logprob")
_MODES = ("recompute", "forward", "fused")


class _Call:
    """What a forward leaves for its backward beside saved tensors."""

    def __init__(self, client, op_name, hidden, weight, bias, options, dummy_grad):
        self.client = client
        self.op = load().schema.ops[op_name]
        self.options = {name: value for name, value in options.items() if value is not None}
        self.dummy_grad = dummy_grad
        self.owners = {"weight": weight, "bias": bias}
        enabled = torch.is_grad_enabled()
        self.needs = {name: enabled and tensor is not None and tensor.requires_grad
                      for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias))}
        self.reply = None
        unknown = sorted(set(self.options) - set(self.op.fields) - set(ENVELOPE))
        if unknown:
            raise TypeError(f"{op_name}() got an unexpected keyword argument '{unknown[0]}'")
        for name, value in self.options.items():
            if enabled and isinstance(value, torch.Tensor) and value.requires_grad:
                raise field_error(name, "a tensor without requires_grad: no gradient flows to it (detach it)", "one with it")

    def main_grad(self, name):
        owner = self.owners.get(name)
        return getattr(owner, "main_grad", None) if self.needs[name] else None

    @property
    def has_main_grad(self):
        return self.main_grad("weight") is not None or self.main_grad("bias") is not None

    def run(self, hidden, weight, bias, want, gradients, op=None, options=None, **more):
        """Runs the operation; `gradients`: whether those that are needed are computed too. Returns the reply."""
        options = self.options if options is None else options
        values = {"hidden": hidden, "weight": weight, "bias": bias, **options, **more}
        envelope = {name: values.pop(name) for name in ENVELOPE if name in values}
        want, out = list(want), {}
        for name, needed in self.needs.items() if gradients else ():
            target = self.main_grad(name)
            if target is not None:
                out["grad_" + name] = target
                values[f"grad_{name}_mode"] = "ACCUMULATE"
            elif needed:
                want.append("grad_" + name)
        reply = run_op(self.client, op or self.op, values, want, out, **envelope)
        for name in out:
            self.owners[name[5:]].grad_added_to_main_grad = True
        return reply

    def gradients(self, reply):
        """Gradients for autograd, of hidden, weight and bias."""
        found = []
        for name, needed in self.needs.items():
            if not needed:
                found.append(None)
            elif self.main_grad(name) is not None:
                found.append(torch.empty_like(self.owners[name]) if self.dummy_grad else None)
            else:
                found.append(reply["grad_" + name])
        return found


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, want, hidden, weight, bias):
        asked = dict.fromkeys(want)
        if any(call.needs.values()):
            asked["lse"] = None
        reply = call.run(hidden, weight, bias, asked, gradients=False)
        ctx.call, ctx.want = call, want
        ctx.save_for_backward(hidden, weight, bias, reply.outputs.get("lse"),
                              reply.outputs.get("entropy"))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(reply[name] for name in want if name not in _DIFFERENTIABLE))
        return tuple(reply[name] for name in want)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *upstream):
        hidden, weight, bias, lse, entropy = ctx.saved_tensors
        derivatives = {f"d_{name}": grad.float() for name, grad in zip(ctx.want, upstream)
                       if grad is not None and name in _DIFFERENTIABLE}
        if not derivatives:
            return (None,) * 5
        call = ctx.call
        op = load().schema.ops["linear_logprob_backward"]
        options = {name: value for name, value in call.options.items()
                   if (name in op.fields or name in ENVELOPE)
                   and (name != "ids" or "d_ids_logprob" in derivatives)}
        reply = call.run(hidden, weight, bias, (), True, op, options, lse=lse,
                         entropy=entropy if "d_entropy" in derivatives else None, **derivatives)
        return (None, None, *call.gradients(reply))


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, mode, loss_name, d_loss, want, hidden, weight, bias):
        needed = any(call.needs.values())
        at_once = needed and mode != "recompute"
        more = {"d_loss": d_loss} if at_once and mode == "fused" else {}
        reply = call.run(hidden, weight, bias, (loss_name, *want), at_once, **more)
        ctx.call, ctx.mode = call, mode
        ctx.held = call.gradients(reply) if at_once else None
        # The reply is the caller's: gradients are the graph's alone, and a loss in it would be a cycle that nothing collects.
        loss = reply.outputs.pop(loss_name)
        for name in ("grad_hidden", "grad_weight", "grad_bias"):
            reply.outputs.pop(name, None)
        call.reply = reply
        ctx.save_for_backward(*((hidden, weight, bias) if needed and not at_once else ()))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        nothing = (None,) * 5
        if ctx.mode == "recompute":
            hidden, weight, bias = ctx.saved_tensors
            reply = ctx.call.run(hidden, weight, bias, (), True, d_loss=upstream.float())
            return (*nothing, *ctx.call.gradients(reply))
        held, ctx.held = ctx.held, None
        if held is None:
            raise RuntimeError(f'backward="{ctx.mode}" holds its gradients for one backward: use '
                               'backward="recompute" for a graph that is used twice')
        if ctx.mode == "forward":  # in place and without a look at the value: no copy, no wait for the device
            for grad in held:
                if grad is not None:
                    grad.mul_(upstream)
        return (*nothing, *held)


def linear_logprob(hidden, weight, target=None, *, client, bias=None, want="logprob", dummy_grad=False,
                   **options):
    """Statistics of each row of softmax(hidden weight^T + bias): log-probability of the target, entropy, log-sum-exp, ...

    Args:
      want: a name or a sequence of names of the outputs of LinearLogprob: "logprob", "lse", "entropy", "mean_logit", "ids_logprob"
        (differentiable); "lse2", "log_sum_p2", "argmax", "correct", "max_prob", "topk_ids", "topk_logprob", "vocab_stats" (not).
      options: `temperature`, `mask`, `ids`, `top_k`, ... of lossd.ops.linear_logprob.
    Returns a tensor for a name, a tuple in their order for a sequence. Rows that do not count are 0.
    The backward is LinearLogprobBackward from hidden, weight and lse; nothing of size [rows, V] is held.
    Raises LossdError, which names the field.
    """
    call = _Call(client, "linear_logprob", hidden, weight, bias, {**options, "target": target},
                 dummy_grad)
    names = (want,) if isinstance(want, str) else tuple(want)
    if not names or len(set(names)) < len(names):
        raise field_error("want", "different names of outputs", repr(want))
    results = _Logprob.apply(call, names, hidden, weight, bias)
    return results[0] if isinstance(want, str) else results


def linear_cross_entropy(hidden, weight, target, *, client, bias=None, reduction="sum", backward=None,
                         d_loss=None, want=None, dummy_grad=False, **options):
    """Cross entropy of a linear head: torch's formulas for class weights, smoothing and ignore_index, and more.

    Args:
      reduction: "sum" (default), "mean" (with `denominator`, or `denominator_from` "count" or "weight_sum"), "none" (a loss of each row).
      backward: "recompute", "forward" or "fused", see the module.
      d_loss: upstream gradient for "fused": a number, a tensor of one element, or of [...] with reduction "none".
      want: None returns the loss; a sequence of names among "row_loss", "logprob", "lse", "entropy", "argmax" (may be empty) returns
        (loss, reply) with these outputs in the calls.Reply, without gradients.
      options: `label_smoothing`, `class_weight`, `row_weight`, `z_loss`, `ignore_index`, ... of lossd.ops.linear_cross_entropy.
    The loss is float32. Without a row that counts it is 0, not NaN.
    """
    call = _Call(client, "linear_cross_entropy", hidden, weight, bias,
                 {**options, "target": target, "reduction": reduction}, dummy_grad)
    per_row = str(reduction).lower() == "none"
    return _apply(call, "row_loss" if per_row else "loss", backward, d_loss, want, hidden, weight,
                  bias)


def policy_loss(hidden, weight, target, *, client, kind, bias=None, backward=None, d_loss=None, want=None,
                dummy_grad=False, **options):
    """Policy-gradient loss of a linear head: PPO, GRPO and its relatives, and more; KL to a reference, entropy, importance weights.

    Args:
      kind: "ppo" (also GRPO, DAPO, BNPO, Dr.GRPO, which differ in the aggregation), "reinforce", "gpg" (the same formula), "gspo",
        "luspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "dro", "vespo", "clip_cov", "kl_cov".
      backward, d_loss: see the module.
      want: None returns the loss; a sequence of names among "row_loss", "ratio", "importance_weight", "kl", "logprob", "lse", "entropy"
        (may be empty) returns (loss, reply): outputs, `reply.metrics`, `reply.sum`, `reply.count`.
      options: `advantage` or `sequence_advantage`, `old_logprob` or `force_on_policy`, `cu_seqlens`, `clip_low`, `clip_high`, `kl_estimator`,
        `kl_coef`, `sequence_weighting`, `denominator`, ... of lossd.ops.linear_policy_loss.
    The loss is a float32 scalar: sum over tokens / denominator, as the options say; nothing is averaged by itself.
    """
    call = _Call(client, "linear_policy_loss", hidden, weight, bias,
                 {**options, "target": target, "kind": kind}, dummy_grad)
    return _apply(call, "loss", backward, d_loss, want, hidden, weight, bias)


def _apply(call, loss_name, mode, d_loss, want, hidden, weight, bias):
    if mode is None:
        mode = "recompute" if loss_name == "row_loss" or call.has_main_grad else "forward"
    if mode not in _MODES:
        raise field_error("backward", " or ".join(_MODES), repr(mode))
    if mode == "forward" and loss_name == "row_loss":
        raise field_error("backward", "recompute or fused with reduction none", "forward")
    if mode == "forward" and call.has_main_grad:
        raise field_error("backward", "recompute or fused where there is a main_grad", "forward")
    if (mode == "fused") != (d_loss is not None):
        raise field_error("d_loss", "given with backward fused, and only there",
                          "absent" if d_loss is None else "given")
    more = tuple(name for name in want or () if name != loss_name)
    loss = _Loss.apply(call, mode, loss_name, d_loss, more, hidden, weight, bias)
    reply, call.reply = call.reply, None
    if want is not None and loss_name in want:
        reply.outputs[loss_name] = loss.detach()
    return loss if want is None else (loss, reply)
