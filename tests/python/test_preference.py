"""linear_preference_loss and preference_loss against the formulas of TRL's DPO, CPO and ORPO trainers and NeMo-RL; torch in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

import lossd
from pairs import P, T, Pairs
from references import assert_close, check_linear, cu_seqlens, head_case, leaves, logprob64, token_mask


# What TRL's loss_type names. Each takes log-ratios of the chosen and the rejected side, and beta.
def sigmoid(c, r, beta, e=0.0):
    return -F.logsigmoid(beta * (c - r)) * (1 - e) - F.logsigmoid(-beta * (c - r)) * e


def robust(c, r, beta, e=0.1):
    return (-F.logsigmoid(beta * (c - r)) * (1 - e) + F.logsigmoid(-beta * (c - r)) * e) / (1 - 2 * e)


def hinge(c, r, beta, margin=0.0):
    return torch.relu(1 - (beta * (c - r) - margin))


def ipo(c, r, beta):
    return (c - r - 1 / (2 * beta)) ** 2


def exo_pair(c, r, beta, e=0.1):
    u = beta * (c - r)
    return u.sigmoid() * (F.logsigmoid(u) - math.log(1 - e)) + (-u).sigmoid() * (F.logsigmoid(-u) - math.log(e))


def nca_pair(c, r, beta):
    return -F.logsigmoid(c * beta) - 0.5 * F.logsigmoid(-c * beta) - 0.5 * F.logsigmoid(-r * beta)


def bco_pair(c, r, beta, delta=0.0):
    return -F.logsigmoid(beta * c - delta) - F.logsigmoid(-(beta * r - delta))


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


TYPES = {  # case: formula, its own options, fields of the term
    "sigmoid": (sigmoid, {}, {}),
    "sigmoid_label_smoothing": (sigmoid, {"e": 0.1}, {"type": "sigmoid", "label_smoothing": 0.1}),
    "robust": (robust, {}, {"label_smoothing": 0.1}), "hinge": (hinge, {}, {}),
    "hinge_margin": (hinge, {"margin": 0.6}, {"type": "hinge", "margin": 0.6}), "ipo": (ipo, {}, {}),
    "exo_pair": (exo_pair, {}, {"label_smoothing": 0.1}), "nca_pair": (nca_pair, {}, {}), "bco_pair": (bco_pair, {}, {}),
    "bco_pair_running_delta": (bco_pair, {"delta": 0.3}, {"type": "bco_pair", "bco_delta": 0.3}),
    "sppo_hard": (sppo_hard, {}, {}), "apo_zero": (apo_zero, {}, {}), "apo_down": (apo_down, {}, {}), "discopop": (discopop, {}, {}),
    "discopop_tau": (discopop, {"tau": 0.4}, {"type": "discopop", "tau": 0.4}),
}


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("loss_type", TYPES)
def test_trl_dpo_loss_type(client, loss_type, average):
    """average: sigmoid_norm, and the ipo of TRL; OpenRLHF's ipo sums."""
    formula, own, fields = TYPES[loss_type]
    case = Pairs(seed=3)
    case.check(client, lambda lp: formula(*case.log_ratios(lp, average), 0.3, **own).mean(),
               terms=[{"type": loss_type, "beta": 0.3, "length_average": average, **fields}])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("loss_type", ["aot", "aot_unpaired"])
def test_trl_dpo_sorted_loss_type(client, loss_type, smoothing):
    case = Pairs(seed=5, spread=5.0)

    def formula(logprob):
        (pc, pr), (rc, rr) = case.sides(case.sums(logprob)), case.sides(case.sums(case.reference.double()))
        first, second = (pc - pr, rc - rr) if loss_type == "aot" else (pc - rc, pr - rr)
        delta = first.sort(stable=True).values - second.sort(stable=True).values
        assert not torch.equal(first.argsort(), second.argsort())
        return sigmoid(delta, 0.0, 0.05, smoothing).mean()

    case.check(client, formula, terms=[{"type": loss_type, "beta": 0.05, "label_smoothing": smoothing}])


def test_trl_dpo_loss_weights(client):
    """A list of loss types with weights, "sft" among them: TRL's MPO recipe, NeMo-RL's weights."""
    case = Pairs(seed=7)

    def formula(logprob):
        c, r = case.log_ratios(logprob)
        return (0.8 * sigmoid(c, r, 0.3) + 0.2 * bco_pair(c, r, 0.2)).mean() + 0.9 * case.nll(logprob)

    case.check(client, formula, nll_coef=0.9, nll_denominator_from="count",
               terms=[{"type": "sigmoid", "beta": 0.3, "weight": 0.8}, {"type": "bco_pair", "beta": 0.2, "weight": 0.2}])


@pytest.mark.parametrize("divergence", ["js_divergence", "forward_kl", "alpha_divergence"])
def test_trl_dpo_f_divergence_type(client, divergence):
    case = Pairs(seed=9)
    coef = 0.6  # f_alpha_divergence_coef

    def formula(logprob):
        c, r = case.log_ratios(logprob)
        if divergence == "js_divergence":
            logits = (c - r) - (F.softplus(c) - F.softplus(r))
        elif divergence == "forward_kl":
            logits = torch.exp(-r) - torch.exp(-c)
        else:
            logits = (torch.exp(-coef * r) - torch.exp(-coef * c)) / coef
        return -F.logsigmoid(0.3 * logits).mean()

    score = {"js_divergence": {"score": "js"}, "forward_kl": {"score": "forward_kl"},
             "alpha_divergence": {"score": "alpha", "score_alpha": 1 - coef}}[divergence]
    case.check(client, formula, terms=[{"type": "sigmoid", "beta": 0.3}], **score)


def test_trl_dpo_rpo_alpha(client):
    case = Pairs(seed=11)
    case.check(client, lambda lp: sigmoid(*case.log_ratios(lp), 0.3).mean() + 0.7 * case.nll(lp),
               terms=[{"type": "sigmoid", "beta": 0.3}], nll_coef=0.7, nll_denominator_from="count")


def test_trl_dpo_ld_alpha(client):
    case = Pairs(seed=13)
    lengths = case.mask.sum(-1)
    shorter = torch.minimum(*case.sides(lengths)).repeat(2)
    front = torch.arange(T) < shorter[:, None]

    def formula(logprob):
        ratio = (logprob - case.reference.double()) * torch.where(front, 1.0, 0.4)
        return sigmoid(*case.sides(case.sums(ratio)), 0.3).mean()

    case.check(client, formula, terms=[{"type": "sigmoid", "beta": 0.3}], ld_alpha=0.4)


def test_trl_dpo_use_weighting_wpo(client):
    case = Pairs(seed=15)
    logp = torch.log_softmax(case.hidden.double() @ case.weight.double().t(), -1)
    adjusted = logp.gather(-1, case.target.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(2 * logp, -1)
    chosen, rejected = case.sides(case.sums(adjusted, average=True))
    weights = torch.exp(chosen + rejected)
    case.check(client, lambda lp: (weights * sigmoid(*case.log_ratios(lp), 0.3)).mean(), terms=[{"type": "sigmoid", "beta": 0.3}], wpo=True)


def test_trl_cpo_trainer(client):
    case = Pairs(seed=17)
    case.check(client, lambda lp: sigmoid(*case.sides(case.sums(lp)), 0.1).mean() + 0.7 * case.nll(lp), reference_free=True,
               terms=[{"type": "sigmoid", "beta": 0.1}], nll_coef=0.7, nll_denominator_from="count")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_trl_cpo_simpo(client, smoothing):
    case = Pairs(seed=19)

    def formula(logprob):
        c, r = case.sides(case.sums(logprob, average=True))
        return sigmoid(c - 0.5 / 2.0, r, 2.0, smoothing).mean()  # simpo_gamma 0.5, beta 2

    case.check(client, formula, reference_free=True,
               terms=[{"type": "sigmoid", "beta": 2, "margin": 0.5, "length_average": True, "label_smoothing": smoothing}])


def test_trl_cpo_alpha_alphapo(client):
    case = Pairs(seed=21)

    def formula(logprob):
        c, r = (torch.exp(side) for side in case.sides(case.sums(logprob, average=True)))
        rewards = (1 - c ** -0.25) / 0.25, (1 - r ** -0.25) / 0.25
        return sigmoid(rewards[0] - 0.1, rewards[1], 2.0).mean()  # gamma 0.2, beta 2

    case.check(client, formula, reference_free=True, score="alpha_reward", score_alpha=0.25,
               terms=[{"type": "sigmoid", "beta": 2, "margin": 0.2, "length_average": True}])


def test_trl_orpo_trainer(client):
    """The likelihood is of prompt and answer, the odds of the answer alone."""
    case = Pairs(seed=23)
    whole = token_mask([6, 5, 4, 5, 6, 4, 5, 6, 3, 6], T)

    def formula(logprob):
        c, r = case.sides(case.sums(logprob, average=True))
        odds = (c - r) - (torch.log1p(-c.exp()) - torch.log1p(-r.exp()))
        return -(logprob * whole)[:P].sum() / whole[:P].sum() - (0.2 * F.logsigmoid(odds)).mean()

    case.check(client, formula, terms=[{"type": "orpo", "beta": 0.2, "length_average": True}], reference_free=True, nll_coef=1,
               nll_denominator_from="count", nll_mask=whole)


def test_nemo_rl_interleaved_pairs_with_denominators_of_the_global_batch(client):
    case = Pairs(seed=25)
    weight = torch.tensor([1.0, 0.0, 2.0, -0.5, 1.5])

    def formula(logprob):
        ratio = case.sums(logprob - case.reference.double())
        return (weight * sigmoid(ratio[0::2], ratio[1::2], 0.3)).sum() / 11 - 0.4 * (logprob * case.mask)[0::2].sum() / 29

    case.check(client, formula, terms=[{"type": "sigmoid", "beta": 0.3}], pairing="interleaved", pair_weight=weight,
               denominator_from="given", denominator=11, nll_coef=0.4, nll_denominator=29)


def test_trl_precomputed_reference_logps(client):
    case = Pairs(seed=27)
    case.check(client, lambda lp: sigmoid(*case.log_ratios(lp), 0.3).mean(), terms=[{"type": "sigmoid", "beta": 0.3}],
               ref_logprob=None, ref_sequence_logprob=case.sums(case.reference))


def test_liger_reference_head(client):
    case = Pairs(seed=29)
    other, other_weight, other_bias, _ = head_case(rows=(2 * P, T), hidden_size=5, seed=30, bias=True)
    theirs = logprob64(other, other_weight, case.target, other_bias)
    check_linear(
        lambda h, w: lossd.linear_preference_loss(
            h, w, case.target, client=client, mask=case.mask, cu_seqlens=cu_seqlens(2 * P, T), pairing="halves",
            terms=[{"type": "sigmoid", "beta": 0.3}], ref_hidden=other, ref_weight=other_weight, ref_bias=other_bias),
        lambda lp, _: sigmoid(*case.sides(case.sums(lp - theirs)), 0.3).sum(), case.hidden, case.weight, case.target)


def test_rewards_and_metrics(client):
    case = Pairs(seed=31)
    logprob = logprob64(case.hidden, case.weight, case.target).float().requires_grad_()
    loss, reply = lossd.preference_loss(
        logprob, client=client, mask=case.mask, cu_seqlens=cu_seqlens(2 * P, T), pairing="halves", ref_logprob=case.reference,
        terms=[{"type": "sigmoid", "beta": 0.3}], nll_coef=1, nll_denominator=1,
        want=("pair_loss", "chosen_reward", "rejected_reward", "chosen_logp", "rejected_logp"))
    c, r = case.log_ratios(logprob.detach().double())
    assert loss.requires_grad and "d_logprob" not in reply.outputs
    assert_close(reply["chosen_reward"], 0.3 * c)
    assert_close(reply["rejected_reward"], 0.3 * r)
    assert_close(reply["pair_loss"], sigmoid(c, r, 0.3))
    assert_close(torch.cat([reply["chosen_logp"], reply["rejected_logp"]]), case.sums(logprob.detach()))
    assert reply.count == P and reply.nll_count == case.mask[:P].sum()
    assert reply.metrics["accuracy"].sum == (c > r).sum()
    assert abs(reply.metrics["margin"].mean - 0.3 * (c - r).mean().item()) < 1e-5


def test_the_operations_themselves(client):
    """As they are on the wire, without autograd."""
    case = Pairs(seed=33)
    (mine,), (theirs,) = leaves(logprob64(case.hidden, case.weight, case.target).float())
    sigmoid(*case.log_ratios(theirs), 0.3).mean().backward()
    reply = lossd.ops.preference_loss(
        client, logprob=mine.detach(), mask=case.mask, cu_seqlens=cu_seqlens(2 * P, T), pairing="HALVES",
        terms=[{"type": "SIGMOID", "beta": 0.3}], ref_logprob=case.reference, denominator=P, want=("loss", "d_logprob"))
    assert_close(reply["d_logprob"], theirs.grad)


def test_entries_of_a_list_are_named(client):
    case = Pairs()
    for terms, field in [([{"type": "sigmoid"}], "terms[0].beta"),
                         ([{"type": "sigmoid", "beta": 1}, {"type": "dpo", "beta": 1}], "terms[1].type"),
                         ([{"type": "ipo", "beta": 1, "tau": 0.1}], "terms[0].tau"),
                         ([{"typ": "ipo", "beta": 1}], "terms[0].typ"),
                         (["ipo"], "terms[0]"), ("ipo", "terms"), ({"type": "ipo", "beta": 1}, "terms")]:
        with pytest.raises(lossd.LossdError) as error:
            lossd.linear_preference_loss(case.hidden, case.weight, case.target, client=client, terms=terms, reference_free=True,
                                         cu_seqlens=cu_seqlens(2 * P, T), pairing="halves")
        assert error.value.field == field
