"""kl_divergence, jensen_shannon and total_variation against torch.nn.functional, TRL's and Liger's formulas; torch in float64."""

import pytest
import torch
import torch.nn.functional as F

import lossd
from references import assert_close, leaves
from test_distill import BETAS, trl_generalized_jsd

ROWS, V = (3, 4), 17


def logits(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*ROWS, V, generator=generator), torch.randn(*ROWS, V, generator=generator)


def compare(loss_of, formula, student, tolerance=2e-5):
    """Loss and gradient of student; a loss of rows with an upstream gradient of each."""
    (ours,), (theirs,) = leaves(student)
    loss, expected = loss_of(ours), formula(theirs)
    assert_close(loss, expected, tolerance)
    upstream = torch.linspace(-1, 2, loss.numel()).reshape(loss.shape) if loss.dim() else torch.tensor(-1.5)
    loss.backward(upstream)
    expected.backward(upstream.double())
    assert ours.grad.dtype == student.dtype
    assert_close(ours.grad, theirs.grad, tolerance)


TORCH_REDUCTIONS = {"batchmean": {"reduction": "mean", "denominator_from": "count"},
                    "mean": {"reduction": "mean", "denominator_from": "elements"}, "sum": {}, "none": {"reduction": "none"}}


@pytest.mark.filterwarnings("ignore:reduction")  # torch announces another meaning of "mean"
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", TORCH_REDUCTIONS)
def test_torch_kl_div(client, reduction, log_target):
    student, teacher = (F.log_softmax(x, -1).reshape(-1, V) for x in logits())
    teacher = teacher if log_target else teacher.exp()

    def formula(s):
        loss = F.kl_div(s, teacher.double(), reduction=reduction, log_target=log_target)
        return loss.sum(-1) if reduction == "none" else loss

    compare(lambda s: lossd.kl_divergence(s, teacher, client=client, student_kind="logprobs",
                                          teacher_kind="logprobs" if log_target else "probs", **TORCH_REDUCTIONS[reduction]),
            formula, student)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_kl_of_logits_with_a_temperature(client, direction, temperature, squared):
    student, teacher = logits(3)
    weight = torch.linspace(0, 2, 12).reshape(ROWS)
    mask = torch.ones(ROWS, dtype=torch.bool)
    mask[1, 2] = mask[2, 0] = False

    def formula(z):
        s, t = F.log_softmax(z / temperature, -1), F.log_softmax(teacher.double() / temperature, -1)
        p, q = (t, s) if direction == "forward" else (s, t)
        return (weight * mask * (p.exp() * (p - q)).sum(-1)).sum() * (temperature ** 2 if squared else 1) / mask.sum()

    compare(lambda z: lossd.kl_divergence(
        z, teacher, client=client, student_kind="logits", teacher_kind="logits", direction=direction, temperature=temperature,
        temperature_squared=squared, row_weight=weight, mask=mask, reduction="mean", denominator_from="count"), formula, student)


def test_liger_kl_div_eps(client):
    """Probabilities below eps count as eps inside the logarithm."""
    student, teacher = logits(5)
    student, teacher = F.log_softmax(student, -1), F.softmax(4 * teacher, -1)
    teacher[0, 0, 3] = 0

    def formula(s):
        p = teacher.double()
        return (p * (p.clamp(min=1e-3).log() - s)).sum() / 12

    compare(lambda s: lossd.kl_divergence(s, teacher, client=client, student_kind="logprobs", teacher_kind="probs", teacher_floor=1e-3,
                                          reduction="mean", denominator=12), formula, student)


@pytest.mark.parametrize("kind", ["logits", "logprobs"])
@pytest.mark.parametrize("beta", BETAS)
def test_trl_and_liger_jsd_beta(client, beta, kind):
    student, teacher = logits(7)
    if kind == "logprobs":
        student, teacher = F.log_softmax(student, -1), F.log_softmax(teacher, -1)

    def formula(x):
        if kind == "logits":
            return trl_generalized_jsd(x, teacher.double(), beta, 0.7).sum() / 12
        t = teacher.double()  # used as they are: the gradient is with respect to them
        if beta == 0:
            return (t.exp() * (t - x)).sum() / 12
        if beta == 1:
            return (x.exp() * (x - t)).sum() / 12
        m = torch.log(beta * t.exp() + (1 - beta) * x.exp())
        return (beta * t.exp() * (t - m) + (1 - beta) * x.exp() * (x - m)).sum() / 12

    compare(lambda x: lossd.jensen_shannon(x, teacher, client=client, beta=beta, student_kind=kind, teacher_kind=kind,
                                           temperature=0.7 if kind == "logits" else None, reduction="mean", denominator_from="count"),
            formula, student)


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_liger_tvd(client, kind):
    student, teacher = logits(9)
    if kind == "probs":
        student, teacher = F.softmax(student, -1), F.softmax(teacher, -1)
        student[0, 0] = teacher[0, 0]  # equal: no gradient

    def formula(x):
        q, p = (x, teacher.double()) if kind == "probs" else (F.softmax(x, -1), F.softmax(teacher.double(), -1))
        return 0.5 * (q - p).abs().sum(-1)

    compare(lambda x: lossd.total_variation(x, teacher, client=client, student_kind=kind, teacher_kind=kind, reduction="none"), formula,
            student)


@pytest.mark.parametrize("name", ["kl_divergence", "jensen_shannon", "total_variation"])
def test_valid_vocab_and_rows_of_the_reply(client, name):
    student, teacher = logits(11)
    mine = student.clone().requires_grad_()
    options = {"beta": 0.5} if name == "jensen_shannon" else {}
    call = getattr(lossd, name)
    loss, reply = call(mine, teacher, client=client, student_kind="logits", teacher_kind="logits", valid_vocab=V - 5, want=("row_loss",),
                       **options)
    loss.backward()
    narrow = call(student[..., :V - 5], teacher[..., :V - 5], client=client, student_kind="logits", teacher_kind="logits",
                  reduction="none", **options)
    assert_close(reply["row_loss"], narrow)
    assert reply.count == 12 and not mine.grad[..., V - 5:].any() and mine.grad.any()


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_types(client, dtype, tolerance):
    student, teacher = (x.to(dtype) for x in logits(13))
    (ours,), (theirs,) = leaves(student)
    loss = lossd.kl_divergence(ours, teacher, client=client, student_kind="logits", teacher_kind="logits")
    s, t = F.log_softmax(theirs, -1), F.log_softmax(teacher.double(), -1)
    expected = (t.exp() * (t - s)).sum()
    assert_close(loss, expected, 1e-5)
    loss.backward()
    expected.backward()
    assert_close(ours.grad, theirs.grad, tolerance)
