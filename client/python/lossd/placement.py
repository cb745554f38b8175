"""Where the tensors of a call lie: in shared host memory, in device memory by IPC handle, kept at the server, or where they are."""

from . import tensors
from .errors import LossdError, field_error
from .schema import DTYPES


def message(array, region, offset):
    """lossd.v1.Tensor of an array that lies in a region as it is."""
    out = {"dtype": array.dtype, "shape": array.shape,
           "region": {"region": region, "byte_offset": offset}}
    if not array.is_contiguous:
        out["strides"] = array.strides
    return out


def packed_message(dtype, shape, region, offset):
    return {"dtype": dtype, "shape": shape, "region": {"region": region, "byte_offset": offset}}


class HostPlacement:
    """Tensors of a call with host memory. `keep` holds what must live until the server has let go of it."""

    def __init__(self, client):
        self._client = client
        self._pool = client.pool
        self.keep = []
        self._after = []  # run when the call has succeeded

    def input(self, rule, array):
        if array.device != "cpu":
            raise field_error(rule.name, "on the cpu, like the other tensors of the call", array.device)
        found = self._in_place(rule, array, is_output=False)
        return found or self._copied_in(array)[0]

    def output(self, rule, shape, dtype, like):
        """(message, array) of a new output."""
        as_bool = rule.dtypes == (6,)
        size = DTYPES[dtype][1]
        for extent in shape:
            size *= extent
        block = self._block(size)
        sent = packed_message(dtype, shape, block.region, block.offset)
        if block.address is not None:
            return sent, tensors.on_memory(block.bytes(size), shape, dtype, like.is_torch, as_bool)
        local = tensors.empty_local(shape, dtype, like, as_bool)
        target = tensors.Array(rule.name, local)
        self._after.append(lambda: block.read(target.address, target.size))
        return sent, local

    def destination(self, rule, array, brings_value):
        """Message of an output that goes to the caller's array; brings_value: it is added to what the array holds."""
        if array.device != "cpu":
            raise field_error(rule.name, "on the cpu, like the other tensors of the call", array.device)
        if array.is_torch and array.value.is_leaf is False and array.value.requires_grad:
            raise field_error(rule.name, "outside autograd", "part of a graph")
        found = self._in_place(rule, array, is_output=True)
        if found:
            return found
        if brings_value:
            sent, block, shared = self._copied_in(array)
        else:
            block = self._block(array.size)
            sent = packed_message(array.dtype, array.shape, block.region, block.offset)
            shared = None
        self._after.append(lambda: self._copy_out(rule, block, shared, array))
        return sent

    def run(self, request, timeout):
        return self._client.run(request, timeout)

    def ready(self):
        """Fields of the request that say when the tensors may be read: at once."""
        return {}

    def finish(self):
        """After a call that succeeded."""
        for action in self._after:
            action()

    def release(self):
        """After any call."""

    def _block(self, size):
        block = self._pool.allocate(size)
        self.keep.append(block)
        return block

    def _in_place(self, rule, array, is_output):
        if array.elements == 0 or not array.fits_in_place(rule.dims, is_output):
            return None
        found = self._pool.locate(array.address, array.reach)
        if found is None:
            return None
        self.keep.append(array.value)
        return message(array, *found)

    def _copied_in(self, array):
        block = self._block(array.size)
        sent = packed_message(array.dtype, array.shape, block.region, block.offset)
        shared = None
        if array.elements == 0:
            pass
        elif block.address is not None:
            shared = self._show(block, array)
            shared.copy_from(array)
        else:
            packed = array if array.is_contiguous else _packed_copy(array)
            block.write(packed.address, packed.size)
        return sent, block, shared

    def _show(self, block, array):
        """The block as an array of the same kind, type and shape."""
        is_bool = str(array.value.dtype).endswith("bool")
        return tensors.Array("", tensors.on_memory(block.bytes(array.size), array.shape,
                                                   array.dtype, array.is_torch, is_bool))

    def _copy_out(self, rule, block, shared, array):
        if array.elements == 0:
            return
        if block.address is not None:
            array.copy_from(shared or self._show(block, array))
            return
        packed = array if array.is_contiguous else _packed_copy(array)
        block.read(packed.address, packed.size)
        if packed is not array:
            array.copy_from(packed)


def _packed_copy(array):
    value = array.value
    return tensors.Array("", value.contiguous() if array.is_torch else value.copy(order="C"))


class DevicePlacement:
    """Tensors of a call in the memory of a GPU. Nothing is copied but inputs whose strides no kernel takes."""

    def __init__(self, client, device):
        self._client = client
        self._device = client.device(device)  # lossd.cuda.Device
        self._name = device
        self._event = None
        self.keep = []

    def input(self, rule, array):
        self._check_device(rule, array)
        if not array.fits_in_place(rule.dims, is_output=False):
            array = _packed_copy(array)
        return self._place(rule, array)

    def output(self, rule, shape, dtype, like):
        local = tensors.empty_local(shape, dtype, like, rule.dtypes == (6,))
        return self._place(rule, tensors.Array(rule.name, local)), local

    def destination(self, rule, array, brings_value):
        self._check_device(rule, array)
        if not array.fits_in_place(rule.dims, is_output=True):
            raise field_error(rule.name, "of stride 1 in the last dimension, without shared elements",
                              f"of strides {array.strides}")
        return self._place(rule, array)

    def run(self, request, timeout):
        return self._client.run(request, timeout)

    def ready(self):
        fields, self._event = self._device.mark_ready()
        return fields

    def finish(self):
        """The reply came when the results were there, so no stream has to wait."""

    def release(self):
        if self._event is not None:
            self._device.release(self._event)
            self._event = None

    def _check_device(self, rule, array):
        if array.device != self._name:
            raise field_error(rule.name, f"on {self._name}, like the other tensors of the call",
                              "on " + array.device)

    def _place(self, rule, array):
        self.keep.append(array.value)
        if array.elements == 0:  # an empty tensor has no address; it needs no bytes either
            return {"dtype": array.dtype, "shape": array.shape, "inline_data": b""}
        region, offset, buffer = self._device.locate(rule.name, array.address)
        self.keep.append(buffer)
        return message(array, region, offset)


class ProcessPlacement:
    """Tensors of a call without a server, where they are. Nothing is copied but tensors whose strides no kernel takes."""

    REGION = 1  # LOSSD_PROCESS_REGION

    def __init__(self, client, device):
        self._client, self._name = client, device
        self.keep = []
        self._after = []

    def input(self, rule, array):
        self._check_device(rule, array)
        if not array.fits_in_place(rule.dims, is_output=False):
            array = _packed_copy(array)
        return self._place(array)

    def output(self, rule, shape, dtype, like):
        local = tensors.empty_local(shape, dtype, like, rule.dtypes == (6,))
        return self._place(tensors.Array(rule.name, local)), local

    def destination(self, rule, array, brings_value):
        self._check_device(rule, array)
        if array.is_torch and array.value.is_leaf is False and array.value.requires_grad:
            raise field_error(rule.name, "outside autograd", "part of a graph")
        if not array.fits_in_place(rule.dims, is_output=True):
            packed = _packed_copy(array)
            self._after.append(lambda: array.copy_from(packed))
            return self._place(packed)
        return self._place(array)

    def run(self, request, timeout):
        return self._client.run_on(self._name, request)

    def ready(self):
        return {}

    def finish(self):
        for action in self._after:
            action()

    def release(self):
        """Nobody else knows the tensors."""

    def _check_device(self, rule, array):
        if array.device != self._name:
            raise field_error(rule.name, f"on {self._name}, like the other tensors of the call", "on " + array.device)

    def _place(self, array):
        self.keep.append(array.value)
        if array.elements == 0:
            return packed_message(array.dtype, array.shape, self.REGION, 0)
        return message(array, self.REGION, array.address)


def place(client, leader):
    """The placement for a call whose first tensor is `leader`."""
    if client.is_embedded:
        return ProcessPlacement(client, leader.device)
    if leader.device == "cpu":
        return HostPlacement(client)
    if leader.device.startswith("cuda"):
        return DevicePlacement(client, leader.device)
    raise LossdError("UNIMPLEMENTED", f"tensors on {leader.device}: only cpu and cuda are served")
