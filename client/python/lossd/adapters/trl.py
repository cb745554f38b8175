"""TRL: per-token log-probability, entropy and the other statistics of SFT, DPO, KTO, GRPO and every trainer with a fused LM head.

    from lossd.adapters.trl import apply_lossd_to_trl
    apply_lossd_to_trl()                          # before training; for good, or until .remove()

Tested with trl 1.16 (transformers 5.24, torch 2.15). TRL's trainers keep their loss; what they take from the head is computed by lossd, rows
with label -100 left out, statistics from unrounded logits, the weight's gradient in fp32. float64 and devices that lossd does not serve stay
with TRL. Under DeepSpeed ZeRO-3 the head's weight is gathered for the backward as TRL does.
"""

import torch

from . import shards
from .require import require, seam
from .session import client_or_default
from .switch import Switch

PACKAGE = "trl"
TESTED = "trl 1.16"
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_STATISTICS = {"entropy": "entropy", "log_sum_sq_probs": "log_sum_p2", "mean_logits": "mean_logit", "is_top1": "correct"}


def apply_lossd_to_trl(client=None, **options):
    """Puts lossd behind TRL's fused LM head. Returns a Switch.

    options: of lossd.ops.linear_logprob for every call, as batch_invariant=True: a token's log-probability has the same bits whatever else
      is in the batch, so that GRPO's first ratio is exactly 1.
    Raises ImportError without TRL, or with one that has no fused head.
    """
    utils = require("trl.trainer.utils", PACKAGE, TESTED, "lossd.adapters.trl")
    native = seam(utils, "_ChunkedLogProbFunction", PACKAGE, TESTED)
    gather = getattr(utils, "maybe_gather_lm_head_ctx", None)
    return Switch().replace(utils, "_ChunkedLogProbFunction", LogprobFunction(native, client_or_default(client), gather, options))


class LogprobFunction:
    """In the place of TRL's autograd function: apply() with its arguments and results."""

    def __init__(self, native, client, gather=None, options=()):
        self._native, self._client, self._gather, self._options = native, client, gather, dict(options)

    def apply(self, hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping=None, logit_scale=1.0,
              outputs=tuple(_STATISTICS)):
        """(log_probs, entropy, log_sum_sq_probs, mean_logits, is_top1) of hidden [N, H], each [N]; None where `outputs` lacks the name."""
        if hidden.dtype not in _TYPES or weight.dtype not in _TYPES or hidden.device.type not in ("cpu", "cuda"):
            return self._native.apply(hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping, logit_scale, outputs)
        names = [name for name in _STATISTICS if name in outputs]
        gather = None if self._gather is None else lambda: self._gather(weight, bias)
        found = shards.linear_logprob(hidden, weight, targets, bias=bias, client=self._client, gather=gather, temperature=temperature,
                                      softcap=final_logit_softcapping, logit_scale=logit_scale,
                                      want=["logprob", *(_STATISTICS[name] for name in names)], **self._options)
        known = dict(zip(names, found[1:]))
        if "mean_logits" in known:
            known["mean_logits"] = known["mean_logits"].detach()
        if "is_top1" in known:
            known["is_top1"] = known["is_top1"].bool()
        return (found[0], *(known.get(name) for name in _STATISTICS))
