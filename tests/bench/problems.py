"""What is compared: the data of a case, the products that every implementation needs, and value and gradients in float64.

The formulas of the losses stand here once, in torch; the float64 reference and the torch contestants share them.
"""

import collections
import math

import torch
import torch.nn.functional as F

_EXACT_ELEMENTS = 1 << 27  # of a float64 matrix of logits


class Case(collections.namedtuple("Case", "op rows hidden vocab")):
    """An operation and its sizes, as in "cross_entropy 8192x4096x128256" (N x H x V)."""

    @classmethod
    def parse(cls, text):
        op, sizes = text.split()
        return cls(op, *(int(size) for size in sizes.split("x")))

    def __str__(self):
        return f"{self.op} {self.rows}x{self.hidden}x{self.vocab}"


Exact = collections.namedtuple("Exact", "loss logprob entropy rows ids grad_hidden grad_weight")
Exact.__doc__ = """In float64: the loss; log-probability and entropy [N]; the gradients' rows `rows` of hidden and `ids` of weight."""


def trained_like(rows, weight, generator):
    """hidden [N, H] and target [N] as a trained model has them: cross entropy of 1.5 to 2 nats, frequent tokens by Zipf's law (1.1)."""
    vocab, width = weight.shape
    frequency = torch.arange(1, vocab + 1, dtype=torch.float64, device=weight.device) ** -1.1
    target = torch.multinomial(frequency, rows, replacement=True, generator=generator)
    toward = weight[target].float()
    length = 0.02 * math.sqrt(width)
    scale = (math.log(vocab) + length ** 2 / 2 - 1.5) / length
    noise = torch.randn(rows, width, device=weight.device, generator=generator)
    return (scale * toward / toward.norm(dim=1, keepdim=True) + noise).to(weight.dtype), target


def statistics(hidden, weight, target):
    """log-probability, log-sum-exp and entropy [N] of a head, in float64."""
    weight = weight.detach().double()
    parts = []
    for start in range(0, len(hidden), max(1, _EXACT_ELEMENTS // len(weight))):
        here = slice(start, start + max(1, _EXACT_ELEMENTS // len(weight)))
        logits = hidden.detach()[here].double() @ weight.t()
        lse = torch.logsumexp(logits, -1)
        logprob = logits.gather(-1, target[here, None])[:, 0] - lse
        probability = torch.exp(logits - lse[:, None])
        parts.append((logprob, lse, lse - (probability * logits).sum(-1)))
    return tuple(torch.cat(column) for column in zip(*parts))


class Problem:
    """The tensors of a case: hidden [N, H] and weight [V, H], which have gradients, target [N], and what its operation takes besides."""

    has_gradient = True
    sequence_length = 1024

    def __init__(self, case, device, dtype):
        self.case = case
        self.generator = torch.Generator(device).manual_seed(1)
        self.weight = self.normal(case.vocab, case.hidden).mul_(0.02).to(dtype)
        self.hidden, self.target = trained_like(case.rows, self.weight, self.generator)
        self.sequences = max(2, case.rows // self.sequence_length)
        self.tokens = case.rows // self.sequences
        if self.has_gradient:
            self.hidden.requires_grad_()
            self.weight.requires_grad_()
        self.prepare()

    def normal(self, *shape):
        return torch.randn(*shape, device=self.generator.device, generator=self.generator)

    def near(self, tensor, by):
        return tensor.detach() + by * self.normal(*tensor.shape).to(tensor.dtype)

    def prepare(self):
        """Makes what the operation takes besides."""

    def leaves(self):
        return [self.hidden, self.weight] if self.has_gradient else []

    @torch.no_grad()
    def products(self):
        """The products of the whole operation, all rows at once."""
        logits = self.hidden @ self.weight.t()
        logits @ self.weight
        logits.t() @ self.hidden

    product_count = 3

    def loss(self, logprob):
        """The loss from log-probabilities [N] of any precision."""
        raise NotImplementedError

    def exact(self, sample=64):
        logprob, lse, entropy = statistics(self.hidden, self.weight, self.target)
        if not self.has_gradient:
            return Exact(-logprob.mean(), logprob, entropy, None, None, None, None)
        logprob.requires_grad_()
        loss = self.loss(logprob)
        loss.backward()
        coefficient, hidden, weight = logprob.grad, self.hidden.detach(), self.weight.detach()
        rows, ids = self.sample(sample)
        exact_weight = weight.double()
        probability = torch.softmax(hidden[rows].double() @ exact_weight.t(), -1)
        grad_hidden = coefficient[rows, None] * (exact_weight[self.target[rows]] - probability @ exact_weight)
        dz = -torch.exp(hidden.double() @ exact_weight[ids].t() - lse[:, None])
        dz = coefficient[:, None] * (dz + (self.target[:, None] == ids))
        return Exact(loss.detach(), logprob.detach(), entropy, rows, ids, grad_hidden, dz.t() @ hidden.double())

    def sample(self, count):
        """Rows of hidden, evenly, and rows of weight: half of them are targets, the others any."""
        def evenly(size, parts):
            return torch.arange(parts, device=self.target.device) * size // parts

        rows = evenly(len(self.hidden), min(count, len(self.hidden)))
        ids = torch.cat([self.target[rows[::2]], evenly(len(self.weight), min(count, len(self.weight)))[1::2]])
        return rows, torch.unique(ids)


class CrossEntropy(Problem):
    """Mean over the tokens."""

    def loss(self, logprob):
        return -logprob.mean()


class Logprob(Problem):
    """Log-probability and entropy of each token, without gradients."""

    has_gradient = False
    product_count = 1

    @torch.no_grad()
    def products(self):
        self.hidden @ self.weight.t()


class Policy(Problem):
    """PPO's clipped ratio with advantages of sequences and the K3 estimate of the KL to a reference, mean over the tokens (GRPO)."""

    clip, kl_coef = 0.2, 0.04

    def prepare(self):
        logprob = statistics(self.hidden, self.weight, self.target)[0].float()
        self.old, self.ref = self.near(logprob, 0.1), self.near(logprob, 0.1)
        self.advantage = self.normal(self.sequences)
        self.token_advantage = self.advantage.repeat_interleave(self.tokens)

    def loss(self, logprob):
        ratio = torch.exp(logprob - self.old)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy = -torch.min(ratio * self.token_advantage, clipped * self.token_advantage)
        drift = self.ref - logprob
        return (policy + self.kl_coef * (torch.exp(drift) - drift - 1)).mean()


class Preference(Problem):
    """A problem whose first half of sequences was preferred to the second one, pair by pair."""

    sequence_length = 512
    beta = 0.1

    def prepare(self):
        self.sequences -= self.sequences % 2
        self.tokens = self.case.rows // self.sequences
        self.cu_seqlens = torch.arange(self.sequences + 1, device=self.target.device, dtype=torch.int32) * self.tokens

    def sides(self, logprob):
        """[pairs, tokens] of the preferred and the other sequences."""
        return logprob.view(2, self.sequences // 2, self.tokens)


class Dpo(Preference):
    """DPO with a reference head of its own."""

    product_count = 4

    def prepare(self):
        super().prepare()
        self.ref_hidden, self.ref_weight = self.near(self.hidden, 0.05), self.near(self.weight, 0.0005)
        self.ref_logprob = statistics(self.ref_hidden, self.ref_weight, self.target)[0]

    @torch.no_grad()
    def products(self):
        self.ref_hidden @ self.ref_weight.t()
        super().products()

    def loss(self, logprob, ref_logprob=None):
        chosen, rejected = self.sides(logprob - (self.ref_logprob if ref_logprob is None else ref_logprob)).sum(-1)
        return -F.logsigmoid(self.beta * (chosen - rejected)).mean()


class Orpo(Preference):
    """ORPO: cross entropy of the preferred sequences, and the odds ratio of the pair."""

    def loss(self, logprob):
        chosen, rejected = self.sides(logprob).mean(-1)
        odds = chosen - rejected - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return -chosen.mean() - self.beta * F.logsigmoid(odds).mean()


class Jsd(Problem):
    """Jensen-Shannon divergence from a teacher of twice the width, mean over the tokens."""

    product_count = 4

    def prepare(self):
        self.teacher_weight = self.normal(self.case.vocab, 2 * self.case.hidden).mul_(0.02).to(self.weight.dtype)
        toward = self.teacher_weight[self.target].float()
        scale = 0.8 * math.log(self.case.vocab) / toward.norm(dim=1, keepdim=True) ** 2
        self.teacher_hidden = (scale * toward + self.normal(*toward.shape)).to(self.hidden.dtype)

    @torch.no_grad()
    def products(self):
        self.teacher_hidden @ self.teacher_weight.t()
        super().products()

    def divergence(self, student, teacher):
        """Of each row, from logits in nats."""
        student, teacher = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
        middle = torch.logaddexp(student, teacher) - math.log(2)
        return ((student.exp() * (student - middle)).sum(-1) + (teacher.exp() * (teacher - middle)).sum(-1)) / 2

    def exact(self, sample=64):
        hidden, weight = self.hidden.detach(), self.weight.detach().double()
        teacher_weight = self.teacher_weight.double()
        rows, ids = self.sample(sample)
        step = max(1, _EXACT_ELEMENTS // 4 // len(weight))
        loss, grad_hidden, grad_weight = 0, [], 0
        for start in range(0, len(hidden), step):
            here = slice(start, start + step)
            student = (hidden[here].double() @ weight.t()).requires_grad_()
            part = self.divergence(student, self.teacher_hidden[here].double() @ teacher_weight.t()).sum() / len(hidden)
            dz, = torch.autograd.grad(part, student)
            loss = loss + part.detach()
            grad_hidden.append(dz[rows[(rows >= start) & (rows < start + step)] - start] @ weight)
            grad_weight = grad_weight + dz[:, ids].t() @ hidden[here].double()
        return Exact(loss, None, None, rows, ids, torch.cat(grad_hidden), grad_weight)


PROBLEMS = {"cross_entropy": CrossEntropy, "logprob": Logprob, "policy": Policy, "dpo": Dpo, "orpo": Orpo, "jsd": Jsd}
