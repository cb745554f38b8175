"""Weights, gates, KL and entropy terms of the policy losses against the trainers' formulas, from the head and from log-probabilities."""

import pytest
import torch

import lossd
from references import assert_close, cu_seqlens, entropy64, leaves, logprob64, per_sequence
from rollouts import B, CLIP, SEQ_MEAN_TOKEN_MEAN, TOKEN_MEAN, T, Rollout, clipped

PPO = {"kind": "ppo", **CLIP, **TOKEN_MEAN}


def policy(case, logprob):
    return clipped(case.ratio(logprob), case.advantage)



IMPORTANCE = {  # trainer's option: options, weight of x = old - sampler and its mask
    "trl_token_truncate": ({"is_level": "token", "is_mode": "truncate", "is_max": 1.2}, lambda x, m: x.exp().clamp(max=1.2)),
    "openrlhf_tis_low_high": ({"is_level": "token", "is_mode": "truncate", "is_min": 0.8, "is_max": 1.2},
                              lambda x, m: x.exp().clamp(0.8, 1.2)),
    "nemo_rl_raw": ({"is_level": "token", "is_mode": "raw"}, lambda x, m: x.exp()),
    "trl_token_mask_icepop": ({"is_level": "token", "is_mode": "mask", "is_min": 0.7, "is_max": 1.2},
                              lambda x, m: x.exp() * ((x.exp() >= 0.7) & (x.exp() <= 1.2))),
    "trl_sequence_mask": ({"is_level": "sequence_sum", "is_mode": "mask", "is_max": 1.5},
                          lambda x, m: seq(x, m).exp() * (seq(x, m).exp() <= 1.5)),
    "verl_sequence_truncate": ({"is_level": "sequence_sum", "is_mode": "truncate", "is_max": 1.2, "is_log_clamp": 0.3},
                               lambda x, m: seq(x, m).clamp(-0.3, 0.3).exp().clamp(max=1.2)),
    "verl_geometric": ({"is_level": "sequence_mean", "is_mode": "truncate", "is_max": 1.1},
                       lambda x, m: seq(x, m, True).exp().clamp(max=1.1)),
    "verl_batch_normalize": ({"is_level": "token", "is_mode": "truncate", "is_max": 1.2, "is_normalizer": 0.9},
                             lambda x, m: x.exp().clamp(max=1.2) / 0.9),
    "nemo_rl_seq_mask_tis": ({"is_level": "token", "is_mode": "raw", "is_row_min": 0.97, "is_row_max": 1.3},
                             lambda x, m: x.exp() * ((seq(x, m, True).exp() >= 0.97) & (seq(x, m, True).exp() <= 1.3))),
}


def seq(x, mask, average=False):
    return per_sequence(x, mask, average)[:, None]


@pytest.mark.parametrize("option", IMPORTANCE)
def test_importance_weights(client, option):
    case = Rollout(spread=0.3, seed=3)
    options, weight_of = IMPORTANCE[option]
    weights = weight_of(case.old.double() - case.sampler.double(), case.mask)
    # KL and entropy are outside the weights.
    def formula(logprob, entropy):
        drift = case.ref.double() - logprob
        return case.token_mean(weights * policy(case, logprob) + 0.1 * (drift.exp() - drift - 1) - 0.05 * entropy)

    case.check(client, formula, sampler_logprob=case.sampler, ref_logprob=case.ref, kl_estimator="k3", kl_coef=0.1,
               entropy_kind="true", entropy_coef=0.05, **options, **PPO)


def test_trl_off_policy_mask_threshold(client):
    case = Rollout(seed=3)

    def formula(logprob, _):
        kl = seq(case.sampler.double() - logprob, case.mask, True).detach()
        kept = (case.advantage >= 0) | (kl <= 0.1)
        assert kept.any() and not kept.all()
        return case.token_mean(policy(case, logprob) * kept)

    case.check(client, formula, sampler_logprob=case.sampler, off_policy_threshold=0.1, **PPO)


def test_trl_top_entropy_quantile(client):
    case = Rollout()
    threshold = entropy64(case.hidden, case.weight)[case.mask].quantile(0.6).item()
    case.check(client, lambda logprob, entropy: case.token_mean(policy(case, logprob) * (entropy.detach() >= threshold)),
               entropy_threshold=threshold, **PPO)


ESTIMATES = {"k1": lambda d: -d, "k2": lambda d: d ** 2 / 2, "k3": lambda d: d.exp() - d - 1, "abs": lambda d: d.abs()}
KL_WEIGHTS = {
    None: lambda case, logprob: 1.0,
    "ratio": lambda case, logprob: case.ratio(logprob),                      # TRL use_bias_correction_kl
    "score_function": lambda case, logprob: (logprob - logprob.detach()).exp(),  # NeMo-RL use_on_policy_kl_approximation, on policy
    "sampler_ratio": lambda case, logprob: (logprob - case.sampler.double()).exp(),
}


@pytest.mark.parametrize("estimator", ESTIMATES)
@pytest.mark.parametrize("weight", KL_WEIGHTS)
def test_kl_estimators_and_their_weights(client, estimator, weight):
    case = Rollout()

    def formula(logprob, _):
        kl = KL_WEIGHTS[weight](case, logprob) * ESTIMATES[estimator](case.ref.double() - logprob)
        return case.token_mean(policy(case, logprob) + 0.3 * kl)

    more = {} if weight != "sampler_ratio" else {"sampler_logprob": case.sampler}
    case.check(client, formula, ref_logprob=case.ref, kl_estimator=estimator, kl_coef=0.3, kl_weight=weight, **more, **PPO)


@pytest.mark.parametrize("inner, outer", [(0.3, None), (None, 0.05), (0.5, 0.12)])
def test_verl_and_nemo_rl_kl_clamps(client, inner, outer):
    case = Rollout()

    def formula(logprob, _):
        drift = case.ref.double() - logprob
        drift = drift if inner is None else drift.clamp(-inner, inner)
        kl = drift.exp() - drift - 1
        return case.token_mean(policy(case, logprob) + 0.3 * (kl if outer is None else kl.clamp(-outer, outer)))

    case.check(client, formula, ref_logprob=case.ref, kl_estimator="k3", kl_coef=0.3, kl_in_clamp=inner, kl_out_clamp=outer, **PPO)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_verl_straight_through_kl(client, estimator):
    """verl's "k1+" and "k3+"."""
    case = Rollout()

    def formula(logprob, _):
        drift = case.ref.double() - logprob
        through = drift ** 2 / 2
        kl = through - through.detach() + ESTIMATES[estimator](drift).detach()
        return case.token_mean(policy(case, logprob) + 0.3 * kl)

    case.check(client, formula, ref_logprob=case.ref, kl_estimator=estimator, kl_coef=0.3, kl_straight_through=True, **PPO)


@pytest.mark.parametrize("apart", [None, 11.0])
@pytest.mark.parametrize("kind", ["true", "sampled_plogp"])
def test_entropy(client, kind, apart):
    """verl, OpenRLHF and (apart) TRL have the entropy of the distribution, Megatron-RL that of the sampled token."""
    case = Rollout()
    part = torch.rand(B, T, generator=torch.Generator().manual_seed(9)) < 0.7

    def formula(logprob, entropy):
        bonus = (entropy if kind == "true" else -logprob.exp() * logprob) * part
        if apart:
            return case.seq_mean_token_mean(policy(case, logprob)) - 0.2 * (bonus * case.mask).sum() / apart
        return case.seq_mean_token_mean(policy(case, logprob) - 0.2 * bonus)

    case.check(client, formula, kind="ppo", entropy_kind=kind, entropy_coef=0.2, entropy_mask=part, entropy_denominator=apart,
               **CLIP, **SEQ_MEAN_TOKEN_MEAN)


def test_weights_of_tokens_and_sequences(client):
    case = Rollout()
    generator = torch.Generator().manual_seed(4)
    row, pg = torch.rand(B, T, generator=generator), torch.rand(B, T, generator=generator)
    sequence, sequence_pg = torch.rand(B, generator=generator), torch.rand(B, generator=generator)

    def formula(logprob, _):
        drift = case.ref.double() - logprob
        pi = pg * sequence_pg[:, None] * policy(case, logprob)
        tokens = row * (pi + 0.3 * (drift.exp() - drift - 1)) * sequence[:, None]
        return (tokens * case.mask * case.mask.sum(1, keepdim=True)).sum() / 7

    case.check(client, formula, kind="ppo", ref_logprob=case.ref, kl_estimator="k3", kl_coef=0.3, row_weight=row, pg_weight=pg,
               sequence_weight=sequence, sequence_pg_weight=sequence_pg, sequence_weighting="length", denominator=7, **CLIP)


def test_nemo_rl_kl_of_the_unfiltered_distribution(client):
    case = Rollout()
    unfiltered = (logprob64(case.hidden, case.weight, case.target) - 0.3).float()
    ours, theirs = leaves(logprob64(case.hidden, case.weight, case.target).float(), unfiltered)
    loss = lossd.policy_loss(ours[0], kl_logprob=ours[1], client=client, old_logprob=case.old, ref_logprob=case.ref, mask=case.mask,
                             advantage=case.advantage.expand(B, T), kl_estimator="k3", kl_coef=0.3, **PPO)
    drift = case.ref.double() - theirs[1]
    expected = case.token_mean(policy(case, theirs[0]) + 0.3 * (drift.exp() - drift - 1))
    assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert_close(ours[0].grad, theirs[0].grad)
    assert_close(ours[1].grad, theirs[1].grad)


def test_outputs_and_metrics_from_log_probabilities(client):
    case = Rollout()
    logprob = logprob64(case.hidden, case.weight, case.target).float()
    loss, reply = lossd.policy_loss(
        logprob.requires_grad_(), client=client, old_logprob=case.old, sampler_logprob=case.sampler, ref_logprob=case.ref,
        sequence_advantage=case.advantage[:, 0], mask=case.mask, cu_seqlens=cu_seqlens(B, T), kl_estimator="k3", kl_coef=0.1,
        is_level="token", is_mode="truncate", is_max=1.2, want=("loss", "ratio", "kl", "importance_weight", "row_loss"), **PPO)
    mask, ratio = case.mask, case.ratio(logprob.detach().double())
    drift = case.ref.double() - logprob.detach().double()
    assert loss.requires_grad and torch.equal(reply["loss"], loss.detach())
    assert_close(reply["ratio"][mask], ratio[mask])
    assert_close(reply["kl"][mask], (drift.exp() - drift - 1)[mask])
    assert_close(reply["importance_weight"][mask], (case.old.double() - case.sampler).exp().clamp(max=1.2)[mask])
    assert not reply["row_loss"][~mask].any() and set(reply.outputs) == {"loss", "ratio", "kl", "importance_weight", "row_loss"}
    assert reply.count == mask.sum() and reply.sequence_count == B
    assert reply.metrics["clip_high"].sum == ((ratio > 1.28) & (case.advantage > 0) & mask).sum()
    assert reply.metrics["mult_prob_error"].count == mask.sum()
