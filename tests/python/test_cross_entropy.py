import gc

import pytest
import torch

import lossd
from references import assert_close, assert_gradients, head_case, leaves, logits64


def torch_loss(hidden, weight, target, bias=None, class_weight=None, **options):
    z = logits64(hidden, weight, bias)
    return torch.nn.functional.cross_entropy(
        z.reshape(-1, z.shape[-1]), target.reshape(-1),
        weight=None if class_weight is None else class_weight.double(), **options)


def gaps(case):
    """The case with some targets ignored."""
    case[3][0, 1] = case[3][2, 0] = -100
    return case


@pytest.mark.parametrize("backward", ["recompute", "forward", None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_as_torch_defines_it(client, backward, smoothing, weighted):
    hidden, weight, bias, target = gaps(head_case(bias=True))
    class_weight = torch.rand(weight.shape[0]) + 0.5 if weighted else None
    ours, theirs = leaves(hidden, weight, bias)
    loss = lossd.linear_cross_entropy(
        *ours[:2], target, bias=ours[2], client=client, backward=backward, reduction="mean",
        denominator_from="weight_sum" if weighted else "count", class_weight=class_weight,
        label_smoothing=smoothing)
    expected = torch_loss(*theirs[:2], target, theirs[2], label_smoothing=smoothing,
                          class_weight=class_weight)
    assert loss.shape == () and loss.dtype == torch.float32
    assert_close(loss, expected)
    (loss * -2.5).backward()
    (expected * -2.5).backward()
    assert_gradients(ours, theirs)


@pytest.mark.parametrize("backward", ["recompute", None])
def test_rows_with_any_upstream_gradient(client, backward):
    hidden, weight, _, target = gaps(head_case())
    ours, theirs = leaves(hidden, weight)
    upstream = torch.randn(target.shape)
    loss = lossd.linear_cross_entropy(*ours, target, client=client, reduction="none",
                                      backward=backward)
    expected = torch_loss(*theirs, target, reduction="none").reshape(target.shape)
    assert_close(loss, expected)
    loss.backward(upstream, retain_graph=True)
    loss.backward(upstream)
    expected.backward(2 * upstream)
    assert_gradients(ours, theirs)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_fused_takes_the_upstream_gradient_in_the_call(client, reduction):
    hidden, weight, _, target = gaps(head_case())
    ours, theirs = leaves(hidden, weight)
    d_loss = 0.25 if reduction == "sum" else torch.randn(target.shape)
    ours[1].main_grad = torch.ones(weight.shape)
    loss = lossd.linear_cross_entropy(*ours, target, client=client, reduction=reduction,
                                      backward="fused", d_loss=d_loss)
    expected = torch_loss(*theirs, target, reduction=reduction).reshape(loss.shape)
    expected.backward(torch.as_tensor(d_loss).double())
    assert_close(ours[1].main_grad, theirs[1].grad + 1)  # before any backward
    loss.sum().backward()
    assert_close(ours[1].main_grad, theirs[1].grad + 1)
    assert_close(ours[0].grad, theirs[0].grad)
    assert ours[1].grad is None and ours[1].grad_added_to_main_grad


def test_fused_without_main_grad(client):
    hidden, weight, _, target = head_case()
    ours, theirs = leaves(hidden, weight)
    lossd.linear_cross_entropy(*ours, target, client=client, backward="fused", d_loss=3).backward()
    (3 * torch_loss(*theirs, target, reduction="sum")).backward()
    assert_gradients(ours, theirs)


@pytest.mark.parametrize("shared", [False, True])
def test_main_grad_of_micro_batches_adds_up(client, shared):
    ours, theirs = leaves(*head_case()[1:2])
    weight = ours[0]
    if shared:
        weight.data = client.share(weight.data)
    weight.main_grad = client.empty(weight.shape, torch.float32) if shared else torch.empty(weight.shape)
    weight.main_grad.zero_()
    pointer = weight.main_grad.data_ptr()
    for seed in range(3):
        hidden, _, _, target = head_case(seed=seed)
        loss = lossd.linear_cross_entropy(hidden, weight, target, client=client)
        loss.backward()
        torch_loss(hidden, theirs[0], target, reduction="sum").backward()
    assert weight.grad is None and weight.main_grad.data_ptr() == pointer
    assert_close(weight.main_grad, theirs[0].grad)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_types(client, dtype, tolerance):
    hidden, weight, _, target = head_case(rows=(40,), vocab=50, hidden_size=32, dtype=dtype)
    ours, theirs = leaves(hidden, weight)
    loss = lossd.linear_cross_entropy(*ours, target, client=client)
    expected = torch_loss(*theirs, target, reduction="sum")
    assert_close(loss, expected, 1e-5)  # the loss is not rounded to a half type
    loss.backward()
    expected.backward()
    assert_gradients(ours, theirs, tolerance)


def test_tensors_that_are_not_contiguous(client):
    hidden, weight, _, target = head_case(rows=(4, 6))
    ours, theirs = leaves(hidden, weight)
    turned = ours[0].transpose(0, 1)[1:]                   # [S, B, H] as [B, S, H]
    tall = ours[1].t().contiguous().t()                    # [V, H] with stride 1 in V
    picked = target.t()[1:]
    loss = lossd.linear_cross_entropy(turned, tall, picked, client=client)
    loss.backward()
    torch_loss(theirs[0].transpose(0, 1)[1:], theirs[1], picked, reduction="sum").backward()
    assert_gradients(ours, theirs)
    shared = client.share(hidden)
    again = lossd.linear_cross_entropy(shared.transpose(0, 1)[1:], weight, picked, client=client)
    assert torch.equal(again, loss)


def test_outputs_beside_the_loss(client):
    hidden, weight, _, target = gaps(head_case())
    ours, _ = leaves(hidden, weight)
    loss, reply = lossd.linear_cross_entropy(*ours, target, client=client, head_metrics=True,
                                             want=("argmax", "logprob", "loss"))
    z = logits64(hidden, weight)
    counted = target != -100
    assert reply.count == counted.sum()
    assert torch.equal(reply["argmax"][counted], z.argmax(-1)[counted].int())
    accuracy = reply.metrics["accuracy"]
    assert accuracy.count == reply.count
    assert accuracy.sum == (z.argmax(-1) == target)[counted].sum()
    assert not reply["logprob"].requires_grad and not reply["loss"].requires_grad
    assert loss.requires_grad and abs(reply.sum - loss.item()) < 1e-3


def test_nothing_counts(client):
    hidden, weight, _, target = head_case()
    ours, _ = leaves(hidden, weight)
    loss = lossd.linear_cross_entropy(*ours, torch.full_like(target, -100), client=client,
                                      reduction="mean", denominator_from="count")
    loss.backward()
    assert loss.item() == 0 and not ours[0].grad.any() and not ours[1].grad.any()


def test_modes_that_make_no_sense_are_refused(client):
    hidden, weight, _, target = head_case()
    ours, _ = leaves(hidden, weight)
    for options, field in (({"backward": "later"}, "backward"),
                           ({"backward": "forward", "reduction": "none"}, "backward"),
                           ({"backward": "fused"}, "d_loss"), ({"d_loss": 1.0}, "d_loss")):
        with pytest.raises(lossd.LossdError) as caught:
            lossd.linear_cross_entropy(*ours, target, client=client, **options)
        assert caught.value.field == field
    with pytest.raises(TypeError, match="smoothing"):
        lossd.linear_cross_entropy(*ours, target, client=client, smoothing=0.1)
    loss = lossd.linear_cross_entropy(*ours, target, client=client, backward="forward")
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="recompute"):
        loss.backward()
    ours[1].main_grad = torch.zeros(weight.shape)
    with pytest.raises(lossd.LossdError) as caught:
        lossd.linear_cross_entropy(*ours, target, client=client, backward="forward")
    assert caught.value.field == "backward"


def test_a_refused_call_leaves_main_grad_alone(client):
    hidden, weight, _, target = head_case()
    ours, _ = leaves(hidden, weight)
    ours[1].main_grad = client.empty(weight.shape, torch.float32)
    ours[1].main_grad.fill_(5)
    target[2, 4] = 1000
    with pytest.raises(lossd.LossdError) as caught:
        lossd.linear_cross_entropy(*ours, target, client=client, backward="fused", d_loss=1)
    assert caught.value.field == "target" and caught.value.row == 14
    assert (ours[1].main_grad == 5).all() and not hasattr(ours[1], "grad_added_to_main_grad")


def test_nothing_is_held_after_a_step(client):
    def step():
        hidden, weight, _, target = head_case()
        ours, _ = leaves(hidden, weight)
        for mode in ("forward", "recompute"):
            loss, _ = lossd.linear_cross_entropy(*ours, target, client=client, backward=mode, want=("lse",))
            loss.backward()
        lossd.linear_logprob(*ours, target, client=client, want=("entropy", "argmax"))[0].sum().backward()

    gc.collect()
    before = client.pool.bytes_in_use
    gc.disable()  # what only the collector could free counts as held
    try:
        step()
        assert client.pool.bytes_in_use == before
    finally:
        gc.enable()
