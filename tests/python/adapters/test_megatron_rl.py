"""megatron/rl: the GRPO loss against its formula, and log-probabilities through a model with and without the hook."""

import warnings

import pytest
import torch

from lossd.adapters import megatron
from references import assert_close, head_case, logprob64
from standin import install


def formula(lp, old, ref, advantages, low, high, kl_beta, entropy_weight, inference=None, cap=None):
    ratio = (lp - old).exp()
    weight = torch.ones_like(old) if inference is None else (old - inference).exp()
    if cap is not None:
        weight = weight.clamp(max=cap)
    kl = (ref - lp).exp() - (ref - lp) - 1
    entropy = -lp.exp() * lp
    loss = -weight * torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages) + kl_beta * kl - entropy_weight * entropy
    return loss, kl, ratio, entropy, ratio > 1 + high, ratio < 1 - low


def logprobs(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lp, *others = [-torch.rand(shape, generator=generator) for _ in range(4)]
    return lp, *others


@pytest.mark.parametrize("correction", [None, 1.3, float("inf")])
def test_grpo_loss(client, correction):
    lp, old, ref, inference = logprobs((3, 7))
    advantages = torch.tensor([1.0, -0.5, 2.0])
    ours, theirs = lp.clone().requires_grad_(), lp.double().requires_grad_()
    more = {} if correction is None else {"inference_logprobs": inference,
                                          "is_truncation_coef": None if correction == float("inf") else correction}
    found = megatron.grpo_loss(ours, old, ref, advantages, 0.1, 0.2, 0.3, 0.05, client=client, **more)
    cap = None if correction in (None, float("inf")) else correction
    expected = formula(theirs, old.double(), ref.double(), advantages.double()[:, None], 0.1, 0.2, 0.3, 0.05,
                       None if correction is None else inference.double(), cap)
    for mine, reference in zip(found[:4], expected[:4]):
        assert_close(mine, reference)
    assert torch.equal(found[4], expected[4]) and torch.equal(found[5], expected[5])
    mask = torch.rand(3, 7) * (torch.rand(3, 7) < 0.7)  # the trainer's own weighting of the tokens
    (found[0] * mask).sum().backward()
    (expected[0] * mask).sum().backward()
    assert_close(ours.grad, theirs.grad)


def test_grpo_loss_of_a_packed_bin(client):
    lp, old, ref, _ = logprobs((1, 12))
    advantages, starts, lengths = torch.tensor([1.0, -2.0, 0.5]), [0, 4, 9], [4, 5, 3]
    owners = torch.tensor([0, 0, 0, -1, 1, 1, 1, 1, -1, 2, 2, -1])
    per_token = torch.where(owners < 0, torch.zeros(12), advantages[owners.clamp(min=0)])[None]
    found = megatron.grpo_loss(lp, old, ref, advantages, 0.1, 0.2, 0.0, 0.0, None, None, starts, lengths, client=client)
    expected = formula(lp.double(), old.double(), ref.double(), per_token.double(), 0.1, 0.2, 0.0, 0.0)
    assert_close(found[0], expected[0])


def test_the_first_ratio_of_half_precision_log_probabilities_is_one(client):
    lp = -torch.rand(2, 5).bfloat16().requires_grad_()
    loss, _, ratio, *_ = megatron.grpo_loss(lp, lp.detach(), lp.detach(), torch.ones(2), 0.2, 0.2, 0.1, 0.0, client=client)
    grad, = torch.autograd.grad(loss.sum(), lp)
    assert torch.equal(ratio, torch.ones(2, 5)) and grad.dtype == torch.bfloat16 and torch.equal(grad, -torch.ones(2, 5).bfloat16())


class Model(torch.nn.Module):
    """A last pipeline stage with the hook, as GPTModel has it."""

    def __init__(self, hidden, weight):
        super().__init__()
        self.hidden = hidden  # [s, b, H]
        self.output_layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.output_layer.weight.data.copy_(weight)
        self.pg_collection = type("Groups", (), {"cp": None})()

    def forward(self, tokens, position_ids, attention_mask, *, runtime_gather_output=None, output_processor=None,
                output_processor_context=None):
        if output_processor is not None:
            return output_processor(hidden_states=self.hidden, output_layer=self.output_layer, output_weight=None, labels=None,
                                    context=output_processor_context, config=None, scale_logits=lambda logits: logits)
        return self.output_layer(self.hidden).transpose(0, 1)


class Wrapper(torch.nn.Module):
    """As Float16Module and data parallelism are around it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, fp32_output=True, **named):
        return self.module(*inputs, **named)


def selective_log_softmax(logits, index):
    return torch.log_softmax(logits, -1).gather(-1, index[..., None])[..., 0]


def get_attr_wrapped_model(model, name):
    while not hasattr(model, name):
        model = model.module
    return getattr(model, name)


@pytest.fixture
def rl_utils(monkeypatch):
    modules = install(monkeypatch, {
        "megatron.rl.rl_utils": {"selective_log_softmax": selective_log_softmax, "calculate_grpo_loss": formula,
                                 "get_attr_wrapped_model": get_attr_wrapped_model},
        "megatron.core.parallel_state": {"model_parallel_is_initialized": lambda: False}})
    module = modules["megatron.rl.rl_utils"]

    def get_logprobs(model, tokens, position_ids, no_grad=False, sequence_packing=False, packed_seq_params=None):
        with torch.set_grad_enabled(not no_grad):
            logits = model(tokens, position_ids, None, runtime_gather_output=True, fp32_output=False)
        return module.selective_log_softmax(logits[:, :-1, :], tokens[:, 1:])

    def compute_logprobs_batch(model, tokens, *, dtype):
        found = module.get_logprobs(model, tokens, None, no_grad=True)
        assert found.dtype == dtype
        return found

    module.get_logprobs, module.compute_logprobs_batch = get_logprobs, compute_logprobs_batch
    return module


def test_get_logprobs_through_the_hook(client, rl_utils):
    hidden, weight, _, _ = head_case(rows=(6, 2))
    tokens = torch.randint(19, (2, 6))
    model = Wrapper(Wrapper(Model(hidden, weight)))
    native = rl_utils.get_logprobs
    with megatron.use_rl(client):
        found = rl_utils.get_logprobs(model, tokens, None)
        old = rl_utils.compute_logprobs_batch(model, tokens, dtype=torch.bfloat16)
        loss, *_ = rl_utils.calculate_grpo_loss(found, old, old, torch.ones(2), 0.2, 0.2, 0.0, 0.0)
    target = torch.cat([tokens[:, 1:], tokens[:, -1:]], 1)
    expected = logprob64(hidden, weight, target.transpose(0, 1)).transpose(0, 1)[:, :-1]
    assert_close(found, expected)
    assert found.dtype == torch.float32 and torch.equal(found, old) and torch.equal(loss, -torch.ones(2, 5))
    loss.sum().backward()
    reference = weight.double().requires_grad_()
    (-logprob64(hidden, reference, target.transpose(0, 1))[:-1]).sum().backward()
    assert_close(model.module.module.output_layer.weight.grad, reference.grad)
    assert rl_utils.get_logprobs is native and "forward" not in vars(model.module.module)
    assert rl_utils.selective_log_softmax is selective_log_softmax


def test_models_without_the_hook_stay_with_megatron(client, rl_utils):
    class Old(Model):
        def forward(self, tokens, position_ids, attention_mask, *, runtime_gather_output=None):
            return super().forward(tokens, position_ids, attention_mask)

    hidden, weight, _, _ = head_case(rows=(6, 2))
    tokens = torch.randint(19, (2, 6))
    model = Wrapper(Old(hidden, weight))
    native = rl_utils.get_logprobs(model, tokens, None)
    with megatron.use_rl(client), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(rl_utils.get_logprobs(model, tokens, None), native)
        assert torch.equal(rl_utils.compute_logprobs_batch(model, tokens, dtype=torch.float32), native)
    assert [str(w.message) for w in caught if "lossd" in str(w.message)] == [
        "lossd: get_logprobs stays with Megatron-LM: Old has no output_processor"]
