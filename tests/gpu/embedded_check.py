"""Embedded mode on a GPU: the bits of a server, order between streams, captured graphs, and what a call costs.

usage: embedded_check.py --build DIR      (a folder with lib/, bin/ and generated/; torch sees a GPU)
"""

import argparse
import ctypes
import sys
import time
import unittest.mock
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "python")]
try:
    import pytest  # noqa: F401
except ImportError:  # the cases are wanted, not the tests
    sys.modules["pytest"] = unittest.mock.MagicMock()

import lossd  # noqa: E402

failures = 0


def report(good, text):
    global failures
    failures += not good
    print(("ok    " if good else "WRONG ") + text, flush=True)


def moved(value, dtype=None):
    if not isinstance(value, torch.Tensor):
        return value
    value = value.cuda()
    return value.to(dtype) if dtype and value.is_floating_point() else value


def results(client, name, inputs, options, upstream=1.5):
    leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    made = getattr(lossd, name)(client=client, **leaves, **options)
    (made.float() * torch.linspace(0.5, upstream, made.numel(), device="cuda").reshape(made.shape)).sum().backward()
    return [made.detach(), *(leaf.grad for leaf in leaves.values())]


def same_bits(server, embedded):
    import test_modes
    cases = {name: ({key: moved(value) for key, value in inputs.items()}, {key: moved(value) for key, value in options.items()})
             for name, (inputs, options) in test_modes.CASES.items()}
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=generator).to(dtype).cuda()

    table = torch.rand(64, 32).cuda()
    large = {"hidden": normal(512, 256), "weight": 0.1 * normal(5000, 256)}
    target = torch.randint(5000, (512,), generator=generator).cuda()
    cases.update({
        "linear_cross_entropy large": (large, {"target": target}),
        "linear_logprob": (large, {"target": target}),
        "rms_norm": ({"x": normal(64, 4096), "weight": normal(4096)}, {}),
        "layer_norm": ({"x": normal(64, 4096), "weight": normal(4096), "bias": normal(4096)}, {}),
        "rope": ({"x": normal(64, 8, 64)}, {"cos": table, "sin": table}),
        "swiglu": ({"gate": normal(64, 1024), "up": normal(64, 1024)}, {}),
        "geglu": ({"gate": normal(64, 1024)}, {}),
        "relu_squared": ({"x": normal(64, 1024)}, {}),
        "softmax": ({"x": normal(64, 1024)}, {}),
    })
    different = []
    for name, (inputs, options) in cases.items():
        found = [results(client, name.split()[0], inputs, options) for client in (server, embedded, embedded)]
        equal = all(torch.equal(a, b) for again in found[1:] for a, b in zip(found[0], again))
        if not equal:
            different.append(name)
    report(not different, f"{len(cases)} operations have the bits of the server, the second time too {different or ''}")


def streams(embedded):
    """Work on a stream waits for what was before it there, and calls on several streams do not meet in the workspace."""
    x = torch.randn(4096, 4096, device="cuda")
    expected = torch.softmax(x * 3, -1)
    wrong = 0
    side = [torch.cuda.Stream() for _ in range(3)]
    for turn in range(30):
        stream = side[turn % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200000)
            y = lossd.softmax(x * 3, client=embedded)
            wrong += not torch.allclose(y, expected, atol=1e-6)
    weight = torch.randn(4096, device="cuda", requires_grad=True)
    grads = []
    for turn in range(12):  # the gradient of a norm adds up in the workspace
        with torch.cuda.stream(side[turn % 3]):
            (grad,) = torch.autograd.grad(lossd.rms_norm(x, weight, client=embedded).sum(), weight)
            grads.append(grad)
    torch.cuda.synchronize()
    wrong += sum(not torch.equal(grad, grads[0]) for grad in grads)
    report(wrong == 0, f"streams: {wrong} wrong results")


def captured(embedded):
    x, weight = torch.randn(64, 1024, device="cuda").bfloat16(), torch.ones(1024, device="cuda").bfloat16()

    def block():
        with torch.no_grad():
            y, stream = lossd.rms_norm(x, weight, client=embedded, residual=x)
            return lossd.swiglu(y, client=embedded), stream

    block()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        block()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        made = block()
    x.normal_()
    graph.replay()
    expected = block()
    report(all(torch.equal(a, b) for a, b in zip(made, expected)), "a captured graph of layers gives the same on new data")


def errors(embedded):
    logits, target = torch.randn(4, 9, device="cuda"), torch.arange(4, device="cuda") + 6
    for _ in range(2):
        try:
            lossd.cross_entropy(logits, target, client=embedded)
            return report(False, "a target out of range was not refused")
        except lossd.LossdError as error:
            good = error.field == "target" and error.row == 3
    report(good and torch.cuda.current_device() == 0, "a target out of range is refused with its row")


def microseconds(run, calls=2000):
    for _ in range(200):
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    passed = time.perf_counter() - begin  # host time alone: nothing is waited for
    torch.cuda.synchronize()
    return 1e6 * passed / calls


def costs(server, embedded):
    """Host time of a call on few elements: the queue of the GPU never fills, so that only launching is seen."""
    x, weight = torch.randn(4, 256, device="cuda").bfloat16(), torch.ones(256, device="cuda").bfloat16()
    y, rstd = torch.empty_like(x), torch.empty(4, device="cuda")
    with torch.no_grad():
        lossd.rms_norm(x, weight, client=embedded)
    (prepared,) = [call for key, call in embedded.calls._calls.items() if key[0] == "rms_norm" and "rstd" not in key[1] and
                   any(part and part[0] == "x" and tuple(part[3]) == (4, 256) for part in key[3:] if isinstance(part, tuple))][:1]
    library = lossd.load()
    addresses = (ctypes.c_uint64 * prepared._count)(*[{"x": x, "weight": weight, "y": y}[name].data_ptr() for name, _ in prepared._sources])
    handle, function = prepared._prepared._handle, library.function("lossd_prepared_run")
    stream = torch.cuda.current_stream().cuda_stream
    nothing = library.function("lossd_abi_version")
    bare = microseconds(nothing)
    in_c = microseconds(lambda: function(handle, addresses, prepared._count, stream, None, None))
    leaf, leaf_weight = x.clone().requires_grad_(), weight.clone().requires_grad_()

    def both(function):
        def run():
            made = function(leaf, leaf_weight)
            made.backward(x)
            leaf.grad = leaf_weight.grad = None
        return run

    with torch.no_grad():
        forward = microseconds(lambda: lossd.rms_norm(x, weight, client=embedded))
        torchs = microseconds(lambda: F.rms_norm(x, (256,), weight, 1e-6))
        remote = microseconds(lambda: lossd.rms_norm(x, weight, client=server), 300)
    steps = microseconds(both(lambda a, w: lossd.rms_norm(a, w, client=embedded)))
    of_torch = microseconds(both(lambda a, w: F.rms_norm(a, (256,), w, 1e-6)))
    report(in_c - bare < 5, f"C ABI: {in_c - bare:.2f} us a call (with ctypes {in_c:.2f}, an empty function {bare:.2f})")
    print(f"      rms_norm [4, 256] in Python: {forward:.1f} us forward (torch {torchs:.1f}; a server {remote:.0f}); "
          f"forward and backward {steps:.1f} us (torch {of_torch:.1f})")
    try:
        from liger_kernel.transformers.functional import liger_rms_norm
        with torch.no_grad():
            ligers = microseconds(lambda: liger_rms_norm(x, weight, 1e-6, in_place=False))
        print(f"      Liger: {ligers:.1f} us forward, {microseconds(both(lambda a, w: liger_rms_norm(a, w, 1e-6, in_place=False))):.1f} us both")
    except Exception as error:
        print(f"      Liger: {type(error).__name__}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--peer-path", action="append", default=[])
    given = parser.parse_args()
    sys.path[:0] = given.peer_path
    lossd.load(given.build)
    begin = time.perf_counter()
    with lossd.connect("embedded") as embedded, lossd.connect() as server:
        lossd.softmax(torch.zeros(1, 8, device="cuda"), client=embedded)
        print(f"started in {time.perf_counter() - begin:.1f} s: {embedded.server_info['device']}, workspace "
              f"{embedded.server_info['workspace_bytes'] / 1e9:.2f} GB, torch {torch.__version__}")
        for check in (lambda: same_bits(server, embedded), lambda: streams(embedded), lambda: captured(embedded), lambda: errors(embedded),
                      lambda: costs(server, embedded)):
            try:
                check()
            except Exception as error:
                report(False, f"{type(error).__name__}: {error}"[:600])
    print("embedded: all good" if not failures else f"embedded: {failures} WRONG")
    return failures


if __name__ == "__main__":
    sys.exit(main())
