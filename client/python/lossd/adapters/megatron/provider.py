"""Layers for Megatron-LM's layer specs: a BackendSpecProvider that falls through to another one where lossd has nothing."""

import torch

from ... import functional
from ..session import client_or_default
from ..switch import Switch
from .cross_entropy import cross_entropy_target
from .package import core

_OTHERS = ("use_kitchen", "use_liger")  # switches of other providers


class Norm(torch.nn.Module):
    """RMSNorm or LayerNorm as config.normalization says, in float32 with one rounding; weight zero-centred if the config says so."""

    returns_residual = False

    def __init__(self, config, hidden_size, eps, client):
        super().__init__()
        self.client = client
        self.eps = eps
        self.weight_offset = 1.0 if getattr(config, "layernorm_zero_centered_gamma", False) else 0.0
        dtype = getattr(config, "params_dtype", torch.float32)
        fill = torch.zeros if self.weight_offset else torch.ones
        self.weight = torch.nn.Parameter(fill(hidden_size, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype)) if config.normalization == "LayerNorm" else None
        for parameter in self.parameters():  # its gradient is summed over the tensor-parallel group then
            parameter.sequence_parallel = getattr(config, "sequence_parallel", False)

    def forward(self, x):
        # A view has no main_grad: its gradient goes the way of any parameter's, past data parallelism's hooks, which want to see it.
        weight = self.weight.view_as(self.weight)
        if self.bias is None:
            return functional.rms_norm(x, weight, client=self.client, eps=self.eps, casting="gemma", weight_offset=self.weight_offset)
        weight = weight + self.weight_offset if self.weight_offset else weight
        return functional.layer_norm(x, weight, self.bias.view_as(self.bias), client=self.client, eps=self.eps)


class Activation(torch.nn.Module):
    """The activation of an MLP, gate and up in one tensor where the config is gated."""

    def __init__(self, function, client, options=()):
        super().__init__()
        self.function, self.client, self.options = function, client, dict(options)

    def forward(self, x):
        return self.function(x, client=self.client, **self.options)


class SquaredRelu:
    """max(x, 0)^2, for config.activation_func in the place of megatron.core.activations.squared_relu."""

    def __init__(self, client=None):
        self.client = client_or_default(client)

    def __call__(self, x):
        return functional.relu_squared(x, client=self.client)


def activation_for(config, client):
    """Activation of a config's MLP, or None where lossd has none."""
    function = config.activation_func
    if getattr(config, "activation_func_clamp_value", None) is not None or getattr(config, "glu_linear_offset", 0.0):
        return None
    if config.gated_linear_unit and function is torch.nn.functional.silu:
        return Activation(functional.swiglu, client)
    if config.gated_linear_unit and function is torch.nn.functional.gelu:
        return Activation(functional.geglu, client, {"approximation": "erf"})
    if not config.gated_linear_unit and getattr(function, "__name__", "") == "squared_relu":
        return Activation(functional.relu_squared, client)
    return None


class SpecProvider:
    """A provider of layer specs: norms and activations of lossd, everything else of `fallback`.

    Args:
      client: a lossd.Client; None is lossd.default_client(). Layers pay off where it is embedded.
      fallback: the provider that is asked for the rest; None is LocalSpecProvider(). With one of Transformer Engine the norms that it fuses
        into its linear layers stay there.
      norm, activation, cross_entropy: what lossd provides.
    Raises ValueError where the fallback is a wrapper of another provider (Kitchen, Liger), or lossd's: two of them exclude each other;
    ImportError without megatron-core.
    """

    def __init__(self, client=None, fallback=None, *, norm=True, activation=True, cross_entropy=True):
        backends = core("models.backends", "SpecProvider")
        self._fallback = backends.LocalSpecProvider() if fallback is None else fallback
        name = type(self._fallback).__name__
        if isinstance(self._fallback, SpecProvider) or hasattr(self._fallback, "fallback") or "Liger" in name:
            raise ValueError(f"fallback: must be a provider of Megatron-LM's own, is {name}: providers that wrap another exclude each other")
        self._client = client_or_default(client)
        self._norm, self._activation, self._cross_entropy = norm, activation, cross_entropy

    def __getattr__(self, name):  # slots that lossd does not fill, those of later versions among them
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fallback, name)

    def layer_norm(self, rms_norm=False, for_qk=False, has_residual=False):
        """A builder of Norm; where the config wants another norm, or one that returns the residual, the fallback's."""
        def native():
            try:
                return self._fallback.layer_norm(rms_norm=rms_norm, for_qk=for_qk, has_residual=has_residual)
            except TypeError:  # earlier versions have no has_residual
                return self._fallback.layer_norm(rms_norm=rms_norm, for_qk=for_qk)

        if not self._norm:
            return native()
        client = self._client

        def build(config, hidden_size, eps=1e-5, **more):
            self.check(config)
            fused_residual = has_residual and getattr(config, "fused_residual_rmsnorm", False)
            if config.normalization not in ("RMSNorm", "LayerNorm") or fused_residual:
                return native()(config=config, hidden_size=hidden_size, eps=eps, **more)
            return Norm(config, hidden_size, eps, client)

        return build

    def activation_func(self):
        """A builder for MLPs with use_te_activation_func; where lossd has no such activation, the fallback's."""
        native = self._fallback.activation_func()
        if not self._activation:
            return native

        def build(config, **more):
            self.check(config)
            found = activation_for(config, self._client)
            if found is not None:
                return found
            if native is None:
                return Activation(_eager_activation, None, {"config": config})
            return native(config=config, **more)

        return build

    def vocab_parallel_cross_entropy(self):
        if self._cross_entropy:
            return cross_entropy_target(self._client)
        return self._fallback.vocab_parallel_cross_entropy()

    def check(self, config):
        """Raises ValueError where the config switches another provider on."""
        for name in _OTHERS:
            if getattr(config, name, False):
                raise ValueError(f"{name}: must be off beside lossd's SpecProvider, is on: providers exclude each other")

    def in_specs(self):
        """A Switch under which layer specs that are made take this provider in the place of its fallback's class."""
        switch = Switch()
        name = type(self._fallback).__name__
        for module in ("models.gpt.gpt_layer_specs", "models.gpt.moe_module_specs"):
            owner = core(module, "SpecProvider.in_specs")
            if getattr(owner, name, None) is not None:
                switch.replace(owner, name, lambda *_, **__: self)
            if getattr(owner, "get_backend", None) is not None:
                switch.replace(owner, "get_backend", lambda *_, **__: self)
        return switch


def _eager_activation(x, client, config):
    """What Megatron-LM's MLP does without an activation module."""
    if not config.gated_linear_unit:
        return config.activation_func(x)
    gate, up = torch.chunk(x, 2, dim=-1)
    clamp = getattr(config, "activation_func_clamp_value", None)
    if clamp is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(min=-clamp, max=clamp)
    return config.activation_func(gate) * (up + getattr(config, "glu_linear_offset", 0.0))
