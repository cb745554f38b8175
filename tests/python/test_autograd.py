"""What a trainer does with a graph: finite differences, checkpoints, autocast, frozen parts, several micro-batches at once."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lossd
from references import assert_close, head_case
from test_modes import CASES, call

LAYERS = {
    "rms_norm": [(4, 10), (10,)], "layer_norm": [(4, 10), (10,), (10,)], "swiglu": [(4, 6), (4, 6)], "geglu": [(4, 6), (4, 6)],
    "relu_squared": [(4, 6)], "softmax": [(4, 6)],
}


def directional(function, tensors, grads, step):
    """Largest error of grads against central differences of the float32 function along one direction for each tensor, over its scale."""
    worst = 0.0
    for index, (tensor, grad) in enumerate(zip(tensors, grads)):
        direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(index))
        direction /= direction.norm()

        def at(h):
            moved = [other + h * direction if i == index else other for i, other in enumerate(tensors)]
            return function(*moved).double()

        difference = (at(step) - at(-step)) / (2 * step)
        exact = (grad.double() * direction.double()).sum()
        worst = max(worst, float((difference - exact).abs() / max(exact.abs(), grad.double().norm() / tensor.numel() ** 0.5)))
    return worst


@pytest.mark.parametrize("name", CASES)
def test_losses_by_finite_differences(client, name):
    inputs, options = CASES[name]
    leaves, loss = call(client, name)
    loss.backward()

    def value(*tensors):
        with torch.no_grad():
            return getattr(lossd, name)(client=client, **dict(zip(inputs, tensors)), **options)

    assert directional(value, list(inputs.values()), [leaf.grad for leaf in leaves], 1e-2) < 2e-2


@pytest.mark.parametrize("name", LAYERS)
def test_layers_by_finite_differences(client, name):
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape, generator=generator) for shape in LAYERS[name]]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    weights = torch.randn(LAYERS[name][0], generator=generator)

    def value(*tensors):
        return (getattr(lossd, name)(*tensors, client=client) * weights).sum()

    value(*leaves).backward()
    assert directional(value, tensors, [leaf.grad for leaf in leaves], 1e-2) < 2e-2


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_checkpointed_regions(client, name, reentrant):
    expected, loss = call(client, name)
    loss.backward()
    inputs, options = CASES[name]
    leaves = [value.clone().requires_grad_() for value in inputs.values()]

    def region(*tensors):
        return getattr(lossd, name)(client=client, **dict(zip(inputs, tensors)), **options) * 1.0

    again = checkpoint(region, *leaves, use_reentrant=reentrant)
    assert torch.equal(again.detach(), loss.detach())
    again.backward()
    for mine, theirs in zip(leaves, expected):
        assert_close(mine.grad, theirs.grad, 1e-6)


def test_a_checkpointed_block_of_layers(client):
    x, weight = torch.randn(6, 16), torch.randn(16)
    up = torch.randn(32, 16)

    def block(x, weight):
        y, stream = lossd.rms_norm(x, weight, client=client, residual=x.sin())
        return lossd.swiglu(y @ up.t(), client=client) + stream

    found = []
    for run in (block, lambda *leaves: checkpoint(block, *leaves, use_reentrant=False)):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        run(*leaves).square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    for mine, theirs in zip(*found):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("linear")] + ["linear_logprob"])
def test_autocast_casts_heads_as_torch_does(client, name):
    hidden, weight, _, target = head_case(rows=(4, 5))
    options = CASES[name][1] if name in CASES else {"target": target}
    found = []
    for autocast in (True, False):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        if autocast:
            with torch.autocast("cpu", torch.bfloat16):
                loss = getattr(lossd, name)(*leaves, client=client, **options)
        else:
            loss = getattr(lossd, name)(*[leaf.bfloat16() for leaf in leaves], client=client, **options)
        assert loss.dtype == torch.float32
        loss.sum().backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    for mine, theirs in zip(*found):
        assert torch.equal(mine, theirs)
    assert found[0][1].dtype == torch.float32


def test_autocast_leaves_a_main_grad_in_place(client):
    hidden, weight, _, target = head_case()
    weight = weight.requires_grad_()
    weight.main_grad = torch.zeros_like(weight)
    with torch.autocast("cpu", torch.bfloat16):
        lossd.linear_cross_entropy(hidden.requires_grad_(), weight, target, client=client).backward()
    assert weight.grad is None and weight.main_grad.any() and weight.grad_added_to_main_grad


def test_frozen_parts(client):
    """A frozen head passes the gradient on; a frozen body leaves it to the head; nothing is computed for what is frozen."""
    hidden, weight, _, target = head_case()
    for moving in (0, 1):
        body = torch.nn.Linear(8, 8)
        head = torch.nn.Parameter(weight.clone())
        body.requires_grad_(moving == 0)
        head.requires_grad_(moving == 1)
        lossd.linear_cross_entropy(body(hidden), head, target, client=client).backward()
        assert (body.weight.grad is not None) == (moving == 0) and (head.grad is not None) == (moving == 1)
    with torch.inference_mode():
        assert not lossd.linear_cross_entropy(hidden, weight, target, client=client).requires_grad


def test_micro_batches_in_flight(client):
    """1F1B: forwards of several micro-batches before the first backward, and backwards in another order."""
    weight = torch.randn(19, 8, requires_grad=True)
    batches = [(torch.randn(7, 8, requires_grad=True), torch.randint(19, (7,))) for _ in range(4)]
    for mode in ("recompute", "forward"):
        weight.grad = None
        losses = [lossd.linear_cross_entropy(hidden, weight, target, client=client, backward=mode) for hidden, target in batches]
        for index in (2, 0, 3, 1):
            losses[index].backward()
        mine = [weight.grad.clone(), *(hidden.grad.clone() for hidden, _ in batches)]
        weight.grad = None
        for hidden, target in batches:
            hidden.grad = None
            torch.nn.functional.cross_entropy(hidden @ weight.t(), target, reduction="sum").backward()
        for grad, expected in zip(mine, [weight.grad, *(hidden.grad for hidden, _ in batches)]):
            assert_close(grad, expected)
        for hidden, _ in batches:
            hidden.grad = None


def test_main_grad_over_micro_batches(client):
    """Megatron's contract: fp32 sums over micro-batches, the flag, a gradient of its shape for hooks; a hook that runs for it."""
    weight = torch.randn(19, 8).bfloat16().requires_grad_()
    weight.main_grad, weight.grad_added_to_main_grad = torch.zeros(19, 8), False
    seen = []
    weight.register_hook(lambda grad: seen.append(grad.shape))
    expected = torch.zeros(19, 8, dtype=torch.float64)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(7, 8, generator=generator).bfloat16().requires_grad_()
        target = torch.randint(19, (7,), generator=generator)
        lossd.linear_cross_entropy(hidden, weight, target, client=client, dummy_grad=True).backward()
        assert weight.grad_added_to_main_grad
        reference = weight.detach().double().requires_grad_()
        torch.nn.functional.cross_entropy(hidden.detach().double() @ reference.t(), target, reduction="sum").backward()
        expected += reference.grad
    assert seen == [(19, 8)] * 3
    assert_close(weight.main_grad, expected)


def test_a_second_derivative_is_refused(client):
    x = torch.randn(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(lossd.softmax(x, client=client).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()
