"""GRPO and its relatives of a linear head."""

import torch

from .. import functional
from ..defaults import DEFAULT
from .losses import _number

# What the kinds of loss divide by: a sequence's tokens and the batch, the tokens of the batch, the tokens of all batches.
_BY_SEQUENCE, _BY_TOKEN, _BY_ALL_TOKENS = ("grpo", "sapo"), ("bnpo",), ("dapo", "cispo", "vespo")
_TYPES = (*_BY_SEQUENCE, *_BY_TOKEN, *_BY_ALL_TOKENS, "dr_grpo", "luspo")


class LigerFusedLinearGRPOLoss(torch.nn.Module):
    """forward(_input [B, T, H], lin_weight [V, H], selected_token_ids [B, T], attention_mask [B, T], advantages [B], ...).

    loss_type: "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"; importance_sampling_level: "token" or "sequence".
    Returns (loss, metrics): metrics are the mean of the KL estimate, where beta is not 0, and the share of clipped tokens.

    Without old_per_token_logps the ratio is 1, with the gradient of the present policy. Without a reference the KL term is 0. "dapo", "cispo" and
    "vespo" divide by num_items_in_batch / ranks, or by the tokens of all ranks / ranks, where torch.distributed runs.
    Tokens whose mask is 0 never count ("luspo" of Liger counts them). "luspo" at the level of sequences has no KL term here; "vespo" has no
    bias correction of it.
    """

    def __init__(self, beta=0.04, compiled=True, use_ref_model=True, chunk_size=1, epsilon_low=0.2, epsilon_high=0.2, loss_type="dapo",
                 max_completion_length=None, importance_sampling_level="token", sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
                 temperature=1.0, delta=None, use_bias_correction_kl=False, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0,
                 vespo_lambda_neg=2.0):
        super().__init__()
        if loss_type not in _TYPES:
            raise ValueError(f"Unknown loss type: {loss_type}")
        if importance_sampling_level not in ("token", "sequence"):
            raise ValueError(f"importance_sampling_level must be token or sequence, is {importance_sampling_level}")
        if importance_sampling_level == "sequence" and loss_type in ("cispo", "sapo", "vespo"):
            raise ValueError(f"Sequence-level importance sampling is not supported for loss_type='{loss_type}'.")
        if importance_sampling_level == "sequence" and loss_type == "luspo" and beta:
            raise NotImplementedError("luspo at the level of sequences with a KL term (beta)")
        if loss_type == "dr_grpo" and max_completion_length is None:
            raise ValueError("max_completion_length must be provided for loss_type 'dr_grpo'")
        self.beta, self.use_ref_model, self.epsilon_low, self.epsilon_high = beta, use_ref_model, epsilon_low, epsilon_high
        self.loss_type, self.max_completion_length = loss_type, max_completion_length
        self.importance_sampling_level = importance_sampling_level
        self.sapo_temperature_pos, self.sapo_temperature_neg, self.temperature = sapo_temperature_pos, sapo_temperature_neg, temperature
        self.delta, self.use_bias_correction_kl = delta, use_bias_correction_kl
        self.vespo_k_pos, self.vespo_lambda_pos = vespo_k_pos, vespo_lambda_pos
        self.vespo_k_neg, self.vespo_lambda_neg = vespo_k_neg, vespo_lambda_neg

    def forward(self, _input, lin_weight, selected_token_ids, attention_mask, advantages, bias=None, ref_per_token_logps=None,
                old_per_token_logps=None, ref_input=None, ref_weight=None, ref_bias=None, vllm_is_ratio=None, num_items_in_batch=None):
        batch, length = selected_token_ids.shape
        mask = attention_mask != 0
        options = {"temperature": self.temperature, **self._kind(), **self._aggregation(batch, length, mask, num_items_in_batch)}
        if old_per_token_logps is None:
            options["force_on_policy"] = True
        else:
            options["old_logprob"] = old_per_token_logps.detach().float()
        if self.beta:
            reference = self._reference(selected_token_ids, mask, ref_per_token_logps, ref_input, ref_weight, ref_bias)
            if reference is not None:
                options.update(ref_logprob=reference, kl_estimator="k3", kl_coef=self.beta)
                if self.use_bias_correction_kl:
                    options["kl_weight"] = "ratio"
        if vllm_is_ratio is not None:
            options["pg_weight"] = vllm_is_ratio.detach().float().expand(batch, length)
        loss, reply = functional.linear_policy_loss(
            _input, lin_weight, selected_token_ids, client=DEFAULT, bias=bias, mask=mask, sequence_advantage=advantages.detach().float(),
            cu_seqlens=torch.arange(batch + 1, device=mask.device) * length, want=(), **options)
        tokens = max(reply.count or 0, 1)
        total = {name: metric.sum for name, metric in reply.metrics.items()}
        clipped = total.get("clip_low", 0.0) * (self.loss_type != "cispo") + total.get("clip_high", 0.0)
        metrics = [_number(total.get("kl", 0.0) / tokens, loss)] * bool(self.beta)
        return loss, metrics + [_number(0.0 if self.loss_type in ("sapo", "vespo") else clipped / tokens, loss)]

    def _kind(self):
        if self.loss_type == "cispo":
            return {"kind": "cispo", "cispo_low": 0.0, "cispo_high": self.epsilon_high}
        if self.loss_type == "sapo":
            return {"kind": "sapo", "sapo_tau_pos": self.sapo_temperature_pos, "sapo_tau_neg": self.sapo_temperature_neg}
        if self.loss_type == "vespo":
            return {"kind": "vespo", **{name: getattr(self, name) for name in ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")}}
        kind = {"kind": "ppo", "clip_low": self.epsilon_low, "clip_high": self.epsilon_high}
        if self.delta is not None:
            kind["ratio_cap"] = self.delta
        if self.importance_sampling_level == "sequence":
            kind.update(kind="luspo") if self.loss_type == "luspo" else kind.update(kind="gspo", gspo_gradient="through_mean")
        return kind

    def _aggregation(self, batch, length, mask, num_items_in_batch):
        if self.loss_type in _BY_SEQUENCE:
            return {"sequence_weighting": "inverse_length", "denominator": batch}
        if self.loss_type in _BY_TOKEN:
            return {"denominator_from": "count"}
        if self.loss_type == "dr_grpo":
            return {"denominator": batch * self.max_completion_length}
        if self.loss_type == "luspo":
            if self.importance_sampling_level == "sequence":
                return {"denominator": batch}
            return {"sequence_weighting": "length", "denominator": batch * length}
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        ranks = torch.distributed.get_world_size() if distributed else 1
        if num_items_in_batch is not None:
            return {"denominator": max(float(num_items_in_batch) / ranks, 1.0)}
        if ranks == 1:
            return {"denominator_from": "count"}
        tokens = mask.sum().float()
        torch.distributed.all_reduce(tokens)
        return {"denominator": max(float(tokens) / ranks, 1.0)}

    @torch.no_grad()
    def _reference(self, tokens, mask, logps, hidden, weight, bias):
        if logps is not None:
            return logps.detach().float()
        if not self.use_ref_model or hidden is None or weight is None:
            return None
        return functional.linear_logprob(hidden, weight, tokens, client=DEFAULT, bias=bias, mask=mask, temperature=self.temperature)
