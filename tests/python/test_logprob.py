import pytest
import torch

import lossd
from references import (assert_close, assert_gradients, entropy64, head_case, leaves, logits64,
                        logprob64)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprob_and_entropy_with_gradients(client, bias, temperature):
    hidden, weight, bias, target = head_case(bias=bias)
    ours, theirs = leaves(hidden, weight, bias)
    upstream = torch.randn(2, *target.shape, generator=torch.Generator().manual_seed(1))
    logprob, entropy = lossd.linear_logprob(
        ours[0], ours[1], target, bias=ours[2], client=client, want=("logprob", "entropy"),
        temperature=temperature)
    expected = (logprob64(theirs[0], theirs[1], target, theirs[2], temperature),
                entropy64(theirs[0], theirs[1], theirs[2], temperature))
    assert_close(logprob, expected[0])
    assert_close(entropy, expected[1])
    (logprob * upstream[0] + entropy * upstream[1]).sum().backward()
    (expected[0] * upstream[0] + expected[1] * upstream[1]).sum().backward()
    assert_gradients(ours, theirs)


def test_gradients_of_the_other_statistics(client):
    hidden, weight, _, target = head_case()
    ids = torch.tensor([[0, 3], [3, 3], [-1, 18]]).repeat(5, 1).reshape(3, 5, 2)
    ours, theirs = leaves(hidden, weight)
    lse, mean_logit, ids_logprob = lossd.linear_logprob(
        *ours, client=client, ids=ids, want=("lse", "mean_logit", "ids_logprob"))
    z = logits64(*theirs)
    at_ids = torch.log_softmax(z, -1).gather(-1, ids.clamp(min=0)) * (ids >= 0)
    assert_close(ids_logprob, at_ids)
    (lse.square().sum() + mean_logit.sum() + ids_logprob.square().sum()).backward()
    (z.logsumexp(-1).square().sum() + z.mean(-1).sum() + at_ids.square().sum()).backward()
    assert_gradients(ours, theirs)


def test_a_name_gives_a_tensor_and_a_sequence_a_tuple(client):
    hidden, weight, _, target = head_case(rows=(4,))
    assert lossd.linear_logprob(hidden, weight, target, client=client).shape == (4,)
    several = lossd.linear_logprob(hidden, weight, target, client=client,
                                   want=["argmax", "topk_ids", "logprob"], top_k=3)
    assert [tuple(t.shape) for t in several] == [(4,), (4, 3), (4,)]
    assert torch.equal(several[1], logits64(hidden, weight).topk(3).indices.int())


def test_only_what_needs_a_gradient_gets_one(client):
    hidden, weight, _, target = head_case()
    ours, theirs = leaves(hidden, weight)
    logprob = lossd.linear_logprob(hidden, ours[1], target, client=client)
    logprob.sum().backward()
    logprob64(hidden, theirs[1], target).sum().backward()
    assert ours[0].grad is None
    assert_close(ours[1].grad, theirs[1].grad)
    best = lossd.linear_logprob(ours[0], ours[1], target, client=client, want="argmax")
    assert not best.requires_grad
    with torch.no_grad():
        assert not lossd.linear_logprob(*ours, target, client=client).requires_grad


def test_backward_twice_and_under_checkpointing(client):
    hidden, weight, _, target = head_case()
    ours, theirs = leaves(hidden, weight)
    loss = lossd.linear_logprob(*ours, target, client=client).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    from torch.utils.checkpoint import checkpoint
    checkpoint(lambda h: lossd.linear_logprob(h, ours[1], target, client=client).sum(), ours[0],
               use_reentrant=False).backward()
    (3 * logprob64(*theirs, target).sum()).backward()
    assert_gradients(ours, theirs)


def test_ignored_and_masked_rows_are_zero(client):
    hidden, weight, _, target = head_case()
    target[0, 0] = -100
    mask = torch.ones_like(target, dtype=torch.bool)
    mask[1] = False
    hidden[1] = float("nan")
    ours, _ = leaves(hidden, weight)
    logprob = lossd.linear_logprob(*ours, target, client=client, mask=mask)
    logprob.sum().backward()
    kept = mask & (target != -100)
    assert torch.equal(logprob != 0, kept)
    assert torch.equal(ours[0].grad.abs().sum(-1) != 0, kept)
    assert torch.isfinite(ours[1].grad).all()


def test_main_grad_accumulates_and_grad_stays_none(client):
    hidden, weight, _, target = head_case(dtype=torch.bfloat16)
    ours, theirs = leaves(hidden, weight)
    ours[1].main_grad = torch.full(weight.shape, 2.0)
    for _ in range(2):
        lossd.linear_logprob(*ours, target, client=client).sum().backward()
    (2 * logprob64(*theirs, target).sum()).backward()
    assert ours[1].grad is None and ours[1].grad_added_to_main_grad is True
    assert_close(ours[1].main_grad, theirs[1].grad + 2, 5e-3)  # dz is rounded to bf16 once
    assert_close(ours[0].grad, theirs[0].grad, 1e-2)


def test_dummy_grad(client):
    hidden, weight, _, target = head_case()
    ours, _ = leaves(hidden, weight)
    ours[1].main_grad = torch.zeros(weight.shape)
    lossd.linear_logprob(*ours, target, client=client, dummy_grad=True).sum().backward()
    assert ours[1].grad.shape == weight.shape
