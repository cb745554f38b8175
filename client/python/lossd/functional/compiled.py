"""The functions under torch.compile: one opaque operator, lossd::run, with a fake kernel and an autograd formula (torch >= 2.4).

lossd::run(Tensor[] tensors, str spec) -> Tensor[] runs one operation. The spec is text, so that a graph can hold it: which client and operation, the
names of the tensors and of the wanted outputs, the options, and how its gradient is made. Outside torch.compile nothing here is used.
What a graph cannot hold breaks it: the function then runs as it does without torch.compile. That is a call with `want`, with backward="fused", or
with donated logits; and every call under a torch before 2.4. A main_grad is not seen in a graph, which has no attributes of tensors: the weight's
gradient is returned as .grad, and the flag is not set, so that a trainer's hook adds it as any other.
"""

import ast
import functools

import torch

from ..calls import ENVELOPE, output_forms, run_op
from ..client import numbered_client
from ..defaults import default_client
from ..library import load
from ..tensors import torch_dtype
from .autocast import autocast

_SPLIT, _PART = "\x1e", "\x1f"
AVAILABLE = hasattr(torch.library, "register_autograd")

# Of each function: its positional arguments, those with a gradient, and the kind of its backward.
_LOSS, _STATISTICS, _LAYER = "loss", "statistics", "layer"
FUNCTIONS = {
    "linear_logprob": (("hidden", "weight", "target"), ("hidden", "weight", "bias"), _STATISTICS),
    "logprob": (("logits", "target"), ("logits",), _STATISTICS),
    "linear_cross_entropy": (("hidden", "weight", "target"), ("hidden", "weight", "bias"), _LOSS),
    "cross_entropy": (("logits", "target"), ("logits",), _LOSS),
    "linear_policy_loss": (("hidden", "weight", "target"), ("hidden", "weight", "bias"), _LOSS),
    "policy_loss": (("logprob",), ("logprob", "entropy", "kl_logprob"), _LOSS),
    "linear_preference_loss": (("hidden", "weight", "target"), ("hidden", "weight", "bias"), _LOSS),
    "preference_loss": (("logprob",), ("logprob",), _LOSS),
    "linear_unpaired_loss": (("hidden", "weight", "target"), ("hidden", "weight", "bias"), _LOSS),
    "unpaired_loss": (("logprob",), ("logprob",), _LOSS),
    "linear_distill_loss": (("hidden", "weight"), ("hidden", "weight", "bias"), _LOSS),
    "kl_divergence": (("student", "teacher"), ("student",), _LOSS),
    "jensen_shannon": (("student", "teacher"), ("student",), _LOSS),
    "total_variation": (("student", "teacher"), ("student",), _LOSS),
    "rms_norm": (("x", "weight"), ("x", "weight", "residual"), _LAYER),
    "layer_norm": (("x", "weight", "bias"), ("x", "weight", "bias"), _LAYER),
    "rope": (("x", "cos", "sin", "position"), ("x",), _LAYER),
    "swiglu": (("gate", "up"), ("gate", "up", "gate_up"), _LAYER),
    "geglu": (("gate", "up"), ("gate", "up", "gate_up"), _LAYER),
    "relu_squared": (("x",), ("x",), _LAYER),
    "softmax": (("x",), ("x",), _LAYER),
}
# Of each layer: outputs that the backward needs beside y, and what it takes.
_KEPT = {"rms_norm": ("rstd",), "layer_norm": ("mean", "rstd")}
_SAVED = {"rms_norm": ("x", "weight", "rstd"), "layer_norm": ("x", "weight", "mean", "rstd"), "rope": (), "softmax": ("y",),
          "relu_squared": ("x",), "swiglu": ("gate", "up", "gate_up"), "geglu": ("gate", "up", "gate_up")}
_DEFAULTS = {"rope": {"layout": "half_split"}}
_REDUCED = ("linear_cross_entropy", "cross_entropy", "linear_distill_loss", "kl_divergence", "jensen_shannon", "total_variation")
_DIFFERENTIABLE = ("logprob", "entropy", "lse", "mean_logit", "ids_logprob")


def holds(name, given):
    """Whether a graph can hold this call. Traced by torch.compile."""
    if not AVAILABLE or given.get("want") is not None and FUNCTIONS[name][2] != _STATISTICS:
        return False
    if given.get("donate") or given.get("dummy_grad") or given.get("backward") == "fused" or given.get("d_loss") is not None:
        return False
    return not (name == "policy_loss" and (given.get("weight") is not None or given.get("hidden") is not None))


def run(name, client, given):
    """The function `name` with its arguments by name. Traced by torch.compile."""
    _, differentiable, kind = FUNCTIONS[name]
    given = {**_DEFAULTS.get(name, {}), **given}
    backward, want = given.pop("backward", None), given.pop("want", None)
    given.pop("donate", None), given.pop("dummy_grad", None), given.pop("d_loss", None)
    if name in ("swiglu", "geglu") and given.get("up") is None:
        given["gate_up"] = given.pop("gate")
    if name in _REDUCED and "reduction" not in given:
        given["reduction"] = "sum"
    if name == "policy_loss" and str(given.get("entropy_kind")).lower() != "true" and given.get("entropy") is not None:
        given["entropy"] = given["entropy"].detach()
    if name.startswith("linear"):
        given.update(autocast({key: given.get(key) for key in differentiable}, main_grad=False))
    names, tensors, options, needs = [], [], [], []
    for key, value in given.items():
        if isinstance(value, torch.Tensor):
            names.append(key)
            tensors.append(value)
            if key in differentiable and torch.is_grad_enabled() and value.requires_grad:
                needs.append(key)
        elif value is not None:
            options.append(key + "=" + repr(value))
    wanted, mode = _wanted(name, kind, want, names, needs, str(given.get("reduction", "")).lower() == "none", backward)
    spec = _SPLIT.join((str(client.number), name, kind if needs else "", mode, ",".join(names), ",".join(needs), ",".join(wanted),
                        _PART.join(options)))
    made = torch.ops.lossd.run(tensors, spec)
    if kind == _STATISTICS:
        return made[0] if want is None or isinstance(want, str) else tuple(made[:len(want)])
    return (made[0], made[1]) if given.get("residual") is not None else made[0]


def _wanted(name, kind, want, names, needs, by_row, backward):
    """Outputs of the operation in the forward, and the mode."""
    if kind == _STATISTICS:
        asked = ["logprob"] if want is None else [want] if isinstance(want, str) else list(want)
        return asked + ["lse"] * bool(needs and "lse" not in asked), ""
    if kind == _LAYER:
        return ["y"] + ["residual_out"] * ("residual" in names) + list(_KEPT.get(name, ())) * bool(needs), ""
    mode = backward or ("recompute" if by_row else "forward")
    if mode == "forward" and by_row:
        raise ValueError("backward must be recompute or fused with reduction none, is forward")
    loss = "row_loss" if by_row else "loss"
    return [loss] + [_gradient_name(name, key) for key in needs] * (mode == "forward"), mode


def _gradient_name(op_name, key):
    return "grad_" + key if op_name.startswith("linear") or key not in ("logprob", "entropy", "kl_logprob") else "d_" + key


class _Spec:
    """A spec, taken apart."""

    def __init__(self, text):
        number, self.op_name, self.kind, self.mode, names, needs, wanted, options = text.split(_SPLIT)
        self.number = int(number)
        self.names, self.needs, self.wanted = _list(names), _list(needs), _list(wanted)
        pairs = [part.split("=", 1) for part in options.split(_PART)] if options else []
        self.options = {key: ast.literal_eval(value) for key, value in pairs}
        self.op = load().schema.ops[self.op_name]
        self.envelope = {key: self.options[key] for key in ENVELOPE if key in self.options}

    @property
    def client(self):
        return default_client() if self.number < 0 else numbered_client(self.number)

    def follow(self, op_name, values, wanted, drop=()):
        """Runs another operation with these tensors, and the options that it has too."""
        op = load().schema.ops[op_name]
        options = [key + "=" + repr(value) for key, value in self.options.items()
                   if (key in op.fields or key in ENVELOPE) and key not in drop]
        values = {key: value for key, value in values.items() if value is not None}
        spec = _SPLIT.join((str(self.number), op_name, "", "", ",".join(values), "", ",".join(wanted), _PART.join(options)))
        return dict(zip(wanted, torch.ops.lossd.run(list(values.values()), spec)))


def _list(text):
    return text.split(",") if text else []


_parsed = functools.lru_cache(maxsize=4096)(_Spec)


def _run(tensors, spec):
    spec = _parsed(spec)
    options = {key: value for key, value in spec.options.items() if key not in ENVELOPE}
    values = {**dict(zip(spec.names, tensors)), **options}
    reply = run_op(spec.client, spec.op, values, tuple(spec.wanted), wait=spec.client.is_embedded is False or spec.kind == _LOSS,
                   **spec.envelope)
    return [reply[name] for name in spec.wanted]


def _fake(tensors, spec):
    spec = _parsed(spec)
    forms = output_forms(spec.op, dict(zip(spec.names, tensors)), spec.options, spec.wanted)
    return [tensors[0].new_empty(shape, dtype=torch_dtype(dtype, as_bool)) for shape, dtype, as_bool in forms]


def _setup(ctx, inputs, output):
    tensors, spec = inputs
    ctx.spec, ctx.count = spec, len(tensors)
    parsed = _parsed(spec)
    known = {**dict(zip(parsed.names, tensors)), **dict(zip(parsed.wanted, output))}
    if parsed.kind == _LOSS and parsed.mode == "forward":
        keep = parsed.wanted[1:]
    elif parsed.kind == _LOSS:
        keep = parsed.names
    elif parsed.kind == _STATISTICS:
        keep = parsed.names + ["lse"] + ["entropy"] * ("entropy" in parsed.wanted)
    elif parsed.kind == _LAYER:
        keep = [key for key in (*_SAVED[parsed.op_name], "cos", "sin", "position", "mask") if key in known]
        if "residual_out" in known:
            keep[keep.index("x")] = "residual_out"
    else:
        keep = []
    ctx.keep = keep
    ctx.save_for_backward(*(known[key] for key in keep))


def _backward(ctx, upstream):
    spec = _parsed(ctx.spec)
    if not spec.kind:
        raise RuntimeError("lossd's gradients have no gradient")
    saved = dict(zip(ctx.keep, ctx.saved_tensors))
    found = {_LOSS: _backward_of_loss, _STATISTICS: _backward_of_statistics, _LAYER: _backward_of_layer}[spec.kind](spec, saved, upstream)
    return [found.get(name) for name in spec.names], None


def _backward_of_loss(spec, saved, upstream):
    names = {key: _gradient_name(spec.op_name, key) for key in spec.needs}
    if spec.mode == "forward":
        return {key: saved[name] * upstream[0].to(saved[name].dtype) for key, name in names.items()}
    made = spec.follow(spec.op_name, {**saved, "d_loss": upstream[0].float().contiguous()}, list(names.values()))
    return {key: made[name] for key, name in names.items()}


def _backward_of_statistics(spec, saved, upstream):
    given = {"d_" + name: grad.float() for name, grad in zip(spec.wanted, upstream) if grad is not None and name in _DIFFERENTIABLE}
    drop = () if "d_ids_logprob" in given else ("ids",)
    entropy = saved.pop("entropy", None)
    if "d_ids_logprob" not in given:
        saved.pop("ids", None)
    if "d_entropy" in given:
        saved["entropy"] = entropy
    made = spec.follow(spec.op_name + "_backward", {**saved, **given}, ["grad_" + key for key in spec.needs], drop)
    return {key: made["grad_" + key] for key in spec.needs}


def _backward_of_layer(spec, saved, upstream):
    if "residual_out" in saved:
        saved["x"] = saved.pop("residual_out")
        saved["d_residual_out"] = upstream[1]
    saved["d_y"] = upstream[0]
    of_x = [key for key in spec.needs if key in ("x", "residual")]
    wanted = ["grad_x"] * bool(of_x) + ["grad_" + key for key in spec.needs if key not in ("x", "residual")]
    if not of_x:
        saved.pop("d_residual_out", None)
    made = spec.follow(spec.op_name + "_backward", saved, wanted, ("eps",) if "rstd" in saved else ())
    return {key: made["grad_x" if key == "residual" else "grad_" + key] for key in spec.needs}


if AVAILABLE:
    _op = torch.library.custom_op("lossd::run", _run, mutates_args=(), schema="(Tensor[] tensors, str spec) -> Tensor[]")
    _op.register_fake(_fake)
    _op.register_autograd(_backward, setup_context=_setup)
