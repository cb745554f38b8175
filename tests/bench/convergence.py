"""A model of 4 layers trained with torch and with lossd from the same seed: how far losses and final weights are apart.

usage: convergence.py --build DIR [--dtype bfloat16] [--steps 200] [--device cuda:0]
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import lossd  # noqa: E402

import small_llama  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    lossd.load(given.build)
    shape = small_llama.Shape(layers=4, hidden=256, heads=4, kv_heads=2, intermediate=512, vocab=512)
    options = {"steps": given.steps, "batch": 8, "length": 64, "device": given.device, "dtype": getattr(torch, given.dtype)}
    expected, final = small_llama.train(small_llama.TorchParts(), shape, **options)
    exact, exact_weights = small_llama.train(small_llama.TorchParts(), shape, **{**options, "dtype": torch.float32})

    def report(name, losses, weights):
        away = max((weights[key] - final[key]).norm() / final[key].norm() for key in final)
        of_exact = max((weights[key] - exact_weights[key]).norm() / exact_weights[key].norm() for key in final)
        print(f"{name:16} losses {losses[0]:.4f} ... {losses[-20:].mean():.4f}; from torch in {given.dtype}: losses "
              f"{(losses - expected).abs().max():.1e}, weights {away:.1e}; from torch in float32: losses {(losses - exact).abs().max():.1e}, "
              f"weights {of_exact:.1e}", flush=True)

    report("torch", expected, final)
    with lossd.connect("embedded") as client:
        embedded = small_llama.train(small_llama.LossdParts(client), shape, **options)
    report("lossd embedded", *embedded)
    with lossd.connect() as client:
        remote = small_llama.train(small_llama.LossdParts(client), shape, **options)
    report("lossd remote", *remote)
    same = torch.equal(embedded[0], remote[0]) and all(torch.equal(embedded[1][key], remote[1][key]) for key in final)
    print("embedded and remote: the same bits in all losses and weights" if same else "embedded and remote DIFFER")


if __name__ == "__main__":
    main()
