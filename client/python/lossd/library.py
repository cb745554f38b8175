"""liblossd_client.so: where it is, its functions, and owners of its handles. The manual of the functions is client/c/lossd.h."""

import ctypes
import threading
from pathlib import Path

from .errors import LossdError
from .schema import Schema

_ABI_VERSION = 1
_LIBRARY = "lib/liblossd_client.so"

_u8p = ctypes.POINTER(ctypes.c_uint8)


class _Status(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int32), ("op_index", ctypes.c_int32), ("row", ctypes.c_int64),
        ("retry_after_ms", ctypes.c_uint32), ("cuda_error", ctypes.c_int32),
        ("field", ctypes.c_char * 160), ("must_be", ctypes.c_char * 320),
        ("is_", ctypes.c_char * 320), ("op", ctypes.c_char * 96), ("reason", ctypes.c_char * 64),
        ("message", ctypes.c_char * 1064),
    ]


class _Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _ServerOptions(ctypes.Structure):
    _fields_ = [("binary", ctypes.c_char_p), ("flags", ctypes.POINTER(ctypes.c_char_p)),
                ("flag_count", ctypes.c_size_t), ("start_timeout", ctypes.c_double)]


class _ConnectOptions(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("connect_timeout", ctypes.c_double),
                ("call_timeout", ctypes.c_double)]


class _EmbeddedOptions(ctypes.Structure):
    _fields_ = [("backend", ctypes.c_char_p), ("algorithms", ctypes.c_char_p), ("workspace_bytes", ctypes.c_uint64),
                ("device", ctypes.c_int32), ("threads", ctypes.c_int32)]


_p, _u64, _size, _i32, _f64 = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int32,
                               ctypes.c_double)
_status, _out = ctypes.POINTER(_Status), ctypes.POINTER(ctypes.c_void_p)
_bytes = ctypes.POINTER(_Bytes)
_FUNCTIONS = {
    "lossd_abi_version": (ctypes.c_uint32, []),
    "lossd_version": (ctypes.c_char_p, []),
    "lossd_code_name": (ctypes.c_char_p, [_i32]),
    "lossd_bytes_free": (None, [_bytes]),
    "lossd_descriptors": (_i32, [_bytes, _status]),
    "lossd_server_start": (_i32, [ctypes.POINTER(_ServerOptions), _out, _status]),
    "lossd_server_address": (ctypes.c_char_p, [_p]),
    "lossd_server_pid": (_i32, [_p]),
    "lossd_server_stop": (None, [_p]),
    "lossd_connect": (_i32, [ctypes.c_char_p, ctypes.POINTER(_ConnectOptions), _out, _status]),
    "lossd_close": (None, [_p]),
    "lossd_server_info": (_i32, [_p, _bytes, _status]),
    "lossd_list_ops": (_i32, [_p, _bytes, _status]),
    "lossd_list_regions": (_i32, [_p, _bytes, _status]),
    "lossd_run": (_i32, [_p, ctypes.c_char_p, _size, _f64, _bytes, _status]),
    "lossd_buffer_create": (_i32, [_p, _u64, _out, _status]),
    "lossd_buffer_allocate_at_server": (_i32, [_p, _u64, _i32, _u8p, _out, _status]),
    "lossd_buffer_register_device": (_i32, [_p, ctypes.c_char_p, _size, _u64, ctypes.c_char_p,
                                            _u64, _i32, _out, _status]),
    "lossd_buffer_data": (_p, [_p]),
    "lossd_buffer_bytes": (_u64, [_p]),
    "lossd_buffer_region": (_u64, [_p]),
    "lossd_buffer_write": (_i32, [_p, _u64, _p, _u64, _status]),
    "lossd_buffer_read": (_i32, [_p, _u64, _p, _u64, _status]),
    "lossd_buffer_free": (None, [_p]),
    "lossd_open_embedded": (_i32, [ctypes.POINTER(_EmbeddedOptions), _out, _status]),
    "lossd_run_on_stream": (_i32, [_p, ctypes.c_char_p, _size, _p, _bytes, _status]),
    "lossd_prepare": (_i32, [_p, ctypes.c_char_p, _size, _out, _status]),
    "lossd_prepared_run": (_i32, [_p, _p, _size, _p, _bytes, _status]),
    "lossd_prepared_free": (None, [_p]),
    "lossd_register_events": (_i32, [_p, ctypes.c_char_p, _size, _u8p, _status]),
}


class Library:
    """The loaded library with its descriptors. `directory` has lib/, bin/ and generated/, like a build directory. Thread-safe."""

    def __init__(self, directory):
        self.directory = Path(directory).resolve()
        path = self.directory / _LIBRARY
        if not path.is_file():
            raise LossdError("NOT_FOUND", f"no {_LIBRARY} in {self.directory}")
        self._functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments
        version = self._functions.lossd_abi_version()
        if version != _ABI_VERSION:
            raise LossdError("FAILED_PRECONDITION",
                             f"{path} speaks ABI {version}, this package {_ABI_VERSION}")
        self.version = self._functions.lossd_version().decode()
        documented = self.directory / "generated" / "ops.desc"
        self.schema = Schema(self.fetch("lossd_descriptors"),
                             documented.read_bytes() if documented.is_file() else None)

    @property
    def server_binary(self):
        """Path of the lossd that came with the library; "" if none did."""
        path = self.directory / "bin" / "lossd"
        return str(path) if path.is_file() else ""

    def function(self, name):
        return getattr(self._functions, name)

    def plain(self, name, *arguments):
        """Calls a function that cannot fail."""
        return getattr(self._functions, name)(*arguments)

    def call(self, name, *arguments):
        """Calls a function that takes a status last. Raises LossdError."""
        status = _Status()
        if getattr(self._functions, name)(*arguments, ctypes.byref(status)) != 0:
            raise self.error(status)

    def error(self, status):
        """The LossdError of a status."""
        text = {key: getattr(status, key).decode("utf-8", "replace")
                for key in ("field", "must_be", "is_", "op", "reason", "message")}
        return LossdError(self._functions.lossd_code_name(status.code).decode(), text.pop("message"),
                          op_index=status.op_index, row=status.row,
                          retry_after_ms=status.retry_after_ms, **text)

    def fetch(self, name, *arguments):
        """Calls a function whose result is lossd_bytes."""
        result = _Bytes()
        self.call(name, *arguments, ctypes.byref(result))
        data = ctypes.string_at(result.data, result.size)
        self._functions.lossd_bytes_free(ctypes.byref(result))
        return data

    def create(self, name, *arguments):
        """Calls a function that makes a handle."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle.value


class ServerHandle:
    """A private server. Stopped by stop() or with the object."""

    def __init__(self, library, binary="", flags=(), start_timeout=0.0):
        self._library = library
        encoded = [flag.encode() for flag in flags]
        options = _ServerOptions((binary or library.server_binary).encode(),
                                 (ctypes.c_char_p * len(encoded))(*encoded), len(encoded),
                                 start_timeout)
        self._handle = library.create("lossd_server_start", ctypes.byref(options))
        self.address = library.plain("lossd_server_address", self._handle).decode()
        self.pid = library.plain("lossd_server_pid", self._handle)

    def stop(self):
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            self._library.plain("lossd_server_stop", handle)

    __del__ = stop


class _ClosableHandle:
    """A lossd_client of the C library. `handle` is valid until close()."""

    def __init__(self, library, function, *arguments):
        self.library = library
        self.handle = library.create(function, *arguments)

    def close(self):
        handle, self.handle = getattr(self, "handle", None), None
        if handle:
            self.library.plain("lossd_close", handle)

    __del__ = close

    def _open(self):
        if not self.handle:
            raise LossdError("FAILED_PRECONDITION", "the client is closed")
        return self.handle

    def fetch(self, name):
        return self.library.fetch(name, self._open())


class ClientHandle(_ClosableHandle):
    """A connection."""

    def __init__(self, library, address, name, connect_timeout, call_timeout):
        options = _ConnectOptions(name.encode(), connect_timeout, call_timeout)
        super().__init__(library, "lossd_connect", address.encode(), ctypes.byref(options))
        self.event_count = 0  # of the present session; ready events are numbered over all registrations

    def run(self, request, timeout):
        return self.library.fetch("lossd_run", self._open(), request, len(request), timeout)

    def create_buffer(self, size):
        return BufferHandle(self.library,
                            self.library.create("lossd_buffer_create", self._open(), size))

    def register_device(self, handle, size, device_uuid, buffer_id, writable=True):
        return BufferHandle(self.library, self.library.create(
            "lossd_buffer_register_device", self._open(), handle, len(handle), size, device_uuid,
            buffer_id, int(writable)))

    def register_events(self, ready):
        """64-byte handles of ready events. Returns the number of the first, and the handles of the server's done events."""
        done = (ctypes.c_uint8 * (64 * len(ready)))()
        self.library.call("lossd_register_events", self._open(), b"".join(ready), len(ready), done)
        first, self.event_count = self.event_count, self.event_count + len(ready)
        data = bytes(done)
        return first, [data[i:i + 64] for i in range(0, len(data), 64)]


class BufferHandle:
    """Memory that the server knows. Freed with the object; keeps the connection until then."""

    def __init__(self, library, handle):
        self._library, self._handle = library, handle
        self.address = library.plain("lossd_buffer_data", handle)  # None: not in this process
        self.size = library.plain("lossd_buffer_bytes", handle)
        self.region = library.plain("lossd_buffer_region", handle)

    def __del__(self):
        handle, self._handle = self._handle, None
        if handle:
            self._library.plain("lossd_buffer_free", handle)

    def write(self, offset, address, size):
        self._library.call("lossd_buffer_write", self._handle, offset, address, size)

    def read(self, offset, address, size):
        self._library.call("lossd_buffer_read", self._handle, offset, address, size)


class EmbeddedHandle(_ClosableHandle):
    """A device of this process."""

    def __init__(self, library, backend, device, workspace_bytes, threads, algorithms):
        options = _EmbeddedOptions(backend.encode(), algorithms.encode(), workspace_bytes, device, threads)
        super().__init__(library, "lossd_open_embedded", ctypes.byref(options))

    def run(self, request, stream):
        return self.library.fetch("lossd_run_on_stream", self._open(), request, len(request), stream)

    def prepare(self, request):
        return PreparedHandle(self.library, self.library.create("lossd_prepare", self._open(), request, len(request)))


class PreparedHandle:
    """A request that was checked. Keeps its device."""

    def __init__(self, library, handle):
        self._library, self._handle = library, handle
        self._function = library.function("lossd_prepared_run")

    def __del__(self):
        handle, self._handle = self._handle, None
        if handle:
            self._library.plain("lossd_prepared_free", handle)

    def run(self, addresses, count, stream):
        """Serialized lossd.v1.RunReply; waits. addresses: a ctypes array of uint64."""
        return self._library.fetch("lossd_prepared_run", self._handle, addresses, count, stream)

    def enqueue(self, addresses, count, stream):
        """Without a wait and a reply."""
        status = _own.__dict__.get("status") or _own.__dict__.setdefault("status", _Status())
        if self._function(self._handle, addresses, count, stream, None, status):
            raise self._library.error(status)


_own = threading.local()  # a status of each thread, for calls that are too short to make one
_lock = threading.Lock()
_loaded = []


def load(directory=None):
    """The library, loaded on the first call.

    directory: a build directory (lib/, bin/, generated/). None: the one that was loaded, else the package's own (a wheel carries it),
    else build/release of the source tree that the package lies in, else another of its build directories.
    Raises LossdError NOT_FOUND, or FAILED_PRECONDITION when another one is loaded already.
    """
    with _lock:
        if _loaded:
            if directory is not None and Path(directory).resolve() != _loaded[0].directory:
                raise LossdError("FAILED_PRECONDITION",
                                 f"{_loaded[0].directory} is loaded already, not {directory}")
            return _loaded[0]
        _loaded.append(Library(directory or _find()))
        return _loaded[0]


def _find():
    package = Path(__file__).resolve().parent
    build = package.parents[2] / "build"
    candidates = [package, build / "release"] + sorted(p for p in build.glob("*") if p.is_dir())
    for candidate in candidates:
        if (candidate / _LIBRARY).is_file():
            return candidate
    raise LossdError("NOT_FOUND", f"no {_LIBRARY} in the package or below {build}: "
                     "build it (make), or install the wheel")
