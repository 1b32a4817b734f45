"""A stand-in of torch with what the package asks of it: tensors in the memory of a device of the driver for tests, and a current stream."""

from __future__ import annotations

import math
import sys
import types
from typing import Any, Optional, Tuple

from fake_cuda import Array, Stream, read
from railhead import Dtype

_UNWRITTEN = b"\xa5"


class Element:
    """A torch.dtype."""

    def __init__(self, dtype: Dtype) -> None:
        self.name, self.itemsize = dtype.array_name, dtype.itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    def __init__(self, memory: bytes, dtype: Element, shape: Tuple[int, ...], ordinal: int) -> None:
        assert math.prod(shape) * dtype.itemsize == len(memory), (shape, len(memory))
        self._array, self.dtype, self.shape = Array(memory), dtype, shape
        self.device = types.SimpleNamespace(type="cuda", index=ordinal)
        self.contiguous = True

    def new_empty(self, shape: Tuple[int, ...], dtype: Optional[Element] = None) -> Tensor:
        dtype = self.dtype if dtype is None else dtype
        return Tensor(_UNWRITTEN * (math.prod(shape) * dtype.itemsize), dtype, shape, self.device.index)

    def is_contiguous(self) -> bool:
        return self.contiguous

    def is_neg(self) -> bool:
        return False

    def element_size(self) -> int:
        return self.dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def data_ptr(self) -> int:
        return self._array.address if self.numel() > 0 else 0

    def read(self) -> bytes:
        return read(self._array.address, self._array.nbytes) if self._array.nbytes > 0 else b""

    def write(self, memory: bytes) -> None:
        self._array.write(memory)


class Torch:
    """Makes tensors. While it exists, `stream` is torch's current stream."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal, self.stream = ordinal, Stream()
        self._elements = {dtype: Element(dtype) for dtype in Dtype}
        cuda = types.SimpleNamespace(is_initialized=lambda: True, is_available=lambda: True, current_stream=lambda ordinal: self.stream)
        names = {element.name: element for element in self._elements.values()}
        sys.modules["torch"] = types.SimpleNamespace(Tensor=Tensor, cuda=cuda, device=type("device", (), {}), **names)  # type: ignore[assignment]

    def make(self, memory: bytes, dtype: Dtype, *shape: int) -> Tensor:
        return Tensor(memory, self._elements[dtype], shape, self.ordinal)

    def read(self, tensor: Any, dtype: Dtype, *shape: int) -> bytes:
        assert isinstance(tensor, Tensor) and tensor.dtype is self._elements[dtype] and tensor.shape == shape, (tensor.dtype, tensor.shape, dtype, shape)
        self.stream.synchronize()
        return tensor.read()
