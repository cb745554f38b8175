"""When gradients are computed: every loss with every mode of backward gives the same ones, and holds nothing afterwards."""

import gc

import pytest
import torch

import lossd
from references import assert_close, cu_seqlens, entropy64, head_case, logprob64

B, T, V = 4, 5, 19
HIDDEN, WEIGHT, _, TARGET = head_case(rows=(B, T))
LOGPROB = logprob64(HIDDEN, WEIGHT, TARGET).float()
LOGITS = torch.randn(B, T, V, generator=torch.Generator().manual_seed(1))
SEQUENCES = {"cu_seqlens": cu_seqlens(B, T)}
POLICY = {"kind": "ppo", "clip_low": 0.2, "clip_high": 0.2, "sequence_advantage": torch.tensor([1.0, -1.0, 0.5, 2.0]),
          "old_logprob": LOGPROB + 0.1, "ref_logprob": LOGPROB - 0.1, "kl_estimator": "k3", "kl_coef": 0.5, "entropy_kind": "true",
          "entropy_coef": 0.1, **SEQUENCES}
PAIRS = {"terms": [{"type": "sigmoid", "beta": 0.5}], "pairing": "halves", "ref_logprob": LOGPROB + 0.2, **SEQUENCES}
UNPAIRED = {"type": "bco", "beta": 0.5, "desirable": torch.tensor([True, False, False, True]), "ref_logprob": LOGPROB + 0.2, **SEQUENCES}
KINDS = {"student_kind": "logits", "teacher_kind": "logits"}
HEAD = {"hidden": HIDDEN, "weight": WEIGHT}

CASES = {  # name: inputs that need a gradient, options
    "linear_cross_entropy": (HEAD, {"target": TARGET}),
    "cross_entropy": ({"logits": LOGITS}, {"target": TARGET}),
    "linear_policy_loss": (HEAD, {"target": TARGET, **POLICY}),
    "policy_loss": ({"logprob": LOGPROB, "entropy": entropy64(HIDDEN, WEIGHT).float(), "kl_logprob": LOGPROB - 0.3}, POLICY),
    "linear_preference_loss": (HEAD, {"target": TARGET, **PAIRS}),
    "preference_loss": ({"logprob": LOGPROB}, PAIRS),
    "linear_unpaired_loss": (HEAD, {"target": TARGET, **UNPAIRED}),
    "unpaired_loss": ({"logprob": LOGPROB}, UNPAIRED),
    "linear_distill_loss": (HEAD, {"teacher_logits": LOGITS, "divergence": "forward_kl"}),
    "kl_divergence": ({"student": LOGITS}, {"teacher": LOGITS.flip(0), **KINDS}),
    "jensen_shannon": ({"student": LOGITS}, {"teacher": LOGITS.flip(0), "beta": 0.5, **KINDS}),
    "total_variation": ({"student": LOGITS}, {"teacher": LOGITS.flip(0), **KINDS}),
}
BY_ROW = ("linear_cross_entropy", "cross_entropy", "linear_distill_loss", "kl_divergence", "jensen_shannon", "total_variation")


def call(client, name, **more):
    """The leaves, and the loss (or what `want` makes of it)."""
    inputs, options = CASES[name]
    inputs = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    return list(inputs.values()), getattr(lossd, name)(client=client, **inputs, **{**options, **more})


def gradients(leaves):
    found = [leaf.grad for leaf in leaves]
    assert all(grad is not None and grad.any() for grad in found)
    return found


def test_every_operation_is_here():
    layers = {"rms_norm", "layer_norm", "rope", "swiglu", "geglu", "relu_squared", "softmax"}  # no losses: test_layers.py
    logprobs = {"linear_logprob", "logprob"}
    backward = {f"{name}_backward" for name in (*layers, *logprobs)}
    assert set(CASES) | logprobs | layers | backward == set(dir(lossd.ops))
    assert set(CASES) | logprobs | layers == set(lossd.functional.__all__)
    for name in lossd.functional.__all__:
        assert getattr(lossd, name) is getattr(lossd.functional, name) and name in lossd.__all__
        assert "Raises LossdError" in getattr(lossd, name).__doc__ and "Args:" in getattr(lossd, name).__doc__


@pytest.mark.parametrize("name", CASES)
def test_modes_agree(client, name):
    leaves, loss = call(client, name, backward="forward")
    assert loss.shape == () and loss.dtype == torch.float32
    (loss * 3).backward(retain_graph=True)
    expected = gradients(leaves)
    with pytest.raises(RuntimeError, match="recompute"):
        loss.backward()

    leaves, default = call(client, name)
    (default * 3).backward()
    for mine, theirs in zip(gradients(leaves), expected):
        assert torch.equal(mine, theirs)

    leaves, again = call(client, name, backward="recompute")
    assert torch.equal(again, loss)
    (again + 2 * again).backward(retain_graph=True)
    for mine, theirs in zip(gradients(leaves), expected):
        assert_close(mine, theirs, 1e-6)
    again.backward()
    for mine, theirs in zip(gradients(leaves), expected):
        assert_close(mine, theirs * 4 / 3, 1e-6)

    leaves, fused = call(client, name, backward="fused", d_loss=3)
    fused.backward()
    for mine, theirs in zip(gradients(leaves), expected):
        assert_close(mine, theirs, 1e-6)


@pytest.mark.parametrize("name", BY_ROW)
def test_rows_with_their_own_upstream_gradients(client, name):
    upstream = torch.linspace(-1, 1, B * T).reshape(B, T)
    leaves, rows = call(client, name, reduction="none")
    assert rows.shape == (B, T)
    rows.backward(upstream)
    expected = gradients(leaves)
    leaves, rows = call(client, name, reduction="none", backward="fused", d_loss=upstream)
    rows.sum().backward()
    for mine, theirs in zip(gradients(leaves), expected):
        assert_close(mine, theirs, 1e-6)
    _, total = call(client, name)
    assert_close(rows.sum(), total, 1e-5)
    with pytest.raises(lossd.LossdError) as caught:
        call(client, name, reduction="none", backward="forward")
    assert caught.value.field == "backward"


@pytest.mark.parametrize("name", CASES)
def test_only_what_needs_a_gradient_gets_one(client, name):
    with torch.no_grad():
        _, loss = call(client, name)
    assert not loss.requires_grad
    inputs, options = CASES[name]
    last = list(inputs)[-1]
    given = {**inputs, last: inputs[last].clone().requires_grad_()}
    loss = getattr(lossd, name)(client=client, **given, **options)
    loss.backward()
    assert given[last].grad.any()
    assert all(tensor.grad is None for key, tensor in given.items() if key != last)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("linear")])
def test_main_grad(client, name):
    leaves, loss = call(client, name)
    loss.backward()
    expected = gradients(leaves)
    inputs, options = CASES[name]
    hidden, weight = (tensor.clone().requires_grad_() for tensor in inputs.values())
    weight.main_grad = torch.ones_like(WEIGHT)
    getattr(lossd, name)(hidden, weight, client=client, **options).backward()
    assert weight.grad is None and weight.grad_added_to_main_grad
    assert_close(weight.main_grad, expected[1] + 1, 1e-6)
    assert_close(hidden.grad, expected[0], 1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("linear")])
def test_a_bias_is_a_column_of_the_weight(client, name):
    """... beside a hidden state of 1: loss and gradients of both spellings agree."""
    bias = torch.linspace(-1, 1, V)
    given = {**HEAD, "bias": bias}
    joined = {"hidden": torch.cat([HIDDEN, torch.ones(B, T, 1)], -1), "weight": torch.cat([WEIGHT, bias[:, None]], -1)}
    found = []
    for inputs in (given, joined):
        leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
        loss = getattr(lossd, name)(client=client, **leaves, **CASES[name][1])
        loss.backward()
        found.append([loss.detach(), *gradients(list(leaves.values()))])
    (loss, hidden, weight, bias), (expected, wide_hidden, wide_weight) = found
    assert_close(loss, expected, 1e-5)
    assert_close(hidden, wide_hidden[..., :-1], 1e-5)
    assert_close(torch.cat([weight, bias[:, None]], -1), wide_weight, 1e-5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("linear")])
def test_half_types(client, name, dtype, tolerance):
    found = []
    for exact in (False, True):
        leaves = [value.to(dtype).to(torch.float32 if exact else dtype).requires_grad_() for value in HEAD.values()]
        loss = getattr(lossd, name)(*leaves, client=client, **CASES[name][1])
        loss.backward()
        found.append([loss.detach(), *gradients(leaves)])
        assert loss.dtype == torch.float32 and all(leaf.grad.dtype == leaf.dtype for leaf in leaves)
    assert_close(found[0][0], found[1][0], 1e-5)  # the loss is not rounded to a half type
    for mine, theirs in zip(found[0][1:], found[1][1:]):
        assert_close(mine, theirs, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_held_after_a_step(client, name):
    def step():
        for mode in ("forward", "recompute"):
            _, (loss, reply) = call(client, name, backward=mode, want=())
            assert not reply.outputs
            loss.backward()

    gc.collect()
    before = client.pool.bytes_in_use
    gc.disable()  # what only the collector could free counts as held
    try:
        step()
        assert client.pool.bytes_in_use == before
    finally:
        gc.enable()


def test_the_former_name_of_the_linear_policy_loss(client):
    options = CASES["linear_policy_loss"][1]
    expected = lossd.linear_policy_loss(HIDDEN, WEIGHT, client=client, **options)
    rest = {name: value for name, value in options.items() if name != "target"}
    assert torch.equal(lossd.policy_loss(HIDDEN, WEIGHT, TARGET, client=client, **rest), expected)
    assert torch.equal(lossd.policy_loss(hidden=HIDDEN, weight=WEIGHT, target=TARGET, client=client, **rest), expected)
    bias = torch.zeros(V)
    loss, reply = lossd.policy_loss(HIDDEN, WEIGHT, TARGET, client=client, bias=bias, want=("lse",), **rest)
    assert torch.equal(loss, expected) and reply["lse"].shape == (B, T)
