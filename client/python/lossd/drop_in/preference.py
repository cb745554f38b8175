"""DPO, KTO, ORPO, SimPO and CPO of a linear head."""

import torch

from .. import functional
from ..defaults import DEFAULT
from .losses import _number


def _sequences(target):
    """cu_seqlens of a padded batch [B, T]."""
    return torch.arange(target.shape[0] + 1, device=target.device, dtype=torch.int64) * target.shape[1]


class _Paired(torch.nn.Module):
    """What the paired losses share: _input [2P, T, H] and target [2P, T], the chosen half first.

    Returns (loss, (chosen_logps [P], rejected_logps [P], chosen_logits_mean, rejected_logits_mean, nll_loss, ...)), the latter without gradients.
    Means of logits are over tokens that count (Liger: over padding too).
    """

    def _run(self, term, _input, lin_weight, target, bias=None, average=False, alpha=1.0, nll=False, nll_target=None, **reference):
        term = {**term, "beta": self.beta, "length_average": average}
        options = {"ignore_index": self.ignore_index}
        counts = target != self.ignore_index
        if nll and alpha:
            options.update(nll_coef=alpha, nll_denominator_from="count")
            if nll_target is not None:
                target = self._with_nll_target(target, counts, nll_target, options)
        reference = {name: value.detach() for name, value in reference.items() if value is not None} or {"reference_free": True}
        loss, reply = functional.linear_preference_loss(
            _input, lin_weight, target, client=DEFAULT, bias=bias, terms=[term], cu_seqlens=_sequences(target), pairing="halves",
            denominator_from="count", head_metrics=True,
            want=("chosen_logp", "rejected_logp", "chosen_reward", "rejected_reward"), **options, **reference)
        logps = [reply["chosen_logp"], reply["rejected_logp"]]
        if average:
            logps = [logp / count for logp, count in zip(logps, counts.sum(-1).chunk(2))]
        nll_loss = (reply.nll_sum or 0.0) / max(reply.nll_count or 0, 1) if nll and alpha else 0.0
        means = [_number(reply.metrics[name].mean, loss) for name in ("chosen_mean_logit", "rejected_mean_logit")]
        return loss, (*logps, *means, _number(nll_loss, loss), reply["chosen_reward"], reply["rejected_reward"])

    def _with_nll_target(self, target, counts, nll_target, options):
        """One target with a mask for each term."""
        wanted = nll_target != self.ignore_index
        if bool((counts & wanted & (target != nll_target)).any()):
            raise NotImplementedError("nll_target and target name different ids for a token: lossd reads one target with two masks")
        options.update(mask=counts, nll_mask=wanted)
        return torch.where(counts, target, nll_target)


class LigerFusedLinearDPOLoss(_Paired):
    __doc__ = """Direct preference optimisation and its relatives.

    loss_type: "sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop". label_smoothing is
    read by "robust" and "exo_pair". The last two values returned are the rewards [P].

    """ + _Paired.__doc__

    _TYPES = ("sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop")

    def __init__(self, ignore_index=-100, beta=0.1, alpha=1.0, compute_nll_loss=False, compiled=True, use_ref_model=True,
                 average_log_prob=False, chunk_size=1, loss_type="sigmoid", label_smoothing=0.0, discopop_tau=0.05):
        super().__init__()
        if loss_type not in self._TYPES:
            raise ValueError(f"Unsupported loss_type: {loss_type}. Supported types are: {', '.join(self._TYPES)}")
        self.ignore_index, self.beta, self.alpha, self.compute_nll_loss = ignore_index, beta, alpha, compute_nll_loss
        self.use_ref_model, self.average_log_prob, self.loss_type = use_ref_model, average_log_prob, loss_type
        self.label_smoothing, self.discopop_tau = label_smoothing, discopop_tau

    def forward(self, lin_weight, _input, target, bias=None, ref_input=None, ref_weight=None, ref_bias=None):
        term = {"type": self.loss_type}
        if self.loss_type in ("robust", "exo_pair"):
            term["label_smoothing"] = self.label_smoothing
        if self.loss_type == "discopop":
            term["tau"] = self.discopop_tau
        reference = {"ref_hidden": ref_input, "ref_weight": ref_weight, "ref_bias": ref_bias} if self.use_ref_model else {}
        return self._run(term, _input, lin_weight, target, bias, self.average_log_prob, self.alpha, self.compute_nll_loss, **reference)


class LigerFusedLinearCPOLoss(_Paired):
    __doc__ = """Contrastive preference optimisation. The last two values returned are the rewards [P].

    """ + _Paired.__doc__

    def __init__(self, ignore_index=-100, beta=0.1, alpha=1.0, label_smoothing=0.0, compute_nll_loss=True, compiled=True,
                 average_log_prob=False, chunk_size=1):
        super().__init__()
        self.ignore_index, self.beta, self.alpha, self.label_smoothing = ignore_index, beta, alpha, label_smoothing
        self.compute_nll_loss, self.average_log_prob = compute_nll_loss, average_log_prob

    def forward(self, lin_weight, _input, target, bias=None):
        term = {"type": "sigmoid", "label_smoothing": self.label_smoothing}
        return self._run(term, _input, lin_weight, target, bias, self.average_log_prob, self.alpha, self.compute_nll_loss)


class LigerFusedLinearSimPOLoss(_Paired):
    __doc__ = """Simple preference optimisation: averaged log-probabilities, margin gamma. The last two values returned are the rewards [P].

    """ + _Paired.__doc__

    def __init__(self, ignore_index=-100, beta=0.1, alpha=1.0, label_smoothing=0.0, compute_nll_loss=True, compiled=True, gamma=0.5,
                 chunk_size=1):
        super().__init__()
        self.ignore_index, self.beta, self.alpha, self.label_smoothing = ignore_index, beta, alpha, label_smoothing
        self.compute_nll_loss, self.gamma = compute_nll_loss, gamma

    def forward(self, lin_weight, _input, target, bias=None):
        term = {"type": "sigmoid", "label_smoothing": self.label_smoothing, "margin": self.gamma}
        return self._run(term, _input, lin_weight, target, bias, True, self.alpha, self.compute_nll_loss)


class LigerFusedLinearORPOLoss(_Paired):
    __doc__ = """Odds-ratio preference optimisation: averaged log-probabilities. Rewards [P] are followed by the means of log sigmoid of the log odds
    ratio and of the log odds ratio.

    nll_target [2P, T] may count other tokens than target (prompt and answer); where both count they name one id.

    """ + _Paired.__doc__

    def __init__(self, ignore_index=-100, beta=0.1, compute_nll_loss=True, compiled=True, chunk_size=1):
        super().__init__()
        self.ignore_index, self.beta, self.compute_nll_loss = ignore_index, beta, compute_nll_loss

    def forward(self, lin_weight, _input, target, bias=None, nll_target=None):
        loss, rest = self._run({"type": "orpo"}, _input, lin_weight, target, bias, True, 1.0, self.compute_nll_loss, nll_target)
        chosen, rejected = rest[0], rest[1]
        log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return loss, (*rest, torch.nn.functional.logsigmoid(log_odds).mean(), log_odds.mean())


class LigerFusedLinearKTOLoss(torch.nn.Module):
    """Kahneman-Tversky optimisation: forward(_input [B, T, H], lin_weight, target [B, T], bias, preference_labels [B] bool, ...).

    kl: one number in nats, without gradient; None is 0. Returns (loss, (chosen_logps_sum, rejected_logps_sum, chosen_logits_sum,
    rejected_logits_sum, chosen_rewards_sum, rejected_rewards_sum)), the latter without gradients; sums of logits are over tokens that count
    (Liger: over padding too). A kl for each sequence is not computed.
    """

    def __init__(self, ignore_index=-100, beta=0.1, compiled=True, use_ref_model=False, average_log_prob=False, chunk_size=1):
        super().__init__()
        self.ignore_index, self.beta, self.use_ref_model, self.average_log_prob = ignore_index, beta, use_ref_model, average_log_prob

    def forward(self, _input, lin_weight, target, bias=None, preference_labels=None, ref_input=None, ref_weight=None, ref_bias=None, kl=None):
        if isinstance(kl, torch.Tensor):
            if kl.numel() != 1:
                raise NotImplementedError(f"kl must be one number, has {kl.numel()}: lossd takes one baseline for the batch")
            kl = kl.detach().float().reshape(1)
        reference = {"reference_free": True}
        if self.use_ref_model:
            reference = {"ref_hidden": ref_input.detach(), "ref_weight": ref_weight.detach(),
                         "ref_bias": None if ref_bias is None else ref_bias.detach()}
        labels = preference_labels.bool()
        loss, reply = functional.linear_unpaired_loss(
            _input, lin_weight, target, client=DEFAULT, bias=bias, type="kto", beta=self.beta, cu_seqlens=_sequences(target),
            desirable=labels, kl_baseline=0.0 if kl is None else kl, length_average=self.average_log_prob, ignore_index=self.ignore_index,
            denominator_from="count", head_metrics=True, want=("sequence_logp", "reward"), **reference)
        logps, rewards = reply["sequence_logp"], reply["reward"]
        if self.average_log_prob:
            logps = logps / (target != self.ignore_index).sum(-1)
        vocab = lin_weight.shape[0]
        logits = [_number(reply.metrics[name].sum * vocab if name in reply.metrics else 0.0, loss)
                  for name in ("desirable_mean_logit", "undesirable_mean_logit")]
        return loss, ((logps * labels).sum(), (logps * ~labels).sum(), *logits, (rewards * labels).sum(), (rewards * ~labels).sum())
