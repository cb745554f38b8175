"""Embedded mode: the same calls in this process give the same bits as at a server, and what they refuse is refused in the same words."""

import gc
import threading

import numpy
import pytest
import torch

import lossd
import lossd.nn
from test_modes import BY_ROW, CASES, V, call, gradients

LAYERS = {  # name: inputs that need a gradient, options
    "rms_norm": ({"x": (3, 5, 40), "weight": (40,)}, {"eps": 1e-5}),
    "layer_norm": ({"x": (3, 5, 40), "weight": (40,), "bias": (40,)}, {}),
    "rope": ({"x": (6, 2, 8)}, {"cos": torch.rand(6, 4), "sin": torch.rand(6, 4)}),
    "swiglu": ({"gate": (6, 20), "up": (6, 20)}, {}),
    "geglu": ({"gate": (6, 20)}, {"approximation": "erf"}),
    "relu_squared": ({"x": (6, 20)}, {}),
    "softmax": ({"x": (6, 20)}, {"mask": torch.tensor([True, False] * 3)}),
}


@pytest.fixture(scope="module")
def embedded(client):
    # The same threads: the bits of sums over rows may depend on them.
    threads = int(client.server_info["device"].rsplit(", ", 1)[1].split()[0])
    with lossd.connect("embedded", threads=threads) as embedded:
        yield embedded


def same(mine, theirs):
    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
    return torch.equal(mine, theirs)


@pytest.mark.parametrize("mode", ["forward", "recompute", "fused"])
@pytest.mark.parametrize("name", CASES)
def test_losses_have_the_same_bits(client, embedded, name, mode):
    more = {"backward": mode, **({"d_loss": 3.0} if mode == "fused" else {})}
    found = []
    for where in (client, embedded, embedded):  # the third call is a prepared one
        leaves, loss = call(where, name, **more)
        (loss * 3).backward()
        found.append([loss.detach(), *gradients(leaves)])
    for again in found[1:]:
        assert all(same(mine, theirs) for mine, theirs in zip(again, found[0]))


@pytest.mark.parametrize("name", BY_ROW)
def test_losses_of_rows_have_the_same_bits(client, embedded, name):
    upstream = torch.linspace(-1, 1, 20).reshape(4, 5)
    found = []
    for where in (client, embedded, embedded):
        leaves, rows = call(where, name, reduction="none")
        rows.backward(upstream)
        found.append([rows.detach(), *gradients(leaves)])
    for again in found[1:]:
        assert all(same(mine, theirs) for mine, theirs in zip(again, found[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_the_same_bits(client, embedded, name, dtype):
    shapes, options = LAYERS[name]
    found = []
    for where in (client, embedded, embedded):
        generator = torch.Generator().manual_seed(0)
        leaves = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes.values()]
        y = getattr(lossd, name)(**dict(zip(shapes, leaves)), client=where, **options)
        y.float().sin().sum().backward()
        found.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for again in found[1:]:
        assert all(same(mine, theirs) for mine, theirs in zip(again, found[0]))
    assert found[0][1].any()


def test_numbers_of_the_reply(client, embedded):
    name, (inputs, options) = "linear_policy_loss", CASES["linear_policy_loss"]
    replies = [getattr(lossd, name)(client=where, want=("ratio", "kl"), **inputs, **options)[1] for where in (client, embedded, embedded)]
    for reply in replies[1:]:
        assert reply.metrics == replies[0].metrics and reply.sum == replies[0].sum and reply.count == replies[0].count
        assert torch.equal(reply["ratio"], replies[0]["ratio"]) and torch.equal(reply["kl"], replies[0]["kl"])


def test_numpy_in_numpy_out(embedded):
    hidden, weight = numpy.random.default_rng(0).standard_normal((2, 6, 8), dtype=numpy.float32)
    for _ in range(2):
        reply = lossd.ops.linear_logprob(embedded, hidden=hidden, weight=weight, target=[0, 1, 2, 3, 4, 5], want=("logprob", "lse"))
        assert isinstance(reply["logprob"], numpy.ndarray) and reply.count == 6
    expected = lossd.ops.linear_logprob(embedded, hidden=torch.tensor(hidden), weight=torch.tensor(weight),
                                        target=torch.arange(6), want=("logprob",))
    assert numpy.array_equal(reply["logprob"], expected["logprob"].numpy())


def test_outputs_of_the_caller(embedded):
    hidden, weight, target = torch.randn(6, 8), torch.randn(9, 8), torch.arange(6)
    plain = lossd.ops.linear_cross_entropy(embedded, hidden=hidden, weight=weight, target=target, want=("grad_weight",))["grad_weight"]
    wide = torch.zeros(9, 16)
    for place in (torch.zeros(9, 8), wide[:, ::2], wide[:, 8:]):  # in its place, by a copy, and with rows apart
        for _ in range(2):
            place.fill_(1.0)
            lossd.ops.linear_cross_entropy(embedded, hidden=hidden, weight=weight, target=target, out={"grad_weight": place},
                                           grad_weight_mode="ACCUMULATE")
            torch.testing.assert_close(place, plain + 1)


def test_inputs_of_any_strides(embedded):
    x = torch.randn(8, 6)
    expected = lossd.softmax(x.t().contiguous(), client=embedded)
    for _ in range(2):
        assert torch.equal(lossd.softmax(x.t(), client=embedded), expected)
        assert torch.equal(lossd.softmax(torch.randn(1, 6).expand(3, 6)[:, :4] * 0, client=embedded), torch.full((3, 4), 0.25))


def test_donated_logits(embedded):
    logits, target = torch.randn(6, 9), torch.arange(6)
    leaf = logits.clone().requires_grad_()
    lossd.cross_entropy(leaf, target, client=embedded).backward()
    for _ in range(2):
        mine = logits.clone().requires_grad_()
        lossd.cross_entropy(mine, target, client=embedded, donate=True).backward()
        assert torch.equal(mine.grad, leaf.grad) and mine.grad.data_ptr() == mine.data_ptr()


def test_empty_batches(embedded):
    weight = torch.randn(9, 8, requires_grad=True)
    for _ in range(2):
        hidden = torch.zeros(0, 8, requires_grad=True)
        loss = lossd.linear_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.int64), client=embedded)
        loss.backward()
        assert loss.item() == 0 and hidden.grad.shape == (0, 8) and not weight.grad.any()


@pytest.mark.parametrize("wrong", [{"target": torch.full((4, 5), V)}, {"label_smoothing": 2.0}, {"class_weight": torch.ones(3)},
                                   {"gradient_filter": 2.0}, {"reduction": "men"}, {"donate": ["hidden"]}, {"temperature": 0.0}])
def test_refusals_read_the_same(client, embedded, wrong):
    inputs = {**CASES["linear_cross_entropy"][0], **CASES["linear_cross_entropy"][1], **wrong}
    errors = []
    for where in (client, embedded, embedded):
        with pytest.raises(lossd.LossdError) as caught:
            lossd.ops.linear_cross_entropy(where, want=("loss",), **inputs)
        error = caught.value
        errors.append((error.code, error.field, error.must_be, error.is_, error.row, error.op))
    assert errors[1] == errors[0] and errors[2] == errors[0]


def test_data_of_a_prepared_call_are_checked(embedded):
    logits, target = torch.randn(4, 9), torch.arange(4)
    lossd.cross_entropy(logits, target, client=embedded)
    before = len(embedded.calls)
    with pytest.raises(lossd.LossdError) as caught:
        lossd.cross_entropy(logits, target + 6, client=embedded)
    assert len(embedded.calls) == before and caught.value.field == "target" and caught.value.row == 3
    position = torch.arange(4)
    x, table = torch.randn(4, 1, 8), torch.rand(4, 4)
    lossd.rope(x, table, table, position, client=embedded)
    with pytest.raises(lossd.LossdError) as caught:
        lossd.rope(x, table, table, position + 1, client=embedded)
    assert caught.value.field == "position"


def test_calls_from_many_threads(embedded):
    """... each with tensors of its own, and the same prepared calls."""
    weight = torch.randn(33, 24)

    def work(seed, found):
        generator = torch.Generator().manual_seed(seed)
        hidden, target = torch.randn(16, 24, generator=generator), torch.randint(33, (16,), generator=generator)
        for _ in range(20):
            leaf = hidden.clone().requires_grad_()
            lossd.linear_cross_entropy(leaf, weight, target, client=embedded, backward="recompute").backward()
            found.append(leaf.grad)

    alone, together = {}, {seed: [] for seed in range(4)}
    for seed in together:
        work(seed, alone.setdefault(seed, []))
    threads = [threading.Thread(target=work, args=item) for item in together.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, found in together.items():
        assert len(found) == 20 and all(torch.equal(grad, alone[seed][0]) for grad in found)


def test_the_threads_of_torch_stay(embedded):
    """The CPU backend may share torch's library for products, whose thread count it sets for its own calls alone."""
    before = torch.get_num_threads()
    a = torch.randn(300, 300)
    expected = a @ a
    lossd.linear_logprob(torch.randn(64, 32), torch.randn(100, 32), torch.arange(64), client=embedded)
    assert torch.get_num_threads() == before
    assert torch.equal(a @ a, expected)


def test_what_a_client_says_of_itself(client, embedded):
    info = embedded.server_info
    assert embedded.is_embedded and embedded.address == "embedded" and embedded.server is None
    assert info["backend"] == "cpu" and info["version"] == client.server_info["version"]
    assert [op["name"] for op in embedded.list_ops()] == [op["name"] for op in client.list_ops()]
    assert embedded.list_regions() == []
    made = embedded.empty((2, 3), torch.bfloat16)
    assert made.shape == (2, 3) and made.dtype == torch.bfloat16
    assert isinstance(embedded.empty(4, "f32"), numpy.ndarray)
    shared = embedded.share(torch.ones(3))
    assert torch.equal(shared, torch.ones(3))
    embedded.trim()
    assert len(embedded.calls) == 0


def test_what_has_no_meaning_is_refused(client, embedded):
    with pytest.raises(ValueError, match="private server"):
        lossd.connect("embedded", flags=["--threads=1"])
    with pytest.raises(ValueError, match="embedded mode"):
        lossd.connect(client.address, threads=2)
    with pytest.raises(lossd.LossdError) as caught:
        embedded.run({"request_id": "once", "ops": []})
    assert caught.value.code == "UNIMPLEMENTED" and caught.value.field == "request_id"
    with pytest.raises(lossd.LossdError) as caught:
        lossd.connect("embedded", algorithms="/nowhere", workspace_bytes=1 << 22).handle("cuda:0")
    assert caught.value.code in ("UNIMPLEMENTED", "NOT_FOUND")


def test_a_closed_client():
    with lossd.connect("embedded", threads=1, workspace_bytes=1 << 22) as client:
        assert lossd.softmax(torch.zeros(1, 4), client=client)[0, 0] == 0.25
    for _ in range(2):
        with pytest.raises(lossd.LossdError) as caught:
            lossd.softmax(torch.zeros(1, 4), client=client)
        assert caught.value.code == "FAILED_PRECONDITION"


def test_a_small_workspace_gives_the_same_loss(embedded):
    hidden, weight, target = torch.randn(64, 16), torch.randn(4096, 16), torch.arange(64)
    with lossd.connect("embedded", workspace_bytes=1 << 20) as small:
        mine = lossd.linear_cross_entropy(hidden, weight, target, client=small)
    torch.testing.assert_close(mine, lossd.linear_cross_entropy(hidden, weight, target, client=embedded))


def test_nothing_is_held(embedded):
    """... by a client beside its prepared calls."""
    gc.collect()
    before = [id(item) for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    gc.disable()
    try:
        for name in CASES:
            leaves, loss = call(embedded, name)
            loss.backward()
        del leaves, loss
        after = [item for item in gc.get_objects() if isinstance(item, torch.Tensor) and id(item) not in set(before)]
        assert not after
    finally:
        gc.enable()


def test_the_default_client():
    former = lossd.set_default_client(None)
    try:
        first = lossd.default_client()
        assert first.is_embedded and lossd.default_client() is first
        with lossd.connect("embedded", threads=1) as mine:
            assert lossd.set_default_client(mine) is first
            assert lossd.default_client() is mine
            x = torch.randn(2, 4)
            assert torch.equal(lossd.nn.Softmax()(x), lossd.softmax(x, client=mine))
    finally:
        lossd.set_default_client(former)
