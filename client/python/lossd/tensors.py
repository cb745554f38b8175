"""What the caller's arrays are: numpy arrays and torch tensors seen alike. torch is imported only by those who have it imported."""

import sys

from .errors import field_error, type_error
from .schema import DTYPES

_NUMPY = {"float32": 1, "bfloat16": 2, "float16": 3, "int32": 4, "int64": 5, "uint8": 6, "bool": 6}
_NUMPY_NAMES = {1: "float32", 3: "float16", 4: "int32", 5: "int64", 6: "uint8"}
_TORCH = {"float32": 1, "bfloat16": 2, "float16": 3, "int32": 4, "int64": 5, "uint8": 6, "bool": 6}
_TORCH_NAMES = {1: "float32", 2: "bfloat16", 3: "float16", 4: "int32", 5: "int64", 6: "uint8"}


def is_torch(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


class Array:
    """A tensor of the caller: element type (number of lossd.v1.DType), extents, strides in elements, first element's address.

    dtypes: those that the field takes, for the error; the server is the one that checks them.
    """

    def __init__(self, name, value, dtypes=tuple(DTYPES)):
        if len(value.shape) == 0:  # one element is [1] on the wire
            value = value.reshape(1)
        self.value = value
        self.is_torch = is_torch(value)
        if self.is_torch:
            self.value = value = value.detach()
            if value.layout != sys.modules["torch"].strided:
                raise field_error(name, "a dense tensor", value.layout)
            type_name = str(value.dtype).rsplit(".", 1)[-1]
            self.dtype = _TORCH.get(type_name)
            self.shape, self.strides = tuple(value.shape), tuple(value.stride())
            self.address = value.data_ptr()
            self.device = str(value.device)
        else:
            type_name = value.dtype.name
            self.dtype = _NUMPY.get(type_name)
            self.shape = value.shape
            size = max(value.dtype.itemsize, 1)
            self.strides = tuple(stride // size for stride in value.strides)
            self.address = value.__array_interface__["data"][0]
            self.device = "cpu"
            if any(stride % size for stride in value.strides):
                raise field_error(name, "of strides that are whole elements", value.strides)
        if self.dtype is None:
            names = [DTYPES[number][0] for number in dtypes]
            raise field_error(name, "of type " + " or ".join(names) + (" (bool will do)" if 6 in dtypes else ""), type_name)
        self.item_bytes = DTYPES[self.dtype][1]

    @property
    def elements(self):
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def size(self):
        """Bytes without gaps."""
        return self.elements * self.item_bytes

    @property
    def is_contiguous(self):
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent != 1 and stride != expected:
                return self.elements == 0
            expected *= extent
        return True

    @property
    def reach(self):
        """Bytes from the first element to behind the last, for strides >= 0."""
        if self.elements == 0:
            return 0
        return self.item_bytes * (
            1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides)))

    def fits_in_place(self, rule_dims, is_output):
        """Whether the server can take the strides as they are."""
        if any(stride < 0 for stride in self.strides):
            return False
        if len(rule_dims) > 1 and self.shape and self.strides[-1] != 1 and self.shape[-1] > 1:
            return False
        return not is_output or all(s != 0 or n <= 1 for n, s in zip(self.shape, self.strides))

    def copy_from(self, other):
        """Element by element, both of one type and shape."""
        if self.is_torch:
            self.value.copy_(other.value)
        else:
            self.value[...] = other.value


def convert(rule, value, leader):
    """An Array of what was given for a tensor field. Numbers and lists become the field's own type, beside `leader`."""
    if is_torch(value) or is_numpy(value):
        return Array(rule.name, value, rule.dtypes)
    dtype = rule.dtypes[0]
    try:
        if leader is not None and leader.is_torch:
            torch = sys.modules["torch"]
            made = torch.as_tensor(value, dtype=getattr(torch, _TORCH_NAMES[dtype]),
                                   device=leader.device)
            return Array(rule.name, made)
        import numpy
        return Array(rule.name, numpy.asarray(value, _NUMPY_NAMES[dtype]))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise type_error(rule.name, "a tensor, an array or numbers", type(value).__name__) from error


def empty_local(shape, dtype, like, as_bool=False):
    """A new array of the kind of `like`, in ordinary memory of its device."""
    if like.is_torch:
        torch = sys.modules["torch"]
        name = "bool" if as_bool else _TORCH_NAMES[dtype]
        return torch.empty(shape, dtype=getattr(torch, name), device=like.device)
    import numpy
    return numpy.empty(shape, numpy_type(dtype, as_bool))


def on_memory(memory, shape, dtype, torch_like, as_bool=False):
    """An array on a ctypes array, which it keeps. torch_like: a torch tensor, else a numpy array."""
    count = 1
    for extent in shape:
        count *= extent
    if torch_like:
        torch = sys.modules["torch"]
        element = getattr(torch, "bool" if as_bool else _TORCH_NAMES[dtype])
        if count == 0:  # frombuffer refuses it
            return torch.empty(shape, dtype=element)
        return torch.frombuffer(memory, dtype=element, count=count).reshape(shape)
    import numpy
    return numpy.frombuffer(memory, numpy_type(dtype, as_bool), count).reshape(shape)


def numpy_type(dtype, as_bool):
    import numpy
    if as_bool:
        return numpy.dtype("bool")
    if dtype == 2:
        try:
            import ml_dtypes
        except ImportError as error:
            raise field_error("dtype", "f32 or f16 with numpy (bf16 needs torch tensors or ml_dtypes)",
                              "bf16") from error
        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(_NUMPY_NAMES[dtype])


def dtype_number(dtype):
    """Number of lossd.v1.DType of a torch dtype."""
    return _TORCH[str(dtype).rsplit(".", 1)[-1]]


def torch_dtype(number, as_bool=False):
    torch = sys.modules["torch"]
    return getattr(torch, "bool" if as_bool else _TORCH_NAMES[number])


def parse_dtype(dtype):
    """(number of lossd.v1.DType, whether torch, whether bool) of a torch dtype, a numpy dtype, or a name as in "f32"."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        name, torch_like = str(dtype).rsplit(".", 1)[-1], True
    else:
        torch_like = False
        short = {text: number for number, (text, _) in DTYPES.items()}
        if dtype in short:
            return short[dtype], False, False
        import numpy
        try:
            name = numpy.dtype(dtype).name
        except TypeError:
            name = repr(dtype)
    if name not in _NUMPY:
        raise field_error("dtype", "one of " + ", ".join(n for n, _ in DTYPES.values()), name)
    return _NUMPY[name], torch_like, name == "bool"
