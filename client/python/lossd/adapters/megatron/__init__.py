"""Megatron-LM. Tested with megatron-core 0.16.1 and Megatron-LM of August 2026 (0.20), on the CPU with gloo.

    from lossd.adapters import megatron
    megatron.use_cross_entropy()                     # then cross_entropy_loss_fusion and cross_entropy_fusion_impl = "lossd" in the config
    loss = model(tokens, positions, mask, labels=labels, output_processor=megatron.OutputProcessor())   # or: no logits at all
    with megatron.SpecProvider().in_specs(): ...     # norms and activations of layer specs made in here
    megatron.use_rotary()                            # for apply_rope_fusion
    megatron.use_rl()                                # megatron/rl: get_logprobs and calculate_grpo_loss

vocab_parallel_cross_entropy  of vocabulary-parallel logits, in the place of the native, fused and Transformer Engine ones (cross_entropy.py)
OutputProcessor               loss or log-probabilities from hidden states and the output layer's weight (output.py)
SpecProvider                  RMSNorm, LayerNorm, SwiGLU, GeGLU, squared ReLU; falls through to another provider (provider.py)
use_rotary                    rotary embeddings (rotary.py)
use_rl, grpo_loss             megatron/rl (rl.py)

Not inside a CUDA graph, unless the client is embedded: a call to a server cannot be captured.
"""

from .cross_entropy import cross_entropy_target, use_cross_entropy, vocab_parallel_cross_entropy
from .output import OutputProcessor
from .package import TESTED
from .provider import SpecProvider, SquaredRelu
from .rl import grpo_loss, use_rl
from .rotary import apply_rotary, use_rotary

__all__ = ["OutputProcessor", "SpecProvider", "SquaredRelu", "TESTED", "apply_rotary", "cross_entropy_target", "grpo_loss",
           "use_cross_entropy", "use_rl", "use_rotary", "vocab_parallel_cross_entropy"]
