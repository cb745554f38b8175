"""The examples that need only torch run as they stand; those of Hugging Face and TRL where these are installed. What the guide names exists."""

import importlib
import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import lossd

PACKAGE = Path(lossd.__file__).resolve().parents[1]
EXAMPLES = PACKAGE / "examples"


def test_medusa(capsys):
    runpy.run_path(str(EXAMPLES / "medusa.py"), run_name="__main__")
    lines = re.findall(r"loss ([\d.]+)  accuracy ([\d.]+) ([\d.]+) ([\d.]+)", capsys.readouterr().out)
    assert len(lines) == 4 and all(float(value) > 0.9 for value in lines[-1][1:]) and float(lines[0][0]) > 2.5


def run(name, *arguments):
    """In a process of its own, since it starts others; with the library that is tested."""
    code = ("import runpy, sys, lossd; lossd.load(sys.argv[1]); sys.argv = sys.argv[2:]; sys.path.insert(0, sys.argv.pop(0));"
            "runpy.run_path(sys.argv[0], run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code, str(lossd.load().directory), str(EXAMPLES), str(EXAMPLES / name), *arguments],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_rollout_and_trainer():
    lines = re.findall(r"update (\d)  reward ([\d.]+)  ratio ([\d.]+) to ([\d.]+)", run("rollout_and_trainer.py"))
    assert len(lines) == 24
    assert all(low == high == "1.000000" for update, _, low, high in lines if update == "0")
    assert any(low != "1.000000" for update, _, low, _ in lines if update == "1")
    assert float(lines[-1][1]) > float(lines[0][1]) + 0.2


@pytest.mark.parametrize("how, package", [("plain", "transformers"), ("ddp", "transformers"), ("fsdp", "transformers"),
                                          ("lightning", "lightning")])
def test_huggingface(how, package):
    for name in {package, "transformers"}:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", run("huggingface.py", how))]
    assert len(losses) == 3 and losses[-1] < 0.3 * losses[0]


def test_trl_grpo():
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed")
    run("trl_grpo.py")


def test_the_guide_names_what_exists():
    text = (PACKAGE / "GUIDE.md").read_text()
    for module, name in re.findall(r"`lossd\.adapters\.(\w+)\.(\w+)\(", text):
        assert hasattr(importlib.import_module(f"lossd.adapters.{module}"), name), name
    for name in re.findall(r"`megatron\.(\w+)[(`]", text):
        assert hasattr(importlib.import_module("lossd.adapters.megatron"), name), name
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PACKAGE / link).exists(), link
