"""NeMo-RL: log-probabilities of vocabulary-parallel logits and of hidden states.

    from lossd.adapters.nemo_rl import apply_lossd_to_nemo_rl
    apply_lossd_to_nemo_rl()                      # in each policy worker, before training

Tested with NeMo-RL 0.6 of August 2026. Shifts, context parallelism and packing stay NeMo-RL's, and so do log-probabilities with top-k and
top-p filters. The path from hidden states (use_fused_linear_logprobs) accumulates the weight's gradient in fp32, into main_grad where it has
one; its chunk size has no meaning here.
"""

import contextlib

import torch

from . import shards
from .require import require, seam
from .session import client_or_default
from .switch import Switch

PACKAGE = "nemo-rl"
TESTED = "NeMo-RL 0.6"


class _Applied:
    """An autograd function of NeMo-RL by another that takes the same arguments; apply() is all that is called."""

    def __init__(self, apply):
        self.apply = apply


def logprob(vocab_parallel_logits, target, group, inference_only=False, *, client=None):
    """DistributedLogprob: [B, S] of logits [B, S, V / tp] and global ids [B, S]."""
    with _no_grad(inference_only):
        return shards.logprob(vocab_parallel_logits, target, client=client_or_default(client), group=group)


def entropy_sum(vocab_parallel_logits, group, inference_only=False, *, client=None):
    """ChunkedDistributedEntropy: sum_v p log p, which is minus the entropy, [B, S]."""
    target = torch.zeros(vocab_parallel_logits.shape[:-1], dtype=torch.int64, device=vocab_parallel_logits.device)
    with _no_grad(inference_only):
        return -shards.logprob(vocab_parallel_logits, target, client=client_or_default(client), group=group, want="entropy")


def hidden_logprob(hidden, target, weight, group, inference_only=False, *, client=None, **options):
    """ChunkedDistributedHiddenStatesToLogprobs: [B, S] of hidden states [S / tp, B, H], global ids [B, S] and weight [V / tp, H]."""
    with _no_grad(inference_only):
        found = shards.linear_logprob(hidden, weight, target.transpose(0, 1).contiguous(), client=client_or_default(client), group=group,
                                      sequence_parallel=True, **options)
    return found.transpose(0, 1)


def _no_grad(inference_only):
    return torch.no_grad() if inference_only else contextlib.nullcontext()


def apply_lossd_to_nemo_rl(client=None, **options):
    """Puts lossd behind nemo_rl.distributed.model_utils. Returns a Switch.

    options: of lossd.ops.linear_logprob for the path from hidden states, as batch_invariant=True.
    """
    utils = require("nemo_rl.distributed.model_utils", PACKAGE, TESTED, "lossd.adapters.nemo_rl")
    client = client_or_default(client)

    def whole(logits, target, start, end, group, inference_only=False):
        return logprob(logits, target, group, inference_only, client=client)

    def chunked(logits, target, start, end, chunk_size, group, inference_only=False):
        return logprob(logits, target, group, inference_only, client=client)

    def of_hidden(hidden, target, weight, start, end, chunk_size, group, inference_only=False):
        return hidden_logprob(hidden, target, weight, group, inference_only, client=client, **options)

    def entropy(logits, chunk_size, group, inference_only=False):
        return entropy_sum(logits, group, inference_only, client=client)

    switch = Switch()
    for name, apply in (("DistributedLogprob", whole), ("ChunkedDistributedLogprob", chunked),
                        ("ChunkedDistributedHiddenStatesToLogprobs", of_hidden), ("ChunkedDistributedEntropy", entropy)):
        seam(utils, name, PACKAGE, TESTED)
        switch.replace(utils, name, _Applied(apply))
    return switch
