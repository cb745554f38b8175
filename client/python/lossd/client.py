"""Connections: lossd.connect(), and the client that holds memory and runs requests."""

import itertools
import threading
import weakref

from . import tensors
from .calls import Limbo
from .errors import LossdError, type_error
from .library import ClientHandle, ServerHandle, load
from .memory import Pool


def connect(address=None, *, name="lossd-python", connect_timeout=10.0, call_timeout=600.0,
            binary="", flags=(), start_timeout=30.0, workspace_bytes=0, threads=0, algorithms=""):
    """A client of the server at `address`, of a private server that is started for it, or without a server.

    Args:
      address: "unix:/path/x.sock", or "host:port" of a loopback address. None starts lossd on a private socket; it ends with the
        client, or with this process. "embedded": the operations run in this process (lossd/embedded.py).
      name: shown in the server's lists and logs.
      connect_timeout, call_timeout: seconds; the latter of calls that give none.
      binary, flags, start_timeout: of the private server; binary "" is the lossd that came with the library.
      workspace_bytes, threads, algorithms: of embedded mode: scratch memory of each device (0: 512 MiB on the CPU, 2.2 GB on a GPU), threads
        on the CPU (0: all), path of a table of `lossctl tune`.
    Raises LossdError: UNAVAILABLE if nothing listens there, NOT_FOUND without library or binary.
    """
    library = load()
    if address == "embedded":
        if binary or flags:
            raise ValueError("binary and flags are of a private server: embedded mode has none")
        from .embedded import EmbeddedClient
        return EmbeddedClient(library, workspace_bytes, threads, algorithms)
    if workspace_bytes or threads or algorithms:
        raise ValueError("workspace_bytes, threads and algorithms are of embedded mode: a server has them as flags")
    if address is not None:
        if binary or flags:
            raise ValueError("binary and flags are of a private server: they have no meaning with an address")
        return Client(ClientHandle(library, address, name, connect_timeout, call_timeout), address)
    server = ServerHandle(library, binary, flags, start_timeout)
    try:
        handle = ClientHandle(library, server.address, name, connect_timeout, call_timeout)
    except LossdError:
        server.stop()
        raise
    return Client(handle, server.address, server)


_numbers = itertools.count()
_numbered = weakref.WeakValueDictionary()


def numbered_client(number):
    """The Client of that `number`. Raises LossdError FAILED_PRECONDITION when it is gone."""
    client = _numbered.get(number)
    if client is None:
        raise LossdError("FAILED_PRECONDITION", "the client of a compiled graph is gone: keep it as long as the graph")
    return client


class Client:
    """A session at a server. Thread-safe; ends with close() or a with block. Not to be used in a child after fork().

    When the server ends, calls fail with LossdError UNAVAILABLE; once a server listens at the address again they work, and
    memory that was shared keeps its contents. A private server is not started again.
    """

    is_embedded = False

    def __new__(cls, *args, **kwargs):
        client = super().__new__(cls)
        client.number = next(_numbers)  # names it in a compiled graph
        _numbered[client.number] = client
        return client

    def __init__(self, handle, address, server=None):
        self.address = address
        self.server = server  # library.ServerHandle of a private server
        self._handle = handle
        self._schema = handle.library.schema
        self._lock = threading.Lock()
        self._devices = {}
        self._boot_id = self.server_info.get("boot_id")
        self._failed = False  # a call has, since the server was last looked at
        self.pool = Pool(handle.create_buffer)
        self.limbo = Limbo()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the session and a private server. Arrays of empty() stay readable; the session lasts until the last of them is gone."""
        self._devices = {}
        self.pool.close()
        self._handle.close()
        if self.server is not None:
            self.server.stop()

    @property
    def server_info(self):
        """lossd.v1.ServerInfo of the present session, as a dict: version, backend, device, workspace_bytes, transports, ..."""
        return self._schema.types["lossd.v1.ServerInfo"].decode(
            self._handle.fetch("lossd_server_info"))

    def list_ops(self):
        """lossd.v1.OpDescription of each operation, as dicts: name, formula, source, available."""
        reply = self._schema.types["lossd.v1.ListOpsReply"].decode(
            self._handle.fetch("lossd_list_ops"))
        return reply.get("ops", [])

    def list_regions(self):
        """lossd.v1.RegionInfo of each region of this session, as dicts."""
        reply = self._schema.types["lossd.v1.ListRegionsReply"].decode(
            self._handle.fetch("lossd_list_regions"))
        return reply.get("regions", [])

    def run(self, request, timeout=None):
        """A whole lossd.v1.RunRequest, as a dict with the names of the proto; its reply as a dict. Waits. Raises LossdError."""
        try:
            data = self._handle.run(self._schema.run_request.encode(request), timeout or 0.0)
        except LossdError as error:
            self._failed = True
            if error.field.startswith("ready"):  # a new session, which does not know the events
                self._boot_id = None
            raise
        return self._schema.run_reply.decode(data)

    def empty(self, shape, dtype):
        """An array with undefined contents in memory that the server reads and writes in place.

        dtype: a torch dtype gives a torch tensor; a numpy dtype or "f32", "f16", "i32", "i64", "u8" a numpy array. Views of it are
        in place too. The memory is given back with the last array on it.
        Raises LossdError FAILED_PRECONDITION where memory is kept at the server (TCP).
        """
        number, torch_like, as_bool = tensors.parse_dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = 2 if number in (2, 3) else {1: 4, 4: 4, 5: 8, 6: 1}[number]
        for extent in shape:
            size *= extent
        block = self.pool.allocate(size)
        if block.address is None:
            raise LossdError("FAILED_PRECONDITION",
                             f"no memory is shared with {self.address}: pass ordinary arrays, they are copied")
        return tensors.on_memory(block.bytes(size), shape, number, torch_like, as_bool)

    def share(self, array):
        """A copy of an array or cpu tensor in shared memory: for what goes into many calls, as in `p.data = client.share(p.data)`."""
        if not tensors.is_torch(array) and not tensors.is_numpy(array):
            raise type_error("array", "a numpy array or a torch tensor", type(array).__name__)
        out = self.empty(array.shape, array.dtype)
        if tensors.is_torch(array):
            out.copy_(array.detach())
        else:
            out[...] = array
        return out

    def trim(self):
        """Gives memory back that no array uses, and unregisters device memory that was freed since."""
        self.pool.trim()
        for device in list(self._devices.values()):
            device.trim()

    def device(self, name):
        """The lossd.cuda.Device of "cuda:0" and its like; made on the first use."""
        with self._lock:
            if self._failed:
                self._failed = False
                self._renew_events()
            if name not in self._devices:
                from .cuda import Device
                self._devices[name] = Device(self._handle, name,
                                             self.server_info.get("transports", []))
            return self._devices[name]

    def _renew_events(self):
        """The library registers memory again in a new session, but not events: they are each client's own."""
        self.list_regions()  # reaches the present server
        boot_id = self.server_info.get("boot_id")
        if boot_id != self._boot_id:
            self._handle.event_count = 0
            for device in self._devices.values():
                device.register_events()
            self._boot_id = boot_id
