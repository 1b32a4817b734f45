"""Windows: symmetric memory, which every rank of a comm can access."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, Optional, Union

from ._abi import RegisterConfig, WindowInfo, WindowSharing, versioned
from ._buffers import numpy_dtype
from ._device_buffers import DeviceMemory
from ._library import check, check_on, load
from .enums import Dtype, Result
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy

    from .comm import Comm


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Whether collectives on a window are zero-copy; if not, the lowest rank whose memory cannot be shared, and why."""

    zero_copy: bool
    rank: Optional[int]
    reason: str


_MEMORY_DEVICE = 2  # RH_MEMORY_DEVICE


class Window:
    """Memory of every rank. Views of it are plain memory without checks: do not access them after the window is freed or the comm
    is finalized."""

    def __init__(self, comm: Comm, handle: ctypes.c_void_p) -> None:
        self._comm = comm
        self._handle = handle
        self._freed = False
        info = versioned(WindowInfo)
        check(load().rh_window_get_info(handle, ctypes.byref(info)))
        self.nbytes: int = info.bytes
        self._on_device: bool = info.memory == _MEMORY_DEVICE
        self.offset: int = info.offset  # in every rank's heap; 0 for registered memory

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: object, exception: object, trace: object) -> None:
        # After an exception the other ranks may never call free, so the end of the comm frees the window.
        if exception is None and not self._freed and not self._comm._ended:
            self.free()

    def free(self) -> None:
        """Collective: frees the pages when every rank has called it. The window is invalid afterwards, unless BusyError was raised."""
        result = load().rh_window_free(self._handle)
        self._freed = result != Result.BUSY
        check_on(result, (self._comm._handle,))
        self._comm._registered.pop(self._handle.value or 0, None)

    def memory(self, rank: Optional[int] = None) -> memoryview:
        """The bytes of rank's part, this rank's by default, writable."""
        if self._on_device:
            raise InvalidArgumentError(
                f"window: its memory is on {self._comm.device}, where the host cannot read it: use device_memory or as_torch"
            )
        memory = (ctypes.c_char * self.nbytes).from_address(self._pointer(rank))
        return memoryview(memory).cast("B")

    def device_memory(self, rank: Optional[int] = None) -> DeviceMemory:
        """rank's part of a window on a CUDA device, this rank's by default, as an object with __cuda_array_interface__."""
        if not self._on_device:
            raise InvalidArgumentError("window: its memory is on the host: use memory, as_numpy or as_torch")
        return DeviceMemory(self._pointer(rank), self.nbytes, self._comm.device)

    def _pointer(self, rank: Optional[int]) -> int:
        pointer = ctypes.c_void_p()
        number = self._comm.rank if rank is None else rank
        check(load().rh_window_pointer(self._handle, number, ctypes.byref(pointer)))
        return pointer.value or 0

    def as_numpy(self, dtype: Any, rank: Optional[int] = None) -> numpy.ndarray[Any, Any]:
        """rank's part, this rank's by default, as a one-dimensional array. dtype: a Dtype or what numpy.dtype takes."""
        import numpy

        element: numpy.dtype[Any] = numpy.dtype(numpy_dtype(dtype) if isinstance(dtype, Dtype) else dtype)
        self._check_whole(element.itemsize, element.name)
        return numpy.frombuffer(self.memory(rank), dtype=element)

    def as_torch(self, dtype: Any, rank: Optional[int] = None) -> Any:
        """rank's part, this rank's by default, as a one-dimensional tensor. dtype: a Dtype or a torch.dtype. On a CUDA device
        torch must have numpy, and takes parts of other ranks only if they are on the comm's GPU; kernels can use the addresses of
        device_memory."""
        import torch

        element = getattr(torch, dtype.array_name) if isinstance(dtype, Dtype) else dtype
        self._check_whole(torch.empty(0, dtype=element).element_size(), str(element))
        if not self._on_device:
            return torch.frombuffer(self.memory(rank), dtype=element)
        memory = self.device_memory(rank)
        tensor = torch.as_tensor(memory, device=str(self._comm.device))
        if tensor.data_ptr() != memory.address:  # torch asks the driver for the memory's device, and copies from another one
            raise InvalidArgumentError(
                f"window: the part of rank {rank} is not on {self._comm.device}, so torch cannot view it there: use device_memory"
            )
        return tensor.view(element)

    def sharing(self) -> Sharing:
        """Whether the ranks have mapped each other's memory."""
        raw = versioned(WindowSharing)
        check(load().rh_window_get_sharing(self._handle, ctypes.byref(raw)))
        rank = raw.rank if raw.rank >= 0 else None
        return Sharing(bool(raw.zero_copy), rank, raw.reason.decode("utf-8", "replace"))

    def _check_whole(self, itemsize: int, name: str) -> None:
        if self.nbytes % itemsize != 0:
            raise InvalidArgumentError(f"window: {self.nbytes} bytes is not a multiple of {itemsize}, the size of {name}")


def register(comm: Comm, buffer: Any, fd: Optional[int], fd_offset: int) -> Window:
    """Comm.register_window."""
    if fd is not None and not 0 <= fd < 2**31:
        raise InvalidArgumentError(f"register_window: rank {comm.rank}: fd {fd} is outside 0..{2**31 - 1}")
    if fd_offset < 0:
        raise InvalidArgumentError(f"register_window: rank {comm.rank}: fd_offset {fd_offset} is negative")
    memory = comm._buffer(buffer, "register_window: buffer", Dtype.U8, writable=True)
    config = versioned(
        RegisterConfig, pointer=memory.address, bytes=memory.nbytes, fd=-1 if fd is None else fd, fd_offset=fd_offset
    )
    handle = ctypes.c_void_p()
    check_on(load().rh_window_register(comm._handle, ctypes.byref(config), ctypes.byref(handle)), (comm._handle,))
    comm._registered[handle.value or 0] = memory
    return Window(comm, handle)
