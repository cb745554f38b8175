"""linear_distill_loss against the formulas of TRL (GKD), Liger, Hinton, verl, NeMo-RL and Megatron-LM; torch in float64."""

import pytest
import torch
import torch.nn.functional as F

import lossd
from references import assert_close, assert_gradients, head_case, leaves, logits64

N, V, K = 10, 19, 4
BETAS = [0.0, 0.3, 0.5, 1.0]


class Students:
    """A student's head, a teacher's head of another size, targets, a mask."""

    def __init__(self, seed=0, teacher_vocab=V):
        self.hidden, self.weight, _, self.target = head_case(rows=(N,), vocab=V, seed=seed)
        self.other, self.other_weight, self.other_bias, _ = head_case(
            rows=(N,), vocab=teacher_vocab, hidden_size=5, seed=seed + 1, bias=True)
        self.mask = torch.rand(N, generator=torch.Generator().manual_seed(seed)) < 0.8
        self.teacher = {"teacher_hidden": self.other, "teacher_weight": self.other_weight, "teacher_bias": self.other_bias}

    @property
    def teacher_logits(self):
        return logits64(self.other, self.other_weight, self.other_bias)

    def top_k(self, temperature=1.0):
        """Ids, log-probabilities; one entry of the first row is padding."""
        values, ids = torch.log_softmax(self.teacher_logits / temperature, -1).topk(K)
        ids[0, 3] = -1
        return ids, values.float()

    def check(self, client, formula, tolerance=2e-5, **options):
        """The loss against formula(student's logits)."""
        ours, theirs = leaves(self.hidden, self.weight)
        loss = lossd.linear_distill_loss(*ours, client=client, mask=self.mask, **options)
        expected = formula(logits64(*theirs))
        assert_close(loss, expected, tolerance)
        upstream = torch.full_like(loss, 1.5) if loss.dim() == 0 else torch.linspace(-1, 2, N)
        loss.backward(upstream)
        expected.backward(upstream.double())
        assert_gradients(ours, theirs, tolerance)

    def batchmean(self, rows):
        return rows[self.mask].sum() / self.mask.sum()


BATCHMEAN = {"reduction": "mean", "denominator_from": "count"}


def trl_generalized_jsd(student, teacher, beta, temperature=1.0):
    """Rows."""
    s, t = F.log_softmax(student / temperature, -1), F.log_softmax(teacher / temperature, -1)
    if beta == 0:
        return F.kl_div(s, t, reduction="none", log_target=True).sum(-1)
    if beta == 1:
        return F.kl_div(t, s, reduction="none", log_target=True).sum(-1)
    weights = torch.tensor([1 - beta, beta], dtype=torch.float64).log()
    mixture = torch.logsumexp(torch.stack([s + weights[0], t + weights[1]]), 0)
    from_teacher = F.kl_div(mixture, t, reduction="none", log_target=True)
    return (beta * from_teacher + (1 - beta) * F.kl_div(mixture, s, reduction="none", log_target=True)).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", BETAS)
def test_trl_gkd_generalized_jsd_loss(client, beta, temperature):
    case = Students()
    case.check(client, lambda z: case.batchmean(trl_generalized_jsd(z, case.teacher_logits, beta, temperature)), divergence="jsd",
               beta=beta, temperature=temperature, **case.teacher, **BATCHMEAN)


@pytest.mark.parametrize("beta", BETAS)
def test_liger_fused_linear_jsd_weight_hard_loss(client, beta):
    case = Students(seed=3)

    def formula(z):
        hard = F.cross_entropy(z, case.target, reduction="none")
        return case.batchmean(0.25 * hard + 0.75 * trl_generalized_jsd(z, case.teacher_logits, beta, 2.0))

    case.check(client, formula, divergence="jsd", beta=beta, temperature=2.0, target=case.target, hard_weight=0.25, soft_weight=0.75,
               **case.teacher, **BATCHMEAN)


def test_hinton_temperature_squared(client):
    case = Students(seed=5)

    def formula(z):
        soft = F.kl_div(F.log_softmax(z / 3, -1), F.softmax(case.teacher_logits / 3, -1), reduction="none").sum(-1)
        return case.batchmean(0.9 * 9 * soft + 0.1 * F.cross_entropy(z, case.target, reduction="none"))

    case.check(client, formula, divergence="forward_kl", temperature=3, temperature_squared=True, soft_weight=0.9, hard_weight=0.1,
               target=case.target, **case.teacher, **BATCHMEAN)


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "mixed", "tvd", "cosine"])
@pytest.mark.parametrize("as_logits", [False, True])
def test_divergences_of_rows(client, divergence, as_logits):
    """as_logits: the teacher as a tensor [N, V]. Every row has its own upstream gradient, and a factor."""
    case = Students(seed=7)
    factor = torch.linspace(0, 2, N)

    def formula(z):
        s, t = F.log_softmax(z / 1.5, -1), F.log_softmax(case.teacher_logits / 1.5, -1)
        forward, reverse = (t.exp() * (t - s)).sum(-1), (s.exp() * (s - t)).sum(-1)
        rows = {"forward_kl": forward, "reverse_kl": reverse, "mixed": 0.3 * forward + 0.7 * reverse,
                "tvd": 0.5 * (s.exp() - t.exp()).abs().sum(-1), "cosine": 1 - F.cosine_similarity(z, case.teacher_logits, dim=-1)}
        return factor * rows[divergence] * case.mask

    teacher = {"teacher_logits": case.teacher_logits.float()} if as_logits else case.teacher
    mix = {"mix_weight": 0.3} if divergence == "mixed" else {}
    case.check(client, formula, divergence=divergence, temperature=1.5, reduction="none", row_weight=factor, **mix, **teacher)


@pytest.mark.parametrize("clamped", [False, True])
def test_verl_top_k_forward_kl(client, clamped):
    """log_prob_min_clamp and the clamp of the loss of a token."""
    case = Students(seed=9)
    ids, values = case.top_k()
    entries = ids >= 0

    def formula(z):
        s, v = F.log_softmax(z, -1).gather(-1, ids.clamp(min=0)), values.double()
        if clamped:
            s, v = s.clamp(min=-3), v.clamp(min=-3)
        rows = (v.exp() * (v - s) * entries).sum(-1)
        return case.batchmean(rows.clamp(0.88, 1.6) if clamped else rows)

    clamps = {"logprob_floor": -3, "token_loss_min": 0.88, "token_loss_max": 1.6} if clamped else {}
    case.check(client, formula, divergence="forward_kl", tail="drop", teacher_topk_ids=ids, teacher_topk_logprob=values, **clamps,
               **BATCHMEAN)


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "mixed", "jsd"])
def test_nemo_rl_and_trl_top_k_renormalised(client, divergence):
    case = Students(seed=11)
    ids, values = case.top_k()
    entries = ids >= 0

    def formula(z):
        gone = torch.where(entries, 0.0, -torch.inf)
        s = F.log_softmax(z.gather(-1, ids.clamp(min=0)) + gone, -1).masked_fill(~entries, -100)
        t = F.log_softmax(values.double() + gone, -1).masked_fill(~entries, -100)
        forward, reverse = (t.exp() * (t - s)).sum(-1), (s.exp() * (s - t)).sum(-1)
        m = torch.logaddexp(t + torch.tensor(0.4).double().log(), s + torch.tensor(0.6).double().log())
        jsd = (0.4 * t.exp() * (t - m) + 0.6 * s.exp() * (s - m)).sum(-1)
        mixed = 0.3 * forward + 0.7 * reverse
        return case.batchmean({"forward_kl": forward, "reverse_kl": reverse, "mixed": mixed, "jsd": jsd}[divergence])

    more = {"mixed": {"mix_weight": 0.3}, "jsd": {"beta": 0.4}}.get(divergence, {})
    case.check(client, formula, divergence=divergence, tail="renormalise", teacher_topk_ids=ids, teacher_topk_logprob=values, **more,
               **BATCHMEAN)


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "mixed"])
def test_nemo_rl_zero_outside_topk(client, divergence):
    """The teacher is renormalised over its entries; outside them its log-probability counts as -20."""
    case = Students(seed=13)
    ids, values = case.top_k()
    ids[0, 3] = next(i for i in range(V) if i not in ids[0])

    def formula(z):
        s, t = F.log_softmax(z, -1), F.log_softmax(values.double(), -1)
        full = torch.full((N, V), -20.0, dtype=torch.float64).scatter(-1, ids, t)
        forward = (t.exp() * (t - s.gather(-1, ids))).sum(-1)
        reverse = (s.exp() * (s - full)).sum(-1)
        return case.batchmean({"forward_kl": forward, "reverse_kl": reverse, "mixed": 0.3 * forward + 0.7 * reverse}[divergence])

    more = {"mixed": {"mix_weight": 0.3}}.get(divergence, {})
    outside = {} if divergence == "forward_kl" else {"outside_logprob": -20}
    case.check(client, formula, divergence=divergence, tail="zero_outside", teacher_topk_ids=ids, teacher_topk_logprob=values, **more,
               **outside, **BATCHMEAN)


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
def test_megatron_ghost_token_and_trl_tail_bucket(client, divergence):
    case = Students(seed=15)
    ids, values = case.top_k(temperature=1.3)
    entries = ids >= 0

    def with_rest(logp):
        p = logp.exp() * entries
        return torch.cat([logp, (1 - p.sum(-1, keepdim=True)).clamp(min=1e-8).log()], -1)

    def formula(z):
        s = with_rest(F.log_softmax(z / 1.3, -1).gather(-1, ids.clamp(min=0)))
        t = with_rest(values.double())
        kept = torch.cat([entries, torch.ones(N, 1, dtype=torch.bool)], -1)
        m = torch.log(0.4 * t.exp() + 0.6 * s.exp())
        rows = {"forward_kl": t.exp() * (t - s), "reverse_kl": s.exp() * (s - t),
                "jsd": 0.4 * t.exp() * (t - m) + 0.6 * s.exp() * (s - m)}[divergence]
        return case.batchmean((rows * kept).sum(-1))

    more = {"beta": 0.4} if divergence == "jsd" else {}
    case.check(client, formula, divergence=divergence, tail="ghost", temperature=1.3, teacher_topk_ids=ids, teacher_topk_logprob=values,
               **more, **BATCHMEAN)


def test_a_top_k_teacher_at_temperature_1(client):
    """teacher_topk_tempered false: its values are divided by the temperature here."""
    case = Students(seed=17)
    ids, values = case.top_k()
    ids[0, 3] = next(i for i in range(V) if i not in ids[0])

    def formula(z):
        s = F.log_softmax(z.gather(-1, ids) / 2, -1)
        t = F.log_softmax(values.double() / 2, -1)
        return (t.exp() * (t - s)).sum(-1)[case.mask].sum() / 21

    case.check(client, formula, divergence="forward_kl", tail="renormalise", teacher_topk_tempered=False, temperature=2,
               teacher_topk_ids=ids, teacher_topk_logprob=values, reduction="mean", denominator=21)


@pytest.mark.parametrize("option", ["common", "teacher_to_student"])
def test_vocabularies_of_different_sizes(client, option):
    case = Students(seed=19, teacher_vocab=V - 4)

    def formula(z):
        s = F.log_softmax(z[:, :V - 4], -1) if option == "common" else F.log_softmax(z, -1)[:, :V - 4]
        t = F.log_softmax(case.teacher_logits, -1)
        return (t.exp() * (t - s)).sum(-1)[case.mask].sum()

    case.check(client, formula, divergence="forward_kl", vocab_mismatch=option, **case.teacher)


def test_outputs_of_a_top_k_teacher(client):
    case = Students(seed=21)
    ids, values = case.top_k()
    loss, reply = lossd.linear_distill_loss(case.hidden, case.weight, client=client, divergence="forward_kl", tail="drop",
                                            teacher_topk_ids=ids, teacher_topk_logprob=values,
                                            want=("student_mass", "teacher_mass", "overlap", "row_loss"))
    z, entries = logits64(case.hidden, case.weight), ids >= 0
    assert_close(reply["student_mass"], (F.softmax(z, -1).gather(-1, ids.clamp(min=0)) * entries).sum(-1))
    assert_close(reply["teacher_mass"], (values.double().exp() * entries).sum(-1))
    best = z.topk(K).indices
    assert torch.equal(reply["overlap"], ((ids[:, :, None] == best[:, None]).any(-1) & entries).sum(-1).int())
    assert_close(loss, reply["row_loss"].sum())
    assert reply.metrics["soft"].count == N


def test_no_gradient_for_the_teacher(client):
    case = Students()
    with pytest.raises(lossd.LossdError, match="detach") as caught:
        lossd.linear_distill_loss(case.hidden, case.weight, client=client, divergence="forward_kl",
                                  **{**case.teacher, "teacher_weight": case.other_weight.requires_grad_()})
    assert caught.value.field == "teacher_weight"
