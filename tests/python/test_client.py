import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import lossd
from lossd.cuda import Device
from references import assert_close, head_case, leaves, logprob64


def can_connect(address):
    try:
        lossd.connect(address).close()
        return True
    except lossd.LossdError:
        return False


def logprob(client, case=None):
    hidden, weight, _, target = case or head_case()
    return lossd.linear_logprob(hidden, weight, target, client=client)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_private_server_ends_with_its_client():
    with lossd.connect() as client:
        pid = client.server.pid
        assert is_running(pid)
        info = client.server_info
        assert info["backend"] in ("cpu", "cuda") and info["workspace_bytes"] > 0
        assert {op["name"] for op in client.list_ops()} >= {"LinearLogprob", "LinearCrossEntropy"}
    wait_until(lambda: not is_running(pid))
    with pytest.raises(lossd.LossdError) as caught:
        logprob(client)
    assert caught.value.code == "FAILED_PRECONDITION"


def test_a_private_server_ends_with_its_process():
    code = ("import lossd, os; lossd.load(%r); client = lossd.connect(); "
            "print(client.server.pid, flush=True); os.kill(os.getpid(), 9)" %
            str(lossd.load().directory))
    out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, timeout=60)
    pid = int(out.stdout)
    wait_until(lambda: not is_running(pid))


def test_a_private_server_outlives_the_thread_that_started_it():
    made = []
    thread = threading.Thread(target=lambda: made.append(lossd.connect()))
    thread.start()
    thread.join()
    with made[0] as client:
        time.sleep(0.3)
        assert_close(logprob(client), logprob64(*(head_case()[i] for i in (0, 1, 3))))


def test_arrays_outlive_the_client():
    with lossd.connect() as client:
        array = client.empty((3, 4), np.float32)
        tensor = client.share(torch.arange(5.0).bfloat16())
        array[:] = 2
    assert (array == 2).all() and tensor.sum() == 10
    del client
    array += 1
    assert (array == 3).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, np.float16,
                                   "u8", "i32"])
def test_empty_gives_what_was_asked_for(client, dtype):
    array = client.empty((2, 3), dtype)
    assert tuple(array.shape) == (2, 3)
    if isinstance(dtype, torch.dtype):
        assert array.dtype == dtype
        address, size = array.data_ptr(), array.numel() * array.element_size()
    else:
        address, size = array.__array_interface__["data"][0], array.nbytes
    assert client.pool.locate(address, size) is not None
    with pytest.raises(lossd.LossdError):
        client.empty(3, torch.complex64)


def test_memory_is_used_again(client):
    client.trim()
    in_use = client.pool.bytes_in_use
    arrays = [client.empty(1000 * (i + 1), np.float32) for i in range(20)]
    for i, array in enumerate(arrays):
        array[:] = i
    assert all((array == i).all() for i, array in enumerate(arrays))  # no two share bytes
    view = arrays[3][10:20]
    del arrays, array
    assert client.pool.bytes_in_use > in_use  # the view keeps its block
    assert (view == 3).all()
    del view
    assert client.pool.bytes_in_use == in_use
    large = client.empty(50 << 20, np.uint8)
    regions = len(client.list_regions())
    del large
    client.trim()
    assert len(client.list_regions()) < regions


def test_many_threads_share_a_client(client):
    cases = [head_case(seed=seed, rows=(7 + seed,)) for seed in range(8)]
    expected = [logprob64(case[0], case[1], case[3]) for case in cases]
    failures = []

    def work(case, wanted):
        try:
            for _ in range(20):
                assert_close(logprob(client, case), wanted)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(cases, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_killed_server_is_unavailable_and_its_successor_works(tmp_path):
    address = f"unix:{tmp_path}/lossd.sock"

    def start():
        server = subprocess.Popen([lossd.load().server_binary, "--listen", address],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: can_connect(address), seconds=30)
        return server

    server = start()
    try:
        with lossd.connect(address) as client:
            case = head_case()
            shared = client.share(case[0])
            first = logprob(client, (shared, *case[1:]))
            server.send_signal(signal.SIGKILL)
            server.wait()
            with pytest.raises(lossd.LossdError) as caught:
                logprob(client, case)
            assert caught.value.code == "UNAVAILABLE"
            assert len(client.limbo) == 1
            server = start()
            again = logprob(client, (shared, *case[1:]))
            assert torch.equal(again, first)  # the shared memory kept its contents
            assert len(client.limbo) == 0
    finally:
        server.kill()
        server.wait()


def test_nothing_listens_there(tmp_path):
    with pytest.raises(lossd.LossdError) as caught:
        lossd.connect(f"unix:{tmp_path}/none.sock", connect_timeout=0.3)
    assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(lossd.LossdError) as caught:
        lossd.connect(binary=f"{tmp_path}/none")
    assert caught.value.code == "NOT_FOUND"


class FakeDriver:
    """Allocations as the CUDA driver would tell of them."""

    def __init__(self):
        self.allocations = {0x1000: (0x1000, 1)}  # base: (size, buffer id)
        self.capable = 1

    def device_uuid(self, ordinal):
        return ordinal, b"u" * 16

    def primary_context(self, device):
        return device

    def call(self, name, *_):
        pass

    def address_range(self, address):
        for base, (size, _) in self.allocations.items():
            if base <= address < base + size:
                return base, size
        raise lossd.LossdError("INTERNAL", "no such memory")

    def attribute(self, which, address, kind):
        return self.capable if which == 10 else self.allocations[self.address_range(address)[0]][1]

    def memory_handle(self, base):
        return b"%064d" % base


class FakeHandle:
    def __init__(self):
        self.registered = []

    def register_device(self, handle, size, uuid, buffer_id):
        self.registered.append((int(handle), size, buffer_id))
        buffer = type("Buffer", (), {})()
        buffer.region = len(self.registered)
        return buffer


def test_device_allocations_are_registered_once_and_again_when_they_were_replaced():
    driver, handle = FakeDriver(), FakeHandle()
    device = Device(handle, "cuda:1", [], driver)
    assert device.locate("hidden", 0x1010)[:2] == (1, 0x10)
    assert device.locate("hidden", 0x1F00)[:2] == (1, 0xF00)
    assert handle.registered == [(0x1000, 0x1000, 1)]
    driver.allocations[0x1000] = (0x800, 2)
    assert device.locate("hidden", 0x1010)[:2] == (2, 0x10)
    del driver.allocations[0x1000]
    device.trim()
    driver.allocations[0x1000] = (0x800, 2)
    driver.capable = 0
    with pytest.raises(lossd.LossdError, match="hidden.*expandable_segments"):
        device.locate("hidden", 0x1010)


def test_over_tcp_tensors_are_copied_there_and_back():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    server = subprocess.Popen([lossd.load().server_binary, "--listen", address],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: can_connect(address), seconds=30)
        with lossd.connect(address) as client:
            hidden, weight, _, target = head_case()
            ours, theirs = leaves(hidden, weight)
            ours[1].main_grad = torch.ones(weight.shape[::-1]).t()
            lossd.linear_logprob(*ours, target, client=client).sum().backward()
            logprob64(*theirs, target).sum().backward()
            assert_close(ours[0].grad, theirs[0].grad)
            assert_close(ours[1].main_grad, theirs[1].grad + 1)
            with pytest.raises(lossd.LossdError) as caught:
                client.empty(3, torch.float32)
            assert caught.value.code == "FAILED_PRECONDITION"
    finally:
        server.kill()
        server.wait()


class FakeEventDriver(FakeDriver):
    """Events too: notes which one was recorded on which stream."""

    def __init__(self):
        super().__init__()
        self.created = 0
        self.recorded = []

    def create_event(self):
        self.created += 1
        return self.created, b"%064d" % self.created

    def record(self, event, stream):
        self.recorded.append((event, stream))


class FakeEventHandle(FakeHandle):
    def __init__(self):
        super().__init__()
        self.event_count = 0

    def register_events(self, handles):
        first, self.event_count = self.event_count, self.event_count + len(handles)
        return first, handles


def test_a_ready_event_is_recorded_on_the_current_stream_and_used_by_one_call_at_a_time(monkeypatch):
    stream = type("Stream", (), {"cuda_stream": 77})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda ordinal: stream)
    driver, handle = FakeEventDriver(), FakeEventHandle()
    Device(handle, "cuda:0", ["cuda_event"], driver)
    device = Device(handle, "cuda:1", ["cuda_event"], driver)
    first, event = device.mark_ready()
    second, other = device.mark_ready()
    assert first != second and event != other
    assert [s for _, s in driver.recorded] == [77, 77]
    # The session numbers the events of both devices in one row.
    assert handle.event_count == driver.created
    for fields, recorded in zip((first, second), driver.recorded):
        assert fields["ready"]["event"] == recorded[0] - 1
    device.release(event)
    device.release(other)
