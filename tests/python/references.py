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
