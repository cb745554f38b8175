"""Drop-in modules against plain torch formulas in float64: values, what they return beside the loss, and gradients.

Liger-Kernel itself needs Triton, which needs a GPU; where both are installed test_against_liger compares with it.
"""

import math
import types

import pytest
import torch
import torch.nn.functional as F

import lossd
from lossd import drop_in
from references import assert_close, assert_gradients, leaves

B, T, H, V = 4, 6, 10, 23
GENERATOR = torch.Generator().manual_seed(5)
HIDDEN, WEIGHT, BIAS = (torch.randn(*shape, generator=GENERATOR) for shape in ((B, T, H), (V, H), (V,)))
REF_HIDDEN, REF_WEIGHT = torch.randn(B, T, H, generator=GENERATOR), torch.randn(V, H, generator=GENERATOR)
TARGET = torch.randint(V, (B, T), generator=GENERATOR)
TARGET[0, :2] = TARGET[2, 4:] = -100
COUNTS = TARGET != -100


@pytest.fixture(scope="module", autouse=True)
def default(client):
    former = lossd.set_default_client(client)
    yield
    lossd.set_default_client(former)


def logps(hidden, weight, bias=None, target=TARGET, temperature=1.0):
    z = hidden @ weight.t()
    z = (z if bias is None else z + bias) / temperature
    return torch.log_softmax(z, -1).gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)


def check(mine, theirs, *tensors, tolerance=5e-5):
    """Loss and gradients; returns what the module gave."""
    ours, reference = leaves(*tensors)
    made = mine(*ours)
    loss = made[0] if isinstance(made, tuple) else made
    expected = theirs(*reference)
    assert loss.shape == () and loss.dtype == torch.float32
    assert_close(loss, expected, tolerance)
    (loss * 1.5).backward()
    (expected * 1.5).backward()
    assert_gradients(ours, reference, tolerance)
    return made


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"softcap": 2.0}, {"lse_square_scale": 0.01}, {"weight": True}])
def test_cross_entropy(reduction, options):
    class_weight = torch.linspace(0.5, 2, V) if options.get("weight") else None
    rest = {name: value for name, value in options.items() if name != "weight"}

    def formula(z):
        cap = rest.get("softcap")
        z = cap * torch.tanh(z / cap) if cap else z
        weight = None if class_weight is None else class_weight.double()
        loss = F.cross_entropy(z, TARGET.flatten(), weight, reduction=reduction, label_smoothing=rest.get("label_smoothing", 0.0))
        squares = torch.logsumexp(z, -1)[COUNTS.flatten()] ** 2
        return loss + rest.get("lse_square_scale", 0.0) * (squares.mean() if reduction == "mean" else squares.sum())

    plain = drop_in.LigerCrossEntropyLoss(weight=class_weight, reduction=reduction, **rest)
    check(lambda z: plain(z, TARGET.flatten()), formula, (HIDDEN @ WEIGHT.t()).flatten(0, 1))
    fused = drop_in.LigerFusedLinearCrossEntropyLoss(ce_weight=class_weight, reduction=reduction, **rest)
    check(lambda h, w, b: fused(w, h, TARGET.flatten(), b), lambda h, w, b: formula(h @ w.t() + b), HIDDEN.flatten(0, 1), WEIGHT, BIAS)


def test_cross_entropy_of_rows():
    ours, theirs = leaves(HIDDEN.flatten(0, 1), WEIGHT)
    rows = drop_in.LigerFusedLinearCrossEntropyLoss(reduction="none")(ours[1], ours[0], TARGET.flatten())
    expected = F.cross_entropy(theirs[0] @ theirs[1].t(), TARGET.flatten(), reduction="none")
    assert_close(rows, expected)
    upstream = torch.linspace(-1, 1, B * T)
    rows.backward(upstream)
    expected.backward(upstream.double())
    assert_gradients(ours, theirs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("fused", [False, True])
def test_what_cross_entropy_returns_beside_the_loss(reduction, fused):
    options = {"reduction": reduction, "lse_square_scale": 0.01, "return_z_loss": True, "return_token_accuracy": True,
               "return_predicted_tokens": True}
    hidden, target = HIDDEN.flatten(0, 1), TARGET.flatten()
    if fused:
        made = drop_in.LigerFusedLinearCrossEntropyLoss(**options)(WEIGHT, hidden, target)
    else:
        made = drop_in.LigerCrossEntropyLoss(**options)(hidden @ WEIGHT.t(), target)
    assert isinstance(made, drop_in.CrossEntropyOutput)
    z = hidden.double() @ WEIGHT.double().t()
    counts = target != -100
    squares, right = 0.01 * torch.logsumexp(z, -1) ** 2 * counts, (z.argmax(-1) == target) & counts
    reduce = {"mean": lambda x: x.sum() / counts.sum(), "sum": lambda x: x.sum(), "none": lambda x: x}
    assert_close(made.z_loss, reduce[reduction](squares))
    assert_close(made.token_accuracy, right.double() if reduction == "none" else right.sum() / counts.sum())
    assert torch.equal(made.predicted_tokens, torch.where(counts, z.argmax(-1), torch.tensor(-1)))
    assert_close(made.loss, reduce[reduction](F.cross_entropy(z, target, reduction="none") + squares))
    only = drop_in.LigerCrossEntropyLoss(return_predicted_tokens=True)(hidden @ WEIGHT.t(), target)
    assert only.z_loss is None and only.token_accuracy is None


def test_token_scaling():
    def formula(h, w):
        logp = logps(h, w)[COUNTS]
        return -(logp.detach().exp() * logp).mean()

    fused = drop_in.LigerFusedLinearCrossEntropyLoss(use_token_scaling=True)
    check(lambda h, w: fused(w, h.flatten(0, 1), TARGET.flatten()), formula, HIDDEN, WEIGHT)


def test_functions_take_torchs_order():
    hidden, target = HIDDEN.flatten(0, 1), TARGET.flatten()
    z = hidden @ WEIGHT.t()
    assert_close(drop_in.liger_cross_entropy(z, target, ignore_index=-100, reduction="sum"), F.cross_entropy(z.double(), target, reduction="sum"))
    assert_close(drop_in.liger_fused_linear_cross_entropy(hidden, WEIGHT, target, BIAS), F.cross_entropy((z + BIAS).double(), target))


DPO = {  # chosen and rejected log ratios to the loss of a pair, at beta 0.3
    "sigmoid": lambda c, r: -F.logsigmoid(0.3 * (c - r)),
    "hinge": lambda c, r: torch.relu(1 - 0.3 * (c - r)),
    "robust": lambda c, r: (-0.8 * F.logsigmoid(0.3 * (c - r)) + 0.2 * F.logsigmoid(-0.3 * (c - r))) / 0.6,
    "exo_pair": lambda c, r: (torch.sigmoid(0.3 * (c - r)) * (F.logsigmoid(0.3 * (c - r)) - math.log(0.8))
                              + torch.sigmoid(-0.3 * (c - r)) * (F.logsigmoid(-0.3 * (c - r)) - math.log(0.2))),
    "nca_pair": lambda c, r: -F.logsigmoid(0.3 * c) - 0.5 * F.logsigmoid(-0.3 * c) - 0.5 * F.logsigmoid(-0.3 * r),
    "bco_pair": lambda c, r: -F.logsigmoid(0.3 * c) - F.logsigmoid(-0.3 * r),
    "sppo_hard": lambda c, r: (c - 0.5 / 0.3) ** 2 + (r + 0.5 / 0.3) ** 2,
    "apo_zero": lambda c, r: 1 - torch.sigmoid(0.3 * c) + torch.sigmoid(0.3 * r),
    "apo_down": lambda c, r: torch.sigmoid(0.3 * c) + 1 - torch.sigmoid(0.3 * (c - r)),
    "discopop": lambda c, r: (-F.logsigmoid(0.3 * (c - r)) * (1 - torch.sigmoid(0.3 * (c - r) / 0.05))
                              + torch.exp(-0.3 * (c - r)) * torch.sigmoid(0.3 * (c - r) / 0.05)),
}


def sequences(per_token, average=False):
    total = (per_token * COUNTS).sum(-1)
    return total / COUNTS.sum(-1) if average else total


def nll(per_token):
    half = COUNTS[:B // 2]
    return -(per_token[:B // 2] * half).sum() / half.sum()


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("loss_type", DPO)
def test_dpo(loss_type, average):
    def formula(h, w, b):
        x = sequences(logps(h, w, b), average) - sequences(logps(REF_HIDDEN.double(), REF_WEIGHT.double()), average)
        return DPO[loss_type](*x.chunk(2)).mean()

    loss = drop_in.LigerFusedLinearDPOLoss(beta=0.3, loss_type=loss_type, label_smoothing=0.2, average_log_prob=average)
    made = check(lambda h, w, b: loss(w, h, TARGET, b, ref_input=REF_HIDDEN, ref_weight=REF_WEIGHT), formula, HIDDEN, WEIGHT, BIAS,
                 tolerance=2e-4)
    of_policy = sequences(logps(HIDDEN.double(), WEIGHT.double(), BIAS.double()), average)
    of_reference = sequences(logps(REF_HIDDEN.double(), REF_WEIGHT.double()), average)
    chosen, rejected, chosen_mean, rejected_mean, nll_loss, chosen_reward, rejected_reward = made[1]
    assert_close(torch.cat([chosen, rejected]), of_policy)
    assert_close(torch.cat([chosen_reward, rejected_reward]), 0.3 * (of_policy - of_reference))
    means = (HIDDEN.double() @ WEIGHT.double().t() + BIAS).mean(-1)
    assert_close(chosen_mean, means[:2][COUNTS[:2]].mean(), 1e-4)
    assert_close(rejected_mean, means[2:][COUNTS[2:]].mean(), 1e-4)
    assert nll_loss.item() == 0


def test_dpo_with_likelihood_and_without_reference():
    loss = drop_in.LigerFusedLinearDPOLoss(beta=0.3, compute_nll_loss=True, alpha=0.7, use_ref_model=False)

    def formula(h, w):
        per_token = logps(h, w)
        return DPO["sigmoid"](*sequences(per_token).chunk(2)).mean() + 0.7 * nll(per_token)

    made = check(lambda h, w: loss(w, h, TARGET), formula, HIDDEN, WEIGHT)
    assert_close(made[1][4], nll(logps(HIDDEN.double(), WEIGHT.double())))


def smoothed(x, e):
    return (-F.logsigmoid(x) * (1 - e) - F.logsigmoid(-x) * e).mean()


@pytest.mark.parametrize("average", [False, True])
def test_cpo(average):
    loss = drop_in.LigerFusedLinearCPOLoss(beta=0.3, alpha=0.6, label_smoothing=0.1, average_log_prob=average)

    def formula(h, w):
        per_token = logps(h, w)
        chosen, rejected = sequences(per_token, average).chunk(2)
        return smoothed(0.3 * (chosen - rejected), 0.1) + 0.6 * nll(per_token)

    check(lambda h, w: loss(w, h, TARGET), formula, HIDDEN, WEIGHT)


def test_simpo():
    loss = drop_in.LigerFusedLinearSimPOLoss(beta=0.3, gamma=0.4, label_smoothing=0.1, compute_nll_loss=False)

    def formula(h, w):
        chosen, rejected = sequences(logps(h, w), True).chunk(2)
        return smoothed(0.3 * (chosen - rejected) - 0.4, 0.1)

    made = check(lambda h, w: loss(w, h, TARGET), formula, HIDDEN, WEIGHT)
    assert_close(torch.cat(made[1][:2]), sequences(logps(HIDDEN.double(), WEIGHT.double()), True))


@pytest.mark.parametrize("with_prompt", [False, True])
def test_orpo(with_prompt):
    nll_target = torch.where(COUNTS, TARGET, torch.full_like(TARGET, 3)) if with_prompt else None
    loss = drop_in.LigerFusedLinearORPOLoss(beta=0.3)

    def parts(h, w):
        chosen, rejected = sequences(logps(h, w), True).chunk(2)
        return (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))

    def formula(h, w):
        likelihood = nll(logps(h, w)) if nll_target is None else -logps(h, w, target=nll_target)[:B // 2].mean()
        return -0.3 * F.logsigmoid(parts(h, w)).mean() + likelihood

    made = check(lambda h, w: loss(w, h, TARGET, nll_target=nll_target), formula, HIDDEN, WEIGHT)
    odds = parts(HIDDEN.double(), WEIGHT.double())
    assert_close(made[1][-2], F.logsigmoid(odds).mean())
    assert_close(made[1][-1], odds.mean())
    if with_prompt:
        with pytest.raises(NotImplementedError, match="two masks"):
            loss(WEIGHT, HIDDEN, TARGET, nll_target=(TARGET + 1).clamp(min=0, max=V - 1))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kl", [None, torch.tensor(0.7)])
def test_kto(kl, average):
    labels = torch.tensor([True, False, False, True])
    loss = drop_in.LigerFusedLinearKTOLoss(beta=0.3, use_ref_model=True, average_log_prob=average)
    reference = sequences(logps(REF_HIDDEN.double(), REF_WEIGHT.double()), average)

    def formula(h, w, b):
        x = sequences(logps(h, w, b), average) - reference
        return (1 - torch.sigmoid(0.3 * (x - (0.0 if kl is None else kl)) * torch.where(labels, 1, -1))).mean()

    made = check(lambda h, w, b: loss(h, w, TARGET, b, labels, REF_HIDDEN, REF_WEIGHT, kl=kl), formula, HIDDEN, WEIGHT, BIAS)
    of_policy = sequences(logps(HIDDEN.double(), WEIGHT.double(), BIAS.double()), average)
    assert_close(made[1][0], of_policy[labels].sum())
    assert_close(made[1][1], of_policy[~labels].sum())
    sums = (HIDDEN.double() @ WEIGHT.double().t() + BIAS).sum(-1) * COUNTS
    assert_close(made[1][2], sums[labels].sum(), 1e-4)
    assert_close(made[1][3], sums[~labels].sum(), 1e-4)
    assert_close(made[1][4], 0.3 * (of_policy - reference)[labels].sum())
    assert_close(made[1][5], 0.3 * (of_policy - reference)[~labels].sum())
    with pytest.raises(NotImplementedError, match="one number"):
        loss(HIDDEN, WEIGHT, TARGET, None, labels, REF_HIDDEN, REF_WEIGHT, kl=torch.zeros(B))


ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, -1.5])
OLD = (logps(HIDDEN.double(), WEIGHT.double(), BIAS.double(), TARGET.clamp(min=0), 1.3) + 0.3 * torch.randn(B, T, generator=GENERATOR)).float()
RATIOS = torch.rand(B, T, generator=GENERATOR) + 0.5


def grpo(lp, old, ref, options):
    """The losses as Liger-Kernel and TRL define them; returns loss, mean of the KL and share of clipped tokens."""
    kind, beta, advantage, mask = options["loss_type"], options["beta"], ADVANTAGES.double().unsqueeze(1), COUNTS.double()
    ratio = lp - old
    if options.get("importance_sampling_level") == "sequence":
        ratio = ((ratio * mask).sum(-1) / mask.sum(-1)).unsqueeze(-1)
    ratio = ratio.exp()
    low, high = 1 - options["epsilon_low"], 1 + options["epsilon_high"]
    clipped = ((ratio < low) & (advantage < 0)) | ((ratio > high) & (advantage > 0))
    if kind == "cispo":
        loss = -ratio.clamp(max=options["epsilon_high"]).detach() * advantage * lp
        clipped = (ratio > options["epsilon_high"]) & (advantage > 0)
    elif kind == "sapo":
        tau = torch.where(advantage > 0, 1.0, 1.05)
        loss, clipped = -advantage * torch.sigmoid(tau * (ratio - 1)) * 4 / tau, torch.zeros_like(lp, dtype=torch.bool)
    elif kind == "vespo":
        log_w = (((lp - old).clamp(-20, 20) * mask).sum(-1, keepdim=True)).detach()
        if "vllm" in options:
            log_w = log_w + (options["vllm"].double().log() * mask).sum(-1, keepdim=True)
        k, rate = torch.where(advantage >= 0, 2.0, 3.0), torch.where(advantage >= 0, 3.0, 2.0)
        loss = -(rate + k * log_w - rate * log_w.exp()).exp() * advantage * lp
        clipped = torch.zeros_like(lp, dtype=torch.bool)
    else:
        first = ratio.clamp(max=options["delta"]) if options.get("delta") else ratio
        loss = -torch.min(first * advantage, ratio.clamp(low, high) * advantage)
    if "vllm" in options and kind != "vespo":
        loss = loss * options["vllm"].double()
    kl = torch.zeros_like(lp)
    if beta:
        kl = (ref - lp).exp() - (ref - lp) - 1
        kl = kl * ratio if options.get("use_bias_correction_kl") else kl
        loss = loss + beta * kl
    loss, lengths = loss.expand_as(mask) * mask, mask.sum(-1)
    total = {"grpo": lambda: (loss.sum(-1) / lengths).mean(), "sapo": lambda: (loss.sum(-1) / lengths).mean(),
             "bnpo": lambda: loss.sum() / mask.sum(), "dr_grpo": lambda: loss.sum() / (B * 9),
             "luspo": lambda: (loss * lengths.unsqueeze(1)).sum() / (B * T)}.get(kind, lambda: loss.sum() / mask.sum())()
    return total, (kl * mask).sum() / mask.sum(), (clipped.expand_as(mask) * mask).sum() / mask.sum()


@pytest.mark.parametrize("more", [{}, {"beta": 0.0}, {"delta": 1.5}, {"use_bias_correction_kl": True}, {"vllm": RATIOS},
                                  {"importance_sampling_level": "sequence"}])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"])
def test_grpo(loss_type, more):
    if "importance_sampling_level" in more and loss_type in ("cispo", "sapo", "vespo", "luspo"):
        with pytest.raises((ValueError, NotImplementedError)):
            drop_in.LigerFusedLinearGRPOLoss(loss_type=loss_type, **more)
        return
    if loss_type == "vespo" and "use_bias_correction_kl" in more:
        pytest.skip("refused: the KL of vespo has no bias correction")
    if loss_type in ("cispo", "sapo", "vespo") and "delta" in more:
        more = {}
    options = {"loss_type": loss_type, "beta": 0.1, "epsilon_low": 0.2, "epsilon_high": 1.1 if loss_type == "cispo" else 0.3, **more}
    ratios = options.get("vllm")
    module = drop_in.LigerFusedLinearGRPOLoss(**{name: value for name, value in options.items() if name != "vllm"}, temperature=1.3,
                                              max_completion_length=9)
    ids, found = TARGET.clamp(min=0), []

    def formula(h, w, b):
        reference = logps(REF_HIDDEN.double(), REF_WEIGHT.double(), target=ids, temperature=1.3)
        found[:] = grpo(logps(h, w, b, ids, 1.3), OLD.double(), reference, options)
        return found[0]

    made = check(lambda h, w, b: module(h, w, ids, COUNTS.long(), ADVANTAGES, b, old_per_token_logps=OLD, ref_input=REF_HIDDEN,
                                        ref_weight=REF_WEIGHT, vllm_is_ratio=ratios), formula, HIDDEN, WEIGHT, BIAS, tolerance=1e-4)
    expected = found[1:] if options["beta"] else found[2:]
    assert len(made[1]) == len(expected)
    for mine, theirs in zip(made[1], expected):
        assert_close(mine, theirs, 1e-4)


def test_grpo_on_policy_and_with_a_given_reference():
    ids = TARGET.clamp(min=0)
    reference = logps(REF_HIDDEN.double(), REF_WEIGHT.double(), target=ids).float()
    module = drop_in.LigerFusedLinearGRPOLoss(loss_type="bnpo", beta=0.1)

    def formula(h, w):
        lp = logps(h, w, target=ids)
        return grpo(lp, lp.detach(), reference.double(), {"loss_type": "bnpo", "beta": 0.1, "epsilon_low": 0.2, "epsilon_high": 0.2})[0]

    check(lambda h, w: module(h, w, ids, COUNTS, ADVANTAGES, ref_per_token_logps=reference), formula, HIDDEN, WEIGHT)
    free = drop_in.LigerFusedLinearGRPOLoss(loss_type="dapo", use_ref_model=False)(HIDDEN, WEIGHT, ids, COUNTS, ADVANTAGES, num_items_in_batch=40)
    expected = -(ADVANTAGES.unsqueeze(1) * COUNTS).sum() / 40
    assert_close(free[0], expected)
    assert free[1][0].item() == 0


def jsd64(q, p, beta):
    if beta in (0.0, 1.0):
        return (p.exp() * (p - q)).sum(-1) if beta == 0 else (q.exp() * (q - p)).sum(-1)
    m = torch.logaddexp(p + math.log(beta), q + math.log(1 - beta))
    return beta * (p.exp() * (p - m)).sum(-1) + (1 - beta) * (q.exp() * (q - m)).sum(-1)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_jsd(beta):
    target = TARGET.flatten()
    counts = target != -100
    q0, p0 = torch.log_softmax(HIDDEN @ WEIGHT.t(), -1).flatten(0, 1), torch.log_softmax(REF_HIDDEN @ REF_WEIGHT.t(), -1).flatten(0, 1)
    check(lambda q: drop_in.LigerJSD(beta)(q, p0, target), lambda q: jsd64(q, p0.double(), beta)[counts].mean(), q0)
    check(lambda q: drop_in.liger_jsd(q, p0, beta=beta), lambda q: jsd64(q, p0.double(), beta).mean(), q0)
    teacher = torch.randn(V, 7, generator=torch.Generator().manual_seed(1))
    teacher_hidden = torch.randn(B * T, 7, generator=torch.Generator().manual_seed(2))

    def soft(h, w, temperature):
        q = torch.log_softmax(h @ w.t() / temperature, -1)
        return jsd64(q, torch.log_softmax(teacher_hidden.double() @ teacher.double().t() / temperature, -1), beta)[counts].mean()

    fused = drop_in.LigerFusedLinearJSD(beta, temperature=2.0)
    check(lambda h, w: fused(h, w, teacher_hidden, teacher, target), lambda h, w: soft(h, w, 2.0), HIDDEN.flatten(0, 1), WEIGHT)
    for hard_weight in (0.4, 0.0):
        both = drop_in.LigerFusedLinearJSDLoss(hard_weight, 0.6, beta, temperature=2.0, return_soft_hard_loss=True)

        def formula(h, w):
            return hard_weight * F.cross_entropy(h @ w.t(), target) + 0.6 * soft(h, w, 2.0)

        made = check(lambda h, w: both(h, w, teacher_hidden, teacher, target), formula, HIDDEN.flatten(0, 1), WEIGHT)
        assert_close(made[1], soft(HIDDEN.flatten(0, 1).double(), WEIGHT.double(), 2.0))
        if hard_weight:
            assert_close(made[2], F.cross_entropy(HIDDEN.flatten(0, 1).double() @ WEIGHT.double().t(), target))


def test_cosine():
    loss = drop_in.LigerFusedLinearCosineSimilarityLoss(0.4, 0.6, beta=0.5)
    counts = TARGET.flatten() != -100

    def formula(h, w):
        z, of_teacher = h @ w.t(), (REF_HIDDEN.flatten(0, 1).double() @ REF_WEIGHT.double().t())
        return 0.4 * F.cross_entropy(z, TARGET.flatten()) + 0.6 * 0.5 * (1 - F.cosine_similarity(z, of_teacher, -1))[counts].mean()

    check(lambda h, w: loss(h, w, REF_HIDDEN.flatten(0, 1), REF_WEIGHT, TARGET.flatten()), formula, HIDDEN.flatten(0, 1), WEIGHT)


@pytest.mark.parametrize("reduction", ["batchmean", "mean", "sum"])
def test_kl_and_total_variation(reduction):
    q, p = torch.softmax(HIDDEN @ WEIGHT.t(), -1).flatten(0, 1), torch.softmax(REF_HIDDEN @ REF_WEIGHT.t(), -1).flatten(0, 1)
    kl = drop_in.LigerKLDIVLoss(reduction=reduction)
    check(lambda x: kl(x, p), lambda x: F.kl_div(x, p.double(), reduction=reduction), q.log())
    log_kl = drop_in.LigerKLDIVLoss(reduction=reduction, log_target=True)
    check(lambda x: log_kl(x, p.log()), lambda x: F.kl_div(x, p.log().double(), reduction=reduction, log_target=True), q.log())
    tvd = drop_in.LigerTVDLoss(reduction)
    divide = {"batchmean": B * T, "mean": B * T * V, "sum": 1}[reduction]
    check(lambda x: tvd(x, p), lambda x: 0.5 * (x - p.double()).abs().sum() / divide, q)
    with pytest.raises(NotImplementedError, match="none"):
        drop_in.LigerTVDLoss("none")(q, p)


CONFIG = types.SimpleNamespace(hidden_size=12, intermediate_size=20, hidden_act="silu")


@pytest.mark.parametrize("name, act, gate, up, down", [
    ("LigerSwiGLUMLP", F.silu, "gate_proj", "up_proj", "down_proj"),
    ("LigerQwen3MoeSwiGLUMLP", F.silu, "gate_proj", "up_proj", "down_proj"),
    ("LigerBlockSparseTop2MLP", F.silu, "w1", "w3", "w2"),
    ("LigerGEGLUMLP", lambda x: F.gelu(x, approximate="tanh"), "gate_proj", "up_proj", "down_proj"),
])
def test_mlps(name, act, gate, up, down):
    torch.manual_seed(0)
    module = getattr(drop_in, name)(CONFIG)
    weights = {key: value.detach().double().requires_grad_() for key, value in module.named_parameters()}
    x = torch.randn(2, 5, 12)
    mine, reference = x.clone().requires_grad_(), x.double().requires_grad_()
    y = module(mine)
    expected = (act(reference @ weights[gate + ".weight"].t()) * (reference @ weights[up + ".weight"].t())) @ weights[down + ".weight"].t()
    assert_close(y, expected)
    y.sum().backward()
    expected.sum().backward()
    assert_close(mine.grad, reference.grad)
    for key, value in module.named_parameters():
        assert_close(value.grad, weights[key].grad)


def test_phi3_mlp_and_wrong_activations():
    torch.manual_seed(0)
    module, x = drop_in.LigerPhi3SwiGLUMLP(CONFIG), torch.randn(3, 12)
    gate, up = (x @ module.gate_up_proj.weight.t()).chunk(2, -1)
    assert_close(module(x), (F.silu(gate) * up).double() @ module.down_proj.weight.double().t())
    with pytest.raises(ValueError, match="gelu"):
        drop_in.LigerSwiGLUMLP(types.SimpleNamespace(hidden_size=4, intermediate_size=4, hidden_act="gelu"))


@pytest.mark.parametrize("name, offset", [("LigerRMSNorm", 0), ("LigerRMSNormForGemma", 1), ("LigerRMSNormForGemma2", 1),
                                          ("LigerRMSNormForGemma3", 1), ("LigerRMSNormForQwen3Next", 1), ("LigerRMSNormForOlmo2", 0),
                                          ("LigerRMSNormForGlm4", 0)])
def test_rms_norms(name, offset):
    norm = getattr(drop_in, name)(16, eps=1e-5)
    assert norm.weight.sum().item() == (0 if offset else 16)
    with torch.no_grad():
        norm.weight.normal_()
    x = torch.randn(4, 16)
    expected = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-5) * (offset + norm.weight.double())
    assert_close(norm(x), expected)
    assert "eps" in repr(norm)


def test_other_norms_and_layers():
    x, residual = torch.randn(4, 16), torch.randn(4, 16)
    y, total = drop_in.LigerFusedAddRMSNorm(16)(x, residual)
    s = (x + residual).double()
    assert_close(total, s)
    assert_close(y, s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6))
    none = drop_in.LigerRMSNorm(16, casting_mode="none", elementwise_affine=False)
    assert_close(none(x), x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6))
    layer = drop_in.LigerLayerNorm(16, bias=True)
    assert_close(layer(x), F.layer_norm(x.double(), (16,), layer.weight.double(), layer.bias.double(), 1e-6))
    assert_close(drop_in.LigerSoftmax()(x), torch.softmax(x.double(), -1))
    assert_close(drop_in.LigerReLUSquared()(x), F.relu(x.double()) ** 2)
    with pytest.raises(ValueError, match="casting_mode"):
        drop_in.LigerRMSNorm(16, casting_mode="fp8")(x)


def rotate(x, cos, sin):
    """Hugging Face's apply_rotary_pos_emb for one of q and k."""
    cos, sin = cos.unsqueeze(1).double(), sin.unsqueeze(1).double()
    rotary = cos.shape[-1]
    turned, rest = x[..., :rotary], x[..., rotary:]
    half = torch.cat([-turned[..., rotary // 2:], turned[..., :rotary // 2]], -1)
    return torch.cat([turned * cos + half * sin, rest], -1)


@pytest.mark.parametrize("rotary", [8, 4])
@pytest.mark.parametrize("batch_of_tables", [1, 3])
def test_rotary(batch_of_tables, rotary):
    q, k = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 5, 8)
    angles = torch.rand(batch_of_tables, 5, rotary // 2) * 6
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    ours, theirs = leaves(q, k)
    for _ in range(2):  # the second time with tables that are known
        made = drop_in.liger_rotary_pos_emb(*ours, cos, sin)
        expected = [rotate(x, cos, sin) for x in theirs]
        for mine, other in zip(made, expected):
            assert_close(mine, other)
    upstream = [torch.randn_like(x) for x in made]
    torch.autograd.backward(made, upstream)
    torch.autograd.backward(expected, [x.double() for x in upstream])
    assert_gradients(ours, theirs)
    cos.add_(0.5)  # tables that are written are read again
    assert_close(drop_in.liger_rope(q, k, cos, sin)[0], rotate(q.double(), cos, sin))
    narrow = drop_in.liger_rotary_pos_emb(q, k, cos[..., :rotary // 2].clone(), sin[..., :rotary // 2].clone(), rotary_dim=rotary)
    assert_close(narrow[1], rotate(k.double(), cos, sin))
    tokens_first = drop_in.liger_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2)
    assert_close(tokens_first[0].transpose(1, 2), rotate(q.double(), cos, sin))


def test_every_name_is_liger():
    assert all(name.startswith(("Liger", "liger")) or name == "CrossEntropyOutput" for name in drop_in.__all__)
    assert len(drop_in.__all__) == len(set(drop_in.__all__)) > 45


def test_against_liger():
    if not torch.cuda.is_available():
        pytest.skip("Liger-Kernel computes on a GPU only")
    chunked = pytest.importorskip("liger_kernel.chunked_loss")
    arguments = [x.cuda() for x in (WEIGHT, HIDDEN, TARGET)]
    reference = {"ref_input": REF_HIDDEN.cuda(), "ref_weight": REF_WEIGHT.cuda()}
    mine = drop_in.LigerFusedLinearDPOLoss()(*arguments, **reference)
    theirs = chunked.LigerFusedLinearDPOLoss(compiled=False)(*arguments, **reference)
    assert_close(mine[0], theirs[0], 1e-4)
