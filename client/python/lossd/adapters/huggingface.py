"""Hugging Face transformers: a causal language model's loss without logits; norms, rotary embeddings and MLPs where they pay off.

    from lossd.adapters.huggingface import apply_lossd_to_llama
    apply_lossd_to_llama()                        # models of the class, made before or after; for good, or until .remove()

Tested with transformers 5.24 and accelerate 1.15. While a model trains and is given labels, its output has a loss and no logits (None); in eval
mode, without labels, with a head that is not a plain Linear (LoRA, quantised), under tensor parallelism or with float64, it is what it was. The loss is computed in
lm_head's own forward, where FSDP and ZeRO-3 have gathered its weight, and the gradients with it.
"""

import functools

import torch

from .. import functional
from .require import require, seam
from .session import client_or_default
from .switch import Switch

PACKAGE = "transformers"
TESTED = "transformers 5.24"
_TYPES = (torch.float32, torch.bfloat16, torch.float16)

# Model types by the name of their module: prefix of their classes.
_MODELS = {"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "gemma2": "Gemma2", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_GATED = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu": "geglu_erf"}


def apply_lossd(model_type, *, client=None, fused_loss=True, norm=None, rotary=None, mlp=None):
    """Switches lossd on for a model type of transformers: "llama", "mistral", "mixtral", "gemma2", "qwen2" or "qwen3". Returns a Switch.

    Args:
      client: a lossd.Client; None is lossd.default_client().
      fused_loss: the loss from hidden states, without logits.
      norm, rotary, mlp: these layers; None: where the client is embedded (a call to a server costs more than they do).
    Raises ImportError without transformers, ValueError for another type.
    """
    prefix = _MODELS.get(model_type)
    if prefix is None:
        raise ValueError(f"model_type: must be among {', '.join(_MODELS)}, is {model_type}")
    modeling = require(f"transformers.models.{model_type}.modeling_{model_type}", PACKAGE, TESTED, "lossd.adapters.huggingface")
    client = client_or_default(client)
    embedded = client.is_embedded
    switch = Switch()
    if fused_loss:
        model = seam(modeling, prefix + "ForCausalLM", PACKAGE, TESTED)
        switch.replace(model, "forward", _forward_without_logits(model.forward, client))
    if embedded if norm is None else norm:
        owner = seam(modeling, prefix + "RMSNorm", PACKAGE, TESTED)
        switch.replace(owner, "forward", _norm(owner.forward, client, gemma=prefix.startswith("Gemma")))
    if embedded if rotary is None else rotary:
        switch.replace(modeling, "apply_rotary_pos_emb",
                       _rotary(seam(modeling, "apply_rotary_pos_emb", PACKAGE, TESTED), client))
    if (embedded if mlp is None else mlp) and hasattr(modeling, prefix + "MLP"):  # Mixtral's experts stay as they are
        owner = getattr(modeling, prefix + "MLP")
        switch.replace(owner, "forward", _mlp(owner.forward, client))
    return switch


def apply_lossd_to_llama(**options):
    """apply_lossd("llama", ...)."""
    return apply_lossd("llama", **options)


def apply_lossd_to_mistral(**options):
    """apply_lossd("mistral", ...)."""
    return apply_lossd("mistral", **options)


def apply_lossd_to_mixtral(**options):
    """apply_lossd("mixtral", ...)."""
    return apply_lossd("mixtral", **options)


def apply_lossd_to_gemma2(**options):
    """apply_lossd("gemma2", ...)."""
    return apply_lossd("gemma2", **options)


def apply_lossd_to_qwen2(**options):
    """apply_lossd("qwen2", ...)."""
    return apply_lossd("qwen2", **options)


def apply_lossd_to_qwen3(**options):
    """apply_lossd("qwen3", ...)."""
    return apply_lossd("qwen3", **options)


def causal_lm_loss(hidden, weight, labels, *, client, bias=None, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **options):
    """transformers' ForCausalLMLoss from hidden states [..., S, H] and a head [V, H]: a scalar, the mean over labels that are not
    ignored (0, not NaN, where there are none), or the sum over num_items_in_batch. Labels [..., S] are shifted here.
    options: `softcap`, `logit_scale`, ... of lossd.ops.linear_cross_entropy."""
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.to(hidden.device).reshape(hidden.shape[:-1]).contiguous()
    mean = {"reduction": "mean", "denominator_from": "count"} if num_items_in_batch is None else {"reduction": "sum"}
    loss = functional.linear_cross_entropy(hidden, weight, target, client=client, bias=bias, ignore_index=ignore_index, **mean, **options)
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch


def _is_plain(head):
    """Whether a head computes hidden weight^T + bias and nothing else; FSDP makes a class of its own that inherits the forward."""
    return (isinstance(head, torch.nn.Linear) and type(head).forward is torch.nn.Linear.forward and "forward" not in vars(head)
            and head.weight.dtype in _TYPES)


def _forward_without_logits(native, client):
    @functools.wraps(native)
    def forward(self, *arguments, labels=None, **named):
        split = getattr(self, "tp_size", None) not in (None, 1)
        if labels is None or not self.training or split or not _is_plain(self.lm_head):
            return native(self, *arguments, labels=labels, **named)
        head, config = self.lm_head, self.config
        softcap = getattr(config, "final_logit_softcapping", None)
        terms = {name: named[name] for name in ("num_items_in_batch", "ignore_index", "shift_labels") if named.get(name) is not None}

        def loss_of(hidden):  # where the logits were made
            return causal_lm_loss(hidden, head.weight, labels, client=client, bias=head.bias, softcap=softcap, **terms)

        def passed_on(logits=None, *_, **__):
            return logits

        with Switch().replace(head, "forward", loss_of) as switch:
            switch.replace(self, "_loss_function", passed_on)
            if softcap is not None:
                switch.replace(config, "final_logit_softcapping", None)
            out = native(self, *arguments, labels=labels, **named)
        if isinstance(out, tuple):  # return_dict=False: the loss, then what would have been logits
            return out[:1] + out[2:]
        out.logits = None
        return out

    return forward


def _norm(native, client, gemma):
    @functools.wraps(native)
    def forward(self, hidden_states):
        if hidden_states.dtype not in _TYPES:
            return native(self, hidden_states)
        eps = self.eps if gemma else self.variance_epsilon
        options = {"weight_offset": 1.0, "casting": "gemma"} if gemma else {"casting": "llama"}
        return functional.rms_norm(hidden_states, self.weight, client=client, eps=eps, **options)

    return forward


def _rotary(native, client):
    @functools.wraps(native)
    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1, **more):
        if q.dtype not in _TYPES or unsqueeze_dim != 1 or more:
            return native(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim, **more)
        batch, length, half = q.shape[0], q.shape[2], cos.shape[-1] // 2

        def table(values):  # the second half repeats the first
            return values[..., :half].float().expand(batch, length, half).reshape(-1, half).contiguous()

        angles = table(cos), table(sin)

        def rotated(x):  # [batch, heads, length, head size]
            return functional.rope(x.transpose(1, 2), *angles, client=client, rotary_dim=2 * half).transpose(1, 2)

        return rotated(q), rotated(k)

    return apply_rotary_pos_emb


def _mlp(native, client):
    @functools.wraps(native)
    def forward(self, x):
        name = getattr(self.config, "hidden_activation", None) or getattr(self.config, "hidden_act", None)
        activation = _GATED.get(name)
        if activation is None or x.dtype not in _TYPES:
            return native(self, x)
        gate, up = self.gate_proj(x), self.up_proj(x)
        if activation == "swiglu":
            return self.down_proj(functional.swiglu(gate, up, client=client))
        approximation = "erf" if activation == "geglu_erf" else "tanh"
        return self.down_proj(functional.geglu(gate, up, client=client, approximation=approximation))

    return forward
