"""Log-probabilities of a vocabulary that is split over the ranks of a torch.distributed group, from logits or from a linear head.

Rank r of R holds the ids [r V, (r + 1) V), V the rows of its weight or the columns of its logits. Each rank reduces its own shard; nine
numbers a row are gathered; no rank sees another's logits. Without a group, or with one of size 1, these are lossd.logprob and
lossd.linear_logprob.
"""

import contextlib

import torch
import torch.distributed as dist

from ..calls import ENVELOPE, run_op
from ..errors import field_error
from ..functional.autocast import autocast
from ..library import load

# Columns of vocab_stats.
_MAX, _SUM_EXP, _SUM_EXP_D, _SUM_EXP_2, _SUM_D, _COLUMNS, _TARGET_D, _OWNS = range(8)
STATISTICS = ("logprob", "lse", "entropy", "mean_logit", "log_sum_p2", "max_prob")
_DIFFERENTIABLE = ("logprob", "lse", "entropy", "mean_logit")


def group_size(group):
    """Ranks of a group; None is no group."""
    return 1 if group is None or not dist.is_initialized() else dist.get_world_size(group)


def group_rank(group):
    return 0 if group_size(group) == 1 else dist.get_rank(group)


def merge(stats, counted=None):
    """Statistics by name from every shard's vocab_stats [R, ..., 9]; float32, in nats.

    counted: bool [...], rows that count; the others are 0.
    """
    top = stats[..., _MAX].amax(0)
    below = torch.where(torch.isinf(top), torch.zeros_like(top), stats[..., _MAX] - top)  # rows that do not count hold zeros
    factor = below.exp()
    shift = torch.where(stats[..., _COLUMNS] > 0, below, torch.zeros_like(below))
    total = (factor * stats[..., _SUM_EXP]).sum(0)
    total_d = (factor * (stats[..., _SUM_EXP_D] + shift * stats[..., _SUM_EXP])).sum(0)
    total_2 = (factor.square() * stats[..., _SUM_EXP_2]).sum(0)
    columns = stats[..., _COLUMNS].sum(0)
    offsets = (stats[..., _SUM_D] + stats[..., _COLUMNS] * shift).sum(0)
    target = (stats[..., _TARGET_D] + stats[..., _OWNS] * shift).sum(0)
    log_total = total.log()
    out = {"logprob": (target - log_total).clamp(max=0), "lse": top + log_total, "entropy": log_total - total_d / total,
           "mean_logit": top + offsets / columns, "log_sum_p2": total_2.log() - 2 * log_total, "max_prob": 1 / total}
    if counted is not None:
        out = {name: torch.where(counted, value, torch.zeros_like(value)) for name, value in out.items()}
    return out


class Shard:
    """What a call keeps for its backward.

    inputs: differentiable ones by name. The others are the arguments of linear_logprob.
    """

    def __init__(self, client, op_name, inputs, options, want, group, sequence_parallel=False, partial=False, gather=None):
        ops = load().schema.ops
        self.client, self.forward_op, self.backward_op = client, ops[op_name], ops[op_name + "_backward"]
        self.names, self.want, self.group = tuple(inputs), want, group
        self.sequence_parallel = sequence_parallel and group_size(group) > 1
        self.partial, self.gather = partial, gather or contextlib.nullcontext
        shard = inputs["weight"] if "weight" in inputs else inputs["logits"]
        columns = shard.shape[0] if "weight" in inputs else shard.shape[-1]
        self.options = {name: value for name, value in options.items() if value is not None}
        if group_size(group) > 1:
            self.options.update(vocab_start=group_rank(group) * columns, vocab_total=group_size(group) * columns)
        needed = torch.is_grad_enabled()
        self.needs = {name: needed and value is not None and value.requires_grad for name, value in inputs.items()}
        self.owners = {name: inputs[name] for name in ("weight", "bias") if inputs.get(name) is not None}

    @property
    def adds_hidden(self):
        return group_size(self.group) > 1 and not self.partial

    def counted(self, target):
        counted = target != self.options.get("ignore_index", -100)
        mask = self.options.get("mask")
        return counted if mask is None else counted & mask.bool()

    def main_grad(self, name):
        """The trainer's buffer that a gradient is added to, or None."""
        owner = self.owners.get(name)
        if owner is None or not self.needs[name]:
            return None
        if hasattr(owner, "get_main_grad"):  # Megatron-FSDP makes it when it is asked for
            return owner.get_main_grad()
        return getattr(owner, "main_grad", None)

    def statistics(self, inputs, target):
        values = {**dict(zip(self.names, inputs)), "target": target, **self.options}
        envelope = {name: values.pop(name) for name in ENVELOPE if name in values}
        if group_size(self.group) == 1:
            reply = run_op(self.client, self.forward_op, values, dict.fromkeys((*self.want, "lse")), **envelope)
            return reply.outputs
        stats = run_op(self.client, self.forward_op, values, ("vocab_stats",), **envelope)["vocab_stats"]
        parts = [torch.empty_like(stats) for _ in range(group_size(self.group))]
        dist.all_gather(parts, stats.contiguous(), group=self.group)
        return merge(torch.stack(parts), self.counted(target))

    def gradients(self, inputs, target, lse, entropy, derivatives):
        """Of the inputs, in their order; None where none is needed or where it was added to a main_grad."""
        values = {**dict(zip(self.names, inputs)), "target": target, "lse": lse, **derivatives}
        if "d_entropy" in derivatives:
            values["entropy"] = entropy
        values.update((name, value) for name, value in self.options.items() if name in self.backward_op.fields or name in ENVELOPE)
        envelope = {name: values.pop(name) for name in ENVELOPE if name in values}
        want, out = [], {}
        for name, needed in self.needs.items():
            target_buffer = self.main_grad(name)
            if target_buffer is not None:
                out["grad_" + name] = target_buffer
                values[f"grad_{name}_mode"] = "ACCUMULATE"
            elif needed and name == "hidden" and self.adds_hidden:  # a part of a sum: rounded once, after it
                out["grad_hidden"] = torch.empty(values["hidden"].shape, dtype=torch.float32, device=values["hidden"].device)
            elif needed:
                want.append("grad_" + name)
        outputs = run_op(self.client, self.backward_op, values, want, out, **envelope).outputs if want or out else {}
        return [self._finish(name, outputs.get("grad_" + name)) for name in self.names]

    def _finish(self, name, grad):
        if not self.needs[name]:
            return None
        if self.main_grad(name) is not None:
            owner = self.owners[name]
            owner.grad_added_to_main_grad = True
            # Hooks of data parallelism want to see a gradient; where the weight is shared they add it too.
            return torch.zeros_like(owner) if getattr(owner, "zero_out_wgrad", False) else torch.empty_like(owner)
        if name == "hidden" and self.adds_hidden:
            return self._reduce_hidden(grad)
        return grad

    def _reduce_hidden(self, grad):
        if not self.sequence_parallel:
            dist.all_reduce(grad, group=self.group)
            return grad.to(self.hidden_dtype)
        parts = group_size(self.group)
        if dist.get_backend(self.group) == "gloo":  # which has no reduce-scatter
            dist.all_reduce(grad, group=self.group)
            return grad.chunk(parts)[group_rank(self.group)].to(self.hidden_dtype)
        own = torch.empty((grad.shape[0] // parts, *grad.shape[1:]), dtype=grad.dtype, device=grad.device)
        dist.reduce_scatter(own, list(grad.chunk(parts)), group=self.group)
        return own.to(self.hidden_dtype)

    def whole_hidden(self, hidden):
        """All rows, where each rank holds a part of them."""
        self.hidden_dtype = hidden.dtype
        if not self.sequence_parallel:
            return hidden
        parts = [torch.empty_like(hidden) for _ in range(group_size(self.group))]
        dist.all_gather(parts, hidden.contiguous(), group=self.group)
        return torch.cat(parts)


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, target, *inputs):
        whole = [shard.whole_hidden(value) if name == "hidden" else value for name, value in zip(shard.names, inputs)]
        found = shard.statistics(whole, target)
        ctx.shard = shard
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(found[name] for name in shard.want if name not in _DIFFERENTIABLE))
        if any(shard.needs.values()):
            ctx.save_for_backward(target, found["lse"], found.get("entropy"), *inputs)
        return tuple(found[name] for name in shard.want)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *upstream):
        shard = ctx.shard
        target, lse, entropy, *inputs = ctx.saved_tensors
        derivatives = {"d_" + name: grad.float().contiguous() for name, grad in zip(shard.want, upstream)
                       if grad is not None and name in _DIFFERENTIABLE}
        if not derivatives:
            return (None,) * (2 + len(inputs))
        whole = [shard.whole_hidden(value) if name == "hidden" else value for name, value in zip(shard.names, inputs)]
        with shard.gather():
            return (None, None, *shard.gradients(whole, target, lse, entropy, derivatives))


def linear_logprob(hidden, weight, target, *, client, group=None, sequence_parallel=False, partial=False, gather=None, bias=None,
                   want="logprob", **options):
    """lossd.linear_logprob with the rows of weight (and bias) split over `group`; the same result on every rank.

    Args:
      hidden: [..., H], the same on all ranks; with sequence_parallel [S / R, ..., H], this rank's part of the first dimension. Its gradient
        is complete and laid out alike.
      weight, bias: [V, H], [V] of this rank. A main_grad is added to as in lossd.linear_logprob (help(lossd.functional)); autograd is
        handed a gradient of undefined contents then, of zeros where the weight has zero_out_wgrad.
      target: [...] of all rows, global ids.
      partial: the gradient of hidden is this rank's part, which the caller adds up over the group.
      gather: makes a context in which the weight is whole, for the backward where it is split again after the forward (ZeRO-3).
      want: a name or a sequence of names of STATISTICS (with one rank: of any outputs); logprob, lse, entropy, mean_logit are differentiable.
      options: those of lossd.ops.linear_logprob without `ids` and `top_k`.
    Returns float32 tensors like target, in nats; rows that do not count are 0.
    """
    return _logprob("linear_logprob", autocast({"hidden": hidden, "weight": weight, "bias": bias}), target, client, want, options, group,
                    sequence_parallel, partial, gather)


def logprob(logits, target, *, client, group=None, want="logprob", **options):
    """lossd.logprob with the columns of logits [..., V] split over `group`; otherwise as linear_logprob."""
    return _logprob("logprob", {"logits": logits}, target, client, want, options, group)


def _logprob(op_name, inputs, target, client, want, options, group, *of_hidden):
    names = (want,) if isinstance(want, str) else tuple(want)
    for wrong in [name for name in names if name not in STATISTICS and group_size(group) > 1]:
        raise field_error("want", "among " + ", ".join(STATISTICS), wrong)
    shard = Shard(client, op_name, inputs, options, names, group, *of_hidden)
    found = _Logprob.apply(shard, target, *inputs.values())
    return found[0] if isinstance(want, str) else found


def cross_entropy(logits, target, *, client, group=None, label_smoothing=0.0, ignore_index=-100):
    """Cross entropy of each row, with the columns of logits [..., V] split over `group`: float32 like target; ignored rows are 0.

    label_smoothing: Megatron-LM's, s V / (V - 1) of the mean over the whole vocabulary (its own is over each rank's part).
    """
    if not label_smoothing:
        return -logprob(logits, target, client=client, group=group, ignore_index=ignore_index)
    vocabulary = logits.shape[-1] * group_size(group)
    smoothing = label_smoothing * vocabulary / (vocabulary - 1)
    lp, lse, mean = logprob(logits, target, client=client, group=group, ignore_index=ignore_index, want=("logprob", "lse", "mean_logit"))
    return (1 - smoothing) * -lp + smoothing * (lse - mean)
