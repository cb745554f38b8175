"""Host memory that client and server share, handed out in blocks."""

import bisect
import collections
import ctypes
import threading

_ALIGNMENT = 256
_SEGMENT_BYTES = 32 << 20  # smallest segment; its pages are touched only when they are used. Not tuned.


class Block:
    """Some bytes of a segment. They go back to it with the object, so whatever shows them must hold it."""

    __slots__ = ("segment", "offset", "size")

    def __init__(self, segment, offset, size):
        self.segment, self.offset, self.size = segment, offset, size

    def __del__(self):
        # May run inside any allocation, so it must take no lock: deque.append is atomic.
        self.segment.returned.append((self.offset, self.size))

    @property
    def region(self):
        return self.segment.buffer.region

    @property
    def address(self):
        """In this process; None if the memory is kept at the server."""
        base = self.segment.buffer.address
        return None if base is None else base + self.offset

    def bytes(self, size):
        """A writable ctypes array on the block's first bytes, which keeps the block."""
        array = (ctypes.c_uint8 * size).from_address(self.address)
        array.block = self
        return array

    def write(self, address, size):
        self.segment.buffer.write(self.offset, address, size)

    def read(self, address, size):
        self.segment.buffer.read(self.offset, address, size)


class _Segment:
    """One buffer of the client library with a list of free ranges, by offset."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.free = [(0, buffer.size)]
        self.returned = collections.deque()

    def take(self, size):
        """Offset of a free range (first fit), or None."""
        while self.returned:
            self._give(*self.returned.popleft())
        for i, (offset, room) in enumerate(self.free):
            if room >= size:
                self.free[i:i + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        return None

    def _give(self, offset, size):
        at = bisect.bisect(self.free, (offset, 0))
        if at < len(self.free) and self.free[at][0] == offset + size:
            size += self.free.pop(at)[1]
        if at > 0 and sum(self.free[at - 1]) == offset:
            offset, size = self.free[at - 1][0], self.free[at - 1][1] + size
            self.free[at - 1] = (offset, size)
        else:
            self.free.insert(at, (offset, size))

    @property
    def bytes_in_use(self):
        while self.returned:
            self._give(*self.returned.popleft())
        return self.buffer.size - sum(size for _, size in self.free)


class Pool:
    """Hands out blocks; grows by segments; thread-safe. `create_buffer` makes a buffer of the client library."""

    def __init__(self, create_buffer):
        self._create_buffer = create_buffer
        self._lock = threading.Lock()
        self._segments = []
        self._by_address = []  # (address, end, region), sorted

    def allocate(self, size):
        """A block of at least `size` bytes with undefined contents. Raises LossdError."""
        size = max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
        with self._lock:
            for segment in self._segments:
                offset = segment.take(size)
                if offset is not None:
                    return Block(segment, offset, size)
            segment = _Segment(self._create_buffer(max(size, _SEGMENT_BYTES)))
            self._segments.append(segment)
            self._index()
            return Block(segment, segment.take(size), size)

    def locate(self, address, size):
        """(region, byte offset) of memory in this process, or None if it is no memory of the pool."""
        with self._lock:
            at = bisect.bisect(self._by_address, (address, float("inf"))) - 1
            if at < 0:
                return None
            start, end, region = self._by_address[at]
            return (region, address - start) if address + size <= end else None

    @property
    def bytes_in_use(self):
        with self._lock:
            return sum(segment.bytes_in_use for segment in self._segments)

    def trim(self):
        """Gives segments without a block in use back to the system."""
        with self._lock:
            self._segments = [s for s in self._segments if s.bytes_in_use]
            self._index()

    def close(self):
        """Forgets the segments; each ends with its last block."""
        with self._lock:
            self._segments, self._by_address = [], []

    def _index(self):
        self._by_address = sorted((s.buffer.address, s.buffer.address + s.buffer.size,
                                   s.buffer.region)
                                  for s in self._segments if s.buffer.address is not None)
