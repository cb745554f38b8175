"""Rotary embeddings with Megatron-LM's fused signature."""

import torch

from ... import functional
from ..session import client_or_default
from ..switch import Switch
from .package import core


def apply_rotary(t, freqs, *, interleaved=False, client):
    """t [s, b, heads, d] with its first freqs.shape[-1] elements of each head rotated by the angles freqs [s, 1, 1, r] or [s, b, 1, r]."""
    half = freqs.shape[-1] // 2
    angles = freqs[..., 0::2] if interleaved else freqs[..., :half]
    angles = angles.reshape(freqs.shape[0], -1, half)  # [s, 1 or b, r / 2]
    s, b = t.shape[:2]
    rows = angles.shape[1]
    position = torch.arange(s, device=t.device)[:, None] * rows + torch.arange(b, device=t.device) % rows
    angles = angles.reshape(-1, half).float()
    return functional.rope(t, angles.cos().contiguous(), angles.sin().contiguous(), position, client=client,
                           layout="interleaved" if interleaved else "half_split", rotary_dim=freqs.shape[-1])


def use_rotary(client=None):
    """Puts lossd behind apply_rope_fusion for tensors [s, b, heads, d]; packed ones (thd) stay with what is there. Returns a Switch."""
    rope_utils = core("models.common.embeddings.rope_utils", "use_rotary")
    client = client_or_default(client)

    def fused_apply_rotary_pos_emb(t, freqs, transpose_output_memory=False, interleaved=False, **_):
        return apply_rotary(t, freqs, interleaved=interleaved, client=client)

    return Switch().replace(rope_utils, "fused_apply_rotary_pos_emb", fused_apply_rotary_pos_emb)
