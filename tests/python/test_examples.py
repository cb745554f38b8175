"""The examples and what the README shows run as they stand."""

import re
import runpy
from pathlib import Path

import pytest
import torch

import lossd

PACKAGE = Path(lossd.__file__).resolve().parents[1]


def test_cross_entropy_example(capsys):
    runpy.run_path(str(PACKAGE / "examples" / "cross_entropy.py"), run_name="__main__")
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True) and losses[-1] < 0.5 * losses[0]


def test_preference_example(capsys):
    runpy.run_path(str(PACKAGE / "examples" / "preference.py"), run_name="__main__")
    lines = re.findall(r"loss ([\d.]+)  accuracy ([\d.]+)", capsys.readouterr().out)
    assert len(lines) == 4 and lines[0][0] == "0.6931" and float(lines[-1][0]) < 0.4 and float(lines[-1][1]) > 0.9


BLOCKS = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme(client, block):
    B, T, H, V = 4, 3, 8, 11
    logprob = -torch.rand(B, T)
    names = {
        "lossd": lossd, "torch": torch, "client": client, "B": B, "T": T,
        "head": torch.nn.Linear(H, V, bias=False),
        "hidden": torch.randn(B, T, H, requires_grad=True), "weight": torch.randn(V, H, requires_grad=True),
        "target": torch.randint(V, (B, T)), "teacher_hidden": torch.randn(B, T, 5), "teacher_weight": torch.randn(V, 5),
        "logprob": logprob.clone().requires_grad_(), "ref": logprob - 0.1, "old": logprob + 0.1, "mask": torch.rand(B, T) < 0.9,
        "advantage": torch.randn(B)}
    exec(block, names)
    assert torch.isfinite(names["loss"]) and names["loss"].requires_grad
