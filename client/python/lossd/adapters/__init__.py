"""Adapters: lossd behind the calling conventions of trainers. Nothing is imported or changed until one is asked for.

    from lossd.adapters import huggingface
    huggingface.apply_lossd_to_llama()                     # for models made before or after

huggingface    transformers: fused loss without logits; norms, rotary embeddings and MLPs where the client is embedded
trl            SFT, DPO, KTO and GRPO trainers
megatron       Megatron-LM: cross entropy, output processor, spec provider, megatron/rl
verl           fused linear log-probability and entropy
openrlhf       log-probability functions and the actor
nemo_rl        log-probability functions of vocabulary-parallel logits and of hidden states

Each takes `client`, a lossd.Client; without one it uses lossd.default_client(), which is embedded until lossd.set_default_client() says
otherwise. Each says in its docstring which versions it was tested with. A missing package is an ImportError that names it and says how to get it.
What switches something on returns a Switch, whose remove() puts back what was there.
"""

import importlib

__all__ = ["huggingface", "trl", "megatron", "verl", "openrlhf", "nemo_rl"]


def __getattr__(name):
    if name in __all__:
        return importlib.import_module("." + name, __name__)
    from ..errors import did_you_mean
    raise AttributeError(f"module 'lossd.adapters' has no attribute '{name}'{did_you_mean(name, __all__)}")


def __dir__():
    return sorted({*globals(), *__all__})
