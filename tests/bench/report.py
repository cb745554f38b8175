"""Tables of peers.json, as compare.py writes it.

usage: report.py FILE [--markdown]
"""

import argparse
import json

OPERATIONS = {"cross_entropy": "cross entropy, forward and backward", "logprob": "log-probability and entropy, forward only",
              "policy": "GRPO, forward and backward", "dpo": "DPO with a reference head, forward and backward",
              "orpo": "ORPO, forward and backward", "jsd": "JSD from a teacher of twice the width, forward and backward"}
_ERRORS = {"loss": "loss", "grad_hidden": "dX", "grad_weight": "dW", "logprob": "log p", "entropy": "entropy"}


def header(results):
    device, lossd = results["device"], results["lossd"]
    workspaces = " and ".join(f"{size / 1e9:.2g} GB" for size in lossd["workspaces"])
    peers = ", ".join(f"{name} {version}" for name, version in results["peers"].items())
    return "\n".join([f"Date       {results['date']}",
                      f"Device     {device['name']}, CUDA {device.get('cuda', '-')}, torch {results['torch']}",
                      f"lossd      {lossd['version']}, workspace {workspaces}",
                      f"Peers      {peers}"])


def title(case):
    return f"{OPERATIONS[case['op']]}: N {case['rows']} H {case['hidden']} V {case['vocab']} {case['dtype']}"


def condition(case):
    """The products, and the card while they and the others ran."""
    ms = case["products_ms"]
    text = f"{case['product_count']} products {ms['median']:.2f} ms ({ms['p10']:.2f} to {ms['p90']:.2f}, n {ms['n']})"
    clocks = case["clocks"]
    if clocks:
        mhz, watts = clocks["sm_mhz"], clocks["watts"]
        text += f"; SM {mhz['median']:.0f} MHz ({mhz['low']:.0f} to {mhz['high']:.0f}), {watts['median']:.0f} W"
    return text + f"; loss {case['loss']:.3f} nats"


def memory(row):
    return "" if row.get("extra_bytes") is None else f"{row['extra_bytes'] / 1e6:.0f} MB"


def _error(row, name):
    value = row.get("errors", {}).get(name)
    return "" if value is None else f"{value:.1e}"


def columns(case):
    """Names of the columns, and the cells of each contestant; one that failed has a single cell."""
    errors = [name for name in _ERRORS if any(name in row.get("errors", {}) for row in case["contestants"])]
    names = ["", "ms", "10 %", "90 %", "n", "over products", "extra memory"] + [_ERRORS[name] for name in errors]
    rows = []
    for row in case["contestants"]:
        ms = row.get("ms")
        if ms is None:
            rows.append([row["name"], "did not run: " + row.get("failed", "")])
            continue
        rows.append([row["name"], f"{ms['median']:.2f}", f"{ms['p10']:.2f}", f"{ms['p90']:.2f}", str(ms["n"]), f"{row['ratio']:.3f}",
                     memory(row)] + [_error(row, name) for name in errors])
    return names, rows


def table(case):
    """Plain text."""
    names, rows = columns(case)
    whole = [row for row in [names, *rows] if len(row) == len(names)]
    widths = [max(len(row[i]) for row in whole) for i in range(len(names))]
    lines = [title(case), "  " + condition(case)]
    for row in [names, *rows]:
        cells = [row[0].ljust(widths[0])] + ([cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
                                             if len(row) == len(names) else row[1:])
        lines.append("  " + "  ".join(cells).rstrip())
    plans = [f"  plan of {row['name']}: {row['plan']}" for row in case["contestants"] if row.get("plan")]
    return "\n".join(lines + plans) + "\n"


def markdown(case):
    names, rows = columns(case)
    lines = [f"**{title(case)}**; {condition(case)}", "", "| " + " | ".join(names) + " |", "|---" + "|--:" * (len(names) - 1) + "|"]
    lines += ["| " + " | ".join(row + [""] * (len(names) - len(row))) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    with open(args.file) as file:
        results = json.load(file)
    print(header(results) + "\n")
    for case in results["cases"]:
        print((markdown if args.markdown else table)(case))


if __name__ == "__main__":
    main()
