"""Plots of peers.json: time over the products, and extra memory, against the number of tokens N and against the vocabulary V.

Each plot is an SVG of two panels: the cases that differ in N alone, and those that differ in V alone, in the sizes that have most cases.

usage: plot.py FILE --out DIR [--op cross_entropy]    (writes DIR/peers-time.svg and DIR/peers-memory.svg; another --op is in the name)
"""

import argparse
import json
import math
from pathlib import Path
from xml.sax.saxutils import escape

# A colour and a dash for each implementation, the same in all plots; those that are not here are not drawn.
STYLES = {"lossd": ("#0b57d0", ""), "lossd, embedded": ("#0b57d0", "2 2"), "torch eager": ("#767676", ""),
          "torch.compile": ("#e08a00", ""), "Liger": ("#c5221f", ""),
          "Liger, fp32 accumulation": ("#c5221f", "6 3"), "Liger chunked": ("#c5221f", "6 3"), "Liger on logits": ("#c5221f", "2 2"),
          "Liger CuTe": ("#a142f4", ""), "CCE": ("#188038", ""), "CCE, exact": ("#188038", "6 3"), "verl": ("#8d5524", ""),
          "QuACK": ("#000000", "")}
LOSSD = STYLES["lossd"][0]
WIDTH, HEIGHT, PANEL, TOP, BOTTOM, LEFT = 1010, 400, 340, 46, 56, 62


def style_of(name):
    """lossd with several workspaces ("lossd, 1.1 GB") keeps its colour."""
    if name in STYLES:
        return STYLES[name]
    return (LOSSD, "6 3") if name.startswith("lossd, ") and name.endswith(" GB") else None


def sweep(cases, axis):
    """The cases that agree in all sizes but `axis` ("rows" or "vocab"), in its order: the largest such group, of those the widest head."""
    groups = {}
    for case in cases:
        groups.setdefault(tuple(case[name] for name in ("hidden", "rows", "vocab") if name != axis), []).append(case)
    best = max(groups.items(), key=lambda group: (len({case[axis] for case in group[1]}), group[0]))[1]
    return sorted(best, key=lambda case: case[axis])


def series(cases, axis, value):
    """{name: [(x, y)]} of the contestants that have a style; value(row) is y or None."""
    lines = {}
    for case in cases:
        for row in case["contestants"]:
            y = value(row)
            if style_of(row["name"]) and y is not None:
                lines.setdefault(row["name"], []).append((case[axis], y))
    return lines


def ticks(low, high):
    """Round values within two bounds, fewer to a tenfold where they are far apart."""
    digits = (1, 2, 5) if high > 100 * low else (1, 1.5, 2, 3, 5, 7)
    found = [digit * 10.0 ** power for power in range(-6, 7) for digit in digits]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]


def _text(x, y, text, anchor="middle", size=12, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {more}>{escape(text)}</text>'


class Panel:
    """A plot whose y axis is logarithmic between the two values of y_range; the x axis is too, unless `linear`."""

    def __init__(self, left, xs, y_range, linear):
        self.left, self.xs, self.y_range = left, xs, y_range
        self.scale = float if linear else math.log
        ends = [self.scale(min(xs)), self.scale(max(xs))]
        margin = 0.08 * (ends[1] - ends[0]) or 1
        self.x_low, self.x_high = ends[0] - margin, ends[1] + margin

    def x(self, value):
        return self.left + PANEL * (self.scale(value) - self.x_low) / (self.x_high - self.x_low)

    def y(self, value):
        low, high = (math.log(bound) for bound in self.y_range)
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (math.log(max(value, self.y_range[0])) - low) / (high - low)

    def draw(self, lines, title, x_label, reference):
        out = [_text(self.left + PANEL / 2, TOP - 14, title, size=13), _text(self.left + PANEL / 2, HEIGHT - 14, x_label)]
        bottom = HEIGHT - BOTTOM
        for tick in ticks(*self.y_range):
            y = self.y(tick)
            out.append(f'<line x1="{self.left}" x2="{self.left + PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e3e3"/>')
            out.append(_text(self.left - 6, y + 4, f"{tick:g}", "end"))
        for value in self.xs:
            out.append(f'<line x1="{self.x(value):.1f}" x2="{self.x(value):.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="#444"/>')
            out.append(_text(self.x(value), bottom + 18, f"{value:,}".replace(",", " ")))
        out.append(f'<rect x="{self.left}" y="{TOP}" width="{PANEL}" height="{bottom - TOP}" fill="none" stroke="#444"/>')
        if reference is not None:
            y = self.y(reference)
            out.append(f'<line x1="{self.left}" x2="{self.left + PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="#444" stroke-dasharray="3 3"/>')
        for name in sorted(lines, key=lambda name: name.startswith("lossd")):  # lossd on top
            colour, dash = style_of(name)
            path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in lines[name])
            thick = 3 if name.startswith("lossd") else 1.6
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thick}" stroke-dasharray="{dash}"/>')
            out += [f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{thick + 1.2:.1f}" fill="{colour}"><title>'
                    f'{escape(name)}: {y:.3g}</title></circle>' for x, y in lines[name]]
        return out


def _legend(names, left):
    out = []
    for place, name in enumerate(names):
        colour, dash = style_of(name)
        y = TOP + 10 + 20 * place
        out.append(f'<line x1="{left}" x2="{left + 26}" y1="{y}" y2="{y}" stroke="{colour}" '
                   f'stroke-width="{3 if name.startswith("lossd") else 1.6}" stroke-dasharray="{dash}"/>')
        out.append(_text(left + 32, y + 4, name, "start"))
    return out


def plot(cases, heading, value, floor, reference=None):
    """The SVG of one value of each contestant, value(row); `floor` is where the axis begins, and what is below is drawn there."""
    panels, all_lines = [], []
    for axis, fixed, label in (("rows", "V", "N, tokens"), ("vocab", "N", "V, vocabulary")):
        chosen = sweep(cases, axis)
        other = chosen[0]["vocab" if axis == "rows" else "rows"]
        lines = series(chosen, axis, value)
        all_lines.append(lines)
        panels.append(([case[axis] for case in chosen], lines, f"H {chosen[0]['hidden']}, {fixed} {other}", label))
    values = [y for lines in all_lines for line in lines.values() for _, y in line]
    if not values:
        raise ValueError("no contestant has this value")
    top = max(values) * 1.15
    places = list(STYLES)
    names = sorted({name for lines in all_lines for name in lines},
                   key=lambda name: places.index(name) if name in places else -1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="Helvetica, Arial, sans-serif"',
           'fill="#222">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', _text(LEFT, 16, heading, "start", 14, 'font-weight="bold"')]
    for place, (xs, lines, title, label) in enumerate(panels):
        out += Panel(LEFT + place * (PANEL + 50), xs, (floor, top), linear=label[0] == "V").draw(lines, title, label, reference)
    out += _legend(names, LEFT + 2 * PANEL + 50 + 14)
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--op", default="cross_entropy")
    args = parser.parse_args()
    with open(args.file) as file:
        results = json.load(file)
    cases = [case for case in results["cases"] if case["op"] == args.op]
    where = f"{args.op.replace('_', ' ')}, {results['device']['name']}"
    name = "peers" if args.op == "cross_entropy" else f"peers-{args.op.replace('_', '-')}"
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}-time.svg").write_text(plot(cases, f"Time over the cuBLAS products: {where}", lambda row: row.get("ratio"),
                                                     floor=0.9, reference=1.0))
    (args.out / f"{name}-memory.svg").write_text(plot(
        cases, f"Memory beyond inputs and gradients, GB: {where}",
        lambda row: row["extra_bytes"] / 1e9 if row.get("extra_bytes") is not None else None, floor=0.01))


if __name__ == "__main__":
    main()
