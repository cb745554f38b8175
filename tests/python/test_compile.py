"""torch.compile: every function is one operator of a whole graph, with the values and gradients of the plain call."""

import pytest
import torch

import lossd
import lossd.nn
from lossd.functional import compiled
from references import head_case
from test_modes import BY_ROW, CASES, gradients

if not compiled.AVAILABLE:
    pytest.skip(f"lossd's operator needs torch 2.4 or later (torch.library.register_autograd), this is {torch.__version__}: "
                "under torch.compile the functions break the graph", allow_module_level=True)
import torch._dynamo.testing  # noqa: E402

LAYERS = {
    "rms_norm": {"x": (4, 10), "weight": (10,)}, "layer_norm": {"x": (4, 10), "weight": (10,), "bias": (10,)},
    "rope": {"x": (4, 2, 8)}, "swiglu": {"gate": (4, 6), "up": (4, 6)}, "geglu": {"gate": (4, 6)}, "relu_squared": {"x": (4, 6)},
    "softmax": {"x": (4, 6)},
}
TABLES = {"rope": {"cos": torch.rand(4, 4), "sin": torch.rand(4, 4), "position": torch.arange(4).flip(0)}}
STATISTICS = ("linear_logprob", "logprob")


@pytest.fixture(scope="module")
def embedded():
    with lossd.connect("embedded") as embedded:
        yield embedded


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def whole(function):
    """Compiled without a break; autograd is traced ahead of time, kernels are torch's own."""
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def inputs_of(name):
    if name in CASES:
        return CASES[name][0], CASES[name][1]
    if name in STATISTICS:
        hidden, weight, _, target = head_case(rows=(4, 5))
        return ({"hidden": hidden, "weight": weight} if name == "linear_logprob" else {"logits": hidden @ weight.t()}), {"target": target}
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(shape, generator=generator) for key, shape in LAYERS[name].items()}, TABLES.get(name, {})


def both(client, name, **more):
    """Results and gradients of the plain and of the compiled call."""
    inputs, options = inputs_of(name)
    function = getattr(lossd, name)

    def step(*tensors):
        made = function(client=client, **dict(zip(inputs, tensors)), **options, **more)
        return made if isinstance(made, torch.Tensor) else made[0] + made[1]

    found = []
    for run in (step, whole(step)):
        leaves = [value.clone().requires_grad_() for value in inputs.values()]
        made = run(*leaves)
        (made * torch.linspace(1, 2, made.numel()).reshape(made.shape)).sum().backward()
        found.append([made.detach(), *gradients(leaves)])
    return found


@pytest.mark.parametrize("name", [*CASES, *STATISTICS, *LAYERS])
def test_values_and_gradients(embedded, name):
    plain, traced = both(embedded, name)
    for mine, theirs in zip(traced, plain):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


@pytest.mark.parametrize("name", BY_ROW)
def test_losses_of_rows(embedded, name):
    for mine, theirs in zip(*both(embedded, name, reduction="none")):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["linear_cross_entropy", "policy_loss"])
def test_recompute(embedded, name):
    for mine, theirs in zip(*both(embedded, name, backward="recompute")):
        assert torch.equal(mine, theirs)


def test_several_statistics_and_their_gradients(embedded):
    for mine, theirs in zip(*both(embedded, "linear_logprob", want=("logprob", "entropy"))):
        assert torch.equal(mine, theirs)


def test_a_residual(embedded):
    x, residual, weight = torch.randn(6, 16), torch.randn(6, 16), torch.randn(16)

    def block(x, residual, weight):
        y, stream = lossd.rms_norm(x, weight, client=embedded, residual=residual, eps=1e-5)
        return (y.sin() + stream).sum()

    found = []
    for run in (block, whole(block)):
        leaves = [value.clone().requires_grad_() for value in (x, residual, weight)]
        run(*leaves).backward()
        found.append([leaf.grad for leaf in leaves])
    for mine, theirs in zip(*found):
        torch.testing.assert_close(mine, theirs)


def test_without_gradients(embedded):
    hidden, weight, _, target = head_case()
    step = whole(lambda h, w: lossd.linear_cross_entropy(h, w, target, client=embedded, reduction="mean", denominator_from="count"))
    expected = lossd.linear_cross_entropy(hidden, weight, target, client=embedded, reduction="mean", denominator_from="count")
    with torch.no_grad():
        assert torch.equal(step(hidden, weight), expected)


def test_a_server_as_well(client):
    for mine, theirs in zip(*both(client, "linear_cross_entropy")):
        assert torch.equal(mine, theirs)


def test_modules_at_the_default_client(embedded):
    former = lossd.set_default_client(embedded)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), lossd.nn.RMSNorm(8, eps=1e-6))
        loss = lossd.nn.CrossEntropyLoss()
        x, target = torch.randn(5, 8), torch.arange(5)
        plain = loss(model(x), target)
        assert torch.equal(whole(lambda x: loss(model(x), target))(x), plain)
    finally:
        lossd.set_default_client(former)


def test_shapes_that_change_are_not_compiled_anew(embedded):
    weight = torch.randn(19, 8, requires_grad=True)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda h, t: lossd.linear_cross_entropy(h, weight, t, client=embedded), fullgraph=True, backend=counter, dynamic=True)
    for rows in (5, 6, 9, 12):
        hidden, target = torch.randn(rows, 8), torch.randint(19, (rows,))
        assert torch.equal(step(hidden, target), lossd.linear_cross_entropy(hidden, weight, target, client=embedded))
    assert counter.frame_count == 1


def test_what_a_graph_cannot_hold_breaks_it(embedded):
    hidden, weight, _, target = head_case()
    weight = weight.requires_grad_()

    def step(hidden):
        loss, reply = lossd.linear_cross_entropy(hidden * 2, weight, target, client=embedded, want=("entropy",))
        return loss + 1, reply.count

    loss, count = torch.compile(step, backend="aot_eager")(hidden)
    assert count == 15 and torch.equal(loss - 1, lossd.linear_cross_entropy(hidden * 2, weight, target, client=embedded))


def test_a_main_grad_is_left_to_the_trainers_hook(embedded):
    hidden, weight, _, target = head_case()
    weight = weight.requires_grad_()
    weight.main_grad = torch.zeros_like(weight)
    torch.compile(lambda h: lossd.linear_cross_entropy(h, weight, target, client=embedded), backend="aot_eager")(hidden).backward()
    assert not weight.main_grad.any() and weight.grad.any() and not hasattr(weight, "grad_added_to_main_grad")


@pytest.mark.parametrize("name", ["linear_cross_entropy", "cross_entropy", "linear_logprob", "policy_loss", "rms_norm", "rope", "swiglu"])
def test_opcheck(embedded, name, monkeypatch):
    """torch's own checks of the operator, on the calls that each function makes."""
    calls = []
    run = compiled._run
    inputs, options = inputs_of(name)
    leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}

    class Recorder:
        @staticmethod
        def run(tensors, spec):
            calls.append((tensors, spec))
            return run(tensors, spec)

    given = {**leaves, **options}
    original = torch.ops.lossd.run
    monkeypatch.setattr(torch.ops.lossd, "run", Recorder.run)
    compiled.run(name, embedded, given)
    monkeypatch.setattr(torch.ops.lossd, "run", original)
    assert calls
    for tensors, spec in calls:
        torch.library.opcheck(torch.ops.lossd.run.default, (tensors, spec))


def test_a_client_that_is_gone(embedded):
    with lossd.connect("embedded") as short:
        step = whole(lambda x: lossd.softmax(x, client=short))
        step(torch.zeros(1, 4))
    with pytest.raises(lossd.LossdError) as caught:
        step(torch.zeros(1, 4))
    assert caught.value.code == "FAILED_PRECONDITION"
