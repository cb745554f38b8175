"""A training step of a small Llama-shaped model with each implementation of its norms, rotary embedding, gates and loss.

Contestants: eager torch, torch.compile of the eager model, Liger-Kernel, lossd at a server (the loss alone; layers by torch), lossd embedded
(layers too). All start from the same weights; a step is forward, backward and a fused AdamW. Time: median of interleaved steps, hot. Memory:
peak that torch allocated in a step, beside it what lossd holds itself (its workspace; a server's is another process's).
Liger and torch.compile take part where they can be imported.

usage: train_step.py --build DIR --out DIR [--peer-path DIR]... [--rows 8192] [--hidden 4096] [--vocab 128256] [--layers 2] [--seconds 8]
Writes OUT/train-step.json and OUT/train-step.svg, and prints the table.
"""

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from xml.sax.saxutils import escape

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "client" / "python"))

import lossd  # noqa: E402

import measure  # noqa: E402
import small_llama  # noqa: E402

COLORS = {"eager": "#767676", "torch.compile": "#e08a00", "Liger": "#c5221f", "lossd remote": "#0b57d0", "lossd embedded": "#188038"}


class Contestant:
    """A model in training. step() is one step."""

    def __init__(self, parts, shape, text, device, dtype, compiled=False):
        torch.manual_seed(0)
        self.model = small_llama.Model(shape, text.shape[1] - 1).to(device=device, dtype=dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **({"fused": True} if device.type == "cuda" else {}))
        self.tokens, self.target, self.parts = text[:, :-1].contiguous(), text[:, 1:].contiguous(), parts
        self.run = torch.compile(self.model) if compiled else self.model
        self.losses = []

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.run(self.tokens, self.target, self.parts)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())


def contestants(build, flags):
    """(name, parts, whether torch.compile, bytes that lossd holds beside torch's memory, what to close) of those that are there."""
    yield "eager", small_llama.TorchParts(), False, 0, None
    if hasattr(torch, "compile"):
        yield "torch.compile", small_llama.TorchParts(), True, 0, None
    try:
        yield "Liger", small_llama.LigerParts(), False, 0, None
    except (ImportError, RuntimeError) as error:
        print(f"Liger: {error}", file=sys.stderr)
    client = lossd.connect(flags=flags)
    yield "lossd remote", small_llama.LossdParts(client, layers=False), False, client.server_info["workspace_bytes"], client
    client = lossd.connect("embedded")
    yield "lossd embedded", small_llama.LossdParts(client), False, None, client


def measure_one(name, parts, compiled, shape, text, device, dtype, seconds):
    """One contestant alone on the device: models of this size do not fit beside each other."""
    begin = time.perf_counter()
    model = Contestant(parts, shape, text, device, dtype, compiled)
    for _ in range(3):
        model.step()
    measure.synchronize(device)
    ready = time.perf_counter() - begin
    measure.load(model.step, device, min(seconds, 3))
    samples, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(samples) < 5:
        samples.append(measure.milliseconds(model.step, device))
    peak = None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        model.step()
        measure.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
    return {"name": name, "ms": measure.summary(samples), "peak_bytes": peak, "ready_s": ready, "losses": [x.item() for x in model.losses[:3]]}


def table(rows):
    lines = ["| | step, ms (10 % ... 90 %) | over eager | peak, GB | lossd's own, GB | first losses |", "|---|---|---|---|---|---|"]
    eager = next((row["ms"]["median"] for row in rows if row["name"] == "eager"), None)
    for row in rows:
        ms, peak, own = row["ms"], row["peak_bytes"], row.get("own_bytes") or 0
        lines.append(f"| {row['name']} | {ms['median']:.1f} ({ms['p10']:.1f} ... {ms['p90']:.1f}) | {ms['median'] / eager if eager else 1:.3f} | "
                     f"{'' if peak is None else f'{peak / 1e9:.2f}'} | {own / 1e9:.2f} | {', '.join(f'{x:.4f}' for x in row['losses'])} |")
    return "\n".join(lines)


def plot(rows, title):
    """Bars of time and of memory, as an SVG."""
    width, bar, left, top = 860, 26, 130, 52
    height = top + (bar + 10) * len(rows) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>', f'<text x="{left}" y="20" font-size="13">{escape(title)}</text>']
    panels = ((left, "step, ms", lambda row: row["ms"]["median"]),
              (left + 370, "peak memory of torch, GB (light: lossd's own)", lambda row: (row["peak_bytes"] or 0) / 1e9))
    for x, label, value in panels:
        most = max(value(row) + (row.get("own_bytes") or 0) / 1e9 * (x > left) for row in rows) or 1
        out.append(f'<text x="{x}" y="42">{escape(label)}</text>')
        for index, row in enumerate(rows):
            y, long = top + index * (bar + 10), 290 * value(row) / most
            color = COLORS.get(row["name"], "#000000")
            if x == left:
                out.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{escape(row["name"])}</text>')
            out.append(f'<rect x="{x}" y="{y}" width="{long:.1f}" height="{bar}" fill="{color}"/>')
            own = 290 * (row.get("own_bytes") or 0) / 1e9 / most if x > left else 0
            if own:
                out.append(f'<rect x="{x + long:.1f}" y="{y}" width="{own:.1f}" height="{bar}" fill="{color}" opacity="0.35"/>')
            out.append(f'<text x="{x + long + own + 5:.1f}" y="{y + 17}">{value(row):.4g}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="build directory, or a folder with lib/, bin/ and generated/")
    parser.add_argument("--out", required=True)
    parser.add_argument("--peer-path", action="append", default=[], help="folder or wheel to import peers from")
    for name, value in (("rows", 8192), ("length", 2048), ("hidden", 4096), ("vocab", 128256), ("layers", 2), ("intermediate", 14336),
                        ("heads", 32), ("kv-heads", 8)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--only", action="append", help="names of contestants")
    given = parser.parse_args()
    sys.path[:0] = given.peer_path
    lossd.load(given.build)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = small_llama.Shape(given.layers, given.hidden, given.heads, given.kv_heads, given.intermediate, given.vocab)
    text = small_llama.sentences(given.vocab, given.rows // given.length, given.length, 1)[0].to(device)
    rows = []
    for name, parts, compiled, own, client in contestants(given.build, ()):
        if not given.only or name in given.only:
            try:
                row = measure_one(name, parts, compiled, shape, text, device, dtype, given.seconds)
                row["own_bytes"] = client.server_info["workspace_bytes"] if client is not None and own is None else own
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
            except Exception as error:  # one that fails must not take the others' results along
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if client is not None:
            client.close()
        if hasattr(torch, "_dynamo"):
            torch._dynamo.reset()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    title = f"Training step: {given.layers} layers, H {given.hidden}, V {given.vocab}, {given.rows} tokens, {str(dtype)[6:]}"
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "train-step.json").write_text(json.dumps({"title": title, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
                                                     "torch": torch.__version__, "contestants": rows}, indent=1) + "\n")
    (out / "train-step.svg").write_text(plot(rows, title))
    print(title + "\n\n" + table(rows))


if __name__ == "__main__":
    main()
