"""tests/bench: every problem's formulas against lossd, the interleaved loop, peers by path, tables and plots of peers.json."""

import json
import sys
import types
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import compare  # noqa: E402
import contestants  # noqa: E402
import measure  # noqa: E402
import plot  # noqa: E402
import problems  # noqa: E402
import report  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("op", problems.PROBLEMS)
def test_contestants_agree_with_float64(client, op):
    implementations = [contestants.Lossd(client, [1 << 26]), contestants.Eager()]
    case = compare.run_case(problems.Case(op, 240, 32, 199), implementations, CPU, torch.float32, seconds=0.01, hot=0.0)
    json.dumps(case)
    assert {row["name"] for row in case["contestants"]} >= {"lossd", "torch eager"}
    for row in case["contestants"]:
        assert "failed" not in row, row
        assert row["ms"]["n"] > 0 and row["ratio"] > 0
        assert all(error < 2e-5 for error in row["errors"].values()), row
    assert case["loss"] > 0


def test_errors_are_seen(client):
    class Wrong(contestants.Eager):
        name = "wrong"

        def cross_entropy(self, p):
            return [contestants.Contestant("wrong", lambda: super(Wrong, self).cross_entropy(p)[0].run() * 1.01),
                    contestants.Contestant("broken", lambda: p.hidden @ p.hidden)]

    case = compare.run_case(problems.Case("cross_entropy", 48, 32, 199), [Wrong()], CPU, torch.float32, seconds=0.01, hot=0.0)
    wrong, broken = case["contestants"]
    assert all(0.005 < error < 0.02 for error in wrong["errors"].values())
    assert "shapes" in broken["failed"] and "ms" not in broken
    assert "did not run: RuntimeError" in report.table(case)


def test_trained_like_data():
    weight = torch.randn(5000, 64, generator=torch.Generator().manual_seed(1)) * 0.02
    hidden, target = problems.trained_like(4000, weight, torch.Generator().manual_seed(2))
    logprob, _, _ = problems.statistics(hidden, weight, target)
    assert 1.2 < -logprob.mean() < 2.3
    assert target.bincount(minlength=5000)[0] > 10 * target.bincount(minlength=5000)[50]


def test_interleaved_measures_slow_runs_less(monkeypatch):
    now, order = [0.0], []
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    def run(name, seconds):
        def call():
            order.append(name)
            now[0] += seconds
        return call

    runs = {"quick": run("quick", 0.001), "slow": run("slow", 0.018)}
    samples = measure.interleaved(runs, run("before", 0.002), CPU, seconds=1.0, least=5)
    assert min(samples["slow"]) == pytest.approx(18) and max(samples["quick"]) == pytest.approx(1)
    rounds = len(samples["quick"])
    assert rounds > 100 and rounds / 6 - 2 < len(samples["slow"]) < rounds / 6 + 6  # every sixth round, and the first five
    timed = order[len(runs):]  # the first run of each tells how long it takes
    assert timed[::2] == ["before"] * (len(timed) // 2)
    assert timed[1:5:2] != timed[5:9:2] or timed[9:13:2] != timed[13:17:2]  # the order changes
    assert measure.summary([3.0, 1.0, 2.0]) == {"median": 2.0, "p10": 1.0, "p90": 3.0, "n": 3}


def test_peers_are_found_by_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    kernels = tmp_path / "verl" / "utils" / "kernel"
    kernels.mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").write_text("raise RuntimeError('this would import ray')")
    (kernels / "linear_cross_entropy.py").write_text("def linear_cross_entropy(*arguments): return 'called'")
    (tmp_path / "quack").mkdir()
    (tmp_path / "quack" / "__init__.py").write_text("raise OSError('no such GPU')")
    try:
        peers, found = contestants.find_peers([str(tmp_path)])
        verl = next(peer for peer in peers if isinstance(peer, contestants.Verl))
        assert verl.linear() == "called"
        assert found["verl"] == "version unknown"
        assert found["QuACK"] == "absent: no such GPU"
        assert found["torch eager"][0].isdigit()
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
            del sys.modules[name]


def case_of(rows, vocab, ratios, hidden=4096, extra=None):
    def contestant(name, ratio):
        row = {"name": name, "ms": {"median": 10 * ratio, "p10": 9.0, "p90": 11.0, "n": 7}, "ratio": ratio,
               "errors": {"loss": 1e-7, "grad_hidden": 2e-3, "grad_weight": 3e-3}}
        return {**row, "extra_bytes": extra} if extra is not None else row

    return {"op": "cross_entropy", "rows": rows, "hidden": hidden, "vocab": vocab, "dtype": "bfloat16", "loss": 1.75, "product_count": 3,
            "products_ms": {"median": 10.0, "p10": 9.5, "p90": 10.5, "n": 9},
            "clocks": {"sm_mhz": {"median": 1410, "low": 1380, "high": 1980}, "watts": {"median": 691, "low": 300, "high": 700}},
            "contestants": [contestant(*pair) for pair in ratios.items()]}


def test_table():
    case = case_of(8192, 128256, {"lossd": 1.05, "CCE": 4.8}, extra=2200000000)
    case["contestants"].append({"name": "QuACK", "failed": "RuntimeError: no kernel"})
    case["contestants"][0]["plan"] = "chunks=1x8192"
    lines = report.table(case).splitlines()
    assert lines[0] == "cross entropy, forward and backward: N 8192 H 4096 V 128256 bfloat16"
    assert lines[1] == "  3 products 10.00 ms (9.50 to 10.50, n 9); SM 1410 MHz (1380 to 1980), 691 W; loss 1.750 nats"
    assert lines[3].split() == "lossd 10.50 9.00 11.00 7 1.050 2200 MB 1.0e-07 2.0e-03 3.0e-03".split()
    assert len(lines[3]) == len(lines[4]) == len(lines[2])
    assert lines[5].split(maxsplit=1) == ["QuACK", "did not run: RuntimeError: no kernel"]
    assert lines[6] == "  plan of lossd: chunks=1x8192"
    rows = [line for line in report.markdown(case).splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1 and len(rows) == 5


def points(svg):
    """{colour and dash: [(x, y)]} of the lines of a plot, from both panels."""
    found = {}
    for line in xml.etree.ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline"):
        pairs = [tuple(float(part) for part in pair.split(",")) for pair in line.get("points").split()]
        found.setdefault((line.get("stroke"), line.get("stroke-dasharray")), []).append(pairs)
    return found


def test_plots(tmp_path):
    sizes = [(4096, 128256), (8192, 128256), (16384, 128256), (8192, 32000)]
    cases = [case_of(rows, vocab, {"lossd": 1.02, "torch eager": 1.5, "Liger": 40000 / rows, "unknown": 9.0}, extra=rows * vocab)
             for rows, vocab in sizes]
    cases.append(case_of(8192, 151936, {"lossd": 1.0}, hidden=2048))
    cases.append({**case_of(99, 99, {"lossd": 1.0}), "op": "policy"})
    file = tmp_path / "peers.json"
    file.write_text(json.dumps({"device": {"name": "H200"}, "cases": cases}))
    sys.argv = ["plot.py", str(file), "--out", str(tmp_path)]
    plot.main()
    svg = (tmp_path / "peers-time.svg").read_text()
    found = points(svg)
    by_rows, by_vocab = found[plot.STYLES["Liger"]]
    assert [len(by_rows), len(by_vocab)] == [3, 2]  # the case of another width is in neither
    assert [x for x, _ in by_rows] == sorted(x for x, _ in by_rows)
    assert [y for _, y in by_rows] == sorted(y for _, y in by_rows)  # less is lower: y grows downwards
    assert by_vocab[0][1] == by_vocab[1][1]
    lossd, eager = found[plot.STYLES["lossd"]][0], found[plot.STYLES["torch eager"]][0]
    assert lossd[0][1] > eager[0][1]
    assert len(found) == 3 and "unknown" not in svg
    for text in ("H 4096, V 128256", "H 4096, N 8192", "16 384", "Liger", "H200"):
        assert text in svg
    assert points((tmp_path / "peers-memory.svg").read_text()).keys() == found.keys()


def test_plot_without_memory_says_so():
    with pytest.raises(ValueError, match="no contestant"):
        plot.plot([case_of(4096, 128256, {"lossd": 1.0})], "", lambda row: row.get("extra_bytes"), floor=1.0)
