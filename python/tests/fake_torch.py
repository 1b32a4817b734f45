"""A stand-in of torch with what the package asks of it: tensors in the memory of a device of the driver for tests, and a current stream.

Memory of a tensor that no longer exists is overwritten in the order of the stream on which it was made, as if a later tensor of that stream had it:
this is what torch promises, and no more. So a queued call that still reads the memory finds garbage."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from typing import Any, Optional, Tuple

from fake_cuda import Array, Stream, read
from railhead import Dtype

_UNWRITTEN = 0xA5
_REUSED = 0xFF  # NaN, and -1


class Element:
    """A torch.dtype."""

    def __init__(self, dtype: Dtype) -> None:
        self.name, self.itemsize = dtype.array_name, dtype.itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


@dataclasses.dataclass(frozen=True)
class Device:
    """A torch.device."""

    type: str
    index: Optional[int]


class Memory:
    """What tensors that are views of each other share."""

    def __init__(self, memory: bytes, stream: Stream) -> None:
        self.array, self._stream = Array(memory), stream
        self._of_graph = stream.capturing  # it lives as long as the graph

    def __del__(self) -> None:
        if not self._of_graph and not sys.is_finalizing():
            self._stream.fill(self.array.address, self.array.nbytes, _REUSED)


class Tensor:
    def __init__(self, memory: Memory, dtype: Element, shape: Tuple[int, ...], device: Device, begin: int = 0) -> None:
        self._memory, self._begin, self.dtype, self.shape, self.device = memory, begin, dtype, shape, device
        self.contiguous = True

    def __getitem__(self, part: slice) -> Tensor:
        begin, end, step = part.indices(self.shape[0])
        assert len(self.shape) == 1 and step == 1
        return Tensor(self._memory, self.dtype, (end - begin,), self.device, self._begin + begin * self.dtype.itemsize)

    def view(self, to: Any) -> Tensor:
        dtype, shape = (self.dtype, to) if isinstance(to, tuple) else (to, (self._nbytes // to.itemsize,))
        assert math.prod(shape) * dtype.itemsize == self._nbytes and self._begin % dtype.itemsize == 0
        return Tensor(self._memory, dtype, shape, self.device, self._begin)

    @property
    def _nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return self.contiguous

    def is_neg(self) -> bool:
        return False

    def element_size(self) -> int:
        return self.dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def data_ptr(self) -> int:
        return self._memory.array.address + self._begin if self.numel() > 0 else 0

    def read(self) -> bytes:
        return read(self.data_ptr(), self._nbytes) if self._nbytes > 0 else b""

    def write(self, memory: bytes) -> None:
        assert len(memory) == self._memory.array.nbytes
        self._memory.array.write(memory)


class Torch:
    """Makes tensors. While it exists, `stream` is torch's current stream."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal, self.stream = ordinal, Stream()
        self._elements = {dtype: Element(dtype) for dtype in Dtype}
        cuda = types.SimpleNamespace(is_initialized=lambda: True, is_available=lambda: True, current_stream=lambda ordinal: self.stream)
        names = {element.name: element for element in self._elements.values()}
        sys.modules["torch"] = types.SimpleNamespace(  # type: ignore[assignment]
            Tensor=Tensor, cuda=cuda, device=type("device", (), {}), empty=self._empty, **names
        )

    def _empty(self, shape: Tuple[int, ...], dtype: Element, device: Device) -> Tensor:
        return Tensor(Memory(bytes([_UNWRITTEN]) * (math.prod(shape) * dtype.itemsize), self.stream), dtype, shape, device)

    def make(self, memory: bytes, dtype: Dtype, *shape: int) -> Tensor:
        assert math.prod(shape) * dtype.itemsize == len(memory), (shape, len(memory))
        return Tensor(Memory(memory, self.stream), self._elements[dtype], shape, Device("cuda", self.ordinal))

    def read(self, tensor: Any, dtype: Dtype, *shape: int) -> bytes:
        assert isinstance(tensor, Tensor) and tensor.dtype is self._elements[dtype] and tensor.shape == shape, (tensor.dtype, tensor.shape, dtype, shape)
        self.stream.synchronize()
        return tensor.read()
