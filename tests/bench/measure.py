"""Time, memory and clocks. Everything works on tensors of the CPU too, where there is no memory to report and no clock."""

import random
import statistics
import subprocess
import threading
import time

import torch


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(run, device):
    synchronize(device)
    begin = time.perf_counter()
    run()
    synchronize(device)
    return 1000 * (time.perf_counter() - begin)


def summary(samples):
    """Median, 10 % and 90 % of the samples, and their number."""
    ordered = sorted(samples)
    return {"median": statistics.median(ordered), "p10": ordered[len(ordered) // 10], "p90": ordered[len(ordered) * 9 // 10],
            "n": len(ordered)}


def load(run, device, seconds):
    """Runs the same for a while: the card is limited by power and clocks down."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        milliseconds(run, device)


def interleaved(runs, before, device, seconds, least=5):
    """Milliseconds of each of `runs` (by name), in rounds of changing order until `seconds` are over.

    `before` runs untimed ahead of every timed run, so that all start from the same clock. What takes over three times as long as the
    quickest takes part in fewer rounds; everything is measured at least `least` times unless that takes three times as long as asked for.
    """
    quick = {name: milliseconds(run, device) for name, run in runs.items()}
    stride = {name: max(1, round(value / (3 * min(quick.values())))) for name, value in quick.items()}
    samples = {name: [] for name in runs}
    order, shuffle, start = list(runs), random.Random(1), time.perf_counter()
    for turn in range(1 << 30):
        shuffle.shuffle(order)
        for name in order:
            if turn % stride[name] == 0 or len(samples[name]) < least:
                before()
                samples[name].append(milliseconds(runs[name], device))
        passed = time.perf_counter() - start
        if passed >= seconds and (passed >= 3 * seconds or min(map(len, samples.values())) >= least):
            return samples


def peak_bytes(run, device):
    """Peak of the memory that torch allocated for a run, beyond what was there; None where torch does not know."""
    if device.type != "cuda":
        return None
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    there = torch.cuda.memory_allocated(device)
    result = run()
    synchronize(device)
    del result
    return torch.cuda.max_memory_allocated(device) - there


class Clocks:
    """Samples of nvidia-smi while the with block lasts: SM clock (MHz), power (W), temperature (degrees Celsius)."""

    _FIELDS = ("sm_mhz", "watts", "celsius")

    def __init__(self, device, period_ms=100):
        self._device, self._period = device, period_ms
        self._samples, self._process = [], None

    def __enter__(self):
        if self._device.type == "cuda":
            uuid = getattr(torch.cuda.get_device_properties(self._device), "uuid", None)
            chosen = [f"--id=GPU-{uuid}"] if uuid else []
            try:
                self._process = subprocess.Popen(
                    ["nvidia-smi", *chosen, "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits",
                     f"--loop-ms={self._period}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            except OSError:
                return self
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        return self

    def _read(self, lines):
        for line in lines:
            try:
                self._samples.append((time.perf_counter(), [float(part) for part in line.split(",")]))
            except ValueError:
                continue

    def __exit__(self, *_):
        if self._process:
            self._process.terminate()
            self._process.wait()

    def between(self, begin, end):
        """{field: {median, low, high}} of the samples taken between two times of time.perf_counter()."""
        taken = [values for when, values in self._samples if begin <= when <= end and len(values) == len(self._FIELDS)]
        return {name: {"median": statistics.median(column), "low": min(column), "high": max(column)}
                for name, column in zip(self._FIELDS, zip(*taken))}
