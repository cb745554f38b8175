"""lossd beside other implementations of the same losses: time over the cuBLAS products, extra memory, errors against float64.

Everything runs in one process on the same tensors, interleaved and hot; the server of lossd is another process on the same GPU, and lossd
embedded computes in this one. Ratios
are over "the products": bf16 products of the whole operation in torch over all rows at once (logits, gradient of hidden, gradient of
weight; the logits of a teacher or a reference head), measured in the same loop. Peers take part where they are installed, or found in
the folders of --peer-path.

Writes OUT/peers.json after each case, and prints the table. report.py and plot.py read that file.

usage: python3 tests/bench/compare.py --build build/release --out build/bench [--quick] [--peer-path DIR]...
"""

import argparse
import datetime
import gc
import json
import math
import platform
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import lossd  # noqa: E402

import contestants  # noqa: E402
import measure  # noqa: E402
import problems  # noqa: E402
import report  # noqa: E402

QUICK = ["cross_entropy 4096x4096x128256", "logprob 4096x4096x128256", "policy 4096x4096x128256"]
FULL = (["cross_entropy %dx4096x128256" % n for n in (4096, 8192, 16384, 32768)]
        + ["cross_entropy 8192x4096x%d" % v for v in (32000, 151936)]
        + ["cross_entropy 8192x2048x%d" % v for v in (32000, 128256, 151936)]
        + ["logprob %dx4096x128256" % n for n in (4096, 8192, 16384, 32768)] + ["logprob 8192x4096x%d" % v for v in (32000, 151936)]
        + ["policy %dx4096x128256" % n for n in (4096, 16384)] + ["policy 8192x4096x151936"]
        + ["dpo 4096x4096x128256", "orpo 4096x4096x128256", "jsd 4096x2048x128256"])


def step_of(problem, contestant):
    """A forward, and a backward where the problem has gradients; returns what the forward returned."""
    def step():
        for leaf in problem.leaves():
            leaf.grad = None
        if not problem.has_gradient:
            with torch.no_grad():
                return contestant.run()
        loss = contestant.run()
        loss.backward()
        return loss
    return step


def relative(got, exact):
    return ((got.double() - exact).norm() / exact.norm()).item()


def errors(problem, exact, result):
    """Of a step that has just run: relative of the loss, relative Frobenius of the gradients' sampled rows, or in nats of the rows."""
    if not problem.has_gradient:
        logprob, entropy = result
        return {"logprob": (logprob.double() - exact.logprob).abs().max().item(),
                "entropy": None if entropy is None else (entropy.double() - exact.entropy).abs().max().item()}
    return {"loss": abs(result.item() / exact.loss.item() - 1),
            "grad_hidden": relative(problem.hidden.grad[exact.rows], exact.grad_hidden),
            "grad_weight": relative(problem.weight.grad[exact.ids], exact.grad_weight)}


def examine(problem, exact, contestant, device):
    """What needs no clock, as a dict: errors and memory. The first run compiles, the second is looked at."""
    step = step_of(problem, contestant)
    row = {"name": contestant.name}
    try:
        step()
        held = sum(leaf.numel() * leaf.element_size() for leaf in problem.leaves())
        for leaf in problem.leaves():
            leaf.grad = None
        peak = measure.peak_bytes(step, device)
        row["errors"] = errors(problem, exact, step())
        if peak is not None:
            row["extra_bytes"] = max(0, peak - held) + contestant.workspace_bytes
    except Exception as error:  # a contestant that does not run here is said, not hidden
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    if contestant.plan:
        row["plan"] = contestant.plan
    for leaf in problem.leaves():
        leaf.grad = None
    return row


def run_case(case, implementations, device, dtype=torch.bfloat16, seconds=6.0, hot=3.0, clocks=None):
    """One case, as a dict of peers.json."""
    begin = time.perf_counter()
    problem = problems.PROBLEMS[case.op](case, device, dtype)
    exact = problem.exact()
    methods = [getattr(one, case.op) for one in implementations if hasattr(one, case.op)]
    taking_part = [contestant for method in methods for contestant in method(problem)]
    rows = [examine(problem, exact, contestant, device) for contestant in taking_part]
    loss = exact.loss.item()
    del exact
    runs = {contestant.name: step_of(problem, contestant) for contestant, row in zip(taking_part, rows) if "failed" not in row}
    measure.load(problem.products, device, hot)
    start = time.perf_counter()
    samples = measure.interleaved({"products": problem.products, **runs}, problem.products, device, seconds)
    end = time.perf_counter()
    products = measure.summary(samples["products"])
    for row in rows:
        if row["name"] in samples:
            row["ms"] = measure.summary(samples[row["name"]])
            row["ratio"] = row["ms"]["median"] / products["median"]
    return {**case._asdict(), "dtype": str(dtype).split(".")[1], "loss": loss, "products_ms": products,
            "product_count": problem.product_count, "clocks": clocks.between(start, end) if clocks else {},
            "seconds": {"examined": start - begin, "measured": end - start}, "contestants": rows}


def describe(device, client, found, workspaces):
    info = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "python": platform.python_version(), "peers": found,
            "lossd": {"version": client.server_info.get("version"), "workspaces": workspaces}, "device": {"name": str(device)}}
    if device.type == "cuda":
        info["device"] = {"name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return info


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="folder with lib/liblossd_client.so and bin/lossd, as build/release")
    parser.add_argument("--out", required=True, type=Path, help="folder for peers.json")
    parser.add_argument("--quick", action="store_true",
                        help="a few cases, two seconds each, nothing that compiles for long; none begins after 45 s")
    parser.add_argument("--case", action="append", default=[], help='as in "cross_entropy 8192x4096x128256" (N x H x V); may be repeated')
    parser.add_argument("--op", action="append", default=[], help="only the cases of these operations")
    parser.add_argument("--peer-path", action="append", default=[], help="a folder with packages of peers; may be repeated")
    parser.add_argument("--workspace", default="2.2e9", help="bytes that lossd may use; with several, a row for each: 2.2e9,1.1e9")
    parser.add_argument("--seconds", type=float, help="of measuring in each case (6, quick 2)")
    parser.add_argument("--hot", type=float, default=3.0, help="seconds of load before each case")
    parser.add_argument("--until", type=float, help="no case begins later than so many seconds after the start")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main():
    begin = time.perf_counter()
    args = arguments()
    until = args.until or (45.0 if args.quick else math.inf)
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.init()
    workspaces = [int(float(part)) for part in args.workspace.split(",")]
    seconds = args.seconds or (2.0 if args.quick else 6.0)
    cases = [problems.Case.parse(text) for text in args.case or (QUICK if args.quick else FULL)]
    cases = [case for case in cases if not args.op or case.op in args.op]
    peers, found = contestants.find_peers(args.peer_path, compiled_liger=not args.quick)
    if args.quick:
        peers = [peer for peer in peers if not isinstance(peer, contestants.Compiled)]
    args.out.mkdir(parents=True, exist_ok=True)
    lossd.load(args.build)
    flags = (f"--backend={'cuda' if device.type == 'cuda' else 'cpu'}", f"--workspace={max(workspaces)}")
    with (lossd.connect(flags=flags) as client, lossd.connect("embedded", workspace_bytes=max(workspaces)) as embedded,
          measure.Clocks(device) as clocks):
        results = {**describe(device, client, found, workspaces), "command": " ".join(sys.argv[1:]), "cases": []}
        print(report.header(results), flush=True)
        for case in cases:
            if time.perf_counter() - begin > until:
                print(f"{case}: not begun, {until:.0f} s are over")
                continue
            if hasattr(torch, "_dynamo"):
                torch._dynamo.reset()
            ours = [contestants.Lossd(client, workspaces), contestants.LossdEmbedded(embedded, workspaces)]
            results["cases"].append(run_case(case, [*ours, *peers], device, seconds=seconds,
                                             hot=args.hot, clocks=clocks))
            (args.out / "peers.json").write_text(json.dumps(results, indent=1) + "\n")
            spent = results["cases"][-1]["seconds"]
            print(report.table(results["cases"][-1]) + f"  {spent['examined']:.0f} s until measured, {spent['measured']:.0f} s measured, "
                  f"{time.perf_counter() - begin:.0f} s since the start\n", flush=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                client.trim()


if __name__ == "__main__":
    main()
