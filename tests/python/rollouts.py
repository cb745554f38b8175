"""Rollouts for the policy losses, and what trainers call their aggregation."""

import torch

import lossd
from references import check_linear, check_plain, cu_seqlens, head_case, logprob64, per_sequence, token_mask

B, T = 6, 12


class Rollout:
    """hidden, weight, target; old, ref, sampler by token; mask; advantage of a sequence [B, 1], or of each token [B, T]."""

    def __init__(self, spread=0.6, token_advantages=False, seed=0):
        self.hidden, self.weight, _, self.target = head_case(rows=(B, T), seed=seed)
        generator = torch.Generator().manual_seed(seed + 100)

        def near(other, by):
            return other + by * torch.randn(B, T, generator=generator)

        logprob = logprob64(self.hidden, self.weight, self.target).float()
        self.old, self.ref = near(logprob, spread), near(logprob, 0.4)
        self.sampler = near(self.old, 0.4)
        self.mask = token_mask([12, 4, 1, 9, 11, 7], T)
        self.advantage = torch.tensor([-1.2, 0.7, 0.4, -1.5, 0.9, -0.2])[:, None]
        if token_advantages:
            self.advantage = near(self.advantage.expand(B, T), 0.8)

    def ratio(self, logprob):
        return (logprob - self.old.double()).exp()

    def sequence_log_ratio(self, logprob):
        return per_sequence(logprob - self.old.double(), self.mask, average=True)[:, None]

    def check(self, client, formula, old=True, tolerance=2e-5, **options):
        """Both forms of the loss against formula(logprob, entropy)."""
        if self.advantage.shape[1] == 1:
            options["sequence_advantage"] = self.advantage[:, 0]
        else:
            options["advantage"] = self.advantage
        if old:
            options["old_logprob"] = self.old
        options = {"mask": self.mask, "cu_seqlens": cu_seqlens(B, T), "client": client, **options}
        case = (formula, self.hidden, self.weight, self.target)
        check_linear(lambda h, w: lossd.linear_policy_loss(h, w, self.target, **options), *case, tolerance=tolerance)
        if options.get("entropy_kind") == "true" or "entropy_threshold" in options:
            check_plain(lambda lp, entropy: lossd.policy_loss(lp, entropy=entropy, **options), *case, tolerance=tolerance, entropy=True)
        else:
            check_plain(lambda lp: lossd.policy_loss(lp, **options), *case, tolerance=tolerance)

    # What trainers call the aggregation, with the options that say the same.
    def seq_mean_token_mean(self, tokens):
        return per_sequence(tokens, self.mask, average=True).mean()

    def token_mean(self, tokens):
        return (tokens * self.mask).sum() / self.mask.sum()


SEQ_MEAN_TOKEN_MEAN = {"sequence_weighting": "inverse_length", "denominator": B}
TOKEN_MEAN = {"denominator_from": "count"}
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def clipped(ratio, advantage, low=0.2, high=0.28):
    return -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
