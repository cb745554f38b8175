"""OpenRLHF: log-probabilities and entropy of the actor's logits.

    from lossd.adapters.openrlhf import apply_lossd_to_openrlhf
    apply_lossd_to_openrlhf()                     # in each worker, before training

Tested with OpenRLHF 0.11. Each reads the logits once, keeps nothing else of their size, and does not write them: OpenRLHF's divides them by
the temperature in place, after the entropy was taken of them. apply_lossd_to_openrlhf(entropy_temperature=T) gives the entropy of the tempered
distribution, as verl and TRL have it; the default is OpenRLHF's.
"""

import torch

from . import shards
from .require import require, seam
from .session import client_or_default
from .switch import Switch

PACKAGE = "openrlhf"
TESTED = "OpenRLHF 0.11"


def log_probs_from_logits(logits, labels, temperature=1.0, *, client=None):
    """log_softmax(logits / temperature) at labels: [...] float32 of logits [..., V]."""
    return shards.logprob(logits, labels, client=client_or_default(client), temperature=float(temperature))


def compute_entropy(logits, temperature=1.0, *, client=None):
    """Entropy of each row: [...] float32 of logits [..., V]."""
    labels = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    return shards.logprob(logits, labels, client=client_or_default(client), temperature=float(temperature), want="entropy")


def apply_lossd_to_openrlhf(client=None, *, entropy_temperature=1.0):
    """Puts lossd behind both functions of openrlhf.models. Returns a Switch."""
    purpose = "lossd.adapters.openrlhf"
    utils = require("openrlhf.models.utils", PACKAGE, TESTED, purpose)
    actor = require("openrlhf.models.actor", PACKAGE, TESTED, purpose)
    client = client_or_default(client)

    def log_probs(logits, labels, temperature=1.0):
        return log_probs_from_logits(logits, labels, temperature, client=client)

    def entropy(logits):
        return compute_entropy(logits, entropy_temperature, client=client)

    switch = Switch()
    for module in (utils, actor):
        for name, function in (("log_probs_from_logits", log_probs), ("compute_entropy", entropy)):
            seam(module, name, PACKAGE, TESTED)
            switch.replace(module, name, function)
    return switch
