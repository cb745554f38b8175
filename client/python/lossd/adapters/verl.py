"""verl: fused linear log-probability and entropy, for model.use_fused_kernels with either backend.

    from lossd.adapters.verl import apply_lossd_to_verl
    apply_lossd_to_verl()                         # in each worker, before the model is made

Tested with verl 0.10 of August 2026. Both results are float32 (verl's torch backend rounds the entropy to the hidden states' type), the
temperature is inside the softmax, and may be a tensor of one for each token, which verl's own kernels refuse.
"""

import importlib
import sys

import torch

from . import shards
from .require import require, seam
from .session import client_or_default
from .switch import Switch

PACKAGE = "verl"
TESTED = "verl 0.10"
_MCORE = ("verl.models.mcore.model_forward_fused", "verl.models.mcore.model_forward_1f1b_overlap")  # they have imported the name


def linear_cross_entropy(hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None, *, client=None, want=(),
                         **options):
    """verl's function: (log-probabilities, entropy) [N] float32 of hidden [..., H], weight [V / tp, H], labels [...].

    The gradient of hidden is this rank's part, as verl's: sequence parallelism's gather in front of it adds the parts up.
    reduction: "none", "sum", "mean", of both. want: more outputs of lossd.ops.linear_logprob, as "log_sum_p2", behind the two.
    """
    reduce = {"none": lambda value: value, "sum": torch.sum, "mean": torch.mean}.get(reduction.lower())
    if reduce is None:
        raise ValueError(f"reduction: must be none, sum or mean, is {reduction}")
    found = _statistics(hidden.reshape(-1, hidden.shape[-1]), weight, labels.reshape(-1), temperature, client, want, options,
                        group=dist_process_group, partial=True)
    return tuple(reduce(value) for value in found)


class FusedLinearForPPO(torch.nn.Module):
    """verl's module: (log-probabilities, entropy), each like input_ids. chunk_size has no meaning here."""

    def __init__(self, chunk_size=512, *, client=None, **options):
        super().__init__()
        self.chunk_size = chunk_size
        self.client, self.options = client, options

    def forward(self, hidden_states, vocab_weights, input_ids, temperature=1.0):
        return _statistics(hidden_states, vocab_weights, input_ids, temperature, self.client, (), self.options)


def _statistics(hidden, weight, labels, temperature, client, want, options, **of_shards):
    if isinstance(temperature, torch.Tensor) and temperature.numel() > 1:
        temperatures = {"temperature_rows": temperature.float().expand(labels.shape).contiguous()}
    else:
        temperatures = {"temperature": float(temperature)}
    return shards.linear_logprob(hidden, weight, labels, client=client_or_default(client), want=("logprob", "entropy", *want),
                                 **temperatures, **options, **of_shards)


def apply_lossd_to_verl(client=None, **options):
    """Puts lossd behind both fused backends, "torch" and "triton", of FSDP and Megatron workers. Returns a Switch.

    options: of lossd.ops.linear_logprob for every call, as batch_invariant=True.
    """
    purpose = "lossd.adapters.verl"
    torch_backend = require("verl.utils.experimental.torch_functional", PACKAGE, TESTED, purpose)
    triton_backend = require("verl.utils.kernel.linear_cross_entropy", PACKAGE, TESTED, purpose)
    seam(torch_backend, "FusedLinearForPPO", PACKAGE, TESTED)
    seam(triton_backend, "linear_cross_entropy", PACKAGE, TESTED)
    client = client_or_default(client)

    def function(*arguments, **named):
        return linear_cross_entropy(*arguments, client=client, **named, **options)

    class Fused(FusedLinearForPPO):
        def __init__(self, chunk_size=512):
            super().__init__(chunk_size, client=client, **options)

    switch = Switch().replace(torch_backend, "FusedLinearForPPO", Fused).replace(triton_backend, "linear_cross_entropy", function)
    for name in _MCORE:
        if name in sys.modules:
            switch.replace(importlib.import_module(name), "linear_cross_entropy", function)
    return switch
