"""Log-probabilities over a group, against the whole vocabulary in float64."""

import pytest
import torch

import lossd
from lossd.adapters import shards
from ranks import run_ranks
from references import assert_close, assert_gradients, entropy64, head_case, leaves, logits64, logprob64

WANT = ("logprob", "entropy", "lse", "mean_logit", "log_sum_p2", "max_prob")


def expected64(hidden, weight, target, bias=None, temperature=1.0):
    z = logits64(hidden, weight, bias) / temperature
    p = torch.softmax(z, -1)
    return {"logprob": logprob64(hidden, weight, target, bias, temperature), "entropy": entropy64(hidden, weight, bias, temperature),
            "lse": z.logsumexp(-1), "mean_logit": z.mean(-1), "log_sum_p2": p.square().sum(-1).log(), "max_prob": p.amax(-1)}


def upstream_of(target):
    return torch.randn(4, *target.shape, generator=torch.Generator().manual_seed(3))


def weighted(found, upstream):
    return sum((found[name] * factor).sum() for name, factor in zip(WANT[:4], upstream))


def part(tensor, rank, size, dim=0):
    return tensor.chunk(size, dim)[rank].contiguous()


def linear_rank(rank, client, size, sequence_parallel, bias, dtype):
    hidden, weight, bias, target = head_case(rows=(4, 3), vocab=24, bias=bias, dtype=dtype)
    mine = part(hidden, rank, size) if sequence_parallel else hidden.clone()
    tensors = [mine.requires_grad_(), part(weight, rank, size).requires_grad_(),
               None if bias is None else part(bias, rank, size).requires_grad_()]
    found = dict(zip(WANT, shards.linear_logprob(tensors[0], tensors[1], target, bias=tensors[2], client=client, want=WANT,
                                                 group=torch.distributed.group.WORLD, sequence_parallel=sequence_parallel, temperature=0.7)))
    weighted(found, upstream_of(target)).backward()
    assert all(t is None or t.grad.dtype == t.dtype for t in tensors)
    return [found[name] for name in WANT], [None if t is None else t.grad for t in tensors]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_head_over_two_ranks(client, tmp_path, sequence_parallel, bias):
    size = 2
    results = run_ranks(linear_rank, size, client, tmp_path, size, sequence_parallel, bias, torch.float32)
    hidden, weight, bias, target = head_case(rows=(4, 3), vocab=24, bias=bias)
    theirs = [None if t is None else t.double().requires_grad_() for t in (hidden, weight, bias)]
    expected = expected64(theirs[0], theirs[1], target, theirs[2], temperature=0.7)
    weighted(expected, upstream_of(target)).backward()
    for rank, (found, grads) in enumerate(results):
        for name, value in zip(WANT, found):
            assert_close(torch.tensor(value), expected[name])
        whole = theirs[0].grad
        assert_close(torch.tensor(grads[0]), part(whole, rank, size) if sequence_parallel else whole)
        assert_close(torch.tensor(grads[1]), part(theirs[1].grad, rank, size))
        if bias is not None:
            assert_close(torch.tensor(grads[2]), part(theirs[2].grad, rank, size))


def test_partial_gradients_are_rounded_once(client, tmp_path):
    results = run_ranks(linear_rank, 2, client, tmp_path, 2, False, False, torch.bfloat16)
    hidden, weight, _, target = head_case(rows=(4, 3), vocab=24, dtype=torch.bfloat16)
    theirs = [t.double().requires_grad_() for t in (hidden, weight)]
    weighted(expected64(*theirs, target, temperature=0.7), upstream_of(target)).backward()
    assert_close(torch.tensor(results[0][1][0]), theirs[0].grad, tolerance=2.5e-3)


def logits_rank(rank, client, size):
    hidden, weight, _, target = head_case(rows=(4, 3), vocab=24)
    target[0, 1] = -100
    logits = part(hidden @ weight.t(), rank, size, dim=-1).requires_grad_()
    loss = shards.cross_entropy(logits, target, client=client, group=torch.distributed.group.WORLD, label_smoothing=0.1)
    (loss * upstream_of(target)[0]).sum().backward()
    return loss, logits.grad


def test_cross_entropy_of_logits_over_two_ranks(client, tmp_path):
    size = 2
    results = run_ranks(logits_rank, size, client, tmp_path, size)
    hidden, weight, _, target = head_case(rows=(4, 3), vocab=24)
    target[0, 1] = -100
    logits = (hidden @ weight.t()).double().requires_grad_()
    logp = torch.log_softmax(logits, -1)
    smoothing = 0.1 * 24 / 23
    nll = -logp.gather(-1, target.clamp(min=0)[..., None])[..., 0]
    expected = ((1 - smoothing) * nll - smoothing * logp.mean(-1)) * (target != -100)
    (expected * upstream_of(target)[0]).sum().backward()
    for rank, (loss, grad) in enumerate(results):
        assert_close(torch.tensor(loss), expected)
        assert_close(torch.tensor(grad), part(logits.grad, rank, size, dim=-1))
        assert loss[0, 1] == 0 and not grad[0, 1].any()


@pytest.mark.parametrize("bias", [False, True])
def test_one_rank_is_the_plain_operation(client, bias):
    hidden, weight, bias, target = head_case(bias=bias)
    ours, theirs = leaves(hidden, weight, bias)
    found = dict(zip(WANT, shards.linear_logprob(ours[0], ours[1], target, bias=ours[2], client=client, want=WANT)))
    weighted(found, upstream_of(target)).backward()
    expected = expected64(theirs[0], theirs[1], target, theirs[2])
    weighted(expected, upstream_of(target)).backward()
    for name in WANT:
        assert_close(found[name], expected[name])
    assert_gradients(ours, theirs)
    assert torch.equal(found["logprob"], lossd.linear_logprob(hidden, weight, target, bias=bias, client=client))


def test_main_grad_is_added_to_and_hooks_see_a_gradient(client):
    hidden, weight, _, target = head_case()
    weight.requires_grad_()
    weight.main_grad = torch.ones(weight.shape)
    weight.grad_added_to_main_grad = False
    weight.zero_out_wgrad = True
    shards.linear_logprob(hidden, weight, target, client=client).sum().backward()
    reference = weight.detach().double().requires_grad_()
    logprob64(hidden, reference, target).sum().backward()
    assert_close(weight.main_grad - 1, reference.grad)
    assert weight.grad_added_to_main_grad and torch.equal(weight.grad, torch.zeros(weight.shape))


def test_merging_keeps_rows_that_one_shard_dominates():
    """A shard far below the other adds nothing; one without columns does not make NaN."""
    stats = torch.zeros(3, 1, 9)
    stats[0, 0] = torch.tensor([200., 1, 0, 1, -3, 4, -1, 1, 0])
    stats[1, 0] = torch.tensor([-200., 2, 0, 2, 0, 4, 0, 0, 4])
    stats[2, 0, 0], stats[2, 0, 8] = -float("inf"), -1
    merged = shards.merge(stats)
    assert all(torch.isfinite(value).all() for value in merged.values())
    assert merged["logprob"].item() == -1 and merged["lse"].item() == 200
    assert abs(merged["mean_logit"].item() - (200 + (-3 + 4 * -400) / 8)) < 1e-4
