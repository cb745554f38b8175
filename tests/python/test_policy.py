"""policy_loss against the formulas as TRL's GRPO trainer writes them: [B, T] tensors with a completion mask, torch in float64."""

import pytest
import torch

import lossd
from references import (assert_close, assert_gradients, entropy64, head_case, leaves, logprob64)

B, T = 4, 6


def rollout(seed=0):
    """hidden, weight, target, and per-token old, ref, mask, and an advantage of each sequence."""
    hidden, weight, _, target = head_case(rows=(B, T), seed=seed)
    generator = torch.Generator().manual_seed(seed + 100)
    logprob = logprob64(hidden, weight, target).float()
    old = logprob + 0.3 * torch.randn(B, T, generator=generator)
    ref = logprob + 0.3 * torch.randn(B, T, generator=generator)
    lengths = torch.tensor([6, 3, 1, 5])
    mask = torch.arange(T) < lengths[:, None]
    advantage = torch.tensor([1.2, -0.7, 0.4, -1.5])
    return hidden, weight, target, old, ref, mask, advantage


def cu_seqlens():
    return torch.arange(B + 1, dtype=torch.int32) * T


def grpo_tokens(logprob, old, ref, advantage, low=0.2, high=0.28, beta=0.04, delta=None):
    ratio = torch.exp(logprob - old)
    first = ratio if delta is None else torch.clamp(ratio, max=delta)
    clipped = torch.clamp(ratio, 1 - low, 1 + high)
    loss = -torch.min(first * advantage[:, None], clipped * advantage[:, None])
    return loss + beta * (torch.exp(ref - logprob) - (ref - logprob) - 1)


def aggregate(tokens, mask, kind, horizon=10):
    if kind == "grpo":
        return ((tokens * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    if kind == "bnpo":
        return (tokens * mask).sum() / mask.sum().clamp(min=1)
    return (tokens * mask).sum() / (B * horizon)


AGGREGATION = {
    "grpo": {"sequence_weighting": "inverse_length", "denominator": float(B)},
    "bnpo": {"denominator_from": "count"},
    "dr_grpo": {"denominator": B * 10.0},
}
CLIP = {"clip_low": 0.2, "clip_high": 0.28, "kl_estimator": "k3", "kl_coef": 0.04}


@pytest.mark.parametrize("kind", ["grpo", "bnpo", "dr_grpo"])
@pytest.mark.parametrize("backward", ["recompute", "forward", "fused"])
def test_grpo(client, kind, backward):
    hidden, weight, target, old, ref, mask, advantage = rollout()
    ours, theirs = leaves(hidden, weight)
    loss, reply = lossd.policy_loss(
        *ours, target, client=client, kind="ppo", sequence_advantage=advantage, old_logprob=old,
        ref_logprob=ref, mask=mask, cu_seqlens=cu_seqlens(), backward=backward,
        d_loss=1.5 if backward == "fused" else None, want=("logprob", "ratio", "kl"),
        **CLIP, **AGGREGATION[kind])
    logprob = logprob64(*theirs, target)
    expected = aggregate(grpo_tokens(logprob, old.double(), ref.double(), advantage.double()), mask, kind)
    assert_close(loss, expected)
    (loss * 1.5).backward()
    (expected * 1.5).backward()
    assert_gradients(ours, theirs)
    ratio = torch.exp(logprob - old)
    assert_close(reply["ratio"][mask], ratio[mask])
    assert_close(reply["logprob"][mask], logprob[mask])
    assert reply.count == mask.sum() and reply.sequence_count == B
    below = (ratio < 0.8) & (advantage[:, None] < 0) & mask
    assert reply.metrics["clip_low"].sum == below.sum()
    assert reply.metrics["kl"].count == mask.sum()
    drift = ref - logprob
    kl = (torch.exp(drift) - drift - 1)[mask].sum().item()
    assert abs(reply.metrics["kl"].sum - kl) < 1e-4 * abs(kl)


def test_two_sided_clipping_and_token_advantages(client):
    hidden, weight, target, old, ref, mask, advantage = rollout()
    ours, theirs = leaves(hidden, weight)
    old = old - 0.8  # ratios of 2 and more
    loss = lossd.policy_loss(*ours, target, client=client, kind="PPO", old_logprob=old,
                             advantage=advantage[:, None].expand(B, T), mask=mask, ratio_cap=1.5,
                             ref_logprob=ref, denominator_from="count", **CLIP)
    expected = aggregate(grpo_tokens(logprob64(*theirs, target), old.double(), ref.double(),
                                     advantage.double(), delta=1.5), mask, "bnpo")
    assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert_gradients(ours, theirs)


def test_entropy_bonus_and_truncated_importance_weights(client):
    hidden, weight, target, old, _, mask, advantage = rollout()
    ours, theirs = leaves(hidden, weight)
    sampler = old + 0.4 * torch.randn(B, T, generator=torch.Generator().manual_seed(7))
    loss, reply = lossd.policy_loss(
        *ours, target, client=client, kind="ppo", sequence_advantage=advantage, old_logprob=old,
        sampler_logprob=sampler, mask=mask, cu_seqlens=cu_seqlens(), clip_low=0.2, clip_high=0.2,
        is_level="token", is_mode="truncate", is_max=1.1, entropy_kind="true", entropy_coef=0.05,
        denominator_from="count", want=("importance_weight", "entropy"))
    logprob, entropy = logprob64(*theirs, target), entropy64(*theirs)
    weights = torch.exp(old.double() - sampler).clamp(max=1.1)
    tokens = grpo_tokens(logprob, old.double(), logprob.detach(), advantage.double(), 0.2, 0.2, 0.0)
    expected = aggregate(weights * tokens - 0.05 * entropy, mask, "bnpo")
    assert_close(loss, expected)
    assert_close(reply["importance_weight"][mask], weights[mask])
    assert_close(reply["entropy"][mask], entropy[mask])
    loss.backward()
    expected.backward()
    assert_gradients(ours, theirs)


def test_reinforce_and_main_grad(client):
    hidden, weight, target, _, _, mask, advantage = rollout()
    ours, theirs = leaves(hidden, weight)
    ours[1].main_grad = torch.zeros(weight.shape)
    loss = lossd.policy_loss(*ours, target, client=client, kind="reinforce", mask=mask,
                             sequence_advantage=advantage, cu_seqlens=cu_seqlens())
    loss.backward()
    expected = -(advantage.double()[:, None] * logprob64(*theirs, target) * mask).sum()
    expected.backward()
    assert_close(loss, expected)
    assert_close(ours[0].grad, theirs[0].grad)
    assert_close(ours[1].main_grad, theirs[1].grad)
    assert ours[1].grad is None


def test_first_ratio_is_exactly_one(client):
    hidden, weight, target, _, _, mask, advantage = rollout()
    old = lossd.linear_logprob(hidden, weight, target, client=client, batch_invariant=True)
    again = lossd.linear_logprob(hidden[1:2], weight, target[1:2], client=client, batch_invariant=True)
    assert torch.equal(again[0], old[1])
    _, reply = lossd.policy_loss(hidden, weight, target, client=client, kind="ppo", old_logprob=old,
                                 sequence_advantage=advantage, mask=mask, cu_seqlens=cu_seqlens(),
                                 clip_low=0.2, clip_high=0.2, batch_invariant=True, want=("ratio",))
    assert (reply["ratio"][mask] == 1).all()


@pytest.mark.parametrize("change, field", [
    ({"clip_low": None}, "clip_low"), ({"kl_coef": 0.1}, "kl_coef"),
    ({"kind": "reinforced"}, "kind"), ({"old_logprob": torch.zeros(B, T + 1)}, "old_logprob"),
    ({"sequence_advantage": torch.zeros(B).half()}, "sequence_advantage"),
    ({"cu_seqlens": torch.tensor([0, 6, 5, 18, 24])}, "cu_seqlens"),
])
def test_a_refusal_names_the_field(client, change, field):
    hidden, weight, target, old, _, mask, advantage = rollout()
    options = {"kind": "ppo", "sequence_advantage": advantage, "old_logprob": old, "mask": mask,
               "cu_seqlens": cu_seqlens(), "clip_low": 0.2, "clip_high": 0.2, **change}
    with pytest.raises(lossd.LossdError) as caught:
        lossd.policy_loss(hidden, weight, target, client=client, **options)
    assert (caught.value.code, caught.value.field) == ("INVALID_ARGUMENT", field)
