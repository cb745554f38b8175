"""The adapters of verl, OpenRLHF and NeMo-RL on modules that stand in for them, and on two ranks."""

import pytest
import torch

from lossd.adapters import nemo_rl, openrlhf, verl
from ranks import run_ranks
from references import assert_close, assert_gradients, entropy64, head_case, leaves, logprob64
from standin import install


# verl


@pytest.fixture
def verl_modules(monkeypatch):
    made = install(monkeypatch, {"verl.utils.experimental.torch_functional": {"FusedLinearForPPO": "native"},
                                 "verl.utils.kernel.linear_cross_entropy": {"linear_cross_entropy": "native"},
                                 "verl.models.mcore.model_forward_fused": {"linear_cross_entropy": "native"}})
    return [made[name] for name in ("verl.utils.experimental.torch_functional", "verl.utils.kernel.linear_cross_entropy",
                                    "verl.models.mcore.model_forward_fused")]


def check_pair(found, ours, theirs, target, temperature):
    expected = logprob64(*theirs, target, temperature=temperature), entropy64(*theirs, temperature=temperature)
    upstream = torch.randn(2, *target.shape)
    for mine, reference in zip(found, expected):
        assert_close(mine, reference.reshape(mine.shape))
    sum((mine * factor.reshape(mine.shape)).sum() for mine, factor in zip(found, upstream)).backward()
    sum((reference * factor).sum() for reference, factor in zip(expected, upstream)).backward()
    assert_gradients(ours, theirs)


def test_verl_s_two_backends(client, verl_modules):
    torch_backend, triton_backend, mcore = verl_modules
    hidden, weight, _, target = head_case()
    with verl.apply_lossd_to_verl(client, batch_invariant=True):
        ours, theirs = leaves(hidden, weight)
        check_pair(torch_backend.FusedLinearForPPO()(hidden_states=ours[0], vocab_weights=ours[1], input_ids=target, temperature=0.7),
                   ours, theirs, target, 0.7)
        assert triton_backend.linear_cross_entropy is mcore.linear_cross_entropy
        ours, theirs = leaves(hidden, weight)
        found = triton_backend.linear_cross_entropy(*ours, target, 0.7, "none", None)
        assert found[0].shape == (15,)
        check_pair(found, ours, theirs, target, 0.7)
    assert torch_backend.FusedLinearForPPO == triton_backend.linear_cross_entropy == mcore.linear_cross_entropy == "native"


def test_verl_with_a_temperature_for_each_token_and_more_statistics(client):
    hidden, weight, _, target = head_case()
    temperature = 0.5 + torch.rand(15)
    _, _, log_sum_p2 = verl.linear_cross_entropy(hidden, weight, target, temperature, client=client, want=("log_sum_p2",))
    logits = (hidden.double() @ weight.double().t()).reshape(15, -1) / temperature.double()[:, None]
    assert_close(log_sum_p2, torch.softmax(logits, -1).square().sum(-1).log())
    total, _ = verl.linear_cross_entropy(hidden, weight, target, 1.0, "sum", client=client)
    assert_close(total, logprob64(hidden, weight, target).sum())


def verl_rank(rank, client):
    hidden, weight, _, target = head_case(vocab=20)
    ours = [hidden.clone().requires_grad_(), weight.chunk(2)[rank].clone().requires_grad_()]
    logprob, entropy = verl.linear_cross_entropy(*ours, target, 0.7, "none", torch.distributed.group.WORLD, client=client)
    (logprob.sum() + 0.1 * entropy.sum()).backward()
    return logprob, entropy, ours[0].grad, ours[1].grad


def test_verl_over_two_ranks_gives_parts_of_the_gradient(client, tmp_path):
    results = run_ranks(verl_rank, 2, client, tmp_path)
    hidden, weight, _, target = head_case(vocab=20)
    theirs = [t.double().requires_grad_() for t in (hidden, weight)]
    expected = logprob64(*theirs, target, temperature=0.7), entropy64(*theirs, temperature=0.7)
    (expected[0].sum() + 0.1 * expected[1].sum()).backward()
    assert_close(torch.tensor(results[0][2] + results[1][2]), theirs[0].grad)
    for rank, (logprob, entropy, _, grad_weight) in enumerate(results):
        assert_close(torch.tensor(logprob), expected[0].reshape(-1))
        assert_close(torch.tensor(entropy), expected[1].reshape(-1))
        assert_close(torch.tensor(grad_weight), theirs[1].grad.chunk(2)[rank])


# OpenRLHF


def test_openrlhf_s_functions(client, monkeypatch):
    names = {"log_probs_from_logits": "native", "compute_entropy": "native"}
    made = install(monkeypatch, {"openrlhf.models.utils": dict(names), "openrlhf.models.actor": dict(names)})
    hidden, weight, _, target = head_case()
    logits = (hidden @ weight.t()).requires_grad_()
    before = logits.detach().clone()
    actor = made["openrlhf.models.actor"]
    with openrlhf.apply_lossd_to_openrlhf(client):
        entropy = actor.compute_entropy(logits)
        logprob = actor.log_probs_from_logits(logits, target, temperature=0.7)
    z = before.double().requires_grad_()
    logp = torch.log_softmax(z / 0.7, -1).gather(-1, target[..., None])[..., 0]
    plain = torch.log_softmax(z, -1)
    expected = -(plain.exp() * plain).sum(-1)
    assert_close(logprob, logp)
    assert_close(entropy, expected)
    assert torch.equal(logits, before)
    (logprob + 0.1 * entropy).sum().backward()
    (logp + 0.1 * expected).sum().backward()
    assert_close(logits.grad, z.grad)
    assert actor.compute_entropy == made["openrlhf.models.utils"].log_probs_from_logits == "native"


# NeMo-RL

FUNCTIONS = ("DistributedLogprob", "ChunkedDistributedLogprob", "ChunkedDistributedHiddenStatesToLogprobs", "ChunkedDistributedEntropy")


@pytest.fixture
def model_utils(monkeypatch):
    name = "nemo_rl.distributed.model_utils"
    return install(monkeypatch, {name: dict.fromkeys(FUNCTIONS, "native")})[name]


def test_nemo_rl_s_functions(client, model_utils):
    hidden, weight, _, target = head_case(rows=(6, 2))  # hidden [S, B, H]
    with nemo_rl.apply_lossd_to_nemo_rl(client):
        of_hidden, whole, chunked, entropy = (getattr(model_utils, name).apply for name in (FUNCTIONS[2], *FUNCTIONS[:2], FUNCTIONS[3]))
        ours, theirs = leaves(hidden, weight)
        found = of_hidden(ours[0], target.t().contiguous(), ours[1], 0, 19, 256, None, False)
        expected = logprob64(*theirs, target).t()
        assert_close(found, expected)
        upstream = torch.randn(2, 6)
        (found * upstream).sum().backward()
        (expected * upstream).sum().backward()
        assert_gradients(ours, theirs)
        logits, labels = (hidden @ weight.t()).transpose(0, 1), target.t()
        assert_close(whole(logits, labels, 0, 19, None, True), expected)
        assert_close(chunked(logits, labels, 0, 19, 3, None, True), expected)
        assert_close(entropy(logits, 3, None), -entropy64(hidden, weight).t())
        assert not whole(logits.requires_grad_(), labels, 0, 19, None, True).requires_grad
    assert all(getattr(model_utils, name) == "native" for name in FUNCTIONS)


def nemo_rank(rank, client):
    hidden, weight, _, target = head_case(rows=(6, 2), vocab=20)
    ours = [hidden.chunk(2)[rank].clone().requires_grad_(), weight.chunk(2)[rank].clone().requires_grad_()]
    found = nemo_rl.hidden_logprob(ours[0], target.t().contiguous(), ours[1], torch.distributed.group.WORLD, client=client)
    found.sum().backward()
    return found, ours[0].grad, ours[1].grad


def test_nemo_rl_over_two_ranks(client, tmp_path):
    results = run_ranks(nemo_rank, 2, client, tmp_path)
    hidden, weight, _, target = head_case(rows=(6, 2), vocab=20)
    theirs = [t.double().requires_grad_() for t in (hidden, weight)]
    expected = logprob64(*theirs, target)
    expected.sum().backward()
    for rank, (found, grad_hidden, grad_weight) in enumerate(results):
        assert_close(torch.tensor(found), expected.t())
        assert_close(torch.tensor(grad_hidden), theirs[0].grad.chunk(2)[rank])
        assert_close(torch.tensor(grad_weight), theirs[1].grad.chunk(2)[rank])
