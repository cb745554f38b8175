"""The TRL adapter: the head's function on the calling convention of TRL, everywhere; four trainers where TRL is installed."""

import contextlib

import pytest
import torch

from lossd.adapters import trl as adapter
from references import assert_close, assert_gradients, entropy64, head_case, leaves, logits64, logprob64
from standin import install

ALL = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


class Native:
    """TRL's own function, as far as the adapter falls back to it."""

    @staticmethod
    def apply(*arguments):
        return "native", arguments


@pytest.fixture
def utils(monkeypatch):
    return install(monkeypatch, {"trl.trainer.utils": {"_ChunkedLogProbFunction": Native}})["trl.trainer.utils"]


@pytest.mark.parametrize("bias", [False, True])
def test_statistics_and_gradients(client, utils, bias):
    hidden, weight, bias, target = head_case(rows=(9,), bias=bias)
    ours, theirs = leaves(hidden, weight, bias)
    with adapter.apply_lossd_to_trl(client):
        found = utils._ChunkedLogProbFunction.apply(*ours, target, 0.7, 32768, None, 1.5, ("log_probs", *ALL))
    assert utils._ChunkedLogProbFunction is Native
    scaled = theirs[0] * 1.5, theirs[1], None if bias is None else theirs[2] * 1.5
    z = logits64(*scaled) / 0.7
    p = torch.softmax(z, -1)
    expected = (logprob64(scaled[0], scaled[1], target, scaled[2], 0.7), entropy64(*scaled, 0.7), p.square().sum(-1).log(), z.mean(-1),
                z.argmax(-1) == target)
    for mine, reference in zip(found, expected):
        assert_close(mine, reference.double(), 1e-4)
    assert found[4].dtype == torch.bool and not found[2].requires_grad and not found[3].requires_grad
    upstream = torch.randn(2, 9)
    (found[0] * upstream[0] + found[1] * upstream[1]).sum().backward()
    (expected[0] * upstream[0] + expected[1] * upstream[1]).sum().backward()
    assert_gradients(ours, theirs)


def test_softcap_and_no_rows(client, utils):
    hidden, weight, _, target = head_case(rows=(9,))
    function = adapter.LogprobFunction(Native, client)
    found = function.apply(hidden, weight, None, target, 1.0, 32768, 2.0, 1.0, ("log_probs",))
    z = 2 * torch.tanh(logits64(hidden, weight) / 2)
    assert_close(found[0], torch.log_softmax(z, -1).gather(-1, target[:, None])[:, 0])
    assert found[1:] == (None,) * 4
    ours, _ = leaves(hidden[:0], weight)
    none = function.apply(*ours, None, target[:0], 1.0, 32768, None, 1.0, ("log_probs", "entropy"))
    assert none[0].shape == (0,)
    none[0].sum().backward()
    assert not ours[1].grad.any()


def test_float64_stays_with_trl(client, utils):
    hidden, weight, _, target = head_case(rows=(2,))
    assert adapter.LogprobFunction(Native, client).apply(hidden.double(), weight.double(), None, target, 1.0, 32)[0] == "native"


def test_the_weight_is_gathered_for_the_backward(client):
    """ZeRO-3 keeps an empty weight between forward and backward."""
    hidden, weight, _, target = head_case(rows=(4,))
    parameter = torch.nn.Parameter(weight.clone())
    inside = []

    @contextlib.contextmanager
    def gather(*parameters):
        inside.append(parameters[0] is parameter)
        parameter.data.copy_(weight)
        yield
        parameter.data.zero_()

    found = adapter.LogprobFunction(Native, client, gather).apply(hidden, parameter, None, target, 1.0, 32768, None, 1.0, ("log_probs",))
    parameter.data.zero_()
    found[0].sum().backward()
    reference = weight.double().requires_grad_()
    logprob64(hidden, reference, target).sum().backward()
    assert inside == [True]
    assert_close(parameter.grad, reference.grad)
