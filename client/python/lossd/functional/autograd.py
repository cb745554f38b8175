"""A call as a node of torch's graph: which inputs need a gradient, where it goes, and when it is computed (the modes of the package)."""

import functools

import torch

from ..calls import ENVELOPE, run_op
from ..defaults import DEFAULT, default_client
from ..errors import field_error, type_error, unknown_keyword
from ..library import load
from .autocast import autocast

_MODES = ("recompute", "forward", "fused")


@functools.lru_cache(maxsize=None)
def _keywords(op_name):
    """Names that a function of the operation takes as options, in their order."""
    op = load().schema.ops[op_name]
    names = [rule.name for rule in op.inputs if rule.name != "d_loss" and not rule.name.startswith("grad_")]
    return dict.fromkeys(names + ["grad_hidden_reduce"] * ("grad_hidden_reduce" in op.fields) + list(ENVELOPE))


class Call:
    """What a forward leaves for its backward beside saved tensors.

    client: may be defaults.DEFAULT.
    inputs: the differentiable ones by name, in the order in which autograd sees them; None is absent. They are not held here.
    backward_op_name: the operation that gives the gradients, if it is another one.
    donated: names of inputs whose gradients take their memory.
    wait: whether the reply's numbers are wanted, which may cost a wait for the device.
    """

    def __init__(self, client, op_name, inputs, options, dummy_grad=False, backward_op_name=None, donated=(), wait=True):
        ops = load().schema.ops
        self.client = default_client() if client is DEFAULT else client
        self.op = ops[op_name]
        self.backward_op = ops[backward_op_name or op_name]
        self.options = {name: value for name, value in options.items() if value is not None}
        self.dummy_grad = dummy_grad
        self.donated = tuple(donated)
        self.wait = wait
        self.reply = None
        for name, tensor in inputs.items():
            if not isinstance(tensor, torch.Tensor) and (tensor is not None or self.op.fields[name].required):
                raise type_error(name, "a torch.Tensor", type(tensor).__name__)
        enabled = torch.is_grad_enabled()
        self.needs = {name: enabled and tensor is not None and tensor.requires_grad
                      for name, tensor in inputs.items()}
        self.owners = {name: tensor for name, tensor in inputs.items()
                       if f"grad_{name}_mode" in self.backward_op.fields}  # those that may have a main_grad
        known = _keywords(op_name)
        for name, value in self.options.items():
            if name not in known:
                raise unknown_keyword(op_name, name, known)
            if enabled and isinstance(value, torch.Tensor) and value.requires_grad:
                raise field_error(name, "a tensor without requires_grad: no gradient flows to it (detach it)", "one with it")

    def main_grad(self, name):
        return getattr(self.owners.get(name), "main_grad", None) if self.needs[name] else None

    @property
    def has_main_grad(self):
        return any(self.main_grad(name) is not None for name in self.owners)

    def gradient_name(self, name):
        """Of the output that is the gradient of the input `name`: grad_hidden, d_logprob."""
        return "grad_" + name if "grad_" + name in self.backward_op.fields else "d_" + name

    def run(self, inputs, want, gradients, op=None, options=None, **more):
        """Runs the operation on `inputs`, in the order of `needs`; `gradients`: whether those that are needed are computed too."""
        op, options = op or self.op, self.options if options is None else options
        given = dict(zip(self.needs, inputs))
        values = {**given, **options, **more}
        envelope = {name: values.pop(name) for name in ENVELOPE if name in values}
        want, out, added, taken = list(want), {}, [], []
        for name, needed in self.needs.items() if gradients else ():
            target = self.main_grad(name)
            if target is not None:
                out["grad_" + name] = target
                values[f"grad_{name}_mode"] = "ACCUMULATE"
                added.append(name)
            elif needed and name in self.donated:
                out["grad_" + name] = given[name].detach()
                taken.append(name)
            elif needed:
                want.append(self.gradient_name(name))
        if taken:
            envelope["donate"] = taken
        reply = run_op(self.client, op, values, want, out, wait=self.wait, **envelope)
        for name in added:
            self.owners[name].grad_added_to_main_grad = True
        for name in taken:  # nothing is written, but whoever saved it for a backward hears that it is gone
            given[name].detach()[:0].zero_()
        return reply

    def gradients(self, reply):
        """Gradients for autograd, of the inputs in their order; taken out of the reply."""
        found = []
        for name, needed in self.needs.items():
            if not needed:
                found.append(None)
            elif self.main_grad(name) is not None:
                reply.outputs.pop("grad_" + name, None)
                found.append(torch.empty_like(self.owners[name]) if self.dummy_grad else None)
            else:
                found.append(reply.outputs.pop(self.gradient_name(name)))
        return found


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, mode, loss_name, d_loss, want, *inputs):
        needed = any(call.needs.values())
        at_once = needed and mode != "recompute"
        more = {"d_loss": d_loss} if at_once and mode == "fused" else {}
        reply = call.run(inputs, (loss_name, *want), at_once, **more)
        ctx.call, ctx.mode = call, mode
        # The reply is the caller's: gradients are the graph's alone, and a loss in it would be a cycle that nothing collects.
        ctx.held = call.gradients(reply) if at_once else None
        loss = reply.outputs.pop(loss_name)
        call.reply = reply
        ctx.save_for_backward(*(inputs if needed and not at_once else ()))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        nothing = (None,) * 5
        if ctx.mode == "recompute":
            reply = ctx.call.run(ctx.saved_tensors, (), True, d_loss=upstream.float())
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


def run_loss(client, op_name, inputs, options, backward, d_loss, want, dummy_grad=False, donated=()):
    """The loss of an operation, or (loss, reply) if `want` is not None."""
    if op_name.startswith("linear") and isinstance(inputs["hidden"], torch.Tensor):
        inputs = autocast(inputs)
    call = Call(client, op_name, inputs, options, dummy_grad, donated=donated)
    per_row = str(call.options.get("reduction", "")).lower().endswith("none")
    loss_name, mode = "row_loss" if per_row else "loss", backward
    if mode is None:
        mode = "recompute" if per_row or call.has_main_grad else "forward"
    if mode not in _MODES:
        raise field_error("backward", " or ".join(_MODES), repr(mode))
    if mode == "forward" and per_row:
        raise field_error("backward", "recompute or fused with reduction none", "forward")
    if mode == "forward" and call.has_main_grad:
        raise field_error("backward", "recompute or fused where there is a main_grad", "forward")
    if (mode == "fused") != (d_loss is not None):
        raise field_error("d_loss", "given with backward fused, and only there",
                          "absent" if d_loss is None else "given")
    more = tuple(name for name in want or () if name != loss_name)
    loss = _Loss.apply(call, mode, loss_name, d_loss, more, *inputs.values())
    reply, call.reply = call.reply, None
    if want is not None and loss_name in want:
        reply.outputs[loss_name] = loss.detach()
    return loss if want is None else (loss, reply)
