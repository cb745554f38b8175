"""The losses on sequences against the formulas as the trainers write them (TRL DPO, CPO, ORPO, KTO and BCO trainers), torch in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

import lossd
from references import assert_close, head_case, leaves, logprob64

P, T = 3, 6


def batch(seed=0):
    """2P sequences of at most T tokens, chosen ones first: hidden, weight, target, mask, reference by token."""
    hidden, weight, _, target = head_case(rows=(2 * P, T), seed=seed)
    generator = torch.Generator().manual_seed(seed + 100)
    reference = logprob64(hidden, weight, target).float() + 0.5 * torch.randn(
        2 * P, T, generator=generator)
    lengths = torch.tensor([6, 3, 1, 4, 5, 2])
    mask = torch.arange(T) < lengths[:, None]
    return hidden, weight, target, mask, reference


def cu_seqlens(sequences=2 * P):
    return torch.arange(sequences + 1, dtype=torch.int32) * T


def sums(logprob, mask, average=False):
    total = (logprob * mask).sum(-1)
    return total / mask.sum(-1) if average else total


# Each takes log-ratios of the chosen and the rejected side, and beta.
def dpo(c, r, beta):
    return -F.logsigmoid(beta * (c - r))


def conservative(c, r, beta, e=0.1):
    return -F.logsigmoid(beta * (c - r)) * (1 - e) - F.logsigmoid(-beta * (c - r)) * e


def robust(c, r, beta, e=0.1):
    return (-F.logsigmoid(beta * (c - r)) * (1 - e) + F.logsigmoid(-beta * (c - r)) * e) / (1 - 2 * e)


def hinge(c, r, beta):
    return torch.relu(1 - beta * (c - r))


def ipo(c, r, beta):
    return (c - r - 1 / (2 * beta)) ** 2


def exo_pair(c, r, beta, e=0.1):
    u = beta * (c - r)
    return u.sigmoid() * (F.logsigmoid(u) - math.log(1 - e)) + (-u).sigmoid() * (
        F.logsigmoid(-u) - math.log(e))


def nca_pair(c, r, beta):
    return -F.logsigmoid(c * beta) - 0.5 * F.logsigmoid(-c * beta) - 0.5 * F.logsigmoid(-r * beta)


def bco_pair(c, r, beta):
    return -F.logsigmoid(beta * c) - F.logsigmoid(-beta * r)


def sppo_hard(c, r, beta):
    return (c - 0.5 / beta) ** 2 + (r + 0.5 / beta) ** 2


def apo_zero(c, r, beta):
    return 1 - torch.sigmoid(beta * c) + torch.sigmoid(beta * r)


def apo_down(c, r, beta):
    return torch.sigmoid(beta * c) + 1 - torch.sigmoid(beta * (c - r))


def discopop(c, r, beta, tau=0.05):
    logits = beta * (c - r)
    modulation = torch.sigmoid(logits / tau)
    return -F.logsigmoid(logits) * (1 - modulation) + torch.exp(-logits) * modulation


TYPES = {
    "sigmoid": (dpo, {}), "cdpo": (conservative, {"type": "sigmoid", "label_smoothing": 0.1}),
    "robust": (robust, {"label_smoothing": 0.1}), "hinge": (hinge, {}), "ipo": (ipo, {}),
    "exo_pair": (exo_pair, {"label_smoothing": 0.1}), "nca_pair": (nca_pair, {}),
    "bco_pair": (bco_pair, {}), "sppo_hard": (sppo_hard, {}), "apo_zero": (apo_zero, {}),
    "apo_down": (apo_down, {}), "discopop": (discopop, {}),
}


def linear(client, inputs, **options):
    hidden, weight, target, mask, _ = inputs
    return lossd.ops.linear_preference_loss(
        client, hidden=hidden, weight=weight, target=target, mask=mask, cu_seqlens=cu_seqlens(),
        want=("loss", "grad_hidden", "grad_weight"), pairing="halves", **options)


def compare(reply, loss, theirs):
    loss.backward()
    assert_close(reply["loss"].reshape(()), loss.detach())
    assert_close(reply["grad_hidden"], theirs[0].grad)
    assert_close(reply["grad_weight"], theirs[1].grad)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_types(client, name, average):
    formula, options = TYPES[name]
    inputs = batch(seed=3)
    hidden, weight, target, mask, reference = inputs
    _, theirs = leaves(hidden, weight)
    ratio = sums(logprob64(*theirs, target) - reference.double(), mask, average)
    term = {"type": name, "beta": 0.3, "length_average": average, **options}
    reply = linear(client, inputs, terms=[term], ref_logprob=reference, denominator_from="count")
    compare(reply, formula(ratio[:P], ratio[P:], 0.3).mean(), theirs)
    assert reply.count == P


@pytest.mark.parametrize("kind", ["aot", "aot_unpaired"])
def test_sorted_types(client, kind):
    inputs = batch(seed=5)
    hidden, weight, target, mask, reference = inputs
    _, theirs = leaves(hidden, weight)
    policy, ref = sums(logprob64(*theirs, target), mask), sums(reference.double(), mask)
    if kind == "aot":
        first, second = policy[:P] - policy[P:], ref[:P] - ref[P:]
    else:
        first, second = (policy - ref)[:P], (policy - ref)[P:]
    delta = first.sort(stable=True).values - second.sort(stable=True).values
    reply = linear(client, inputs, terms=[{"type": kind, "beta": 0.3}], ref_logprob=reference)
    compare(reply, -F.logsigmoid(0.3 * delta).sum(), theirs)


def test_orpo(client):
    inputs = batch(seed=7)
    hidden, weight, target, mask, _ = inputs
    _, theirs = leaves(hidden, weight)
    logprob = logprob64(*theirs, target)
    mean = sums(logprob, mask, average=True)
    odds = (mean[:P] - mean[P:]) - (torch.log1p(-mean[:P].exp()) - torch.log1p(-mean[P:].exp()))
    nll = -(logprob * mask)[:P].sum() / mask[:P].sum()
    reply = linear(client, inputs, terms=[{"type": "orpo", "beta": 0.2, "length_average": True}],
                   reference_free=True, nll_coef=1, nll_denominator_from="count",
                   denominator_from="count")
    assert reply.nll_count == int(mask[:P].sum())
    compare(reply, nll - (0.2 * F.logsigmoid(odds)).mean(), theirs)


def test_simpo_and_cpo(client):
    inputs = batch(seed=9)
    hidden, weight, target, mask, _ = inputs
    _, theirs = leaves(hidden, weight)
    mean = sums(logprob64(*theirs, target), mask, average=True)
    logits = mean[:P] - mean[P:] - 0.5 / 2.0  # simpo_gamma 0.5, beta 2
    reply = linear(client, inputs, reference_free=True, denominator_from="count",
                   terms=[{"type": "sigmoid", "beta": 2, "margin": 0.5, "length_average": True}])
    compare(reply, -F.logsigmoid(2 * logits).mean(), theirs)

    _, theirs = leaves(hidden, weight)
    logprob = logprob64(*theirs, target)
    total = sums(logprob, mask)
    nll = -(logprob * mask)[:P].sum() / mask[:P].sum()
    reply = linear(client, inputs, reference_free=True, denominator_from="count",
                   terms=[{"type": "sigmoid", "beta": 0.1}], nll_coef=0.7,
                   nll_denominator_from="count")
    compare(reply, dpo(total[:P], total[P:], 0.1).mean() + 0.7 * nll, theirs)


def test_a_reference_model(client):
    inputs = batch(seed=11)
    hidden, weight, target, mask, _ = inputs
    other, other_weight, _, _ = head_case(rows=(2 * P, T), hidden_size=5, seed=12)
    _, theirs = leaves(hidden, weight)
    ratio = sums(logprob64(*theirs, target) - logprob64(other, other_weight, target), mask)
    reply = linear(client, inputs, terms=[{"type": "sigmoid", "beta": 0.3}], ref_hidden=other,
                   ref_weight=other_weight)
    compare(reply, dpo(ratio[:P], ratio[P:], 0.3).sum(), theirs)


def test_given_log_probabilities(client):
    hidden, weight, target, mask, reference = batch(seed=13)
    logprob = logprob64(hidden, weight, target).float()
    (mine,), (theirs,) = leaves(logprob)
    ratio = sums(theirs - reference.double(), mask)
    dpo(ratio[:P], ratio[P:], 0.3).mean().backward()
    reply = lossd.ops.preference_loss(
        client, logprob=mine.detach(), mask=mask, cu_seqlens=cu_seqlens(), pairing="halves",
        terms=[{"type": "sigmoid", "beta": 0.3}], ref_logprob=reference, denominator=P,
        want=("loss", "d_logprob", "pair_loss", "chosen_reward"))
    assert_close(reply["d_logprob"], theirs.grad)
    assert_close(reply["chosen_reward"], 0.3 * ratio.detach()[:P])
    assert reply["pair_loss"].shape == (P,)


@pytest.mark.parametrize("kind", ["kto", "apo_zero_unpaired", "bco"])
def test_unpaired(client, kind):
    hidden, weight, target, mask, reference = batch(seed=15)
    desirable = torch.tensor([True, False, True, True, False, False])
    _, theirs = leaves(hidden, weight)
    ratio = sums(logprob64(*theirs, target) - reference.double(), mask)
    kl = 0.4
    up, down = ratio[desirable], ratio[~desirable]
    if kind == "kto":
        losses = [1.3 * (1 - torch.sigmoid(0.3 * (up - kl))), 0.8 * (1 - torch.sigmoid(0.3 * (kl - down)))]
    elif kind == "bco":
        losses = [-1.3 * F.logsigmoid(0.3 * up - 0.2), -0.8 * F.logsigmoid(-(0.3 * down - 0.2))]
    else:
        losses = [1.3 * (1 - torch.sigmoid(0.3 * up)), 0.8 * torch.sigmoid(0.3 * down)]
    own = {"kto": {"kl_baseline": torch.tensor([kl])}, "bco": {"bco_delta": 0.2}}.get(kind, {})
    reply = lossd.ops.linear_unpaired_loss(
        client, hidden=hidden, weight=weight, target=target, mask=mask, cu_seqlens=cu_seqlens(),
        desirable=desirable, ref_logprob=reference, type=kind, beta=0.3, desirable_weight=1.3,
        undesirable_weight=0.8, denominator_from="count",
        want=("loss", "grad_hidden", "grad_weight", "reward"), **own)
    compare(reply, torch.cat(losses).mean(), theirs)
    assert_close(reply["reward"], 0.3 * ratio.detach())


def test_entries_of_a_list_are_named(client):
    inputs = batch()
    for terms, field in [([{"type": "sigmoid"}], "terms[0].beta"),
                         ([{"type": "sigmoid", "beta": 1}, {"type": "dpo", "beta": 1}], "terms[1].type"),
                         ([{"type": "ipo", "beta": 1, "tau": 0.1}], "terms[0].tau"),
                         ([{"typ": "ipo", "beta": 1}], "terms[0].typ"),
                         ({"type": "ipo", "beta": 1}, "terms")]:
        with pytest.raises(lossd.LossdError) as error:
            linear(client, inputs, terms=terms, reference_free=True)
        assert error.value.field == field
