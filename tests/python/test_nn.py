"""Modules against torch's of the same name, and against the functions that they call."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

import lossd
import lossd.nn
from references import assert_close, head_case, leaves
from test_modes import CASES


@pytest.fixture(scope="module", autouse=True)
def default(client):
    former = lossd.set_default_client(client)
    yield
    lossd.set_default_client(former)


def compare(mine, theirs, *tensors, tolerance=2e-5):
    """Values and gradients of two functions of the same leaves, the second in float64."""
    ours, reference = leaves(*tensors)
    y, expected = mine(*ours), theirs(*reference)
    assert_close(y, expected, tolerance)
    upstream = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    y.backward(upstream.to(y.dtype))
    expected.backward(upstream.double())
    for leaf, other in zip(ours, reference):
        assert_close(leaf.grad, other.grad, tolerance)


LOGITS = torch.randn(12, 7, generator=torch.Generator().manual_seed(0)) * 3
TARGET = torch.tensor([0, 1, 2, 3, 4, 5, 6, -100, 0, 1, 2, -100])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 2, 7)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(reduction, weight, smoothing):
    mine = lossd.nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=smoothing)
    theirs = torch.nn.CrossEntropyLoss(None if weight is None else weight.double(), reduction=reduction, label_smoothing=smoothing)
    compare(lambda z: mine(z, TARGET), lambda z: theirs(z, TARGET), LOGITS)
    head = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    linear = lossd.nn.LinearCrossEntropyLoss(weight, reduction=reduction, label_smoothing=smoothing)
    compare(lambda h, w: linear(h, w, TARGET), lambda h, w: theirs(h @ w.t(), TARGET), torch.randn(12, 5), head)


def test_cross_entropy_of_images():
    images, target = torch.randn(3, 7, 4, 2), torch.randint(7, (3, 4, 2))
    for reduction in ("mean", "none"):
        mine, theirs = lossd.nn.CrossEntropyLoss(reduction=reduction), torch.nn.CrossEntropyLoss(reduction=reduction)
        compare(lambda z: mine(z, target), lambda z: theirs(z, target), images)
    one, of_one = torch.randn(7), torch.tensor(3)
    assert_close(lossd.nn.CrossEntropyLoss()(one, of_one), F.cross_entropy(one.double(), of_one))


def test_no_target_counts():
    logits = LOGITS.clone().requires_grad_()
    loss = lossd.nn.CrossEntropyLoss()(logits, torch.full((12,), -100))
    loss.backward()
    assert loss.item() == 0 and not logits.grad.any()


def test_options_are_given_once_or_in_a_call():
    plain = lossd.cross_entropy(LOGITS, TARGET, client=lossd.default_client(), z_loss=0.1, reduction="mean", denominator=5)
    assert torch.equal(lossd.nn.CrossEntropyLoss(z_loss=0.1, denominator=5)(LOGITS, TARGET), plain)
    assert torch.equal(lossd.nn.CrossEntropyLoss(z_loss=0.1)(LOGITS, TARGET, denominator=5), plain)
    with pytest.raises(TypeError, match="z_loss"):
        lossd.nn.CrossEntropyLoss(z_los=0.1)(LOGITS, TARGET)


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "batchmean", "sum"])
def test_kl_div(reduction, log_target):
    p = torch.softmax(LOGITS.flip(0), -1)
    target = p.log() if log_target else p
    mine, theirs = lossd.nn.KLDivLoss(reduction, log_target), torch.nn.KLDivLoss(reduction=reduction, log_target=log_target)
    compare(lambda q: mine(q, target), lambda q: theirs(q, target.double()), torch.log_softmax(LOGITS, -1))


def test_kl_div_of_rows_is_summed():
    q, p = torch.log_softmax(LOGITS, -1), torch.softmax(LOGITS.flip(0), -1)
    assert_close(lossd.nn.KLDivLoss("none")(q, p), F.kl_div(q.double(), p.double(), reduction="none").sum(-1))


def test_other_divergences():
    q, p = torch.softmax(LOGITS.double(), -1), torch.softmax(LOGITS.flip(0).double(), -1)
    m = (q + p) / 2
    expected = 0.5 * ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)).mean()
    assert_close(lossd.nn.JensenShannonLoss()(LOGITS, LOGITS.flip(0)), expected)
    assert_close(lossd.nn.TotalVariationLoss()(LOGITS, LOGITS.flip(0)), 0.5 * (q - p).abs().sum(-1).mean())


MODULES = {"linear_policy_loss": "LinearPolicyLoss", "policy_loss": "PolicyLoss", "linear_preference_loss": "LinearPreferenceLoss",
           "preference_loss": "PreferenceLoss", "linear_unpaired_loss": "LinearUnpairedLoss", "unpaired_loss": "UnpairedLoss"}


@pytest.mark.parametrize("name", MODULES)
def test_trainers_losses(client, name):
    inputs, options = CASES[name]
    denominator = {} if "policy" in name else {"denominator_from": "count"}
    expected = getattr(lossd, name)(client=client, **inputs, **options, **denominator)
    first = {"kind": options["kind"]} if "policy" in name else {"terms": options["terms"]} if "preference" in name else {}
    rest = {key: value for key, value in options.items() if key not in first}
    module = getattr(lossd.nn, MODULES[name])(**first)
    assert torch.equal(module(**inputs, **rest), expected)


def test_distill_and_logprobs(client):
    hidden, weight, _, target = head_case()
    assert torch.equal(lossd.nn.LinearLogprob()(hidden, weight, target), lossd.linear_logprob(hidden, weight, target, client=client))
    entropy = lossd.nn.Logprob("entropy")(hidden @ weight.t())
    assert torch.equal(entropy, lossd.logprob(hidden @ weight.t(), client=client, want="entropy"))
    teacher = torch.randn(3, 5, 19)
    mine = lossd.nn.LinearDistillLoss("reverse_kl")(hidden, weight, teacher_logits=teacher)
    assert torch.equal(mine, lossd.linear_distill_loss(hidden, weight, client=client, divergence="reverse_kl", teacher_logits=teacher,
                                                       reduction="mean", denominator_from="count"))


def rms64(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def test_norms():
    x = torch.randn(5, 3, 24)
    norm, layer, reference = lossd.nn.RMSNorm(24, eps=1e-6), lossd.nn.LayerNorm(24), torch.nn.LayerNorm(24).double()
    assert torch.equal(norm.weight, torch.ones(24)) and lossd.nn.RMSNorm(24, weight_offset=1.0).weight.abs().sum() == 0
    with torch.no_grad():
        for parameter in (norm.weight, layer.weight, layer.bias):
            parameter.normal_()
        reference.load_state_dict(layer.double().state_dict())
        layer.float()
    compare(norm, lambda x: rms64(x, norm.weight.double(), 1e-6), x)
    compare(layer, reference, x)
    assert_close(lossd.nn.RMSNorm(24, elementwise_affine=False)(x), rms64(x.double(), 1.0, torch.finfo(torch.float32).eps))
    assert lossd.nn.LayerNorm(24, bias=False).bias is None
    y, total = norm(x, residual=x)
    assert_close(y, rms64(2 * x.double(), norm.weight.double(), 1e-6))
    assert torch.equal(total, 2 * x)
    with pytest.raises(ValueError, match="last dimension"):
        lossd.nn.RMSNorm((3, 24))


def test_activations():
    gate, up = torch.randn(6, 10), torch.randn(6, 10)
    compare(lossd.nn.SwiGLU(), lambda g, u: F.silu(g) * u, gate, up)
    compare(lossd.nn.GEGLU("erf"), lambda g, u: F.gelu(g) * u, gate, up)
    compare(lossd.nn.ReLUSquared(), lambda x: F.relu(x) ** 2, gate)
    compare(lossd.nn.Softmax(), lambda x: torch.softmax(x, -1), gate)
    joined = torch.cat([gate, up], -1)
    assert torch.equal(lossd.nn.SwiGLU()(joined), lossd.nn.SwiGLU()(gate, up))
    x, cos, sin = torch.randn(4, 2, 8), torch.rand(4, 4), torch.rand(4, 4)
    assert torch.equal(lossd.nn.Rope("interleaved")(x, cos, sin),
                       lossd.rope(x, cos, sin, client=lossd.default_client(), layout="interleaved"))
    with pytest.raises(ValueError, match="transpose"):
        lossd.nn.Softmax(dim=1)


def test_modules_are_modules(client):
    model = torch.nn.Sequential(lossd.nn.RMSNorm(8, client=client), torch.nn.Linear(8, 8), lossd.nn.LayerNorm(8, client=client))
    assert set(model.state_dict()) == {"0.weight", "1.weight", "1.bias", "2.weight", "2.bias"}
    again = pickle.loads(pickle.dumps(model))
    twin = copy.deepcopy(model)
    x = torch.randn(3, 8)
    assert torch.equal(again(x), model(x)) and torch.equal(twin(x), model(x))
    assert twin[0].client is client and again[0].client is lossd.default_client()
    assert "eps" in repr(model)
    for name in lossd.nn.__all__:
        assert getattr(lossd.nn, name).__doc__, name


def test_halves_and_devices_of_parameters():
    norm = lossd.nn.RMSNorm(8, dtype=torch.bfloat16)
    assert norm.weight.dtype == torch.bfloat16 and norm(torch.ones(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert lossd.nn.LayerNorm(8, device="meta").weight.is_meta
