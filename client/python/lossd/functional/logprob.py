"""linear_logprob and logprob."""

import torch

from ..calls import ENVELOPE
from ..errors import field_error
from .autocast import autocast
from .autograd import Call

# Statistics whose derivative the backward operations take, as d_<name>.
_DIFFERENTIABLE = ("logprob", "entropy", "lse", "mean_logit", "ids_logprob")


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, want, *inputs):
        asked = dict.fromkeys(want)
        if any(call.needs.values()):
            asked["lse"] = None
        reply = call.run(inputs, asked, gradients=False)
        ctx.call, ctx.want = call, want
        ctx.save_for_backward(*inputs, reply.outputs.get("lse"), reply.outputs.get("entropy"))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(reply[name] for name in want if name not in _DIFFERENTIABLE))
        return tuple(reply[name] for name in want)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *upstream):
        *inputs, lse, entropy = ctx.saved_tensors
        derivatives = {f"d_{name}": grad.float() for name, grad in zip(ctx.want, upstream)
                       if grad is not None and name in _DIFFERENTIABLE}
        if not derivatives:
            return (None,) * (2 + len(inputs))
        call = ctx.call
        op = call.backward_op
        options = {name: value for name, value in call.options.items()
                   if (name in op.fields or name in ENVELOPE)
                   and (name != "ids" or "d_ids_logprob" in derivatives)}
        reply = call.run(inputs, (), True, op, options, lse=lse,
                         entropy=entropy if "d_entropy" in derivatives else None, **derivatives)
        return (None, None, *call.gradients(reply))


def linear_logprob(hidden, weight, target=None, *, client, bias=None, want="logprob", dummy_grad=False,
                   **options):
    """Statistics of each row of softmax(hidden weight^T + bias): log-probability of the target, entropy, log-sum-exp, ...

    Args:
      hidden, weight, bias, target: [..., H], [V, H], [V], [...].
      want: a name or a sequence of names of the outputs of LinearLogprob: "logprob", "lse", "entropy", "mean_logit", "ids_logprob"
        (differentiable); "lse2", "log_sum_p2", "argmax", "correct", "max_prob", "topk_ids", "topk_logprob", "vocab_stats" (not).
      options: `temperature`, `mask`, `ids`, `top_k`, ... of lossd.ops.linear_logprob.
    Returns a tensor for a name, a tuple in their order for a sequence; statistics are float32, in nats. Rows that do not count are 0.
    The backward is LinearLogprobBackward from hidden, weight and lse; nothing of size [rows, V] is held.
    Raises LossdError, which names the field.
    """
    inputs = {"hidden": hidden, "weight": weight, "bias": bias}
    if isinstance(hidden, torch.Tensor):
        inputs = autocast(inputs)
    call = Call(client, "linear_logprob", inputs, {**options, "target": target}, dummy_grad, "linear_logprob_backward")
    return _statistics(call, want, *inputs.values())


def logprob(logits, target=None, *, client, want="logprob", donate=False, **options):
    """Statistics of each row of softmax(logits): log-probability of the target, entropy, log-sum-exp, ... in one read of the logits.

    TRL's selective_log_softmax and verl's logprobs_from_logits are `want="logprob"`, verl's entropy_from_logits is `want="entropy"`.

    Args:
      logits, target: [..., V] in float32, bfloat16 or float16, and [...]. The gradient has the logits' dtype.
      want: a name or a sequence of names of the outputs of Logprob: "logprob", "lse", "entropy", "mean_logit", "ids_logprob"
        (differentiable); "lse2", "log_sum_p2", "argmax", "correct", "max_prob", "topk_ids", "topk_logprob", "vocab_stats" (not).
      donate: the gradient takes the memory of logits in the backward, which is then the only one through this call.
      options: `temperature`, `mask`, `ids`, `top_k`, ... of lossd.ops.logprob.
    Returns a tensor for a name, a tuple in their order for a sequence; statistics are float32, in nats. Rows that do not count are 0.
    The backward is LogprobBackward from logits and lse; nothing else of size [..., V] is held.
    Raises LossdError, which names the field.
    """
    call = Call(client, "logprob", {"logits": logits}, {**options, "target": target}, backward_op_name="logprob_backward",
                donated=("logits",) if donate else ())
    return _statistics(call, want, logits)


def _statistics(call, want, *inputs):
    names = (want,) if isinstance(want, str) else tuple(want)
    if not names or len(set(names)) < len(names):
        raise field_error("want", "different names of outputs", repr(want))
    results = _Logprob.apply(call, names, *inputs)
    return results[0] if isinstance(want, str) else results
