"""Layers against the formulas of Hugging Face's models and of torch; gradients by torch's autograd in float64."""

import pytest
import torch
import torch.nn.functional as F

import lossd
from references import assert_close, assert_gradients, leaves

HALVES = [torch.bfloat16, torch.float16]


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def llama_rms_norm(x, weight, eps):
    """LlamaRMSNorm.forward."""
    dtype = x.dtype
    x = x.to(torch.float32)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return weight * x.to(dtype)


def gemma_rms_norm(x, weight, eps):
    """GemmaRMSNorm.forward."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * (1.0 + weight.float())).type_as(x)


def input_rms_norm(x, weight, eps):
    """Liger's casting mode "none": the inverse root in the type of x."""
    rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps).to(x.dtype)
    return (x.float() * rstd.float()).to(x.dtype) * weight


CASTINGS = {"llama": (llama_rms_norm, {}), "gemma": (gemma_rms_norm, {"weight_offset": 1}), "input": (input_rms_norm, {})}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("casting", CASTINGS)
def test_rms_norm_rounds_as_the_models_do(client, casting, dtype):
    formula, options = CASTINGS[casting]
    x, weight = normal(5, 7, 96, dtype=dtype), normal(96, seed=1, dtype=dtype)
    y = lossd.rms_norm(x, weight, client=client, casting=casting, eps=1e-5, **options)
    expected = formula(x, weight, 1e-5)
    assert y.dtype == dtype
    # Sums in another order may turn a tie.
    assert (y != expected).float().mean() < 2e-3
    assert_close(y, expected, 1e-4)


def rms_norm64(x, weight=None, offset=0.0, eps=1e-6):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (offset + weight)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("with_weight", [True, False])
def test_rms_norm_gradients(client, with_weight, offset):
    ours, theirs = leaves(normal(4, 3, 40), normal(40, seed=1) if with_weight else None)
    options = {"weight_offset": offset, "casting": "gemma"} if with_weight else {}
    y, expected = lossd.rms_norm(*ours, client=client, **options), rms_norm64(*theirs, offset)
    assert_close(y, expected)
    upstream = normal(4, 3, 40, seed=2)
    y.backward(upstream)
    expected.backward(upstream.double())
    assert_gradients(ours, theirs)


def test_the_residual_stream_of_a_block(client):
    """Two blocks: each adds to the stream, norms it, and goes on from the norm and from the stream."""
    x, branch, weight = normal(6, 32), normal(6, 32, seed=1), normal(32, seed=2)
    ours, theirs = leaves(x, branch, weight)
    y, stream = lossd.rms_norm(ours[1], ours[2], client=client, residual=ours[0])
    total = (y.sin() + stream.cos() * 2).sum()
    s = theirs[0] + theirs[1]
    expected = (rms_norm64(s, theirs[2]).sin() + s.cos() * 2).sum()
    assert_close(total, expected)
    total.backward()
    expected.backward()
    assert_gradients(ours, theirs)
    torch.testing.assert_close(ours[0].grad, ours[1].grad, rtol=0, atol=0)


@pytest.mark.parametrize("used", [0, 1])
def test_only_one_of_the_results_of_an_add_is_used(client, used):
    ours, theirs = leaves(normal(6, 32), normal(6, 32, seed=1), normal(32, seed=2))
    lossd.rms_norm(ours[0], ours[2], client=client, residual=ours[1])[used].sin().sum().backward()
    s = theirs[0] + theirs[1]
    (rms_norm64(s, theirs[2]), s)[used].sin().sum().backward()
    if used:  # nothing reaches the weight
        assert not ours[2].grad.any()
        ours, theirs = ours[:2], theirs[:2]
    assert_gradients(ours, theirs)


def test_main_grad_of_a_norm(client):
    (x, weight), theirs = leaves(normal(9, 32), normal(32, seed=1))
    weight.main_grad = torch.ones(32)
    for _ in range(2):
        lossd.rms_norm(x, weight, client=client).sum().backward()
    rms_norm64(*theirs).sum().backward()
    assert weight.grad is None and weight.grad_added_to_main_grad
    assert_close(weight.main_grad, 1 + 2 * theirs[1].grad)


@pytest.mark.parametrize("affine", [0, 1, 2])
def test_layer_norm(client, affine):
    ours, theirs = leaves(normal(4, 3, 40) + 3, *(normal(40, seed=seed) for seed in range(1, affine + 1)))
    y = lossd.layer_norm(*ours, client=client, eps=1e-3)
    expected = F.layer_norm(theirs[0], (40,), *theirs[1:], eps=1e-3)
    assert_close(y, expected)
    upstream = normal(4, 3, 40, seed=5)
    y.backward(upstream)
    expected.backward(upstream.double())
    assert_gradients(ours, theirs)


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def hf_rope(q, cos, sin):
    """apply_rotary_pos_emb for q [B, A, S, D], cos and sin [B, S, D] with every angle twice."""
    return q * cos.unsqueeze(1) + rotate_half(q) * sin.unsqueeze(1)


def angles(length, dim):
    inverse = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
    return torch.arange(length).float()[:, None] * inverse


@pytest.mark.parametrize("heads", [1, 5])
def test_hugging_face_rope(client, heads):
    B, S, D = 2, 6, 16
    table = angles(20, D)
    position = torch.randint(20, (B, S), generator=torch.Generator().manual_seed(1))
    (q,), (expected_q,) = leaves(normal(B, heads, S, D))
    y = lossd.rope(q.transpose(1, 2), table.cos(), table.sin(), position, client=client)
    twice = torch.cat((table, table), -1)[position].double()
    expected = hf_rope(expected_q, twice.cos(), twice.sin())
    assert_close(y.transpose(1, 2), expected)
    upstream = normal(B, S, heads, D, seed=3)
    y.backward(upstream)
    expected.transpose(1, 2).backward(upstream.double())
    assert_close(q.grad, expected_q.grad)


def test_interleaved_rope_of_a_part_is_a_complex_product(client):
    """Meta's Llama: pairs are complex numbers."""
    S, A, D, R = 7, 3, 12, 8
    table = angles(S, R)
    (x,), (reference,) = leaves(normal(S, A, D))
    y = lossd.rope(x, table.cos(), table.sin(), client=client, layout="interleaved", rotary_dim=R)
    turned = torch.view_as_complex(reference[..., :R].reshape(S, A, R // 2, 2).contiguous())
    turned = torch.view_as_real(turned * torch.polar(torch.ones_like(table), table)[:, None].to(torch.complex128))
    expected = torch.cat((turned.reshape(S, A, R), reference[..., R:]), -1)
    assert_close(y, expected)
    y.sin().sum().backward()
    expected.sin().sum().backward()
    assert_close(x.grad, reference.grad)
    assert torch.equal(y[..., R:], x[..., R:])


def test_rope_of_query_and_key_heads_inside_a_projection(client):
    S, D = 5, 16
    qkv = normal(S, (4 + 2 + 2) * D)
    table = angles(S, D)
    heads = qkv.as_strided((S, 6, D), (8 * D, D, 1))
    y = lossd.rope(heads, table.cos(), table.sin(), client=client)
    apart = lossd.rope(heads.contiguous(), table.cos(), table.sin(), client=client)
    assert torch.equal(y, apart)


GATED = {"swiglu": (lossd.swiglu, F.silu, {}),
         "geglu": (lossd.geglu, lambda g: 0.5 * g * (1 + torch.tanh(0.7978845608028654 * (g + 0.044715 * g ** 3))), {}),
         "geglu erf": (lossd.geglu, F.gelu, {"approximation": "erf"})}


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("name", GATED)
def test_gated_activations(client, name, merged):
    function, activation, options = GATED[name]
    gate, up, upstream = 2 * normal(3, 4, 20), normal(3, 4, 20, seed=1), normal(3, 4, 20, seed=2)
    ours, theirs = leaves(torch.cat((gate, up), -1)) if merged else leaves(gate, up)
    y = function(*ours, client=client, **options)
    expected = activation(theirs[0][..., :20]) * theirs[-1][..., -20:]
    assert_close(y, expected)
    y.backward(upstream)
    expected.backward(upstream.double())
    assert_gradients(ours, theirs)


def test_multipliers_of_a_gated_layer(client):
    """Falcon H1's mlp_multipliers."""
    gate, up = normal(6, 20), normal(6, 20, seed=1)
    y = lossd.swiglu(gate, up, client=client, gate_scale=0.4, down_scale=1.7)
    assert_close(y, up.double() * F.silu(gate.double() * 0.4) * 1.7)


@pytest.mark.parametrize("name", ["swiglu", "geglu erf"])
def test_round_activation_is_eager_torch(client, name):
    function, activation, options = GATED[name]
    gate, up = 2 * normal(8, 64, dtype=torch.bfloat16), normal(8, 64, seed=1, dtype=torch.bfloat16)
    y = function(gate, up, client=client, round_activation=True, **options)
    eager = activation(gate.float()).bfloat16() * up  # as on a GPU; the CPU's own bfloat16 activations round inside
    assert y.dtype == torch.bfloat16
    assert (y != eager).float().mean() < 2e-2  # ties
    once = function(gate, up, client=client, **options)
    assert (y != once).float().mean() > 0.05


def test_relu_squared(client):
    (x,), (reference,) = leaves(normal(5, 9))
    y, expected = lossd.relu_squared(x, client=client), F.relu(reference) ** 2
    assert_close(y, expected)
    y.sin().sum().backward()
    expected.sin().sum().backward()
    assert_close(x.grad, reference.grad)


def test_softmax(client):
    (x,), (reference,) = leaves(3 * normal(2, 5, 33))
    mask = torch.tensor([[True] * 5, [True, False, True, True, False]])
    y = lossd.softmax(x, client=client, mask=mask)
    expected = torch.softmax(reference, -1) * mask.unsqueeze(-1)
    assert_close(y, expected)
    upstream = normal(2, 5, 33, seed=3)
    y.backward(upstream)
    expected.backward(upstream.double())
    assert_close(x.grad, reference.grad)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_in_half_types_out(client, dtype):
    x, weight = normal(6, 48, dtype=dtype).requires_grad_(), normal(48, seed=1, dtype=dtype).requires_grad_()
    for y in (lossd.rms_norm(x, weight, client=client), lossd.layer_norm(x, weight, client=client), lossd.swiglu(x, client=client),
              lossd.geglu(x, client=client), lossd.relu_squared(x, client=client), lossd.softmax(x, client=client)):
        assert y.dtype == dtype
        x.grad = None
        y.float().sin().sum().backward()
        assert x.grad.dtype == dtype and x.grad.isfinite().all()
    assert weight.grad.dtype == dtype


def test_without_gradients_nothing_is_kept(client):
    x = normal(3, 8)
    assert not lossd.rms_norm(x, client=client).requires_grad
    with torch.no_grad():
        assert not lossd.softmax(x.requires_grad_(), client=client).requires_grad


@pytest.mark.parametrize("call, field", [
    (lambda x, c: lossd.rms_norm(x, client=c, weight_offset=1), "weight_offset"),
    (lambda x, c: lossd.rms_norm(x, client=c, eps=0), "eps"),
    (lambda x, c: lossd.rms_norm(x, client=c, casting="lama"), "casting"),
    (lambda x, c: lossd.rms_norm(x, client=c, residual=x.half()), "residual"),
    (lambda x, c: lossd.layer_norm(x, x[0, :3], client=c), "weight"),
    (lambda x, c: lossd.swiglu(x, x[:, :4], client=c), "up"),
    (lambda x, c: lossd.geglu(x[:, :5], client=c), "gate_up"),
    (lambda x, c: lossd.rope(x.reshape(4, 1, 6), x[:, :3], x[:, :3], torch.tensor([0, 4, 1, 1]), client=c), "position"),
    (lambda x, c: lossd.rope(x.reshape(4, 1, 6), x[:, :3], x[:, :3], client=c, rotary_dim=5), "rotary_dim"),
])
def test_what_is_wrong_is_named(client, call, field):
    with pytest.raises(lossd.LossdError) as error:
        call(normal(4, 6), client)
    assert error.value.field == field


def test_an_unknown_keyword_is_a_type_error(client):
    with pytest.raises(TypeError, match="approximation"):
        lossd.geglu(normal(4, 6), client=client, aproximation="erf")
