"""Buffers in the memory of a CUDA device: torch tensors and objects with __cuda_array_interface__."""

from __future__ import annotations

import functools
from typing import Any, Dict, Optional, Tuple

from ._buffers import CARRIED, Buffer, Elements, Kind, is_torch, kind_of, of_torch, resolve
from ._devices import Device, current_stream
from .enums import DTYPE_OF_ARRAY_NAME, Dtype
from .errors import InvalidArgumentError


class DeviceMemory:
    """A rank's part of a window in the memory of a CUDA device. torch.as_tensor and cupy.asarray read it as uint8 without a copy.
    As a buffer of a call its bytes may be those of any type, with dtype=. Do not access it after the window is freed or the comm is
    finalized."""

    def __init__(self, address: int, nbytes: int, device: Device) -> None:
        self.address = address
        self.nbytes = nbytes
        self.device = device  # the one whose kernels can use the address: the comm's, not that of the rank whose part it is

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        data = (self.address, False)  # not read-only
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": data, "strides": None, "version": 3, "stream": None}


def device_buffer_of(
    obj: Any, what: str, device: Device, dtype: Optional[Dtype], writable: bool = False, computed: bool = False
) -> Buffer:
    """As buffer_of, for a comm on a CUDA device."""
    if is_torch(obj):
        return of_torch(obj, what, dtype, computed, device)
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is None:
        raise _elsewhere(obj, what, device)
    _check_device(obj, what, device)
    address, read_only = interface["data"]
    if writable and read_only:
        raise InvalidArgumentError(f"{what}: the {type(obj).__name__} is read-only")
    if interface.get("mask") is not None:
        raise InvalidArgumentError(f"{what}: the {type(obj).__name__} has a mask; pass its data without it")
    shape: Tuple[int, ...] = tuple(interface["shape"])
    elements = _BYTES if isinstance(obj, DeviceMemory) else _of_typestr(interface["typestr"])
    count = functools.reduce(int.__mul__, shape, 1)
    if count > 0 and not _contiguous(shape, interface.get("strides"), elements.itemsize):
        raise InvalidArgumentError(f"{what}: the {type(obj).__name__} is not contiguous: copy it to one that is")
    nbytes = count * elements.itemsize
    return Buffer(obj, address or 0, nbytes, resolve(what, elements, nbytes, dtype, computed), shape)


def new_tensor(operation: str, like: Any, shape: Tuple[int, ...], stream: Optional[int], device: Device) -> Any:
    """A new tensor for a result."""
    check_new_tensors(operation, kind_of(like), stream, device)
    return like.new_empty(shape)


def check_new_tensors(operation: str, kind: Kind, given: Optional[int], device: Device, missing: str = "") -> None:
    """Whether results can be new tensors. Their memory belongs to torch's current stream, where earlier work may still use it.
    given: the stream of a call that was given one; None: the call runs on the current stream. missing: the results that the caller's out= has no
    memory for; "": all."""
    how = f"add memory for {missing} to out=" if missing else "pass out="
    if not kind.is_torch:
        raise InvalidArgumentError(f"{operation}: a new result cannot be a {kind.name}: {how}")
    if given is None:
        return
    current = current_stream(device)
    if given != current:
        raise InvalidArgumentError(
            f"{operation}: a new result belongs to torch's current stream, {current:#x}, and the call was given stream {given:#x}: "
            f"{how}, or make the call within torch.cuda.stream()"
        )


def _elsewhere(obj: Any, what: str, device: Device) -> Exception:
    try:
        memoryview(obj).release()
    except (TypeError, ValueError):
        return TypeError(
            f"{what}: {type(obj).__name__} is not a buffer; pass a torch tensor of {device}, or an object with __cuda_array_interface__"
        )
    return InvalidArgumentError(
        f"{what}: the {type(obj).__name__} is in the memory of the host, and the comm's device is {device}: copy it there"
    )


def _check_device(obj: Any, what: str, device: Device) -> None:
    """The interface does not name the device. CuPy's arrays do, and our own windows."""
    of = getattr(obj, "device", None)
    ordinal = of.ordinal if isinstance(of, Device) else getattr(of, "id", None)
    if isinstance(ordinal, int) and ordinal != device.ordinal:
        raise InvalidArgumentError(f"{what}: the {type(obj).__name__} is on cuda:{ordinal}, and the comm's device is {device}")


_BYTES = Elements("bytes", Dtype.U8, 1, tuple(Dtype))
_KINDS = {"f": "float", "i": "int", "u": "uint"}


@functools.lru_cache(maxsize=None)
def _of_typestr(typestr: str) -> Elements:
    """The elements of an interface. Those of type V are what numpy has no name for; they may be the small floats."""
    order, kind, itemsize = typestr[0], typestr[1], int(typestr[2:])
    native = order in "<|"  # a GPU is little-endian
    name = f"{_KINDS[kind]}{8 * itemsize}" if native and kind in _KINDS else ""
    carried = CARRIED.get(f"uint{8 * itemsize}" if kind == "V" else name, ())
    return Elements(repr(typestr), DTYPE_OF_ARRAY_NAME.get(name), itemsize, carried)


def _contiguous(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], itemsize: int) -> bool:
    if strides is None:
        return True
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
