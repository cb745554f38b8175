"""The wheel: built, installed where torch is, and used for a first gradient, with nothing of the source tree in reach."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST_GRADIENT = """
import sys
import torch, lossd
assert "site-packages" in lossd.__file__, lossd.__file__
hidden = torch.randn(6, 8, requires_grad=True)
weight = torch.randn(19, 8, requires_grad=True)
target = torch.arange(6)
torch.nn.functional.cross_entropy(hidden @ weight.t(), target).backward()
expected, weight.grad = weight.grad, None
for client in (lossd.connect("embedded"), lossd.connect()):
    with client:
        loss = lossd.linear_cross_entropy(hidden, weight, target, client=client, reduction="mean", denominator_from="count")
        loss.backward()
        assert torch.allclose(weight.grad, expected, atol=1e-6), (weight.grad, expected)
        weight.grad = None
import lossd.nn, lossd.drop_in
assert lossd.nn.RMSNorm(8)(hidden).shape == hidden.shape
print("ok", lossd.load().directory)
"""


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools")
    pytest.importorskip("wheel")
    folder = tmp_path_factory.mktemp("dist")
    # Built in a copy of nothing: the folders that setuptools leaves in the source tree are git's to ignore.
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", folder, ROOT / "client" / "python")
    (found,) = folder.glob("lossd-*.whl")
    return found


def test_what_a_wheel_carries(wheel):
    names = run(sys.executable, "-m", "zipfile", "-l", wheel)
    for name in ("lossd/lib/liblossd_client.so", "lossd/bin/lossd", "lossd/generated/ops.desc", "lossd/py.typed", "lossd/nn.py",
                 "lossd/drop_in/layers.py", "lossd/functional/compiled.py", "lossd/lib/libprotobuf.so", "lossd/lib/libgrpc"):
        assert name in names, name
    for name in ("libcublas", "libcuda", "libopenblas", "libstdc++", "libc.so"):
        assert name not in names, name
    assert wheel.stat().st_size < 64 << 20, f"{wheel.stat().st_size >> 20} MiB"


def test_from_install_to_the_first_gradient(wheel, tmp_path):
    run(sys.executable, "-m", "venv", "--system-site-packages", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    begin = time.monotonic()
    run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel, env=environment)
    printed = run(python, "-c", FIRST_GRADIENT, cwd=tmp_path, env=environment)
    seconds = time.monotonic() - begin
    assert printed.startswith("ok") and str(tmp_path) in printed
    print(f"from pip install to the first gradients: {seconds:.1f} s")
    assert seconds < 60
