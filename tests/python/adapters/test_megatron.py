"""The Megatron-LM adapter on modules that stand in for megatron.core; one process, and two that share the vocabulary."""

import types

import pytest
import torch

import lossd
from lossd.adapters import megatron
from ranks import run_ranks
from references import assert_close, head_case, logprob64
from standin import install


class Config:
    """What the adapter reads of a TransformerConfig."""

    def __init__(self, **values):
        self.__dict__.update(cross_entropy_loss_fusion=False, cross_entropy_fusion_impl="native", normalization="RMSNorm",
                             layernorm_zero_centered_gamma=False, sequence_parallel=False, params_dtype=torch.float32,
                             activation_func=torch.nn.functional.silu, gated_linear_unit=True, activation_func_clamp_value=None,
                             glu_linear_offset=0.0, defer_embedding_wgrad_compute=False)
        self.__dict__.update(values)


class LanguageModule:
    def __init__(self, config):
        self.config = config

    def compute_language_model_loss(self, labels, logits):
        return "native"


class Protocol:
    """BackendSpecProvider's slots."""

    def linear(self):
        return "linear"

    def column_parallel_linear(self):
        return "column"

    def layer_norm(self, rms_norm=False, for_qk=False, has_residual=False):
        return lambda config, hidden_size, eps: ("norm", config.normalization, hidden_size)

    def activation_func(self):
        return None


class LocalSpecProvider(Protocol):
    pass


class KitchenSpecProvider(Protocol):
    def __init__(self, fallback):
        self.fallback = fallback


@pytest.fixture
def core(monkeypatch):
    """megatron.core without a model-parallel group."""
    return install(monkeypatch, {
        "megatron.core.parallel_state": {"model_parallel_is_initialized": lambda: False},
        "megatron.core.models.common.language_module.language_module": {"LanguageModule": type("LanguageModule", (LanguageModule,), {
            "compute_language_model_loss": LanguageModule.compute_language_model_loss})},
        "megatron.core.models.backends": {"LocalSpecProvider": LocalSpecProvider},
        "megatron.core.models.gpt.gpt_layer_specs": {"LocalSpecProvider": LocalSpecProvider},
        "megatron.core.models.gpt.moe_module_specs": {"LocalSpecProvider": LocalSpecProvider},
        "megatron.core.models.common.embeddings.rope_utils": {"fused_apply_rotary_pos_emb": None}})


def language_module(core):
    return core["megatron.core.models.common.language_module.language_module"].LanguageModule


# Cross entropy of logits


def test_the_config_s_value_switches_it_on_and_no_other_does(client, core):
    logits = torch.randn(5, 2, 19, requires_grad=True)  # [s, b, V]
    labels = torch.randint(19, (2, 5))
    with megatron.use_cross_entropy(client):
        for config in (Config(), Config(cross_entropy_loss_fusion=True), Config(cross_entropy_fusion_impl="lossd")):
            assert language_module(core)(config).compute_language_model_loss(labels, logits) == "native"
        model = language_module(core)(Config(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="lossd"))
        loss = model.compute_language_model_loss(labels, logits)
    assert_close(loss, -torch.log_softmax(logits.double(), -1).transpose(0, 1).gather(-1, labels[..., None])[..., 0])
    upstream = torch.rand(2, 5)
    expected = torch.nn.functional.cross_entropy(logits.double().transpose(0, 1).reshape(10, 19), labels.reshape(-1), reduction="none")
    found, = torch.autograd.grad((loss * upstream).sum(), logits)
    reference, = torch.autograd.grad((expected.reshape(2, 5) * upstream).sum(), logits)
    assert_close(found, reference)
    assert model.compute_language_model_loss(labels, logits) == "native"


def test_calls_as_the_native_and_the_fused_function_are_called(client, core):
    logits, target = torch.randn(5, 2, 19), torch.randint(19, (5, 2))
    plain = megatron.vocab_parallel_cross_entropy(logits, target, client=client)
    assert torch.equal(plain, megatron.vocab_parallel_cross_entropy(logits, target, None, client=client))
    assert torch.equal(plain, megatron.vocab_parallel_cross_entropy(logits, target, 0.0, None, client=client))
    smooth = megatron.vocab_parallel_cross_entropy(logits, target, 0.1, client=client)
    logp = torch.log_softmax(logits.double(), -1)
    s = 0.1 * 19 / 18
    assert_close(smooth, (1 - s) * plain.double() - s * logp.mean(-1))


# The output processor


def output_layer(weight, **attributes):
    layer = torch.nn.Module()
    layer.weight = weight
    for name, value in {"sequence_parallel": False, "bias": None, **attributes}.items():
        setattr(layer, name, value)
    return layer


def test_output_processor_gives_the_loss_of_each_token(client, core):
    hidden, weight, _, target = head_case(rows=(5, 2))  # hidden [s, b, H]
    hidden.requires_grad_()
    weight = torch.nn.Parameter(weight)
    labels = target.transpose(0, 1).clone()
    labels[1, 2] = -100
    seen = []
    layer = output_layer(weight)
    layer.register_forward_pre_hook(lambda module, inputs: seen.append(module))  # of overlap_param_gather
    loss = megatron.OutputProcessor(client)(hidden_states=hidden, output_layer=layer, labels=labels, config=Config(), loss_mask=None,
                                            scale_logits=lambda logits: logits * 0.5)
    counted = labels != -100
    reference = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    expected = -logprob64(reference[0] * 0.5, reference[1], target).transpose(0, 1) * counted
    assert seen == [layer]
    assert_close(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    assert_close(hidden.grad, reference[0].grad)
    assert_close(weight.grad, reference[1].grad)


def test_output_processor_scores_what_its_context_says(client, core):
    hidden, weight, _, target = head_case(rows=(5, 2))
    shared = torch.nn.Parameter(weight)
    processor = megatron.OutputProcessor(client, temperature=0.7)
    logprob, entropy = processor(hidden_states=hidden, output_layer=output_layer(None), output_weight=shared, config=Config(),
                                 context={"target": target.transpose(0, 1), "want": ("logprob", "entropy")})
    assert_close(logprob, logprob64(hidden, weight, target, temperature=0.7).transpose(0, 1))
    assert entropy.shape == (2, 5)
    with pytest.raises(lossd.LossdError, match="labels"):
        processor(hidden_states=hidden, output_layer=output_layer(shared), config=Config())
    with pytest.raises(NotImplementedError, match="defer_embedding_wgrad_compute"):
        processor(hidden_states=hidden, output_layer=output_layer(shared), config=Config(defer_embedding_wgrad_compute=True))


def test_output_processor_adds_to_main_grad_twice(client, core):
    hidden, weight, _, target = head_case(rows=(5, 2))
    weight = torch.nn.Parameter(weight)
    weight.main_grad, weight.grad_added_to_main_grad = torch.zeros(weight.shape), False
    for _ in range(2):
        megatron.OutputProcessor(client)(hidden_states=hidden, output_layer=output_layer(weight), labels=target.transpose(0, 1),
                                         config=Config()).sum().backward()
    reference = weight.detach().double().requires_grad_()
    (2 * -logprob64(hidden, reference, target)).sum().backward()
    assert_close(weight.main_grad, reference.grad)
    assert weight.grad_added_to_main_grad and weight.grad is not None


def megatron_rank(rank, client, sequence_parallel):
    """One tensor-parallel rank: cross entropy of its logits, then the output processor with its rows of the weight and main_grad."""
    import sys
    group = torch.distributed.group.WORLD
    state = types.ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized, state.get_tensor_model_parallel_group = lambda: True, lambda: group
    for name in ("megatron", "megatron.core"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["megatron.core.parallel_state"] = state
    hidden, weight, _, target = head_case(rows=(6, 2), vocab=20)
    logits = (hidden @ weight.t()).chunk(2, -1)[rank].contiguous().requires_grad_()
    loss = megatron.vocab_parallel_cross_entropy(logits, target, client=client)
    loss.sum().backward()
    mine = (hidden.chunk(2)[rank] if sequence_parallel else hidden).clone().requires_grad_()
    shard = torch.nn.Parameter(weight.chunk(2)[rank].clone())
    shard.main_grad, shard.grad_added_to_main_grad = torch.zeros(shard.shape), False
    fused = megatron.OutputProcessor(client)(hidden_states=mine, output_layer=output_layer(shard, sequence_parallel=sequence_parallel),
                                             labels=target.transpose(0, 1), config=Config())
    fused.sum().backward()
    assert shard.grad_added_to_main_grad
    return loss, logits.grad, fused, mine.grad, shard.main_grad


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_size_2(client, tmp_path, sequence_parallel):
    results = run_ranks(megatron_rank, 2, client, tmp_path, sequence_parallel)
    hidden, weight, _, target = head_case(rows=(6, 2), vocab=20)
    reference = [t.double().requires_grad_() for t in (hidden, weight)]
    logits = (hidden @ weight.t()).double().requires_grad_()
    expected = -logprob64(*reference, target)
    expected.sum().backward()
    torch.nn.functional.cross_entropy(logits.reshape(12, 20), target.reshape(-1), reduction="sum").backward()
    for rank, result in enumerate(results):
        loss, grad_logits, fused, grad_hidden, grad_weight = map(torch.tensor, result)
        assert_close(loss, expected)
        assert_close(grad_logits, logits.grad.chunk(2, -1)[rank])
        assert_close(fused, expected.transpose(0, 1))
        assert_close(grad_hidden, reference[0].grad.chunk(2)[rank] if sequence_parallel else reference[0].grad)
        assert_close(grad_weight, reference[1].grad.chunk(2)[rank])


# Layers


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("normalization", ["RMSNorm", "LayerNorm"])
def test_provider_s_norms(client, core, normalization, zero_centered):
    config = Config(normalization=normalization, layernorm_zero_centered_gamma=zero_centered, sequence_parallel=True)
    norm = megatron.SpecProvider(client).layer_norm(rms_norm=normalization == "RMSNorm")(config=config, hidden_size=16, eps=1e-5)
    assert all(parameter.sequence_parallel for parameter in norm.parameters()) and norm.returns_residual is False
    with torch.no_grad():
        norm.weight += torch.randn(16)
    x = torch.randn(3, 2, 16)
    gamma = (norm.weight + zero_centered).double()
    if normalization == "RMSNorm":
        expected = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * gamma
    else:
        expected = torch.nn.functional.layer_norm(x.double(), (16,), gamma, norm.bias.double(), 1e-5)
    assert_close(norm(x), expected)
    for parameter in norm.parameters():  # data parallelism's hooks want to see a gradient, whatever buffer there is
        parameter.main_grad = torch.zeros(16)
    norm(x).square().sum().backward()
    reference = torch.autograd.grad(expected.square().sum(), list(norm.parameters()))
    for parameter, grad in zip(norm.parameters(), reference):
        assert_close(parameter.grad, grad)
        assert not parameter.main_grad.any()


def squared_relu(x):
    return torch.relu(x).square()


@pytest.mark.parametrize("function, gated, expected", [
    (torch.nn.functional.silu, True, lambda gate, up: torch.nn.functional.silu(gate) * up),
    (torch.nn.functional.gelu, True, lambda gate, up: torch.nn.functional.gelu(gate) * up),
    (squared_relu, False, lambda gate, up: squared_relu(torch.cat([gate, up], -1)))])
def test_provider_s_activations(client, core, function, gated, expected):
    activation = megatron.SpecProvider(client).activation_func()(config=Config(activation_func=function, gated_linear_unit=gated))
    x = torch.randn(4, 2, 12)
    assert_close(activation(x), expected(*x.double().chunk(2, -1)))


def test_squared_relu_as_a_function(client, core):
    x = torch.randn(4, 6)
    assert_close(megatron.SquaredRelu(client)(x), squared_relu(x.double()))


def test_provider_falls_through_where_it_has_nothing(client, core):
    provider = megatron.SpecProvider(client)
    assert provider.linear() == "linear" and provider.column_parallel_linear() == "column"
    build = provider.layer_norm()
    assert build(config=Config(normalization="L2Norm"), hidden_size=4, eps=1e-5) == ("norm", "L2Norm", 4)
    assert megatron.SpecProvider(client, norm=False).layer_norm()(Config(), 4, 1e-5)[0] == "norm"
    clamped = Config(activation_func_clamp_value=0.5, glu_linear_offset=1.0)
    gate, up = torch.randn(3, 5), torch.randn(3, 5)
    found = provider.activation_func()(config=clamped)(torch.cat([gate, up], -1))
    assert torch.equal(found, torch.nn.functional.silu(gate.clamp(max=0.5)) * (up.clamp(-0.5, 0.5) + 1))
    assert megatron.SpecProvider(client, activation=False).activation_func() is None
    with pytest.raises(AttributeError):
        provider.dsa_kernels


def test_providers_exclude_each_other(client, core):
    with pytest.raises(ValueError, match="Kitchen.*exclude"):
        megatron.SpecProvider(client, KitchenSpecProvider(LocalSpecProvider()))
    with pytest.raises(ValueError, match="SpecProvider.*exclude"):
        megatron.SpecProvider(client, megatron.SpecProvider(client))
    provider = megatron.SpecProvider(client)
    for build, more in ((provider.layer_norm(), {"hidden_size": 4, "eps": 1e-5}), (provider.activation_func(), {})):
        with pytest.raises(ValueError, match="use_kitchen"):
            build(config=Config(use_kitchen=True), **more)


def test_specs_take_the_provider_only_inside(client, core):
    specs = core["megatron.core.models.gpt.gpt_layer_specs"]
    provider = megatron.SpecProvider(client)
    with provider.in_specs():
        assert specs.LocalSpecProvider() is provider
    assert type(specs.LocalSpecProvider()) is LocalSpecProvider


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_rotary(client, core, interleaved, rows):
    rope_utils = core["megatron.core.models.common.embeddings.rope_utils"]
    t = torch.randn(5, 2, 3, 8, requires_grad=True)
    half = torch.rand(5, rows, 1, 3)
    freqs = torch.stack([half, half], -1).flatten(-2) if interleaved else torch.cat([half, half], -1)  # 6 of 8 elements turn
    with megatron.use_rotary(client):
        found = rope_utils.fused_apply_rotary_pos_emb(t, freqs, interleaved=interleaved)
    turned, rest = t.double()[..., :6], t.double()[..., 6:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    c, s = half.double().cos(), half.double().sin()
    first, second = a * c - b * s, b * c + a * s
    turned = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    expected = torch.cat([turned, rest], -1)
    assert_close(found, expected)
    upstream = torch.randn(t.shape)
    assert_close(torch.autograd.grad(found, t, upstream)[0], torch.autograd.grad(expected, t, upstream.double())[0])
    assert rope_utils.fused_apply_rotary_pos_emb is None
