"""What a caller gets wrong: errors name the argument, say what it must be, and what was probably meant."""

import numpy as np
import pytest
import torch

import lossd
from test_modes import CASES, HEAD, HIDDEN, KINDS, LOGITS, LOGPROB, PAIRS, POLICY, TARGET, WEIGHT


def refused(function, *arguments, **options):
    with pytest.raises(lossd.LossdError) as caught:
        function(*arguments, **options)
    return caught.value


@pytest.mark.parametrize("wrong", [[[1.0, 2.0]], "text", np.zeros((4, 5), np.float32), 3.5, torch.nn.Linear(8, 19)])
@pytest.mark.parametrize("name", CASES)
def test_what_is_no_tensor_is_a_type_error(client, name, wrong):
    inputs, options = CASES[name]
    for key in inputs:
        error = refused(getattr(lossd, name), client=client, **{**inputs, key: wrong}, **options)
        assert isinstance(error, TypeError)
        assert (error.field, error.is_) == (key, type(wrong).__name__) and "torch.Tensor" in error.must_be


def test_what_is_required_is_a_type_error_too(client):
    for key in HEAD:
        error = refused(lossd.linear_cross_entropy, **{**HEAD, key: None}, target=TARGET, client=client)
        assert isinstance(error, TypeError) and error.field == key and error.is_ == "NoneType"
    assert refused(lossd.policy_loss, None, client=client, **POLICY).field == "logprob"


@pytest.mark.parametrize("wrong", ["text", object(), torch.nn.Linear(2, 2), {"a": 1}, [[1], [2, 3]]])
def test_other_tensors_are_named_as_well(client, wrong):
    for function, name in ((lossd.linear_cross_entropy, "target"), (lossd.ops.linear_cross_entropy, "row_weight"),
                           (lossd.linear_cross_entropy, "class_weight")):
        error = refused(function, client=client, **{"target": TARGET, **HEAD, name: wrong})
        assert isinstance(error, TypeError) and error.field == name and error.is_ == type(wrong).__name__


@pytest.mark.parametrize("wrong", ["unix:/run/lossd/lossd.sock", None, 3])
def test_what_is_no_client(wrong):
    for function in (lossd.linear_cross_entropy, lossd.ops.linear_cross_entropy):
        error = refused(function, hidden=HIDDEN, weight=WEIGHT, target=TARGET, client=wrong)
        assert isinstance(error, TypeError) and error.field == "client" and "lossd.connect()" in error.must_be


@pytest.mark.parametrize("name, value, types, others", [
    ("hidden", HIDDEN.double(), ["f32", "bf16", "f16"], ["i64", "u8"]), ("target", TARGET.short(), ["i64", "i32"], ["f32", "u8"]),
    ("mask", torch.ones(4, 5).to(torch.int8), ["u8", "bool"], ["f32", "i64"]),
    ("row_weight", torch.ones(4, 5).double(), ["f32"], ["bf16", "i64"]),
    # These are types of the wire, so that the server says what is wrong.
    ("row_weight", torch.ones(4, 5).half(), ["f32"], ["bf16", "i64"]), ("target", TARGET.float(), ["i64", "i32"], ["bf16", "u8"]),
    ("mask", torch.ones(4, 5), ["u8"], ["f16", "i64"]),
])
def test_a_wrong_dtype_is_told_those_that_the_field_takes(client, name, value, types, others):
    error = refused(lossd.linear_cross_entropy, client=client, **{**HEAD, "target": TARGET, name: value})
    assert error.field == name
    assert all(text in error.must_be for text in types) and not any(text in error.must_be for text in others), error.must_be


@pytest.mark.parametrize("function", ["linear_cross_entropy", "ops.linear_cross_entropy"])
def test_a_misspelt_keyword(client, function):
    function = getattr(lossd.ops if function.startswith("ops.") else lossd, "linear_cross_entropy")
    for wrong, meant in (("label_smothing", "label_smoothing"), ("temprature", "temperature"), ("Mask", "mask"),
                         ("ignore_idx", "ignore_index")):
        with pytest.raises(TypeError, match=rf"'{wrong}' \(did you mean {meant}\?\)"):
            function(client=client, **HEAD, target=TARGET, **{wrong: 1})
    with pytest.raises(TypeError, match="'qqqq'$"):
        function(client=client, **HEAD, target=TARGET, qqqq=1)


def test_outputs_and_gradients_are_no_options(client):
    """They would have no meaning, and nothing is ignored."""
    for name in ("loss", "logprob", "grad_weight", "grad_weight_mode"):
        with pytest.raises(TypeError, match=f"'{name}'"):
            lossd.linear_policy_loss(HIDDEN, WEIGHT, TARGET, client=client, **POLICY, **{name: LOGPROB})
    with pytest.raises(TypeError, match="'entropy'"):
        lossd.policy_loss(HIDDEN, WEIGHT, TARGET, client=client, entropy=LOGPROB, **POLICY)


@pytest.mark.parametrize("change, field, meant", [
    ({"kind": "reinforced"}, "kind", "REINFORCE"), ({"kl_estimator": "kl3"}, "kl_estimator", "K3"),
    ({"sequence_weighting": "inverse-length"}, "sequence_weighting", "INVERSE_LENGTH"), ({"entropy_kind": "ture"}, "entropy_kind", "TRUE")])
def test_a_misspelt_name_of_an_enum(client, change, field, meant):
    error = refused(lossd.linear_policy_loss, HIDDEN, WEIGHT, TARGET, client=client, **{**POLICY, **change})
    assert error.field == field and f"did you mean {meant}?" in error.is_ and meant in error.must_be


def test_misspelt_terms_outputs_and_operations(client):
    def of(*terms):
        return refused(lossd.preference_loss, LOGPROB, client=client, **{**PAIRS, "terms": list(terms)})

    error = of({"type": "sigmod", "beta": 1})
    assert error.field == "terms[0].type" and "did you mean SIGMOID?" in error.is_
    error = of({"type": "ipo", "beta": 1}, {"type": "ipo", "betta": 1})
    assert error.field == "terms[1].betta" and "did you mean beta?" in error.is_
    error = refused(lossd.preference_loss, LOGPROB, client=client, want=("chosen_rewards",), **PAIRS)
    assert error.field == "want" and "did you mean chosen_reward?" in error.is_
    with pytest.raises(AttributeError, match=r"did you mean kl_divergence\?"):
        lossd.ops.kl_divergance
    with pytest.raises(AttributeError, match=r"did you mean linear_distill_loss\?"):
        lossd.distill_loss


def test_nothing_is_added_to_memory_that_holds_nothing(client):
    error = refused(lossd.ops.linear_cross_entropy, client, **HEAD, target=TARGET, grad_weight_mode="accumulate", want=("grad_weight",))
    assert error.field == "grad_weight_mode"


@pytest.mark.parametrize("name, wrong", [("batch_invariant", "yes"), ("gradient_filter", "1e-3"), ("workspace_limit", "1G"),
                                         ("workspace_limit", -1), ("timeout", "60"), ("timeout", 0), ("timeout", -2.5)])
def test_what_goes_with_every_call(client, name, wrong):
    for function in (lossd.linear_cross_entropy, lossd.ops.linear_cross_entropy):
        error = refused(function, client=client, **HEAD, target=TARGET, **{name: wrong})
        assert isinstance(error, TypeError) == isinstance(wrong, str) and (error.field, error.is_) == (name, repr(wrong))


def test_destinations_and_shared_memory(client):
    error = refused(lossd.ops.linear_cross_entropy, client, **HEAD, target=TARGET, out={"loss": [0.0]})
    assert isinstance(error, TypeError) and (error.field, error.is_) == ("loss", "list")
    weight = WEIGHT.clone().requires_grad_()
    weight.main_grad = [0.0]
    error = refused(lambda: lossd.linear_cross_entropy(HIDDEN, weight, TARGET, client=client).backward())
    assert isinstance(error, TypeError) and error.field == "grad_weight"
    assert isinstance(refused(client.share, [1.0, 2.0]), TypeError)
    for dtype in ("f64", np.float64, torch.float64, "text"):
        assert refused(client.empty, (2,), dtype).field == "dtype"


def test_names_in_any_case_and_in_full(client):
    options = {**POLICY, "kind": "POLICY_KIND_PPO", "entropy_kind": "ENTROPY_KIND_TRUE"}
    entropy = torch.ones_like(LOGPROB).requires_grad_()
    lossd.policy_loss(LOGPROB, entropy=entropy, client=client, **options).backward()
    assert entropy.grad.any()
    rows = lossd.kl_divergence(LOGITS, LOGITS.flip(0), client=client, reduction="REDUCTION_NONE", **KINDS)
    assert rows.shape == (4, 5)
