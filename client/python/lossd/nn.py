"""torch.nn modules for every operation of lossd.functional, with torch's names, arguments and defaults where torch has the module.

    import lossd.nn
    norm = lossd.nn.RMSNorm(4096, eps=1e-6)
    loss = lossd.nn.LinearCrossEntropyLoss()(hidden, weight, target)     # mean over targets other than -100
    loss.backward()

client: where a module computes; None is lossd.default_client(), which is embedded. It is no part of a module's state: a module that is copied or
pickled computes at the default client again unless the copy is given one (module.client = ...).
Other keywords of a module are options of its operation (help(lossd.ops.linear_policy_loss)), given once; its call takes the tensors, and
further options as keywords.
"""

import torch

from . import functional
from .defaults import DEFAULT, default_client


class _Module(torch.nn.Module):
    def __init__(self, client=None, **options):
        super().__init__()
        self._client = client
        self.options = options

    @property
    def _where(self):
        return DEFAULT if self._client is None else self._client

    @property
    def client(self):
        return default_client() if self._client is None else self._client

    @client.setter
    def client(self, client):
        self._client = client

    def __getstate__(self):
        # A session belongs to its process.
        return {**self.__dict__, "_client": None}

    def __deepcopy__(self, memo):
        import copy
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        made._client = self._client
        return made

    def extra_repr(self):
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


def _denominator(reduction, weight=None, options=()):
    """torch's reductions as options: its mean is over the rows that count, with class weights over their sum."""
    if reduction != "mean" or "denominator" in options or "denominator_from" in options:
        return {"reduction": reduction}
    return {"reduction": "mean", "denominator_from": "count" if weight is None else "weight_sum"}


class CrossEntropyLoss(_Module):
    """torch.nn.CrossEntropyLoss for targets that are ids: reduction "mean" divides by the targets that count, or by their class weights' sum.

    Without a target that counts the mean is 0, not NaN. Targets that are probabilities are refused.
    options: `z_loss`, `softcap`, `temperature`, `denominator`, `mask`, ... of lossd.ops.cross_entropy; `backward`, `donate`.
    """

    def __init__(self, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, *, client=None, **options):
        super().__init__(client, **options)
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input, target, **more):
        """input: [C], [N, C] or [N, C, d1, ...]; target: [], [N] or [N, d1, ...]. Returns float32: a scalar, or of target's shape with "none"."""
        given = {**self.options, **more}
        one = input.dim() == 1
        input, target = (input.unsqueeze(0), target.reshape(1)) if one else (input.movedim(1, -1), target)
        loss = functional.cross_entropy(input, target, client=self._where, ignore_index=self.ignore_index,
                                        label_smoothing=self.label_smoothing, class_weight=self.weight,
                                        **{**_denominator(self.reduction, self.weight, given), **given})
        return loss.reshape(()) if one else loss


class LinearCrossEntropyLoss(_Module):
    """CrossEntropyLoss of a linear head, whose logits are never in memory. options: those of lossd.linear_cross_entropy."""

    def __init__(self, class_weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, *, client=None, **options):
        super().__init__(client, **options)
        self.register_buffer("class_weight", class_weight)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, hidden, weight, target, bias=None, **more):
        """hidden [..., H], weight [V, H] (that of a torch.nn.Linear), target [...], bias [V]."""
        return functional.linear_cross_entropy(hidden, weight, target, bias=bias, client=self._where, ignore_index=self.ignore_index,
                                               label_smoothing=self.label_smoothing, class_weight=self.class_weight,
                                               **{**_denominator(self.reduction, self.class_weight, {**self.options, **more}),
                                                  **self.options, **more})


class KLDivLoss(_Module):
    """torch.nn.KLDivLoss over the last dimension: input is log-probabilities, target probabilities or, with log_target, their logarithms.

    reduction: "mean" (over elements, as torch), "batchmean" (over all rows, which for an input of two dimensions is torch's), "sum", or "none",
    which gives a loss of each row, summed over the last dimension. options: `mask`, `row_weight`, `direction`, `teacher_floor`, ...; with
    student_kind or teacher_kind "logits" the softmax is made inside.
    """

    def __init__(self, reduction="mean", log_target=False, *, client=None, **options):
        super().__init__(client, **options)
        self.reduction, self.log_target = reduction, log_target

    def forward(self, input, target, **more):
        kinds = {"student_kind": "logprobs", "teacher_kind": "logprobs" if self.log_target else "probs"}
        return functional.kl_divergence(input, target, client=self._where, **{**kinds, **_elements(self.reduction), **self.options, **more})


class JensenShannonLoss(_Module):
    """lossd.jensen_shannon. beta: weight of the teacher; kinds: "logits" or "logprobs"; reduction as in KLDivLoss."""

    def __init__(self, beta=0.5, reduction="batchmean", student_kind="logits", teacher_kind="logits", *, client=None, **options):
        super().__init__(client, beta=beta, student_kind=student_kind, teacher_kind=teacher_kind, **options)
        self.reduction = reduction

    def forward(self, student, teacher, **more):
        return functional.jensen_shannon(student, teacher, client=self._where, **{**_elements(self.reduction), **self.options, **more})


class TotalVariationLoss(_Module):
    """lossd.total_variation. kinds: "logits" or "probs"; reduction as in KLDivLoss."""

    def __init__(self, reduction="batchmean", student_kind="logits", teacher_kind="logits", *, client=None, **options):
        super().__init__(client, student_kind=student_kind, teacher_kind=teacher_kind, **options)
        self.reduction = reduction

    def forward(self, student, teacher, **more):
        return functional.total_variation(student, teacher, client=self._where, **{**_elements(self.reduction), **self.options, **more})


def _elements(reduction):
    return {"mean": {"reduction": "mean", "denominator_from": "elements"},
            "batchmean": {"reduction": "mean", "denominator_from": "count"}}.get(reduction, {"reduction": reduction})


class Logprob(_Module):
    """lossd.logprob: statistics of each row of softmax(logits). forward(logits [..., V], target [...])."""

    def __init__(self, want="logprob", *, client=None, **options):
        super().__init__(client, want=want, **options)

    def forward(self, logits, target=None, **more):
        return functional.logprob(logits, target, client=self._where, **{**self.options, **more})


class LinearLogprob(_Module):
    """lossd.linear_logprob. forward(hidden [..., H], weight [V, H], target [...], bias [V])."""

    def __init__(self, want="logprob", *, client=None, **options):
        super().__init__(client, want=want, **options)

    def forward(self, hidden, weight, target=None, bias=None, **more):
        return functional.linear_logprob(hidden, weight, target, bias=bias, client=self._where, **{**self.options, **more})


class PolicyLoss(_Module):
    """lossd.policy_loss. forward(logprob [...], entropy, kl_logprob, advantage=..., old_logprob=..., ...)."""

    def __init__(self, kind="ppo", *, client=None, **options):
        super().__init__(client, kind=kind, **options)

    def forward(self, logprob, **more):
        return functional.policy_loss(logprob, client=self._where, **{**self.options, **more})


class LinearPolicyLoss(_Module):
    """lossd.linear_policy_loss. forward(hidden [..., H], weight [V, H], target [...], bias, advantage=..., old_logprob=..., ...)."""

    def __init__(self, kind="ppo", *, client=None, **options):
        super().__init__(client, kind=kind, **options)

    def forward(self, hidden, weight, target, bias=None, **more):
        return functional.linear_policy_loss(hidden, weight, target, bias=bias, client=self._where, **{**self.options, **more})


class PreferenceLoss(_Module):
    """lossd.preference_loss, with the mean over pairs. forward(logprob [...], cu_seqlens=..., ref_logprob=..., ...)."""

    def __init__(self, terms, pairing="halves", *, client=None, **options):
        super().__init__(client, **{"terms": terms, "pairing": pairing, "denominator_from": "count", **options})

    def forward(self, logprob, **more):
        return functional.preference_loss(logprob, client=self._where, **{**self.options, **more})


class LinearPreferenceLoss(_Module):
    """lossd.linear_preference_loss, with the mean over pairs. forward(hidden, weight, target, bias, cu_seqlens=..., ref_logprob=..., ...)."""

    def __init__(self, terms, pairing="halves", *, client=None, **options):
        super().__init__(client, **{"terms": terms, "pairing": pairing, "denominator_from": "count", **options})

    def forward(self, hidden, weight, target, bias=None, **more):
        return functional.linear_preference_loss(hidden, weight, target, bias=bias, client=self._where, **{**self.options, **more})


class UnpairedLoss(_Module):
    """lossd.unpaired_loss, with the mean over sequences. forward(logprob [...], cu_seqlens=..., desirable=..., ...)."""

    def __init__(self, type="kto", beta=0.1, *, client=None, **options):
        super().__init__(client, **{"type": type, "beta": beta, "denominator_from": "count", **options})

    def forward(self, logprob, **more):
        return functional.unpaired_loss(logprob, client=self._where, **{**self.options, **more})


class LinearUnpairedLoss(_Module):
    """lossd.linear_unpaired_loss, with the mean over sequences. forward(hidden, weight, target, bias, cu_seqlens=..., desirable=..., ...)."""

    def __init__(self, type="kto", beta=0.1, *, client=None, **options):
        super().__init__(client, **{"type": type, "beta": beta, "denominator_from": "count", **options})

    def forward(self, hidden, weight, target, bias=None, **more):
        return functional.linear_unpaired_loss(hidden, weight, target, bias=bias, client=self._where, **{**self.options, **more})


class LinearDistillLoss(_Module):
    """lossd.linear_distill_loss, with the mean over rows that count. forward(hidden, weight, bias=..., teacher_hidden=..., target=..., ...)."""

    def __init__(self, divergence="forward_kl", reduction="mean", *, client=None, **options):
        super().__init__(client, divergence=divergence, **options)
        self.reduction = reduction

    def forward(self, hidden, weight, **more):
        given = {**self.options, **more}
        return functional.linear_distill_loss(hidden, weight, client=self._where, **{**_denominator(self.reduction, None, given), **given})


class RMSNorm(_Module):
    """torch.nn.RMSNorm over the last dimension. eps: None is torch's, the machine epsilon of the input's type.

    options: `weight_offset` (Gemma: 1, with a weight that starts at 0), `casting` ("llama", "gemma", "input").
    """

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None, *, client=None, **options):
        super().__init__(client, **options)
        self.normalized_shape, self.eps, self.elementwise_affine = _extent(normalized_shape), eps, elementwise_affine
        made = torch.empty(self.normalized_shape, device=device, dtype=dtype) if elementwise_affine else None
        self.register_parameter("weight", None if made is None else torch.nn.Parameter(made))
        self.reset_parameters()

    def reset_parameters(self):
        if self.weight is not None:
            torch.nn.init.constant_(self.weight, 1.0 - self.options.get("weight_offset", 0.0))

    def forward(self, x, residual=None):
        """With a residual: (norm of x + residual, x + residual)."""
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return functional.rms_norm(x, self.weight, client=self._where, residual=residual, eps=eps, **self.options)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LayerNorm(_Module):
    """torch.nn.LayerNorm over the last dimension."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None, *, client=None):
        super().__init__(client)
        self.normalized_shape, self.eps, self.elementwise_affine = _extent(normalized_shape), eps, elementwise_affine
        for name, there in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            made = torch.nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype)) if there else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self):
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x):
        return functional.layer_norm(x, self.weight, self.bias, client=self._where, eps=self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


def _extent(normalized_shape):
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if len(shape) != 1:
        raise ValueError(f"normalized_shape must be the last dimension alone, is {shape}")
    return shape


class Rope(_Module):
    """lossd.rope. forward(x [..., A, D], cos [P, R / 2], sin, position [...])."""

    def __init__(self, layout="half_split", *, client=None, **options):
        super().__init__(client, layout=layout, **options)

    def forward(self, x, cos, sin, position=None):
        return functional.rope(x, cos, sin, position, client=self._where, **self.options)


class SwiGLU(_Module):
    """lossd.swiglu. forward(gate, up) of [..., F], or forward(gate_up) of [..., 2F]."""

    def __init__(self, *, client=None, **options):
        super().__init__(client, **options)

    def forward(self, gate, up=None):
        return functional.swiglu(gate, up, client=self._where, **self.options)


class GEGLU(_Module):
    """lossd.geglu. forward(gate, up) of [..., F], or forward(gate_up) of [..., 2F]. approximation: "tanh" or "erf"."""

    def __init__(self, approximation="tanh", *, client=None, **options):
        super().__init__(client, approximation=approximation, **options)

    def forward(self, gate, up=None):
        return functional.geglu(gate, up, client=self._where, **self.options)


class ReLUSquared(_Module):
    """max(x, 0)^2."""

    def forward(self, x):
        return functional.relu_squared(x, client=self._where)


class Softmax(_Module):
    """torch.nn.Softmax over the last dimension. forward(x, mask [...]): rows whose mask is False are 0."""

    def __init__(self, dim=-1, *, client=None):
        super().__init__(client)
        if dim != -1:
            raise ValueError(f"dim must be -1, is {dim}: transpose the input")

    def forward(self, x, mask=None):
        return functional.softmax(x, client=self._where, mask=mask)


__all__ = ["CrossEntropyLoss", "LinearCrossEntropyLoss", "KLDivLoss", "JensenShannonLoss", "TotalVariationLoss", "Logprob", "LinearLogprob",
           "PolicyLoss", "LinearPolicyLoss", "PreferenceLoss", "LinearPreferenceLoss", "UnpairedLoss", "LinearUnpairedLoss",
           "LinearDistillLoss", "RMSNorm", "LayerNorm", "Rope", "SwiGLU", "GEGLU", "ReLUSquared", "Softmax"]
