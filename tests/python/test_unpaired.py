"""linear_unpaired_loss and unpaired_loss against the formulas of TRL's KTO and BCO trainers; torch in float64."""

import pytest
import torch
import torch.nn.functional as F

import lossd
from pairs import P, T, Pairs
from references import assert_close, check_linear, check_plain, cu_seqlens, head_case, logprob64

UP = torch.tensor([True, False, True, True, False, False, True, False, False, True])


def check(case, client, formula, **options):
    """Both forms against formula(x of the sequences)."""
    average = options.get("length_average", False)
    options = {"client": client, "mask": case.mask, "cu_seqlens": cu_seqlens(2 * P, T), "desirable": UP, "beta": 0.3,
               "ref_logprob": case.reference, "denominator_from": "count", **options}

    def of_tokens(logprob, _):
        return formula(case.sums(logprob - case.reference.double(), average))

    inputs = (case.hidden, case.weight, case.target)
    check_linear(lambda h, w: lossd.linear_unpaired_loss(h, w, case.target, **options), of_tokens, *inputs)
    check_plain(lambda lp: lossd.unpaired_loss(lp, **options), of_tokens, *inputs)


@pytest.mark.parametrize("baseline", [0.4, torch.tensor([0.4]), torch.tensor(0.4)])
@pytest.mark.parametrize("average", [False, True])
def test_trl_kto_trainer(client, baseline, average):
    """desirable_weight, undesirable_weight, and the KL of mismatched pairs that the trainer has gathered."""
    def formula(x):
        up = 1.3 * (1 - torch.sigmoid(0.3 * (x[UP] - 0.4)))
        down = 0.8 * (1 - torch.sigmoid(0.3 * (0.4 - x[~UP])))
        return torch.cat([up, down]).mean()

    check(Pairs(seed=15), client, formula, type="kto", kl_baseline=baseline, desirable_weight=1.3, undesirable_weight=0.8,
          length_average=average)


def test_trl_kto_loss_type_apo_zero_unpaired(client):
    def formula(x):
        return torch.cat([1.3 * (1 - torch.sigmoid(0.3 * x[UP])), 0.8 * torch.sigmoid(0.3 * x[~UP])]).mean()

    check(Pairs(seed=17), client, formula, type="apo_zero_unpaired", desirable_weight=1.3, undesirable_weight=0.8)


def test_trl_bco_trainer(client):
    """Rewards against their running mean; density ratios weigh the answers that are not wanted (UDM); one is out of the batch."""
    weight = torch.tensor([1.0, 0.6, 1.0, 0.0, 1.7, 0.9, 1.0, 0.8, 1.1, 1.0])

    def formula(x):
        rewards = 0.3 * x - 0.2
        return (weight * torch.where(UP, -F.logsigmoid(rewards), -F.logsigmoid(-rewards))).sum() / 9

    check(Pairs(seed=19), client, formula, type="bco", bco_delta=0.2, sequence_weight=weight)


def test_denominator_of_the_global_batch(client):
    def formula(x):
        return torch.where(UP, 1 - torch.sigmoid(0.3 * x), torch.sigmoid(0.3 * x)).sum() / 24

    check(Pairs(seed=21), client, formula, type="apo_zero_unpaired", denominator_from="given", denominator=24)


def test_a_reference_head_and_outputs(client):
    case = Pairs(seed=23)
    other, other_weight, _, _ = head_case(rows=(2 * P, T), hidden_size=5, seed=24)
    x = case.sums(logprob64(case.hidden, case.weight, case.target) - logprob64(other, other_weight, case.target))
    loss, reply = lossd.linear_unpaired_loss(
        case.hidden, case.weight, case.target, client=client, mask=case.mask, cu_seqlens=cu_seqlens(2 * P, T), desirable=UP, beta=0.3,
        type="bco", ref_hidden=other, ref_weight=other_weight, want=("reward", "sequence_logp", "sequence_loss"))
    assert_close(reply["reward"], 0.3 * x)
    assert_close(reply["sequence_logp"], case.sums(logprob64(case.hidden, case.weight, case.target)))
    assert_close(reply["sequence_loss"], torch.where(UP, -F.logsigmoid(0.3 * x), -F.logsigmoid(-0.3 * x)))
    assert_close(loss, reply["sequence_loss"].sum())
    assert reply.count == 2 * P and reply.metrics["desirable_reward"].count == UP.sum()
    assert abs(reply.metrics["undesirable_reward"].sum - 0.3 * x[~UP].sum().item()) < 1e-4
