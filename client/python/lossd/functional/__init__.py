"""Losses, log-probabilities and layers as differentiable torch functions. Each has the name of its operation in lossd.ops.

    loss = lossd.linear_cross_entropy(hidden, weight, target, client=client, reduction="mean", denominator_from="count")
    loss.backward()

linear_*: from hidden [..., H] and weight [V, H] (as in nn.Linear; bias [V]); logits are never in memory. Gradients flow to hidden, weight
and bias. target [...] is int32 or int64; the caller aligns it, nothing is shifted.
The others: from log-probabilities [...] in nats, float32, that the caller has (lossd.linear_logprob makes them), or from tensors [..., V]
(logits, where cross_entropy and logprob can leave the gradient in their memory: donate=True).

client: where it is computed, as lossd.connect() or lossd.default_client() gives it.

The rows of [...], in index order, are tokens; cu_seqlens [B + 1] says which of them are a sequence. A padded batch [B, T] has cu_seqlens
torch.arange(B + 1) * T and a mask [B, T]: rows whose mask is False take no part, whatever lies in them.
Every further field of the operation is a keyword of its name in lossd.ops (help(lossd.ops.linear_cross_entropy) lists them with shapes,
bounds, units, sources); `batch_invariant`, `workspace_limit`, `gradient_filter` and `timeout` too. An enum is its name as a string in any
case ("none"), a list of terms a list of dicts. All tensors of a call lie on one device.

Layers (rms_norm, layer_norm, rope, swiglu, geglu, relu_squared, softmax) return their result, in the type of their input.

A loss returns the loss: a float32 scalar, or float32 [...] with reduction "none". With `want`, a sequence of names of outputs (may be empty),
returns (loss, reply): reply["name"] are these outputs without gradients, reply.metrics["name"] has sum, count, min and max, reply.count
is what counted.
Raises LossdError, which names the field; where an argument is no tensor, it is a TypeError too. An unknown keyword is a TypeError.

CPU tensors are copied into shared memory unless they lie there (client.empty, client.share). CUDA tensors are read and written where they
are: the server's device waits for the current stream, and the call returns when the results are there.

When gradients are computed (`backward`):
  "recompute": in the backward, from the inputs. Right under checkpointing, double use and any upstream gradient; the logits product is
    computed twice (8NHV in all). Default for losses of rows, and where weight or bias has a main_grad.
  "forward": in the forward, in one pass (6NHV), held until the backward scales them by the upstream gradient. Default for a scalar loss.
    One backward through a graph; not together with main_grad.
  "fused": as "forward", but with the upstream gradient `d_loss` given in the call (a number or one element; [...] with reduction
    "none"): main_grad has its gradient when the call returns, and the backward hands the other gradients over as they are, whatever
    gradient it is given. Not inside a checkpointed region.

torch.compile (torch >= 2.4): each function is one operator of the graph; functional/compiled.py says what breaks it.
torch.autocast: hidden, weight and bias of linear_* are cast to autocast's type, as torch.nn.functional.linear does; a weight with a main_grad is
not, and everything else computes in its own type.

main_grad: if weight (or bias) has this attribute, its gradient is added to that tensor (float32 as in Megatron-LM, or any model type) and
grad_added_to_main_grad is set to True; .grad stays None. dummy_grad=True hands autograd a gradient of undefined contents in its place, for
hooks that want to see one.
"""

import functools

import torch

from . import compiled
from .cross_entropy import cross_entropy, linear_cross_entropy
from .distill import linear_distill_loss
from .divergence import jensen_shannon, kl_divergence, total_variation
from .layers import geglu, layer_norm, relu_squared, rms_norm, rope, softmax, swiglu
from .logprob import linear_logprob, logprob
from .policy import linear_policy_loss, policy_loss
from .preference import linear_preference_loss, preference_loss
from .unpaired import linear_unpaired_loss, unpaired_loss

__all__ = ["linear_logprob", "linear_cross_entropy", "linear_policy_loss", "policy_loss", "linear_preference_loss", "preference_loss",
           "linear_unpaired_loss", "unpaired_loss", "linear_distill_loss", "kl_divergence", "jensen_shannon", "total_variation",
           "cross_entropy", "logprob", "rms_norm", "layer_norm", "rope", "swiglu", "geglu", "relu_squared", "softmax"]


def _traceable(function):
    """Under torch.compile the function is an operator of the graph, or a break in it (compiled.py)."""
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if is_compiling is None:  # torch < 2.1, whose compiler is not served
        return function
    name, positional = function.__name__, compiled.FUNCTIONS[function.__name__][0]
    plain = torch.compiler.disable(function)

    @functools.wraps(function)
    def either(*args, **kwargs):
        if not is_compiling():
            return function(*args, **kwargs)
        given = {**dict(zip(positional, args)), **kwargs}
        client = given.pop("client")
        return compiled.run(name, client, given) if compiled.holds(name, given) else plain(*args, **kwargs)

    return either


for _name in __all__:
    globals()[_name] = _traceable(globals()[_name])
