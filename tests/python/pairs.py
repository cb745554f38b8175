"""Sequences with answers to judge: 2P of them, chosen ones first, [2P, T], and what is compared on them."""

import torch

import lossd
from references import check_linear, check_plain, cu_seqlens, head_case, logprob64, per_sequence, token_mask

P, T = 5, 6


class Pairs:
    """hidden, weight, target; mask; reference by token."""

    def __init__(self, seed=0, spread=0.5):
        self.hidden, self.weight, _, self.target = head_case(rows=(2 * P, T), seed=seed)
        generator = torch.Generator().manual_seed(seed + 100)
        logprob = logprob64(self.hidden, self.weight, self.target).float()
        self.reference = logprob + spread * torch.randn(2 * P, T, generator=generator)
        self.mask = token_mask([6, 3, 1, 4, 5, 2, 4, 6, 1, 5], T)

    def sums(self, logprob, average=False):
        return per_sequence(logprob, self.mask, average)

    def sides(self, sequences):
        return sequences[:P], sequences[P:]

    def log_ratios(self, logprob, average=False):
        """Chosen and rejected: sum (or mean) of logprob - reference."""
        return self.sides(self.sums(logprob - self.reference.double(), average))

    def nll(self, logprob):
        """Mean over the tokens of the chosen side."""
        return -(logprob * self.mask)[:P].sum() / self.mask[:P].sum()

    def check(self, client, formula, **options):
        """linear_preference_loss and preference_loss against formula(logprob); options as the operations have them."""
        if not options.get("reference_free"):
            options.setdefault("ref_logprob", self.reference)
        options = {"mask": self.mask, "cu_seqlens": cu_seqlens(2 * P, T), "pairing": "halves", "denominator_from": "count",
                   "client": client, **options}
        case = (self.hidden, self.weight, self.target)
        check_linear(lambda h, w: lossd.linear_preference_loss(h, w, self.target, **options), lambda lp, _: formula(lp), *case)
        more = {}
        if options.get("wpo"):
            more["log_sum_p2"] = lossd.linear_logprob(self.hidden, self.weight, client=client, want="log_sum_p2")
        check_plain(lambda lp: lossd.preference_loss(lp, **options, **more), lambda lp, _: formula(lp), *case)
