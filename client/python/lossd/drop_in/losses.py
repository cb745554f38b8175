"""Cross entropy, divergences and distillation."""

import dataclasses
from typing import Optional

import torch

from .. import functional
from ..defaults import DEFAULT


@dataclasses.dataclass
class CrossEntropyOutput:
    loss: torch.Tensor
    z_loss: Optional[torch.Tensor] = None
    token_accuracy: Optional[torch.Tensor] = None
    predicted_tokens: Optional[torch.Tensor] = None


def _number(value, like):
    """A number of a reply as a scalar on the device of `like`."""
    return torch.full((), float(value), dtype=torch.float32, device=like.device)


def _cross_entropy(function, inputs, target, class_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, wanted, **options):
    """CrossEntropyOutput. wanted: which of "z_loss", "token_accuracy", "predicted_tokens" to fill."""
    options.update(ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=lse_square_scale, reduction=reduction, softcap=softcap or 0.0)
    if class_weight is not None:
        options["class_weight"] = class_weight.float()
    if reduction == "mean":
        options["denominator_from"] = "count" if class_weight is None else "weight_sum"
        if class_weight is not None and lse_square_scale:
            options["z_denominator_from"] = "count"
    outputs = ("argmax",) * bool({"token_accuracy", "predicted_tokens"} & wanted) + ("lse",) * ("z_loss" in wanted and reduction == "none")
    loss, reply = function(*inputs, target, client=DEFAULT, want=outputs, **options)
    made = CrossEntropyOutput(loss)
    if "z_loss" in wanted:
        if reduction == "none":
            made.z_loss = lse_square_scale * reply["lse"] ** 2
        else:
            made.z_loss = _number((reply.z_sum or 0.0) / (max(reply.count or 0, 1) if reduction == "mean" else 1), loss)
    if "predicted_tokens" in wanted:
        made.predicted_tokens = reply["argmax"].long()
    if "token_accuracy" in wanted:
        right = ((reply["argmax"] == target) & (target != ignore_index)).float()
        made.token_accuracy = right if reduction == "none" else right.sum() / max(reply.count or 0, 1)
    return made


class _CrossEntropy(torch.nn.Module):
    def _check(self):
        if not 0 <= self.label_smoothing <= 1:
            raise AssertionError(f"label_smoothing must be between 0.0 and 1.0. Got: {self.label_smoothing}")
        if self.reduction not in ("mean", "sum", "none"):
            raise AssertionError(f"reduction must be one of 'mean', 'sum', or 'none'. Got: {self.reduction}")
        if self.softcap is not None and self.softcap <= 0:
            raise AssertionError(f"softcap must greater than 0.0 or None. Got: {self.softcap}")

    def _wanted(self):
        return {name for name in ("z_loss", "token_accuracy", "predicted_tokens") if getattr(self, "return_" + name)}


class LigerCrossEntropyLoss(_CrossEntropy):
    """Cross entropy of logits [N, V] and targets [N]. The loss contains the z-loss; z_loss, accuracy and tokens have no gradient.

    Liger overwrites the logits with their gradient; here they stay, and the gradient is a tensor of its own.
    """

    def __init__(self, weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None,
                 return_z_loss=False, return_token_accuracy=False, return_predicted_tokens=False):
        super().__init__()
        self.weight, self.ignore_index, self.lse_square_scale, self.label_smoothing = weight, ignore_index, lse_square_scale, label_smoothing
        self.reduction, self.softcap, self.return_z_loss = reduction, softcap, return_z_loss
        self.return_token_accuracy, self.return_predicted_tokens = return_token_accuracy, return_predicted_tokens
        self._check()

    def forward(self, _input, target):
        wanted = self._wanted()
        made = _cross_entropy(functional.cross_entropy, (_input,), target, self.weight, self.ignore_index, self.lse_square_scale,
                              self.label_smoothing, self.reduction, self.softcap, wanted)
        return made if wanted else made.loss


class LigerFusedLinearCrossEntropyLoss(_CrossEntropy):
    """Cross entropy of a linear head: forward(lin_weight [V, H], _input [N, H], target [N], bias [V]). Logits are never in memory.

    With reduction "none" gradients of rows are exact for any upstream gradient (the logits' product is computed again for them).
    """

    def __init__(self, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None,
                 return_z_loss=False, accum_dtype=None, use_token_scaling=False, return_token_accuracy=False, return_predicted_tokens=False):
        super().__init__()
        self.ce_weight, self.ignore_index, self.lse_square_scale = ce_weight, ignore_index, lse_square_scale
        self.label_smoothing, self.reduction, self.softcap = label_smoothing, reduction, softcap
        self.return_z_loss, self.accum_dtype, self.use_token_scaling = return_z_loss, accum_dtype, use_token_scaling
        self.return_token_accuracy, self.return_predicted_tokens = return_token_accuracy, return_predicted_tokens
        self._check()

    def forward(self, lin_weight, _input, target, bias=None):
        wanted = self._wanted()
        made = _cross_entropy(functional.linear_cross_entropy, (_input, lin_weight), target, self.ce_weight, self.ignore_index,
                              self.lse_square_scale, self.label_smoothing, self.reduction, self.softcap, wanted, bias=bias,
                              token_scaling=self.use_token_scaling)
        return made if wanted else made.loss


def liger_cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                        label_smoothing=0.0, lse_square_scale=0.0, softcap=None, return_z_loss=False, return_token_accuracy=False,
                        return_predicted_tokens=False):
    """size_average and reduce, which torch has given up, are not read."""
    return LigerCrossEntropyLoss(weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss,
                                 return_token_accuracy, return_predicted_tokens)(input, target)


def liger_fused_linear_cross_entropy(input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
                                     label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None,
                                     use_token_scaling=False, return_token_accuracy=False, return_predicted_tokens=False):
    return LigerFusedLinearCrossEntropyLoss(ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss,
                                            accum_dtype, use_token_scaling, return_token_accuracy,
                                            return_predicted_tokens)(weight, input, target, bias)


def _rows(reduction):
    kinds = {"batchmean": "count", "mean": "elements"}
    if reduction in kinds:
        return {"reduction": "mean", "denominator_from": kinds[reduction]}
    if reduction == "sum":
        return {"reduction": "sum"}
    raise NotImplementedError(f"reduction {reduction!r}: lossd gives sums over rows, not a tensor [N, V] (lossd.kl_divergence: one value a row)")


def _label_mask(shift_labels, ignore_index):
    return {} if shift_labels is None else {"mask": shift_labels != ignore_index}


class LigerKLDIVLoss(torch.nn.KLDivLoss):
    """torch.nn.KLDivLoss of two dimensions; probabilities of the target below eps have the logarithm of eps. No reduction "none"."""

    def __init__(self, eps=1e-10, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, y_pred, y_true):
        kind = {"teacher_kind": "logprobs"} if self.log_target else {"teacher_kind": "probs", "teacher_floor": self.eps}
        return functional.kl_divergence(y_pred, y_true, client=DEFAULT, student_kind="logprobs", **kind, **_rows(self.reduction))


class LigerJSD(torch.nn.Module):
    """Generalised Jensen-Shannon divergence of log-probabilities [N, V], mean over rows whose label counts; beta as in Liger."""

    def __init__(self, beta=0.5, ignore_index=-100):
        super().__init__()
        self.beta, self.ignore_index = beta, ignore_index

    def forward(self, log_q, log_p, shift_labels=None):
        return functional.jensen_shannon(log_q, log_p, client=DEFAULT, beta=self.beta, student_kind="logprobs",
                                         teacher_kind="logprobs", reduction="mean", denominator_from="count",
                                         **_label_mask(shift_labels, self.ignore_index))


class LigerTVDLoss(torch.nn.Module):
    """Total variation of probabilities [N, V]: half the sum of |p - q|. The gradient flows to p. No reduction "none"."""

    def __init__(self, reduction="batchmean", ignore_index=-100):
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, p, q, shift_labels=None):
        return functional.total_variation(p, q, client=DEFAULT, student_kind="probs", teacher_kind="probs",
                                          **_rows(self.reduction), **_label_mask(shift_labels, self.ignore_index))


def liger_jsd(input, target, shift_labels=None, beta=0.5, ignore_index=-100):
    return LigerJSD(beta, ignore_index)(input, target, shift_labels)


def liger_kl_div(input, target, size_average=True, reduce=True, reduction="mean", log_target=False, eps=1e-10):
    """size_average and reduce, which torch has given up, are not read."""
    return LigerKLDIVLoss(eps, reduction=reduction, log_target=log_target)(input, target)


def liger_tvd(input, target, shift_labels=None, reduction="mean", ignore_index=-100):
    return LigerTVDLoss(reduction, ignore_index)(input, target, shift_labels)


class LigerFusedLinearJSD(torch.nn.Module):
    """Generalised Jensen-Shannon divergence of two linear heads, mean over rows whose label counts."""

    def __init__(self, jsd_beta=0.5, ignore_index=-100, temperature=1.0, accum_dtype=None):
        super().__init__()
        self.jsd_beta, self.ignore_index, self.temperature, self.accum_dtype = jsd_beta, ignore_index, temperature, accum_dtype

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, shift_labels=None):
        return functional.linear_distill_loss(student_input, student_weight, client=DEFAULT, divergence="jsd", beta=self.jsd_beta,
                                              temperature=self.temperature, teacher_hidden=teacher_input.detach(),
                                              teacher_weight=teacher_weight.detach(), reduction="mean", denominator_from="count",
                                              **_label_mask(shift_labels, self.ignore_index))


def liger_fused_linear_jsd(student_input, student_weight, teacher_input, teacher_weight, shift_labels=None, jsd_beta=0.5,
                           ignore_index=-100, temperature=1.0, accum_dtype=None):
    return LigerFusedLinearJSD(jsd_beta, ignore_index, temperature, accum_dtype)(student_input, student_weight, teacher_input, teacher_weight,
                                                                                 shift_labels)


class _Distillation(torch.nn.Module):
    """weight_hard_loss * cross entropy + weight_soft_loss * divergence, both a mean over labels other than ignore_index.

    A teacher with another number of ids is refused (Liger pads the student's logits with zeros).
    """

    def __init__(self, weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, ignore_index=-100, temperature=1.0, compiled=True,
                 chunk_size=1024, return_soft_hard_loss=False):
        super().__init__()
        self.weight_hard_loss, self.weight_soft_loss, self.beta = weight_hard_loss, weight_soft_loss, beta
        self.ignore_index, self.temperature, self.return_soft_hard_loss = ignore_index, temperature, return_soft_hard_loss

    def _run(self, divergence, soft_weight, student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias,
             teacher_bias, **options):
        teacher_bias = None if teacher_bias is None else teacher_bias.detach()
        hard = {"target": true_labels, "hard_weight": self.weight_hard_loss} if self.weight_hard_loss else {}
        loss, reply = functional.linear_distill_loss(
            student_input, student_weight, client=DEFAULT, bias=student_bias, divergence=divergence, temperature=self.temperature,
            teacher_hidden=teacher_input.detach(), teacher_weight=teacher_weight.detach(), teacher_bias=teacher_bias,
            mask=true_labels != self.ignore_index, ignore_index=self.ignore_index, soft_weight=soft_weight, reduction="mean",
            denominator_from="count", want=(), **hard, **options)
        if not self.return_soft_hard_loss:
            return loss
        means = [reply.metrics[name].mean if name in reply.metrics else 0.0 for name in ("soft", "hard")]
        means[0] *= soft_weight / self.weight_soft_loss if self.weight_soft_loss else 1.0
        return loss, _number(means[0], loss), _number(means[1], loss)


class LigerFusedLinearJSDLoss(_Distillation):
    __doc__ = _Distillation.__doc__ + "\n    The divergence is the generalised Jensen-Shannon divergence, beta the weight of the teacher."

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias=None, teacher_bias=None):
        return self._run("jsd", self.weight_soft_loss, student_input, student_weight, teacher_input, teacher_weight, true_labels,
                         student_bias, teacher_bias, beta=self.beta)


class LigerFusedLinearCosineSimilarityLoss(_Distillation):
    __doc__ = _Distillation.__doc__ + "\n    The divergence is beta (1 - cosine of the logits)."

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias=None, teacher_bias=None):
        return self._run("cosine", self.weight_soft_loss * self.beta, student_input, student_weight, teacher_input, teacher_weight,
                         true_labels, student_bias, teacher_bias)
