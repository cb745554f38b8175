"""Modules and functions with the names and signatures that Liger-Kernel's users have, computed by lossd: swap the import.

    from lossd.drop_in import LigerFusedLinearCrossEntropyLoss, LigerRMSNorm       # was: from liger_kernel.transformers import ...

Signatures are those of Liger-Kernel 0.8. They compute at lossd.default_client() (embedded, on the tensors' device), or at a client that
lossd.set_default_client() was given. What differs for all:

- Losses are float32 scalars (Liger's cross entropy of logits: the type of the logits), from float32 accumulators; inputs are never written, so
  in_place has no meaning.
- A batch without a valid target has loss 0 and gradient 0, not NaN.
- compiled, chunk_size, accum_dtype, row_mode, impl, mode and backend are taken and have no meaning: nothing is compiled at run time, the
  workspace decides about chunks, weight gradients add up in float32.
- Gradients are computed in the forward and scaled in the backward, as in Liger; a weight with a main_grad gets its gradient there.
- What lossd does not compute raises NotImplementedError, or LossdError with the option's name; nothing is ignored in silence.

Further differences are in the docstrings of the classes. Patching of models is in lossd.adapters.
"""

from .layers import (LigerBlockSparseTop2MLP, LigerFusedAddRMSNorm, LigerGEGLUMLP, LigerLayerNorm, LigerPhi3SwiGLUMLP,
                     LigerQwen3MoeSwiGLUMLP, LigerReLUSquared, LigerRMSNorm, LigerRMSNormForGemma, LigerRMSNormForGemma2,
                     LigerRMSNormForGemma3, LigerRMSNormForGlm4, LigerRMSNormForOlmo2, LigerRMSNormForQwen3Next, LigerSoftmax,
                     LigerSwiGLUMLP, liger_fused_add_rms_norm, liger_geglu, liger_layer_norm, liger_relu_squared, liger_rms_norm,
                     liger_rotary_pos_emb, liger_softmax, liger_swiglu)
from .losses import (CrossEntropyOutput, LigerCrossEntropyLoss, LigerFusedLinearCosineSimilarityLoss, LigerFusedLinearCrossEntropyLoss,
                     LigerFusedLinearJSD, LigerFusedLinearJSDLoss, LigerJSD, LigerKLDIVLoss, LigerTVDLoss, liger_cross_entropy,
                     liger_fused_linear_cross_entropy, liger_fused_linear_jsd, liger_jsd, liger_kl_div, liger_tvd)
from .policy import LigerFusedLinearGRPOLoss
from .preference import (LigerFusedLinearCPOLoss, LigerFusedLinearDPOLoss, LigerFusedLinearKTOLoss, LigerFusedLinearORPOLoss,
                         LigerFusedLinearSimPOLoss)

liger_rope = liger_rotary_pos_emb

__all__ = [name for name in dir() if name.startswith(("Liger", "liger"))] + ["CrossEntropyOutput"]
