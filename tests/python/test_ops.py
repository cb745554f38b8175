import inspect

import numpy as np
import pytest
import torch

import lossd


def numpy_case(rows=4, hidden_size=6, vocab=11, seed=0):
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, hidden_size), np.float32),
            random.standard_normal((vocab, hidden_size), np.float32),
            random.integers(vocab, size=rows))


def reference(hidden, weight, target):
    z = hidden.astype(np.float64) @ weight.astype(np.float64).T
    logp = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return logp[np.arange(len(target)), target], -(np.exp(logp) * logp).sum(-1)


def test_every_operation_has_a_function_with_its_fields():
    assert set(dir(lossd.ops)) == set(lossd.load().schema.ops)
    for name in dir(lossd.ops):
        function = getattr(lossd.ops, name)
        parameters = inspect.signature(function).parameters
        # All start from hidden states, from logits, from log-probabilities, from a distribution or, for layers, from what lies in one.
        starts = ("hidden", "logits", "logprob", "student", "d_y", "x")
        first = next((first for first in starts if first in parameters), None)
        assert parameters[first].default is inspect.Parameter.empty if first else {"gate", "up", "gate_up"} <= set(parameters)
        for rule in lossd.load().schema.ops[name].fields.values():
            assert rule.name in function.__doc__
            assert rule.is_output or rule.name in parameters
    document = lossd.ops.linear_cross_entropy.__doc__
    assert "label_smoothing: double; >= 0; <= 1; default 0.0" in document
    assert "Cross entropy of a linear head" in document  # comments of the proto


def test_numpy_in_numpy_out(client):
    hidden, weight, target = numpy_case()
    reply = lossd.ops.linear_logprob(client, hidden=hidden, weight=weight, target=target,
                                     want=("logprob", "entropy", "argmax", "correct"))
    logprob, entropy = reference(hidden, weight, target)
    np.testing.assert_allclose(reply["logprob"], logprob, rtol=1e-5)
    np.testing.assert_allclose(reply["entropy"], entropy, rtol=1e-5)
    best = (hidden @ weight.T).argmax(-1)
    np.testing.assert_array_equal(reply["argmax"], best)
    assert reply["correct"].dtype == bool
    np.testing.assert_array_equal(reply["correct"], best == target)
    assert reply.count == 4 and reply.degenerate_rows == 0


def test_shared_arrays_are_used_in_place(client):
    hidden, weight, target = numpy_case()
    out = client.empty((4,), np.float32)
    out[:] = 7
    reply = lossd.ops.linear_logprob(client, hidden=client.share(hidden), weight=client.share(weight),
                                     target=client.share(target), out={"logprob": out})
    assert reply["logprob"] is out
    np.testing.assert_allclose(out, reference(hidden, weight, target)[0], rtol=1e-5)


def test_a_slice_of_a_shared_array_is_in_place_too(client):
    hidden, weight, target = numpy_case(rows=8)
    wide = client.empty((8, 10), np.float32)
    wide[:, 2:8] = hidden
    everything = client.empty((2, 8), np.float32)
    before = client.pool.locate(everything.__array_interface__["data"][0], everything.nbytes)
    lossd.ops.linear_logprob(client, hidden=wide[::2, 2:8], weight=weight, target=target[::2],
                             out={"logprob": everything[1, :4]})
    assert before is not None
    np.testing.assert_allclose(everything[1, :4], reference(hidden[::2], weight, target[::2])[0],
                               rtol=1e-5)


def test_copied_destinations_receive_and_accumulate(client):
    hidden, weight, target = numpy_case()
    ones = np.ones_like(weight)
    once = lossd.ops.linear_cross_entropy(client, hidden=hidden, weight=weight, target=target,
                                          want=("grad_weight",))["grad_weight"]
    lossd.ops.linear_cross_entropy(client, hidden=hidden, weight=weight, target=target,
                                   grad_weight_mode="ACCUMULATE", out={"grad_weight": ones})
    np.testing.assert_allclose(ones, 1 + once, rtol=1e-5, atol=1e-6)
    strided = np.zeros((11, 12), np.float32)[:, ::2]
    lossd.ops.linear_cross_entropy(client, hidden=hidden, weight=weight, target=target,
                                   out={"grad_weight": strided})
    np.testing.assert_allclose(strided, once, rtol=1e-6)


def test_strides_that_no_kernel_takes_are_copied(client):
    hidden, weight, target = numpy_case(rows=8)
    transposed = np.asfortranarray(hidden)
    backwards = weight[::-1]
    reply = lossd.ops.linear_logprob(client, hidden=transposed, weight=backwards, target=target,
                                     want="logprob")
    np.testing.assert_allclose(reply["logprob"], reference(hidden, weight[::-1], target)[0], rtol=1e-5)


def test_lists_and_numbers_become_the_fields_own_type(client):
    hidden, weight, target = numpy_case()
    reply = lossd.ops.linear_cross_entropy(
        client, hidden=hidden, weight=weight, target=target.tolist(), row_weight=[1, 0, 2, 1],
        want=("row_loss",))
    logprob, _ = reference(hidden, weight, target)
    np.testing.assert_allclose(reply["row_loss"], -logprob * [1, 0, 2, 1], rtol=1e-5)


def test_no_rows(client):
    hidden, weight, target = numpy_case(rows=0)
    reply = lossd.ops.linear_cross_entropy(client, hidden=hidden, weight=weight, target=target,
                                           want=("loss", "row_loss", "grad_weight"))
    assert reply["row_loss"].shape == (0,) and float(reply["loss"]) == 0
    assert not reply["grad_weight"].any() and reply.count == 0


@pytest.mark.parametrize("change, field, code", [
    ({"label_smoothing": 1.5}, "label_smoothing", "INVALID_ARGUMENT"),
    ({"label_smoothing": "much"}, "label_smoothing", "INVALID_ARGUMENT"),
    ({"label_smoothing": float("nan")}, "label_smoothing", "INVALID_ARGUMENT"),
    ({"reduction": "average"}, "reduction", "INVALID_ARGUMENT"),
    ({"denominator": 3.0}, "denominator", "INVALID_ARGUMENT"),
    ({"token_scaling": 2}, "token_scaling", "INVALID_ARGUMENT"),
    ({"ignore_index": 0.5}, "ignore_index", "INVALID_ARGUMENT"),
    ({"target": np.full(4, 11)}, "target", "INVALID_ARGUMENT"),
    ({"target": np.zeros(3, np.int64)}, "target", "INVALID_ARGUMENT"),
    ({"target": np.zeros(4, np.float32)}, "target", "INVALID_ARGUMENT"),
    ({"target": np.zeros(4, np.int16)}, "target", "INVALID_ARGUMENT"),
    ({"hidden": np.zeros((4, 6))}, "hidden", "INVALID_ARGUMENT"),
    ({"row_weight": "heavy"}, "row_weight", "INVALID_ARGUMENT"),
    ({"want": ("grad_bias",)}, "grad_bias", "INVALID_ARGUMENT"),
    ({"want": ("perplexity",)}, "want", "INVALID_ARGUMENT"),
    ({"group": "tp"}, "group", "UNIMPLEMENTED"),
])
def test_a_refusal_names_the_field(client, change, field, code):
    hidden, weight, target = numpy_case()
    arguments = {"hidden": hidden, "weight": weight, "target": target, "want": ("loss",), **change}
    with pytest.raises(lossd.LossdError) as caught:
        lossd.ops.linear_cross_entropy(client, **arguments)
    assert caught.value.code == code
    assert caught.value.field == field
    assert caught.value.must_be
    assert caught.value.is_ or caught.value.row >= 0  # data have a row in place of their value
    assert field in str(caught.value)


def test_a_wrong_element_has_its_row(client):
    hidden, weight, target = numpy_case()
    target[2] = 11
    with pytest.raises(lossd.LossdError) as caught:
        lossd.ops.linear_logprob(client, hidden=hidden, weight=weight, target=target, want="logprob")
    assert caught.value.row == 2


def test_an_unknown_keyword_is_a_type_error(client):
    hidden, weight, target = numpy_case()
    with pytest.raises(TypeError, match="smoothing"):
        lossd.ops.linear_cross_entropy(client, hidden=hidden, weight=weight, target=target, smoothing=1)
    with pytest.raises(AttributeError, match="linear_entropy"):
        lossd.ops.linear_entropy


def test_half_types_of_torch(client):
    for dtype in (torch.bfloat16, torch.float16):
        hidden = torch.randn(4, 6).to(dtype)
        weight = torch.randn(11, 6).to(dtype)
        target = torch.tensor([0, 3, 10, 5], dtype=torch.int32)
        reply = lossd.ops.linear_logprob(client, hidden=hidden, weight=weight, target=target,
                                         want=("logprob",))
        expected, _ = reference(hidden.double().numpy(), weight.double().numpy(), target.numpy())
        assert reply["logprob"].dtype == torch.float32
        np.testing.assert_allclose(reply["logprob"].numpy(), expected, rtol=1e-5)
