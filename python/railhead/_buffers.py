"""Buffers of callers in the memory of the host: numpy arrays, torch CPU tensors, and objects with the buffer protocol.

This module never imports numpy or torch: a caller that passes one of their arrays has imported them. It imports ml_dtypes to
create arrays of its types.
"""

from __future__ import annotations

import array
import ctypes
import functools
import math
import sys
from typing import Any, Callable, Dict, Literal, NamedTuple, Optional, Tuple

from ._devices import CPU, Device
from .enums import DTYPE_OF_ARRAY_NAME, Dtype
from .errors import InvalidArgumentError


class Buffer:
    """Memory of the caller. This object keeps it alive."""

    __slots__ = ("owner", "address", "nbytes", "dtype", "shape", "count", "export")

    def __init__(self, owner: Any, address: int, nbytes: int, dtype: Dtype, shape: Tuple[int, ...]) -> None:
        self.owner = owner
        self.address = address
        self.nbytes = nbytes
        self.dtype = dtype
        self.shape = shape
        self.count = nbytes // dtype.itemsize
        self.export: Optional[_Export] = None


def buffer_of(obj: Any, what: str, dtype: Optional[Dtype] = None, writable: bool = False, computed: bool = False) -> Buffer:
    """The buffer of obj. what is its name in errors. dtype is required if obj has no element type. computed: the call adds or
    converts elements, so that dtype must be their type; elements that are only moved may be moved as bytes."""
    if is_torch(obj):
        return of_torch(obj, what, dtype, computed, CPU)
    if _is_numpy(obj):
        return _of_numpy(obj, what, dtype, writable, computed)
    return _of_protocol(obj, what, dtype, writable, computed)


def empty_like(obj: Any, shape: Tuple[int, ...]) -> Any:
    """A new buffer of obj's kind: an array, a tensor, an array.array, a typed memoryview or a bytearray."""
    if is_torch(obj):
        return obj.new_empty(shape)
    if _is_numpy(obj):
        return sys.modules["numpy"].empty(shape, dtype=obj.dtype)
    count = math.prod(shape)
    if isinstance(obj, array.array):
        return array.array(obj.typecode, bytes(count * obj.itemsize))
    with memoryview(obj) as view:
        memory = bytearray(count * view.itemsize)
        code = _CAST.get(_of_format(view.format, view.itemsize).dtype)
        return memory if code is None else memoryview(memory).cast(code)


class Kind(NamedTuple):
    """The kind of a caller's buffer, without a reference to it, so that results of later calls can be of the same kind."""

    name: str  # in errors
    is_torch: bool
    make: Callable[[str, Dtype, Tuple[int, ...]], Any]  # a new buffer: its name in errors, its elements, its shape


def kind_of(like: Any) -> Kind:
    """An array, a tensor, or flat memory."""
    if is_torch(like):
        return _torch_kind(like.device)
    return Kind(type(like).__name__, False, _make_array if _is_numpy(like) else _make_memory)


@functools.lru_cache(maxsize=None)
def _torch_kind(device: Any) -> Kind:
    return Kind("Tensor", True, functools.partial(_make_tensor, device))


def empty(like: Any, what: str, dtype: Dtype, shape: Tuple[int, ...]) -> Any:
    """A new buffer of like's kind with elements of dtype. what is its name in errors."""
    return kind_of(like).make(what, dtype, shape)


def _make_tensor(device: Any, what: str, dtype: Dtype, shape: Tuple[int, ...]) -> Any:
    torch = sys.modules["torch"]
    try:
        return torch.empty(shape, dtype=torch_dtype(dtype), device=device)
    except AttributeError as error:
        raise _cannot_make(what, dtype, error) from None


def _make_array(what: str, dtype: Dtype, shape: Tuple[int, ...]) -> Any:
    try:
        return sys.modules["numpy"].empty(shape, dtype=numpy_dtype(dtype))
    except (AttributeError, ImportError) as error:
        raise _cannot_make(what, dtype, error) from None


def _make_memory(what: str, dtype: Dtype, shape: Tuple[int, ...]) -> Any:
    memory = bytearray(math.prod(shape) * dtype.itemsize)
    code = _CAST.get(dtype)
    return memory if code is None else memoryview(memory).cast(code)


def _cannot_make(what: str, dtype: Dtype, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what}: cannot create a buffer of {dtype.array_name} ({error}): pass a buffer of bytes")


def torch_dtype(dtype: Dtype) -> Any:
    """torch's type. AttributeError: this torch lacks it."""
    return getattr(sys.modules["torch"], dtype.array_name)


def numpy_dtype(dtype: Dtype) -> Any:
    """The dtype argument of numpy.empty. The small types come from ml_dtypes, which is imported on demand."""
    if dtype in (Dtype.BF16, Dtype.FP8_E4M3, Dtype.FP8_E5M2):
        import ml_dtypes

        return getattr(ml_dtypes, dtype.array_name)
    return dtype.array_name


# Formats to which every version of Python can cast a memoryview. The other types stay a bytearray.
_CAST: Dict[Optional[Dtype], Literal["f", "d", "b", "i", "q", "Q"]] = {
    Dtype.F32: "f",
    Dtype.F64: "d",
    Dtype.I8: "b",
    Dtype.I32: "i",
    Dtype.I64: "q",
    Dtype.U64: "Q",
}


def is_torch(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def _is_numpy(obj: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.ndarray)


def of_torch(tensor: Any, what: str, dtype: Optional[Dtype], computed: bool, device: Device) -> Buffer:
    where = tensor.device
    if where.type != device.kind or (device.ordinal is not None and where.index != device.ordinal):
        raise InvalidArgumentError(
            f"{what}: the tensor is on {where}, and the comm's device is {device}: use tensor.to('{device}'), or a comm of "
            "the tensor's device"
        )
    if not tensor.is_contiguous():
        raise InvalidArgumentError(f"{what}: the tensor is not contiguous: use tensor.contiguous()")
    if tensor.is_neg():
        raise InvalidArgumentError(f"{what}: the tensor has a pending negation: use tensor.resolve_neg()")
    size = tensor.element_size()
    nbytes = tensor.numel() * size
    element = resolve(what, _of_torch_dtype(tensor.dtype, size), nbytes, dtype, computed)
    return Buffer(tensor, tensor.data_ptr(), nbytes, element, tuple(tensor.shape))


def _of_numpy(values: Any, what: str, dtype: Optional[Dtype], writable: bool, computed: bool) -> Buffer:
    if not values.flags.c_contiguous:
        raise InvalidArgumentError(f"{what}: the array is not contiguous: use numpy.ascontiguousarray")
    if not values.dtype.isnative:
        raise InvalidArgumentError(f"{what}: the array has byte order {values.dtype.byteorder!r}: convert it to the native one")
    if writable and not values.flags.writeable:
        raise InvalidArgumentError(f"{what}: the array is read-only")
    element = resolve(what, _of_numpy_dtype(values.dtype), values.nbytes, dtype, computed)
    return Buffer(values, values.ctypes.data, values.nbytes, element, values.shape)


class Elements(NamedTuple):
    """What a buffer says of its elements."""

    name: str  # in errors
    dtype: Optional[Dtype]  # None: Railhead has no such type
    itemsize: int
    carries: Tuple[Dtype, ...]  # other types whose bits they may be, where it matters for more than moving them


# Unsigned integers carry the bits of floats that numpy without ml_dtypes, or array.array, lacks.
CARRIED: Dict[str, Tuple[Dtype, ...]] = {"uint8": (Dtype.FP8_E4M3, Dtype.FP8_E5M2), "uint16": (Dtype.BF16, Dtype.F16)}


@functools.lru_cache(maxsize=None)
def _of_torch_dtype(dtype: Any, itemsize: int) -> Elements:
    name = str(dtype).replace("torch.", "")
    return Elements(str(dtype), DTYPE_OF_ARRAY_NAME.get(name), itemsize, CARRIED.get(name, ()))


@functools.lru_cache(maxsize=None)
def _of_numpy_dtype(dtype: Any) -> Elements:
    """Looked up by name, so that ml_dtypes' types work too. Asking numpy would take longer than a small collective."""
    return Elements(str(dtype), DTYPE_OF_ARRAY_NAME.get(dtype.name), dtype.itemsize, CARRIED.get(dtype.name, ()))


def _of_protocol(obj: Any, what: str, dtype: Optional[Dtype], writable: bool, computed: bool) -> Buffer:
    try:
        view = memoryview(obj)
    except TypeError:
        if hasattr(obj, "__cuda_array_interface__"):
            raise InvalidArgumentError(
                f"{what}: the {type(obj).__name__} is in the memory of a CUDA device, and the comm's device is the CPU; "
                "session.comm(device=...) makes a comm of a CUDA device"
            ) from None
        raise TypeError(
            f"{what}: {type(obj).__name__} is not a buffer; pass a numpy array, a torch CPU tensor, or an object with the buffer "
            "protocol (bytearray, array.array, memoryview, mmap, a ctypes array)"
        ) from None
    if not view.c_contiguous:
        raise InvalidArgumentError(f"{what}: the memoryview is not contiguous")
    if writable and view.readonly:
        raise InvalidArgumentError(f"{what}: the {type(obj).__name__} is read-only")
    element = resolve(what, _of_format(view.format, view.itemsize), view.nbytes, dtype, computed)
    export = _Export(view)
    buffer = Buffer(obj, export.address, view.nbytes, element, view.shape or ())
    buffer.export = export
    return buffer


@functools.lru_cache(maxsize=None)
def _of_format(format: str, itemsize: int) -> Elements:
    """The elements of a memoryview. Bytes may be the bits of any type."""
    code = format.lstrip("@=<") if sys.byteorder == "little" else format.lstrip("@=")
    kinds = {"f": "float32", "d": "float64", "e": "float16"}
    if code in ("b", "h", "i", "l", "q"):
        kinds[code] = f"int{8 * itemsize}"
    elif code in ("B", "H", "I", "L", "Q"):
        kinds[code] = f"uint{8 * itemsize}"
    name = kinds.get(code, "")
    carries = tuple(Dtype) if code in ("B", "c") else CARRIED.get(name, ())
    return Elements(repr(format), DTYPE_OF_ARRAY_NAME.get(name), itemsize, carries)


def resolve(what: str, elements: Elements, nbytes: int, dtype: Optional[Dtype], computed: bool) -> Dtype:
    """The element type: the requested one if the memory can hold it, otherwise the buffer's own."""
    natural = elements.dtype
    if natural is not None and (dtype is None or dtype == natural):
        return natural
    if dtype is None:
        how = f"convert to one of {_NAMES}"
        if not computed:
            how = f"pass dtype= (Dtype.U8 moves anything), or {how}"
        raise InvalidArgumentError(f"{what}: {elements.name} is not an element type of Railhead; {how}")
    dtype = Dtype(dtype)
    if not (dtype in elements.carries or (not computed and _may_move_as(elements, dtype))):
        why = "; elements that are computed with must have their own type: omit dtype=, or convert the buffer" if computed else ""
        raise InvalidArgumentError(f"{what}: dtype {dtype.name} was requested, but the buffer has {elements.name}{why}")
    if nbytes % dtype.itemsize != 0:
        raise InvalidArgumentError(f"{what}: {nbytes} bytes is not a multiple of {dtype.itemsize}, the size of {dtype.name}")
    return dtype


def _may_move_as(elements: Elements, dtype: Dtype) -> bool:
    """Any elements may be moved as bytes, elements of one byte as any type, and wider ones without a Railhead type as any type
    of the same size."""
    return dtype == Dtype.U8 or elements.itemsize == 1 or (elements.dtype is None and elements.itemsize == dtype.itemsize)


_NAMES = ", ".join(DTYPE_OF_ARRAY_NAME)


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_SIMPLE = 0  # PyBUF_SIMPLE
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class _Export:
    """The address of a buffer, which may be read-only (ctypes' from_buffer refuses read-only buffers). While this object exists,
    the owner cannot move the memory; for example, a bytearray cannot be resized."""

    def __init__(self, view: memoryview) -> None:
        self._raw = _PyBuffer()
        _get_buffer(view, ctypes.byref(self._raw), _SIMPLE)
        self.address: int = self._raw.buf or 0

    def __del__(self) -> None:
        _release_buffer(ctypes.byref(self._raw))
