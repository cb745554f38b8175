"""Every kind of policy term against its trainer's formula, from the head and from log-probabilities: [B, T] tensors, torch in float64."""

import math

import pytest
import torch

import lossd
from references import assert_close, logprob64, per_sequence
from rollouts import B, CLIP, SEQ_MEAN_TOKEN_MEAN, TOKEN_MEAN, T, Rollout, clipped


@pytest.mark.parametrize("loss_type, options, total", [
    ("grpo", SEQ_MEAN_TOKEN_MEAN, None), ("bnpo", TOKEN_MEAN, 44.0), ("dr_grpo", {"denominator": B * 10}, B * 10),
    ("dapo", {"denominator": 61.0}, 61.0)])
def test_trl_grpo_loss_types(client, loss_type, options, total):
    case = Rollout()

    def formula(logprob, _):
        tokens = clipped(case.ratio(logprob), case.advantage)
        return case.seq_mean_token_mean(tokens) if total is None else (tokens * case.mask).sum() / total

    case.check(client, formula, kind="ppo", **CLIP, **options)


def test_trl_delta_two_sided_clipping(client):
    case = Rollout(spread=1.0)

    def formula(logprob, _):
        ratio = case.ratio(logprob)
        first = ratio.clamp(max=1.4) * case.advantage
        return case.token_mean(-torch.min(first, ratio.clamp(0.8, 1.28) * case.advantage))

    case.check(client, formula, kind="ppo", ratio_cap=1.4, **CLIP, **TOKEN_MEAN)


@pytest.mark.parametrize("bound", [20, 0.6])
def test_verl_ppo_dual_clip(client, bound):
    case = Rollout(spread=1.0, token_advantages=True)

    def formula(logprob, _):
        ratio = (logprob - case.old.double()).clamp(-bound, bound).exp()
        a = case.advantage
        worst = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.28))
        return case.token_mean(torch.where(a < 0, torch.min(-a * 1.5, worst), worst))

    case.check(client, formula, kind="ppo", ratio_cap=1.5, log_ratio_clamp="symmetric", log_ratio_bound=bound, **CLIP, **TOKEN_MEAN)


def test_trl_importance_sampling_level_sequence(client):
    case = Rollout(token_advantages=True)

    def formula(logprob, _):
        return case.seq_mean_token_mean(clipped(case.sequence_log_ratio(logprob).exp(), case.advantage, 0.05, 0.04))

    case.check(client, formula, kind="gspo", gspo_gradient="through_mean", clip_low=0.05, clip_high=0.04, **SEQ_MEAN_TOKEN_MEAN)


@pytest.mark.parametrize("bound", [10, 0.01])
def test_verl_gspo(client, bound):
    case = Rollout(token_advantages=True)

    def formula(logprob, _):
        log_ratio = logprob - logprob.detach() + case.sequence_log_ratio(logprob).detach()
        ratio = log_ratio.clamp(max=bound).exp()
        return case.seq_mean_token_mean(torch.max(-case.advantage * ratio, -case.advantage * ratio.clamp(0.95, 1.04)))

    case.check(client, formula, kind="gspo", gspo_gradient="detached", log_ratio_clamp="upper", log_ratio_bound=bound, clip_low=0.05,
               clip_high=0.04, **SEQ_MEAN_TOKEN_MEAN)


def test_trl_luspo(client):
    case = Rollout()

    def formula(logprob, _):
        sequences = clipped(case.sequence_log_ratio(logprob).exp(), case.advantage, 0.04, 0.05)
        return (sequences * case.mask.sum(1, keepdim=True)).mean()

    case.check(client, formula, kind="luspo", clip_low=0.04, clip_high=0.05, denominator=B)


@pytest.mark.parametrize("trainer, low, high", [("trl_epsilon_high", 0.0, 1.2), ("verl_nemo_rl", 0.8, 1.28)])
def test_cispo(client, trainer, low, high):
    case = Rollout()

    def formula(logprob, _):
        weights = case.ratio(logprob).clamp(low, high).detach()
        return case.token_mean(-case.advantage * weights * logprob)

    bounds = {"cispo_high": high} if low == 0 else {"cispo_low": low, "cispo_high": high}
    case.check(client, formula, kind="cispo", **bounds, **TOKEN_MEAN)


@pytest.mark.parametrize("positive, negative", [(1.0, 1.05), (0.5, 3.0)])
def test_trl_sapo(client, positive, negative):
    case = Rollout()

    def formula(logprob, _):
        tau = torch.where(case.advantage > 0, positive, negative).double()
        return case.seq_mean_token_mean(-case.advantage * torch.sigmoid(tau * (case.ratio(logprob) - 1)) * 4 / tau)

    taus = {} if positive == 1.0 else {"sapo_tau_pos": positive, "sapo_tau_neg": negative}
    case.check(client, formula, kind="sapo", **taus, **SEQ_MEAN_TOKEN_MEAN)


@pytest.mark.parametrize("weighted", [False, True])
def test_verl_geo_mean_gmpo(client, weighted):
    case = Rollout(token_advantages=True)
    weights = torch.rand(B, T, generator=torch.Generator().manual_seed(3)) + 0.5

    def formula(logprob, _):
        sign, q = case.advantage.sign(), logprob - case.old.double()
        kept = sign * torch.min(sign * q, sign * q.clamp(-0.3, 0.4))
        ratio = per_sequence(kept, case.mask, average=True).exp()
        losses = -per_sequence(case.advantage.double(), case.mask, average=True) * ratio
        if weighted:
            losses = losses * per_sequence(weights.double().log(), case.mask, average=True).exp()
        return losses.mean()

    case.check(client, formula, kind="gmpo", clip_low=0.3, clip_high=0.4, pg_weight=weights if weighted else None,
               **SEQ_MEAN_TOKEN_MEAN)


def test_verl_dppo_tv(client):
    case = Rollout(spread=1.0, token_advantages=True)

    change = logprob64(case.hidden, case.weight, case.target).exp() - case.old.double().exp().clamp(max=1)
    up = case.advantage > 0
    high = change[up & case.mask & (change > 0)].median().item() * 1.01
    low = -change[~up & case.mask & (change < 0)].median().item() * 1.01

    def formula(logprob, _):
        kept = torch.where(up, change <= high, change >= -low)
        return case.token_mean(-case.advantage * (case.ratio(logprob).clamp(max=1.3) * kept).detach() * logprob)

    case.check(client, formula, kind="dppo_tv", clip_low=low, clip_high=high, ratio_cap=1.3, **TOKEN_MEAN)


def test_verl_dppo_kl(client):
    case = Rollout(spread=1.0, token_advantages=True)

    old, current = case.old.double(), logprob64(case.hidden, case.weight, case.target)
    p, p_old = current.exp(), old.exp().clamp(max=1)
    kl = p_old * (old - current) + (1 - p_old) * ((1 - p_old + 1e-8) / (1 - p + 1e-8)).log()
    up = case.advantage > 0
    high = kl[up & case.mask & (p > p_old)].median().item() * 1.01
    low = kl[~up & case.mask & (p < p_old)].median().item() * 1.01

    def formula(logprob, _):
        kept = torch.where(up, (kl <= high) | (p <= p_old), (kl <= low) | (p >= p_old))
        return case.token_mean(-case.advantage * (case.ratio(logprob) * kept).detach() * logprob)

    case.check(client, formula, kind="dppo_kl", clip_low=low, clip_high=high, **TOKEN_MEAN)


def test_dro(client):
    case = Rollout()

    def formula(logprob, _):
        return case.token_mean(-case.advantage * logprob + 0.35 * (logprob - case.old.double()) ** 2)

    case.check(client, formula, kind="dro", dro_beta=0.7, **TOKEN_MEAN)


@pytest.mark.parametrize("shape", [{}, {"vespo_k_pos": 1.5, "vespo_lambda_pos": 1.2, "vespo_k_neg": 0.7, "vespo_lambda_neg": 0.9}])
def test_trl_vespo(client, shape):
    case = Rollout(spread=0.3, seed=1)
    weights = torch.rand(B, generator=torch.Generator().manual_seed(3)) + 0.5
    up = case.advantage >= 0
    k = torch.where(up, shape.get("vespo_k_pos", 2.0), shape.get("vespo_k_neg", 3.0)).double()
    steepness = torch.where(up, shape.get("vespo_lambda_pos", 3.0), shape.get("vespo_lambda_neg", 2.0)).double()

    def formula(logprob, _):
        log_w = per_sequence((logprob - case.old.double()).clamp(-20, 20), case.mask)[:, None] + weights.double().log()[:, None]
        log_w = log_w.clamp(math.log(1e-8), 20)
        phi = (steepness + k * log_w - steepness * log_w.exp()).exp().detach()
        return case.token_mean(-case.advantage * phi * logprob)

    # phi is an exponential of a sum over the sequence: it magnifies the rounding of each log-probability.
    case.check(client, formula, kind="vespo", sequence_pg_weight=weights, tolerance=1e-4, **shape, **TOKEN_MEAN)


def test_verl_clip_cov_of_the_trainer(client):
    case = Rollout()
    selected = torch.rand(B, T, generator=torch.Generator().manual_seed(5)) < 0.3

    def formula(logprob, _):
        return case.token_mean(clipped(case.ratio(logprob), case.advantage) * ~selected)

    case.check(client, formula, kind="clip_cov", cov_selected=selected, **CLIP, **TOKEN_MEAN)


@pytest.mark.parametrize("by_server", [False, True])
def test_verl_kl_cov(client, by_server):
    case = Rollout(token_advantages=True)
    logprob = logprob64(case.hidden, case.weight, case.target)
    a, mask = case.advantage.double(), case.mask
    covariance = (a - a[mask].mean()) * (logprob - logprob[mask].mean())
    threshold = covariance[mask].sort(descending=True).values[7]  # int(0.2 * 44) = 8 tokens
    selected = (covariance >= threshold) & mask

    def formula(logprob, _):
        losses = -case.advantage * case.ratio(logprob)
        return case.token_mean(losses + torch.where(selected, 0.9 * (logprob - case.old.double()).abs(), 0.0))

    chosen = {"cov_ratio": 0.2} if by_server else {"cov_selected": selected}
    case.check(client, formula, kind="kl_cov", kl_cov_coef=0.9, **chosen, **TOKEN_MEAN)


def test_verl_clip_cov_by_the_server(client):
    """Which tokens it draws is the hash's choice: as many as asked for, of those inside the bounds that are not clipped; the same again."""
    case = Rollout(token_advantages=True)
    logprob = logprob64(case.hidden, case.weight, case.target)
    full, unclipped = clipped(case.ratio(logprob), case.advantage), -case.ratio(logprob) * case.advantage
    covariance = (case.advantage - case.advantage[case.mask].mean()) * (logprob - logprob[case.mask].mean())
    low, high = (covariance[case.mask].quantile(q).item() for q in (0.3, 0.9))
    candidates = (covariance > low) & (covariance < high) & (full == unclipped) & case.mask
    drawn = {}
    for share, seed in ((0.2, 7), (0.2, 8), (1.0, 7)):
        rows = [lossd.policy_loss(logprob.float(), client=client, kind="clip_cov", old_logprob=case.old, advantage=case.advantage,
                                  mask=case.mask, want=("row_loss",), cov_ratio=share, cov_low=low, cov_high=high, cov_seed=seed,
                                  **CLIP)[1]["row_loss"] for _ in range(2)]
        gone = drawn[share, seed] = (rows[0] == 0) & case.mask
        assert torch.equal(*rows)
        assert_close(rows[0], full * case.mask * ~gone)
    assert torch.equal(drawn[1.0, 7], candidates) and 8 < candidates.sum() < case.mask.sum()
    assert drawn[0.2, 7].sum() == drawn[0.2, 8].sum() == 8  # int(0.2 * 44)
    assert not (drawn[0.2, 7] & ~candidates).any() and not torch.equal(drawn[0.2, 7], drawn[0.2, 8])


@pytest.mark.parametrize("kind", ["reinforce", "gpg"])
def test_reinforce_and_gpg(client, kind):
    case = Rollout()
    case.check(client, lambda logprob, _: -(case.advantage * logprob * case.mask).sum() / 9, kind=kind, old=False, denominator=9)


def test_force_on_policy(client):
    case = Rollout()
    case.check(client, lambda logprob, _: case.token_mean(-case.advantage * (logprob - logprob.detach()).exp()), kind="ppo", old=False,
               force_on_policy=True, **CLIP, **TOKEN_MEAN)
