"""Streams, graphs and arrays on the driver of CUDA for tests (client/device/cuda/fake), whose device memory is the host's."""

from __future__ import annotations

import ctypes
import functools
import math
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any, Dict, Optional, Tuple

_LEGACY_STREAM = 1  # CU_GET_PROC_ADDRESS_LEGACY_STREAM
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

# The CUDA release that gave each function its parameters, and these.
_FUNCTIONS: Dict[str, Tuple[int, Tuple[Any, ...]]] = {
    "cuInit": (2000, (c_uint,)),
    "cuDevicePrimaryCtxRetain": (7000, (POINTER(c_void_p), c_int)),
    "cuCtxPushCurrent": (4000, (c_void_p,)),
    "cuMemAlloc": (3020, (POINTER(c_uint64), c_size_t)),
    "cuMemFree": (3020, (c_uint64,)),
    "cuMemcpyHtoD": (3020, (c_uint64, c_char_p, c_size_t)),
    "cuMemcpyDtoH": (3020, (c_void_p, c_uint64, c_size_t)),
    "cuMemsetD8Async": (3020, (c_uint64, c_ubyte, c_size_t, c_void_p)),
    "cuStreamCreate": (2000, (POINTER(c_void_p), c_uint)),
    "cuStreamSynchronize": (2000, (c_void_p,)),
    "cuStreamDestroy": (4000, (c_void_p,)),
    "cuStreamBeginCapture": (10010, (c_void_p, c_int)),
    "cuStreamEndCapture": (10000, (c_void_p, POINTER(c_void_p))),
    "cuGraphInstantiateWithFlags": (11040, (POINTER(c_void_p), c_void_p, c_uint64)),
    "cuGraphLaunch": (10000, (c_void_p, c_void_p)),
    "cuGraphExecDestroy": (10000, (c_void_p,)),
    "cuGraphDestroy": (10000, (c_void_p,)),
}


@functools.lru_cache(maxsize=None)
def _function(name: str) -> Any:
    library = ctypes.CDLL(os.environ["RAILHEAD_CUDA_LIBRARY"])
    release, parameters = _FUNCTIONS[name]
    address, found = c_void_p(), c_int()
    code = library.cuGetProcAddress_v2(name.encode(), byref(address), c_int(release), c_uint64(_LEGACY_STREAM), byref(found))
    if code != 0 or not address.value:
        raise AssertionError(f"the driver has no {name} of CUDA {release}: {code}")
    return ctypes.CFUNCTYPE(c_int, *parameters)(address.value)


def call(name: str, *arguments: Any) -> None:
    code = _function(name)(*arguments)
    if code != 0:
        raise AssertionError(f"{name}: CUDA error {code}")


def enter(device: int) -> None:
    """Makes the device current on this thread."""
    context = c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxPushCurrent", context)


class Array:
    """Memory of the current device, with __cuda_array_interface__. Fields of the interface can be replaced."""

    def __init__(self, memory: bytes, typestr: str = "|u1", shape: Optional[Tuple[int, ...]] = None, **fields: Any) -> None:
        pointer = c_uint64()
        call("cuMemAlloc", byref(pointer), max(len(memory), 1))
        self.address, self.nbytes = pointer.value, len(memory)
        count = len(memory) // int(typestr[2:])
        shape = (count,) if shape is None else shape
        assert math.prod(shape) == count
        own: Dict[str, Any] = {"shape": shape, "typestr": typestr, "data": (self.address, False), "version": 3}
        self.__cuda_array_interface__ = {**own, **fields}
        self.write(memory)

    def write(self, memory: bytes) -> None:
        call("cuMemcpyHtoD", self.address, memory, len(memory))

    def read(self) -> bytes:
        return read(self.address, self.nbytes)

    def free(self) -> None:
        call("cuMemFree", self.address)


def read(address: int, nbytes: int) -> bytes:
    memory = ctypes.create_string_buffer(nbytes)
    call("cuMemcpyDtoH", memory, address, nbytes)
    return memory.raw


class Stream:
    """A stream, with the attribute of torch's."""

    def __init__(self) -> None:
        handle = c_void_p()
        call("cuStreamCreate", byref(handle), 1)  # CU_STREAM_NON_BLOCKING
        self.cuda_stream = handle.value or 0
        self.capturing = False

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        call("cuMemsetD8Async", address, byte, nbytes, self.cuda_stream)

    def synchronize(self) -> None:
        call("cuStreamSynchronize", self.cuda_stream)

    def begin_capture(self) -> None:
        call("cuStreamBeginCapture", self.cuda_stream, _RELAXED)
        self.capturing = True

    def end_capture(self) -> Graph:
        graph, run = c_void_p(), c_void_p()
        call("cuStreamEndCapture", self.cuda_stream, byref(graph))
        self.capturing = False
        call("cuGraphInstantiateWithFlags", byref(run), graph, 0)
        call("cuGraphDestroy", graph)
        return Graph(run)


class Graph:
    def __init__(self, run: c_void_p) -> None:
        self._run = run

    def launch(self, stream: Stream) -> None:
        call("cuGraphLaunch", self._run, stream.cuda_stream)

    def destroy(self) -> None:
        call("cuGraphExecDestroy", self._run)
