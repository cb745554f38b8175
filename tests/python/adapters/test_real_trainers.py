"""The adapters of verl, OpenRLHF and NeMo-RL against these packages' own functions, where they can be imported."""

import importlib
import importlib.machinery
import sys
import types

import pytest
import torch

from lossd.adapters import nemo_rl, openrlhf, verl
from ranks import run_ranks
from references import assert_close, head_case, leaves


def module(name):
    try:
        return importlib.import_module(name)
    except Exception as error:  # these packages need others, and fail in many ways without them
        pytest.skip(f"{name} cannot be imported: {error}")


def gradients(function, upstream, *tensors):
    found = function(*tensors)
    found = found if isinstance(found, tuple) else (found,)
    sum((value.float() * factor.reshape(value.shape)).sum() for value, factor in zip(found, upstream)).backward()
    return found, [t.grad for t in tensors]


def assert_alike(ours, theirs, tolerance=2e-5):
    for mine, reference in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]]):
        assert_close(mine, reference, tolerance)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_verl_s_torch_backend(client, temperature):
    backend = module("verl.utils.experimental.torch_functional")
    module("verl.utils.kernel.linear_cross_entropy")
    hidden, weight, _, target = head_case()
    upstream = torch.randn(2, *target.shape)

    def run():
        tensors = [t.clone().requires_grad_() for t in (hidden, weight)]
        return gradients(lambda h, w: backend.FusedLinearForPPO()(h, w, target, temperature), upstream, *tensors)

    theirs = run()
    with verl.apply_lossd_to_verl(client):
        ours = run()
    assert_alike(ours, theirs)


def test_openrlhf_s_functions(client, monkeypatch):
    for name, names in (("flash_attn", ()), ("flash_attn.bert_padding", ("index_first_axis", "pad_input", "rearrange", "unpad_input")),
                        ("flash_attn.utils", ()), ("flash_attn.utils.distributed", ("all_gather",))):
        if name not in sys.modules:  # imported by the actor, not used here
            made = types.ModuleType(name)
            made.__path__, made.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
            made.__dict__.update(dict.fromkeys(names))
            monkeypatch.setitem(sys.modules, name, made)
    actor = module("openrlhf.models.actor")
    hidden, weight, _, target = head_case()
    logits = hidden @ weight.t()
    upstream = torch.randn(2, *target.shape)

    def run():
        def both(z):
            return actor.compute_entropy(z * 1), actor.log_probs_from_logits(z * 1, target, temperature=0.7)
        return gradients(both, upstream, logits.clone().requires_grad_())

    theirs = run()
    with openrlhf.apply_lossd_to_openrlhf(client):
        ours = run()
    assert_alike(ours, theirs)


def nemo_rank(rank, client, size):
    utils = module_or_none("nemo_rl.distributed.model_utils")
    if utils is None:
        return None
    group = torch.distributed.group.WORLD
    hidden, weight, _, target = head_case(rows=(6, 2), vocab=20)
    target, start, end = target.t().contiguous(), rank * 20 // size, (rank + 1) * 20 // size
    upstream = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(2))

    def run():
        h, w = (t.chunk(size)[rank].clone().requires_grad_() for t in (hidden, weight))
        z = (hidden @ weight.t()).transpose(0, 1).chunk(size, -1)[rank].contiguous().requires_grad_()
        results = [gradients(lambda z: utils.DistributedLogprob.apply(z, target, start, end, group, False), upstream, z)]
        z = z.detach().clone().requires_grad_()
        results.append(gradients(lambda z: utils.ChunkedDistributedLogprob.apply(z, target, start, end, 4, group, False), upstream, z))
        z = z.detach().clone().requires_grad_()
        results.append(gradients(lambda z: utils.ChunkedDistributedEntropy.apply(z, 4, group, False), upstream, z))
        if size == 1:  # with gloo, which has no reduce-scatter, NeMo-RL's backward is for one rank
            results.append(gradients(lambda h, w: utils.ChunkedDistributedHiddenStatesToLogprobs.apply(
                h, target, w, start, end, 4, group, False), upstream, h, w))
        return results

    theirs = run()
    with nemo_rl.apply_lossd_to_nemo_rl(client):
        ours = run()
    for mine, reference in zip(ours, theirs):
        assert_alike(mine, reference)
    return len(ours)


def module_or_none(name):
    try:
        return importlib.import_module(name)
    except Exception:
        return None


@pytest.mark.parametrize("size", [1, 2])
def test_nemo_rl_s_functions(client, tmp_path, size):
    module("nemo_rl.distributed.model_utils")
    assert run_ranks(nemo_rank, size, client, tmp_path, size) == [4 if size == 1 else 3] * size
