"""Embedded mode: the operations in this process, without a server.

    client = lossd.connect("embedded")

A Client like any other, with the same operations and the same bits. Tensors are used where they are; on a GPU the work runs on torch's
current stream, in its order. Layers (lossd.rms_norm and the others of lossd/functional/layers.py) return when their work is enqueued; losses
and lossd.ops wait for the stream, since their reply has numbers. Each device that tensors lie on has a workspace of its own, made by the first
call there.

A layer that is not waited for cannot report what only the GPU sees (a rope position that no row of cos has): such rows are undefined.
client.debug = True makes every call wait and report.
"""

import ctypes
import sys
import threading

from . import tensors
from .calls import Limbo, Reply
from .client import Client
from .errors import LossdError, type_error
from .library import EmbeddedHandle

_MAX_CALLS = 2048  # prepared ones; beyond it all are forgotten


class EmbeddedClient(Client):
    """Thread-safe; ends with close() or a with block. Not to be used in a child after fork()."""

    is_embedded = True

    def __init__(self, library, workspace_bytes=0, threads=0, algorithms=""):
        self.address = "embedded"
        self.server = None
        self.debug = False
        self.limbo = Limbo()  # nothing stays in it: a call that has failed is over
        self._library = library
        self._schema = library.schema
        self._options = (workspace_bytes, threads, algorithms)
        self._lock = threading.Lock()
        self._handles = {}  # by device: "cpu", "cuda:0"
        self._closed = False
        self.calls = PreparedCalls(self)

    def close(self):
        self._closed = True
        self.calls.clear()
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.close()

    def handle(self, device):
        """The library.EmbeddedHandle of "cpu" or "cuda:0"; made on the first use."""
        with self._lock:
            if self._closed:
                raise LossdError("FAILED_PRECONDITION", "the client is closed")
            if device not in self._handles:
                kind, _, number = device.partition(":")
                if kind not in ("cpu", "cuda"):
                    raise LossdError("UNIMPLEMENTED", f"tensors on {device}: only cpu and cuda are served")
                workspace_bytes, threads, algorithms = self._options
                self._handles[device] = EmbeddedHandle(self._library, kind, int(number or 0), workspace_bytes,
                                                       threads if kind == "cpu" else 0, algorithms if kind == "cuda" else "")
            return self._handles[device]

    def run_on(self, device, request):
        """A whole lossd.v1.RunRequest on tensors of a device, as a dict; its reply as a dict."""
        data = self.handle(device).run(self._schema.run_request.encode(request), current_stream(device))
        return self._schema.run_reply.decode(data)

    def run(self, request, timeout=None):
        """A whole lossd.v1.RunRequest on memory of the CPU, as a dict with the names of the proto; its reply as a dict."""
        return self.run_on("cpu", request)

    def _fetch(self, name, type_name):
        with self._lock:
            devices = list(self._handles)
        device = next((name for name in devices if name != "cpu"), "cpu")
        return self._schema.types[type_name].decode(self.handle(device).fetch(name))

    @property
    def server_info(self):
        """lossd.v1.ServerInfo of the GPU that was used first, else of the CPU."""
        return self._fetch("lossd_server_info", "lossd.v1.ServerInfo")

    def list_ops(self):
        """lossd.v1.OpDescription of each operation, as dicts: name, formula, source, available."""
        return self._fetch("lossd_list_ops", "lossd.v1.ListOpsReply").get("ops", [])

    def list_regions(self):
        """Empty: nothing is shared."""
        return []

    def empty(self, shape, dtype):
        """An array with undefined contents. As in a client of a server; here any other array does as well."""
        number, torch_like, as_bool = tensors.parse_dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if torch_like:
            return sys.modules["torch"].empty(shape, dtype=dtype)
        import numpy
        return numpy.empty(shape, tensors.numpy_type(number, as_bool))

    def share(self, array):
        """A copy of an array or cpu tensor."""
        if not tensors.is_torch(array) and not tensors.is_numpy(array):
            raise type_error("array", "a numpy array or a torch tensor", type(array).__name__)
        return array.detach().clone() if tensors.is_torch(array) else array.copy()

    def trim(self):
        """Forgets the calls that were prepared."""
        self.calls.clear()

    def device(self, name):
        raise LossdError("UNIMPLEMENTED", "an embedded client shares no memory with a server")


def current_stream(device):
    """torch's current stream on "cuda:0", as a cudaStream_t; None on the CPU."""
    if device == "cpu":
        return None
    torch = sys.modules["torch"]
    return torch.cuda.current_stream(torch.device(device)).cuda_stream


class PreparedCalls:
    """Calls that were checked once, by all that they depend on but addresses. What is not a torch tensor or a plain option is not prepared."""

    def __init__(self, client):
        self._client = client
        self._calls = {}

    def __len__(self):
        return len(self._calls)

    def clear(self):
        self._calls.clear()

    def key(self, op, values, want, out, *envelope):
        """What tells this call from others; None if it is not one to prepare."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        parts = [op.name, want if type(want) in (str, tuple) else tuple(want), envelope]
        tensor = torch.Tensor
        for given in (values, out) if out else (values,):
            for name, value in given.items():
                if isinstance(value, tensor):
                    if value.layout is not torch.strided:
                        return None
                    parts.append((name, value.dtype, value.device, value.shape, value.stride()))
                elif value is not None:
                    # A number for a tensor's field becomes a new tensor in every call.
                    if type(value) not in (bool, int, float, str) or name in op.fields and op.fields[name].is_tensor:
                        return None
                    parts.append((name, type(value), value))
            parts.append(None)
        try:
            key = tuple(parts)
            hash(key)
            return key
        except TypeError:
            return None

    def get(self, key):
        return None if key is None else self._calls.get(key)

    def keep(self, key, op, arrays, out, outputs, request):
        """Prepares the call that has just run for the next time, if its tensors were all taken where they are."""
        entry = _PreparedCall.create(self._client, op, arrays, out or {}, outputs, request)
        if entry is None:
            return
        if len(self._calls) >= _MAX_CALLS:
            self._calls.clear()
        self._calls[key] = entry


class _PreparedCall:
    """One request with the places of its addresses: what the caller gives, and what is made anew each time."""

    @staticmethod
    def create(client, op, arrays, out, outputs, request):
        leader = next(iter(arrays.values()))
        for name, array in arrays.items():
            if not array.is_torch or not array.fits_in_place(op.fields[name].dims, is_output=False):
                return None
        for name, target in out.items():
            if not tensors.Array(name, target).fits_in_place(op.fields[name].dims, is_output=True):
                return None
        return _PreparedCall(client, op, arrays, out, outputs, request, leader.device)

    def __init__(self, client, op, arrays, out, outputs, request, device):
        self._client = client
        self._torch = torch = sys.modules["torch"]
        self._prepared = client.handle(device).prepare(client._schema.run_request.encode(request))
        self._device = torch.device(device)
        self._ordinal = self._device.index if self._device.type == "cuda" else None
        self._op_name = op.name
        self._sources = []  # in the order of the operation's fields: name, and which of values, out and made it is in
        for name in op.fields:
            if name in arrays:
                self._sources.append((name, 0))
            elif name in out:
                self._sources.append((name, 1))
            elif name in outputs:
                self._sources.append((name, 2))
        self._made = [(name, tuple(value.shape), value.dtype) for name, value in outputs.items() if name not in out]
        self._addresses = ctypes.c_uint64 * len(self._sources)
        self._count = len(self._sources)

    def run(self, values, out, wait):
        torch = self._torch
        made = {name: torch.empty(shape, dtype=dtype, device=self._device) for name, shape, dtype in self._made}
        sets = (values, out, made)
        addresses = self._addresses(*[sets[source][name].data_ptr() for name, source in self._sources])
        stream = None if self._ordinal is None else _raw_stream(torch, self._ordinal)
        if out:
            made.update(out)
        if wait or self._client.debug:
            data = self._prepared.run(addresses, self._count, stream)
            return Reply(made, self._client._schema.run_reply.decode(data)["ops"][0])
        self._prepared.enqueue(addresses, self._count, stream)
        return Reply(made, _NOTHING)


_NOTHING = {}


def _raw_stream(torch, ordinal):
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw(ordinal) if raw is not None else torch.cuda.current_stream(ordinal).cuda_stream
