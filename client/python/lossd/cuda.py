"""Device memory and streams of this process, as the server sees them: IPC handles of allocations, events on streams.

Speaks to the CUDA driver itself (libcuda.so.1, which is there where a GPU is): the driver knows the allocation behind an address, its
handle and its unique number, whatever made it, and needs no reference counts of torch's own IPC protocol.
"""

import ctypes
import functools
import queue
import sys
import threading

from .errors import LossdError

_BUFFER_ID, _IPC_CAPABLE = 7, 10  # CU_POINTER_ATTRIBUTE_BUFFER_ID, ..._IS_LEGACY_CUDA_IPC_CAPABLE
_EVENT_FLAGS = 2 | 4  # CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS
_EVENTS = 16  # calls of a client that may wait on one GPU at a time

_NO_IPC = ("in memory that cudaMalloc made: unset expandable_segments in PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF), and use "
           "no cudaMallocAsync backend; or torch.cuda.memory._set_allocator_settings('expandable_segments:False') before the "
           "tensor is made")


class _Handle(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint8 * 64)]


class Driver:
    """The functions of libcuda.so.1 that are used here. Raises LossdError UNAVAILABLE where there is no driver."""

    def __init__(self):
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise LossdError("UNAVAILABLE", f"CUDA tensors need libcuda.so.1: {error}") from error

    def call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise LossdError("INTERNAL", f"{name}: {(text.value or b'?').decode()} ({code})")

    def attribute(self, which, address, kind):
        value = kind()
        self.call("cuPointerGetAttribute", ctypes.byref(value), which, ctypes.c_uint64(address))
        return value.value

    def address_range(self, address):
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size),
                  ctypes.c_uint64(address))
        return base.value, size.value

    def memory_handle(self, base):
        handle = _Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle.data)

    def create_event(self):
        """(event, its 64-byte handle)."""
        event, handle = ctypes.c_void_p(), _Handle()
        self.call("cuEventCreate", ctypes.byref(event), _EVENT_FLAGS)
        self.call("cuIpcGetEventHandle", ctypes.byref(handle), event)
        return event, bytes(handle.data)

    def record(self, event, stream):
        self.call("cuEventRecord", event, ctypes.c_void_p(stream))

    def device_uuid(self, ordinal):
        device, uuid = ctypes.c_int(), (ctypes.c_uint8 * 16)()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDeviceGetUuid_v2", uuid, device)
        return device, bytes(uuid)

    def primary_context(self, device):
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        return context


driver = functools.lru_cache(maxsize=1)(Driver)


class _Current:
    """A context that is current inside a with block: threads of autograd have none of their own."""

    def __init__(self, driver_, context):
        self._driver, self._context = driver_, context

    def __enter__(self):
        self._driver.call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_):
        self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class Device:
    """One GPU of this process for one client: registered allocations and ready events. Thread-safe.

    An allocation (a segment of torch's allocator, mostly) is registered once and addressed by offset. If torch frees it and another takes
    its place, the driver's buffer id tells; memory that torch gave back with empty_cache() stays mapped at the server until then,
    or until trim().
    """

    def __init__(self, client_handle, name, transports, driver_=None):
        self._handle = client_handle
        self._name = name
        self._ordinal = int(name.split(":")[1]) if ":" in name else 0
        self._driver = driver_ or driver()
        device, self.uuid = self._driver.device_uuid(self._ordinal)
        self._context = self._driver.primary_context(device)
        self._lock = threading.Lock()
        self._registered = {}  # base address: (buffer id, size, BufferHandle)
        self._events = None
        if "cuda_event" in transports:
            with self._current():
                created = [self._driver.create_event() for _ in range(_EVENTS)]
            self._ready_handles = [handle for _, handle in created]
            self._events = queue.SimpleQueue()
            for index, (event, _) in enumerate(created):
                self._events.put((index, event))
            self.register_events()

    def register_events(self):
        """Makes the ready events known to the present session; again after the server has restarted."""
        if self._events is not None:
            self._first_event, _ = self._handle.register_events(self._ready_handles)

    def _current(self):
        return _Current(self._driver, self._context)

    def locate(self, field, address):
        """(region, byte offset, what keeps the region registered) of the device memory of `field`. Raises LossdError."""
        with self._lock, self._current():
            base, whole = self._driver.address_range(address)
            buffer_id = self._driver.attribute(_BUFFER_ID, address, ctypes.c_uint64)
            known = self._registered.get(base)
            if known is None or known[0] != buffer_id:
                if not self._driver.attribute(_IPC_CAPABLE, address, ctypes.c_int):
                    raise LossdError("FAILED_PRECONDITION", must_be=_NO_IPC,
                                     is_="in memory that has no IPC handle", field=field)
                buffer = self._handle.register_device(self._driver.memory_handle(base), whole,
                                                      self.uuid, buffer_id)
                known = self._registered[base] = (buffer_id, whole, buffer)
        return known[2].region, address - base, known[2]

    def trim(self):
        """Unregisters allocations that are no longer there."""
        with self._lock, self._current():
            for base, (buffer_id, _, _) in list(self._registered.items()):
                try:
                    if self._driver.attribute(_BUFFER_ID, base, ctypes.c_uint64) == buffer_id:
                        continue
                except LossdError:
                    pass  # no memory there any more
                del self._registered[base]

    def mark_ready(self):
        """Marks this point of the current stream. Returns the request's fields that make the server's device wait for it, and the event,
        which goes back to release() when the call has ended."""
        stream = sys.modules["torch"].cuda.current_stream(self._ordinal)
        if self._events is None:
            stream.synchronize()
            return {}, None
        index, event = self._events.get()
        with self._current():
            self._driver.record(event, stream.cuda_stream)
        return {"ready": {"event": self._first_event + index}}, (index, event)

    def release(self, event):
        self._events.put(event)
