"""Norms, rotary embedding and gated layers."""

import torch

from .. import functional
from ..defaults import DEFAULT

_CASTINGS = {"llama": "llama", "gemma": "gemma", "none": "input"}


def _rms_norm(x, weight, eps, offset, casting_mode, residual=None):
    if casting_mode not in _CASTINGS:
        raise ValueError(f"casting_mode must be one of {', '.join(_CASTINGS)}, is {casting_mode!r}")
    options = {"weight_offset": offset} if weight is not None else {}
    return functional.rms_norm(x, weight, client=DEFAULT, residual=residual, eps=eps, casting=_CASTINGS[casting_mode], **options)


class LigerRMSNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + eps) * (offset + weight). The gradient of the weight adds up in float32 whatever the casting mode."""

    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=True, row_mode=None,
                 elementwise_affine=True):
        super().__init__()
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", torch.nn.Parameter(_initial(init_fn, hidden_size)) if elementwise_affine else None)
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode
        self.in_place, self.row_mode = in_place, row_mode

    def forward(self, hidden_states):
        return _rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode)

    def extra_repr(self):
        shape = None if self.weight is None else tuple(self.weight.shape)
        return f"weight_shape={shape}, eps={self.variance_epsilon}, offset={self.offset}, casting_mode={self.casting_mode}"


def _initial(init_fn, size):
    if init_fn not in ("ones", "zeros"):
        raise ValueError(f"init_fn must be ones or zeros, is {init_fn!r}")
    return torch.ones(size) if init_fn == "ones" else torch.zeros(size)


class LigerRMSNormForGemma(LigerRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", in_place=True, row_mode=None):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma2(LigerRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", in_place=False, row_mode=None):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma3(LigerRMSNorm):
    def __init__(self, dim, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", in_place=False):
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForQwen3Next(LigerRMSNormForGemma2):
    pass


class LigerRMSNormForOlmo2(LigerRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=False, row_mode=None):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGlm4(LigerRMSNormForOlmo2):
    pass


class LigerFusedAddRMSNorm(torch.nn.Module):
    """forward(hidden_states, residual): (norm of their sum, their sum)."""

    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=False):
        super().__init__()
        self.weight = torch.nn.Parameter(_initial(init_fn, hidden_size))
        self.variance_epsilon, self.offset, self.casting_mode, self.in_place = eps, offset, casting_mode, in_place

    def forward(self, hidden_states, residual):
        return _rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode, residual)


class LigerLayerNorm(torch.nn.Module):
    """torch.nn.LayerNorm whose bias is always there; bias=True starts it from a normal distribution, as Liger does."""

    def __init__(self, hidden_size, eps=1e-6, bias=False, init_fn="ones", impl=None, mode=None, backend=None):
        super().__init__()
        self.hidden_size, self.eps, self.variance_epsilon = hidden_size, eps, eps
        self.weight = torch.nn.Parameter(_initial(init_fn, hidden_size))
        self.bias = torch.nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))

    def forward(self, hidden_states):
        return functional.layer_norm(hidden_states, self.weight, self.bias, client=DEFAULT, eps=self.variance_epsilon)

    def extra_repr(self):
        return f"{self.hidden_size}, eps={self.eps}"


class LigerSoftmax(torch.nn.Module):
    """Softmax over the last dimension."""

    def forward(self, x):
        return functional.softmax(x, client=DEFAULT)


class LigerReLUSquared(torch.nn.Module):
    def forward(self, x):
        return functional.relu_squared(x, client=DEFAULT)


class _GatedMLP(torch.nn.Module):
    def __init__(self, config, intermediate_size=None):
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.intermediate_size = config.intermediate_size if intermediate_size is None else intermediate_size
        self.gate_proj = torch.nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.up_proj = torch.nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.down_proj = torch.nn.Linear(self.intermediate_size, self.hidden_size, bias=False)


class LigerSwiGLUMLP(_GatedMLP):
    """down_proj(silu(gate_proj(x)) * up_proj(x)); silu is rounded to the type of x before the product, as eager torch does."""

    def __init__(self, config, intermediate_size=None):
        super().__init__(config, intermediate_size)
        _check_silu(config)

    def forward(self, x):
        return self.down_proj(liger_swiglu(self.gate_proj(x), self.up_proj(x)))


class LigerQwen3MoeSwiGLUMLP(LigerSwiGLUMLP):
    pass


class LigerGEGLUMLP(_GatedMLP):
    """down_proj(gelu(gate_proj(x)) * up_proj(x)) with the tanh approximation of gelu."""

    def __init__(self, config):
        super().__init__(config)

    def forward(self, x):
        return self.down_proj(liger_geglu(self.gate_proj(x), self.up_proj(x)))


class LigerPhi3SwiGLUMLP(torch.nn.Module):
    """down_proj(silu(gate) * up), gate and up the halves of gate_up_proj(x), which are not copied."""

    def __init__(self, config):
        super().__init__()
        self.config, self.hidden_size, self.intermediate_size = config, config.hidden_size, config.intermediate_size
        self.gate_up_proj = torch.nn.Linear(self.hidden_size, 2 * self.intermediate_size, bias=False)
        self.down_proj = torch.nn.Linear(self.intermediate_size, self.hidden_size, bias=False)
        _check_silu(config)

    def forward(self, x):
        return self.down_proj(functional.swiglu(self.gate_up_proj(x), client=DEFAULT, round_activation=True))


class LigerBlockSparseTop2MLP(torch.nn.Module):
    """Mixtral's expert: w2(silu(w1(x)) * w3(x))."""

    def __init__(self, config):
        super().__init__()
        self.ffn_dim, self.hidden_dim = config.intermediate_size, config.hidden_size
        self.w1 = torch.nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        self.w2 = torch.nn.Linear(self.ffn_dim, self.hidden_dim, bias=False)
        self.w3 = torch.nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        _check_silu(config)

    def forward(self, x):
        return self.w2(liger_swiglu(self.w1(x), self.w3(x)))


def _check_silu(config):
    if config.hidden_act not in ("silu", "swish"):
        raise ValueError(f"Activation function {config.hidden_act} not supported.")


def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    return _rms_norm(X, W, eps, offset, casting_mode)


def liger_fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """(norm of X + R, X + R)."""
    return _rms_norm(X, W, eps, offset, casting_mode, R)


def liger_layer_norm(X, W, B, eps):
    return functional.layer_norm(X, W, B, client=DEFAULT, eps=eps)


def liger_softmax(x):
    return functional.softmax(x, client=DEFAULT)


def liger_relu_squared(x):
    return functional.relu_squared(x, client=DEFAULT)


def liger_swiglu(a, b):
    return functional.swiglu(a, b, client=DEFAULT, round_activation=True)


def liger_geglu(a, b):
    return functional.geglu(a, b, client=DEFAULT, round_activation=True)


def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """Hugging Face's apply_rotary_pos_emb: turns q [B, Hq, S, D] and k [B, Hk, S, D] by cos and sin [1 or B, S, R].

    position_ids is not read, as in Liger: cos and sin are those of the tokens. rotary_dim: entries of a head that are turned; None: R, the
    width of cos. Where R is rotary_dim / 2 the tables are not doubled (GPT-OSS). unsqueeze_dim=2 takes q and k as [B, S, H, D].
    Angles are used in float32, products are rounded once. No gradient flows to cos and sin.
    """
    if unsqueeze_dim not in (1, 2):
        raise NotImplementedError(f"unsqueeze_dim must be 1 or 2, is {unsqueeze_dim}")
    rotary = cos.shape[-1] if rotary_dim is None else rotary_dim
    tokens_first = unsqueeze_dim == 2
    cosine, sine = _half(cos, rotary), _half(sin, rotary)
    turned = []
    for x in (q, k):
        x = x if tokens_first else x.transpose(1, 2)
        position = None if cos.dim() == 3 and cos.shape[0] == x.shape[0] else _positions(cos, x.shape[0], x.shape[1])
        y = functional.rope(x, cosine, sine, position, client=DEFAULT, rotary_dim=rotary)
        turned.append(y if tokens_first else y.transpose(1, 2))
    return tuple(turned)


def _half(table, rotary):
    """The angles of a table as float32 [rows, rotary / 2]; kept beside it, since every layer of a model brings the same table."""
    known = getattr(table, "_lossd_half", None)
    if known is None or known[0] != (table._version, rotary, table.data_ptr()):
        half = table.detach().reshape(-1, table.shape[-1])[:, :rotary // 2].float().contiguous()
        known = table._lossd_half = ((table._version, rotary, table.data_ptr()), half)
    return known[1]


def _positions(table, batch, length):
    known = getattr(table, "_lossd_positions", None)
    if known is None or known.shape != (batch, length):
        known = table._lossd_positions = torch.arange(length, dtype=torch.int32, device=table.device).repeat(batch, 1)
    return known
