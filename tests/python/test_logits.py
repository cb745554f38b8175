"""cross_entropy and logprob on logits, against torch.nn.functional, TRL's and verl's formulas; torch in float64."""

import pytest
import torch
import torch.nn.functional as F

import lossd
from references import assert_close, leaves

ROWS, V = (3, 5), 19


def case(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(*ROWS, V, generator=generator)).to(dtype)
    target = torch.randint(V, ROWS, generator=generator)
    target[0, 1] = target[2, 0] = -100
    return logits, target


def torch_loss(logits, target, class_weight=None, **options):
    return F.cross_entropy(logits.reshape(-1, V), target.reshape(-1), weight=None if class_weight is None else class_weight.double(),
                           **options)


def trl_selective_log_softmax(logits, index):
    return torch.log_softmax(logits, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def verl_entropy_from_logits(logits):
    p = torch.softmax(logits, -1)
    return torch.logsumexp(logits, -1) - (p * logits).sum(-1)


@pytest.mark.parametrize("backward", ["recompute", "forward", None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("donate", [False, True])
def test_torch_cross_entropy_mean(client, backward, smoothing, weighted, donate):
    logits, target = case()
    class_weight = torch.rand(V) + 0.5 if weighted else None
    (ours,), (theirs,) = leaves(logits)
    loss = lossd.cross_entropy(ours, target, client=client, backward=backward, reduction="mean",
                               denominator_from="weight_sum" if weighted else "count", class_weight=class_weight,
                               label_smoothing=smoothing, donate=donate)
    expected = torch_loss(theirs, target, class_weight, label_smoothing=smoothing)
    assert loss.shape == () and loss.dtype == torch.float32
    assert_close(loss, expected)
    (loss * -2.5).backward()
    (expected * -2.5).backward()
    assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("backward", ["recompute", None])
def test_rows_with_any_upstream_gradient(client, backward):
    logits, target = case(1)
    (ours,), (theirs,) = leaves(logits)
    upstream = torch.randn(target.shape)
    loss = lossd.cross_entropy(ours, target, client=client, reduction="none", backward=backward)
    expected = torch_loss(theirs, target, reduction="none").reshape(target.shape)
    assert_close(loss, expected)
    loss.backward(upstream, retain_graph=True)
    loss.backward(upstream)
    expected.backward(2 * upstream)
    assert_close(ours.grad, theirs.grad)


def test_fused_takes_the_upstream_gradient_in_the_call(client):
    logits, target = case(2)
    (ours,), (theirs,) = leaves(logits)
    loss, reply = lossd.cross_entropy(ours, target, client=client, backward="fused", d_loss=0.25, want=("argmax", "entropy"),
                                      head_metrics=True)
    torch_loss(theirs, target, reduction="sum").backward(torch.tensor(0.25).double())
    loss.backward()
    assert_close(ours.grad, theirs.grad)
    counted = target != -100
    assert torch.equal(reply["argmax"].long()[counted], logits.argmax(-1)[counted])
    assert_close(reply["entropy"], verl_entropy_from_logits(logits.double()) * counted)
    assert reply.count == counted.sum() and reply.metrics["entropy"].count == counted.sum()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trl_and_verl_logprob_with_entropy(client, temperature):
    logits, target = case(3)
    target = target.clamp(min=0)
    (ours,), (theirs,) = leaves(logits)
    upstream = torch.randn(2, *ROWS, generator=torch.Generator().manual_seed(1))
    logprob, entropy = lossd.logprob(ours, target, client=client, want=("logprob", "entropy"), temperature=temperature)
    expected = trl_selective_log_softmax(theirs / temperature, target), verl_entropy_from_logits(theirs / temperature)
    assert_close(logprob, expected[0])
    assert_close(entropy, expected[1])
    (logprob * upstream[0] + entropy * upstream[1]).sum().backward()
    (expected[0] * upstream[0] + expected[1] * upstream[1]).sum().backward()
    assert_close(ours.grad, theirs.grad)


def test_gradients_of_the_other_statistics(client):
    logits, _ = case(4)
    ids = torch.tensor([[0, 3], [3, 3], [-1, 18]]).repeat(5, 1).reshape(3, 5, 2)
    (ours,), (theirs,) = leaves(logits)
    lse, mean_logit, ids_logprob, best = lossd.logprob(ours, client=client, ids=ids, top_k=2,
                                                       want=("lse", "mean_logit", "ids_logprob", "topk_ids"))
    at_ids = torch.log_softmax(theirs, -1).gather(-1, ids.clamp(min=0)) * (ids >= 0)
    assert_close(ids_logprob, at_ids)
    assert torch.equal(best.long(), logits.topk(2).indices)
    (lse.square().sum() + mean_logit.sum() + ids_logprob.square().sum()).backward()
    (theirs.logsumexp(-1).square().sum() + theirs.mean(-1).sum() + at_ids.square().sum()).backward()
    assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 5e-3), (torch.float16, 1e-3)])
def test_half_types(client, dtype, tolerance):
    logits, target = case(5, dtype)
    (ours,), (theirs,) = leaves(logits)
    loss = lossd.cross_entropy(ours, target, client=client, softcap=3.0, z_loss=1e-2)
    z = 3 * torch.tanh(theirs / 3)
    counted = target != -100
    expected = torch_loss(z, target, reduction="sum") + 1e-2 * (z.logsumexp(-1).square() * counted).sum()
    assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert ours.grad.dtype == dtype
    assert_close(ours.grad, theirs.grad, tolerance)


def shared(client, logits):
    """The same logits where the server reads and writes them in place."""
    ours = client.share(logits)
    return ours.requires_grad_()


@pytest.mark.parametrize("backward", ["recompute", "forward"])
def test_donated_logits_become_the_gradient(client, backward):
    logits, target = case(6)
    ours = shared(client, logits)
    _, (theirs,) = leaves(logits)
    loss = lossd.cross_entropy(ours, target, client=client, backward=backward, donate=True)
    assert torch.equal(ours.detach(), logits) == (backward == "recompute")
    loss.backward()
    torch_loss(theirs, target, reduction="sum").backward()
    assert ours.grad.data_ptr() == ours.data_ptr()
    assert_close(ours.grad, theirs.grad)


def test_without_donation_logits_are_never_written(client):
    logits, target = case(7)
    ours = shared(client, logits)
    lossd.cross_entropy(ours, target, client=client).backward()
    lossd.logprob(ours, target, client=client).sum().backward()
    assert torch.equal(ours.detach(), logits)
    with pytest.raises(lossd.LossdError) as error:
        lossd.ops.cross_entropy(client, logits=ours.detach(), target=target, out={"grad_logits": ours.detach()})
    assert (error.value.code, error.value.field) == ("INVALID_ARGUMENT", "grad_logits")
    with pytest.raises(lossd.LossdError) as error:
        lossd.ops.cross_entropy(client, logits=ours.detach(), target=target, want="loss", donate="target")
    assert (error.value.code, error.value.field) == ("UNIMPLEMENTED", "donate")
    assert torch.equal(ours.detach(), logits)


def test_logprob_donates_in_its_backward(client):
    logits, target = case(8)
    ours = shared(client, logits)
    _, (theirs,) = leaves(logits)
    logprob, entropy = lossd.logprob(ours, target, client=client, want=("logprob", "entropy"), donate=True)
    assert torch.equal(ours.detach(), logits)
    (logprob.sum() + entropy.sum()).backward(retain_graph=True)
    counted = target != -100
    ((trl_selective_log_softmax(theirs, target.clamp(min=0)) + verl_entropy_from_logits(theirs)) * counted).sum().backward()
    assert ours.grad.data_ptr() == ours.data_ptr()
    assert_close(ours.grad, theirs.grad)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprob.sum().backward()


def test_who_saved_donated_logits_hears_that_they_are_gone(client):
    logits, target = case(9)
    x = logits.clone().requires_grad_()
    capped = torch.tanh(x)  # saves its result
    loss = lossd.cross_entropy(capped, target, client=client, donate=True, backward="forward")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_rows_that_do_not_count(client):
    logits, target = case(10)
    mask = torch.ones(ROWS, dtype=torch.bool)
    mask[1] = False
    logits[1] = float("nan")
    ours = logits.clone().requires_grad_()
    loss = lossd.cross_entropy(ours, target, client=client, mask=mask)
    loss.backward()
    kept = mask & (target != -100)
    assert torch.isfinite(loss) and torch.isfinite(ours.grad).all()
    assert torch.equal(ours.grad.abs().sum(-1) != 0, kept)


def test_views_of_a_padded_tensor(client):
    """logits[:, :-1] against targets shifted by one, as causal language models have them; columns behind the vocabulary."""
    logits, target = case(11)
    full = torch.cat([logits, torch.full((*ROWS, 5), 50.0)], -1)
    ours = shared(client, full)
    _, (theirs,) = leaves(logits)
    loss = lossd.cross_entropy(ours[:, :-1], target[:, 1:], client=client, valid_vocab=V)
    expected = F.cross_entropy(theirs[:, :-1].reshape(-1, V), target[:, 1:].reshape(-1), reduction="sum")
    assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert_close(ours.grad[..., :V], theirs.grad)
    assert not ours.grad[..., V:].any()
