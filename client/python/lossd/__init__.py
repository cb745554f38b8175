"""lossd: losses, log-probabilities and gradients of large vocabularies, computed by a server that shares the tensors' memory.

    import lossd
    with lossd.connect() as client:                       # or connect("unix:/run/lossd/lossd.sock")
        loss = lossd.linear_cross_entropy(hidden, weight, target, client=client)
        loss.backward()

connect, Client: the session (lossd/client.py); connect("embedded") computes in this process (lossd/embedded.py). linear_cross_entropy,
policy_loss, preference_loss and the others of lossd/functional: differentiable torch functions. nn: the same as modules. drop_in: modules with
the signatures of Liger's. default_client, set_default_client: of modules that are given none. ops: every operation on numpy arrays and torch
tensors (lossd/ops.py). LossdError: says field, must_be, is_. load: which library is used (lossd/library.py).
"""

from . import ops
from .client import Client, connect
from .defaults import default_client, set_default_client
from .errors import LossdError, did_you_mean
from .library import load

_FUNCTIONAL = ("linear_logprob", "linear_cross_entropy", "linear_policy_loss", "policy_loss", "linear_preference_loss", "preference_loss",
               "linear_unpaired_loss", "unpaired_loss", "linear_distill_loss", "kl_divergence", "jensen_shannon", "total_variation",
               "cross_entropy", "logprob", "rms_norm", "layer_norm", "rope", "swiglu", "geglu", "relu_squared", "softmax")
_MODULES = ("functional", "nn", "drop_in")
__all__ = ["Client", "LossdError", "connect", "default_client", "load", "ops", "set_default_client", *_FUNCTIONAL]


def __getattr__(name):
    if name in _MODULES or name in _FUNCTIONAL:  # torch is imported only by those who use it
        import importlib
        if name in _MODULES:
            return importlib.import_module("." + name, __name__)
        return getattr(importlib.import_module(".functional", __name__), name)
    raise AttributeError(f"module 'lossd' has no attribute '{name}'{did_you_mean(name, __all__)}")


def __dir__():
    return sorted({*globals(), *__all__, *_MODULES})
