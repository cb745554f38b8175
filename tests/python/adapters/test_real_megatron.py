"""The Megatron-LM adapter on a GPTModel of the installed megatron-core, on the CPU, one process and two tensor-parallel ranks."""

import contextlib
import importlib.util
import inspect
import typing

import pytest
import torch

from lossd.adapters import megatron
from ranks import run_ranks
from references import assert_close

if importlib.util.find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed", allow_module_level=True)


def start(size):
    """Megatron-LM's groups, and its CUDA calls made harmless."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda self, *_, **__: self
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)


def gpt(size, spec=None, **more):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    config = TransformerConfig(
        num_layers=1, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True, normalization="RMSNorm", gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, bias_activation_fusion=False, hidden_dropout=0.0,
        attention_dropout=0.0, gradient_accumulation_fusion=False, masked_softmax_fusion=False, tensor_model_parallel_size=size, **more)
    torch.manual_seed(0)
    return GPTModel(config, spec or get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=24, max_sequence_length=8,
                    position_embedding_type="rope", share_embeddings_and_output_weights=False)


def batch():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(24, (2, 8), generator=generator)
    mask = torch.tril(torch.ones(8, 8)).logical_not()[None, None]
    return tokens, torch.arange(8).expand(2, 8), mask, tokens.roll(-1, 1)


def step(model, **more):
    tokens, positions, mask, labels = batch()
    loss = model(tokens, positions, mask, labels=labels, **more)
    weights = torch.rand(loss.shape, generator=torch.Generator().manual_seed(2))
    (loss * weights).sum().backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_alike(ours, theirs, tolerance=2e-4):
    assert_close(ours[0], theirs[0], 2e-5)
    assert ours[1].keys() == theirs[1].keys()
    for name, grad in theirs[1].items():
        assert_close(ours[1][name], grad, tolerance)


def cross_entropy_rank(rank, client, size):
    start(size)
    theirs = step(gpt(size))
    with megatron.use_cross_entropy(client):
        assert_alike(step(gpt(size)), theirs)  # nothing has changed yet
        model = gpt(size, cross_entropy_loss_fusion=True)
        model.config.cross_entropy_fusion_impl = "lossd"
        assert_alike(step(model), theirs)
    assert_alike(step(gpt(size, cross_entropy_loss_fusion=True)), theirs, 5e-3)  # Megatron-LM's own again, which rounds to bf16
    return True


@pytest.mark.parametrize("size", [1, 2])
def test_cross_entropy(client, tmp_path, size):
    assert all(run_ranks(cross_entropy_rank, size, client, tmp_path, size))


def output_rank(rank, client, size):
    start(size)
    from megatron.core.models.gpt.gpt_model import GPTModel
    if "output_processor" not in inspect.signature(GPTModel.forward).parameters:
        return "this megatron-core has no output_processor"
    theirs = step(gpt(size))
    assert_alike(step(gpt(size), output_processor=megatron.OutputProcessor(client)), theirs)
    model = gpt(size)
    weight = model.output_layer.weight
    weight.main_grad, weight.grad_added_to_main_grad = torch.zeros(weight.shape), False
    ours = step(model, output_processor=megatron.OutputProcessor(client))
    ours[1]["output_layer.weight"] = weight.main_grad
    assert weight.grad_added_to_main_grad
    assert_alike(ours, theirs)
    return ""


@pytest.mark.parametrize("size", [1, 2])
def test_output_processor(client, tmp_path, size):
    reasons = run_ranks(output_rank, size, client, tmp_path, size)
    if reasons[0]:
        pytest.skip(reasons[0])


def provider_rank(rank, client, size):
    start(size)
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    theirs = step(gpt(size))
    with megatron.SpecProvider(client).in_specs():
        spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.mlp.submodules.activation_func = megatron.SpecProvider(client).activation_func()
    model = gpt(size, spec, use_te_activation_func=True)
    kinds = [type(module).__module__ for module in model.modules()]
    assert kinds.count("lossd.adapters.megatron.provider") == 3  # two norms of the layer and the activation
    assert_alike(step(model), theirs)
    with megatron.use_rotary(client):
        assert_alike(step(gpt(size, apply_rope_fusion=True)), theirs)
    return True


@pytest.mark.parametrize("size", [1, 2])
def test_provider_and_rotary(client, tmp_path, size):
    assert all(run_ranks(provider_rank, size, client, tmp_path, size))


def rl_rank(rank, client):
    if not hasattr(typing, "override"):  # Python before 3.12
        typing.override = lambda function: function
    try:
        from megatron.rl import rl_utils
    except ImportError as error:
        return f"megatron/rl cannot be imported: {error}"
    start(1)
    native = rl_utils.calculate_grpo_loss
    lp, old, ref, inference = (-torch.rand(3, 7) for _ in range(4))
    arguments = (old, ref, torch.tensor([1.0, -0.5, 2.0]), 0.1, 0.2, 0.3, 0.05, inference, 1.3)
    theirs, ours = (lp.clone().requires_grad_() for _ in range(2))
    expected = native(theirs, *arguments)
    packed = (lp[:1, :6].repeat(1, 2), old[:1, :6].repeat(1, 2), ref[:1, :6].repeat(1, 2), torch.tensor([1.0, -2.0]), 0.1, 0.2, 0.3, 0.05,
              None, None, [0, 5], [5, 7])
    packed_expected = native(*packed)
    tokens, positions, _, _ = batch()
    model = gpt(1)
    logits = model(tokens, positions, batch()[2]).detach()
    scored = rl_utils.selective_log_softmax(logits[:, :-1], tokens[:, 1:])
    with megatron.use_rl(client):
        found = rl_utils.calculate_grpo_loss(ours, *arguments)
        packed_found = rl_utils.calculate_grpo_loss(*packed)
        processor = rl_utils.get_logprobs._processor
        mine = model(tokens, positions, batch()[2], output_processor=processor,
                     output_processor_context={"target": tokens.roll(-1, 1), "want": "logprob"})
        assert rl_utils.get_logprobs.hooked(model) is model
    assert_close(mine[:, :-1], scored)
    for value, reference in zip([*found[:4], *packed_found[:4]], [*expected[:4], *packed_expected[:4]]):
        assert_close(value, reference)
    assert all(torch.equal(value, reference) for value, reference in zip(found[4:], expected[4:]))
    found[0].sum().backward()
    expected[0].sum().backward()
    assert_close(ours.grad, theirs.grad)
    assert rl_utils.calculate_grpo_loss is native
    return ""


def test_rl(client, tmp_path):
    reason, = run_ranks(rl_rank, 1, client, tmp_path)
    if reason:
        pytest.skip(reason)
