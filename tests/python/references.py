"""Cases, and what is compared: the same formulas by torch in float64."""

import torch


def head_case(rows=(3, 5), hidden_size=8, vocab=19, dtype=torch.float32, seed=0, bias=False):
    """hidden, weight, bias and target; their values are exact in `dtype`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    target = torch.randint(vocab, rows, generator=generator)
    return (normal(*rows, hidden_size), normal(vocab, hidden_size),
            normal(vocab) if bias else None, target)


def logits64(hidden, weight, bias=None):
    z = hidden.double() @ weight.double().t()
    return z if bias is None else z + bias.double()


def logprob64(hidden, weight, target, bias=None, temperature=1.0):
    logp = torch.log_softmax(logits64(hidden, weight, bias) / temperature, -1)
    return logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def entropy64(hidden, weight, bias=None, temperature=1.0):
    logp = torch.log_softmax(logits64(hidden, weight, bias) / temperature, -1)
    return -(logp.exp() * logp).sum(-1)


def leaves(*tensors):
    """Two sets of leaves with the same values: of the tensors' own type, and of float64."""
    ours = [None if t is None else t.clone().requires_grad_() for t in tensors]
    theirs = [None if t is None else t.double().requires_grad_() for t in tensors]
    return ours, theirs


def assert_close(ours, theirs, tolerance=2e-5):
    """Relative Frobenius error; the bound suits float32 results of short sums."""
    assert ours.shape == theirs.shape
    error = (ours.double() - theirs.double()).norm()
    scale = max(theirs.double().norm(), 1e-3)
    assert error <= tolerance * scale, f"relative error {error / scale:.2e}"


def assert_gradients(ours, theirs, tolerance=2e-5):
    for mine, reference in zip(ours, theirs):
        if mine is not None:
            assert mine.grad is not None
            assert mine.grad.dtype == mine.dtype
            assert_close(mine.grad, reference.grad, tolerance)


def cu_seqlens(sequences, length):
    """Of padded sequences [B, T]."""
    return torch.arange(sequences + 1, dtype=torch.int32) * length


def token_mask(lengths, length):
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def per_sequence(tokens, mask, average=False):
    """[B, T] summed over the tokens that count: [B]."""
    total = (tokens * mask).sum(-1)
    return total / mask.sum(-1).clamp(min=1) if average else total


def check_linear(loss_of, formula, hidden, weight, target, upstream=1.5, tolerance=2e-5):
    """loss_of(hidden, weight) against formula(logprob, entropy), both from the same leaves; values and gradients."""
    ours, theirs = leaves(hidden, weight)
    loss = loss_of(*ours)
    expected = formula(logprob64(*theirs, target), entropy64(*theirs))
    assert_close(loss, expected, tolerance)
    (loss * upstream).backward()
    (expected * upstream).backward()
    assert_gradients(ours, theirs, tolerance)


def check_plain(loss_of, formula, hidden, weight, target, upstream=1.5, tolerance=2e-5, entropy=False):
    """The same from log-probabilities: loss_of(logprob), or with `entropy` loss_of(logprob, entropy)."""
    values = [logprob64(hidden, weight, target).float(), entropy64(hidden, weight).float()]
    ours, theirs = leaves(*values)
    loss = loss_of(*ours) if entropy else loss_of(ours[0])
    expected = formula(*theirs)
    assert_close(loss, expected, tolerance)
    (loss * upstream).backward()
    (expected * upstream).backward()
    for mine, reference in zip(ours, theirs):
        assert (mine.grad is None) == (reference.grad is None)
        if mine.grad is not None:
            assert_close(mine.grad, reference.grad, tolerance)
