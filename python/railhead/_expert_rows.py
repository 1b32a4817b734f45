"""Memory for the rows that a dispatch receives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Mapping, Optional, Tuple

from ._abi import EpDispatchOut, versioned
from ._buffers import Buffer, Kind, torch_dtype
from ._device_buffers import check_new_tensors
from .enums import Dtype
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .comm import Comm
    from .expert_parallel import ExpertBuffer

Layout = Literal["padded", "flat", "tokens"]
_LAYOUTS = {"padded": 0, "flat": 1, "tokens": 2}
_FIELDS = {"rows": "rows_ptr", "tokens": "tokens_ptr"}  # names in the C struct, where they differ


Formats = Dict[str, Tuple[Dtype, Tuple[int, ...]]]  # type and shape of each output
_ALIGNMENT = 256  # bytes; of an output within the tensor that it shares


class Outputs:
    """What a dispatch writes in a layout with a capacity. Of new tensors x is one, and the others are parts of a second one: a tensor takes
    microseconds to make."""

    def __init__(self, buffer: ExpertBuffer, layout: Layout, capacity: int) -> None:
        self.formats = _formats(buffer, layout, capacity)
        self.x_shape = self.formats["x"][1]
        self.x_rows = math.prod(self.x_shape[:-1])
        self.parts: Dict[str, Tuple[str, int]] = {}  # but for x: the field of the C struct, and the place in the second tensor, in bytes
        self.nbytes = 0
        for name, (dtype, shape) in self.formats.items():
            if name != "x":
                self.parts[name] = _FIELDS.get(name, name), self.nbytes
                self.nbytes += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


class Rows:
    """The outputs of one call: those that the caller has given, and new ones. given: the stream of a call that was given one."""

    def __init__(self, buffer: ExpertBuffer, operation: str, room: Room, capacity: int, kind: Kind, given: Optional[int]) -> None:
        self.layout = room.layout
        self._outputs = buffer._outputs(room.layout, capacity)
        self._arrays: Dict[str, Any] = {}
        self._shared: Any = None  # the tensor of which the new outputs but x are parts
        self.held: List[Buffer] = []  # until the call has returned
        self._addresses: Dict[str, int] = {}
        for name, target in room.given.items():
            _check_size(operation, name, target, self._outputs.formats[name][1], buffer._comm.rank)
            self._take(name, target)
        if buffer._comm.device.ordinal is None:
            self._new_buffers(buffer._comm, operation, kind)
        else:
            self._new_tensors(buffer._comm, operation, kind, given)
        self.raw = versioned(EpDispatchOut, layout=_LAYOUTS[room.layout], alignment=room.alignment, capacity=capacity, **self._addresses)
        self.x_rows = self._outputs.x_rows

    def array(self, name: str) -> Any:
        """An output. None: the layout does not have it, or it was not written."""
        found = self._arrays.get(name)
        if found is None and self._shared is not None and name in self._outputs.parts:
            dtype, shape = self._outputs.formats[name]
            begin = self._outputs.parts[name][1]
            part = self._shared[begin : begin + math.prod(shape) * dtype.itemsize]
            found = self._arrays[name] = part.view(torch_dtype(dtype)).view(shape)
        return found

    def _take(self, name: str, target: Buffer) -> None:
        self._arrays[name] = target.owner
        self.held.append(target)
        self._addresses[_FIELDS.get(name, name)] = target.address

    def _new_buffers(self, comm: Comm, operation: str, kind: Kind) -> None:
        """On the CPU."""
        for name, (dtype, shape) in self._outputs.formats.items():
            if name not in self._arrays:
                array = kind.make(f"{operation}: out", dtype, shape)
                if kind.is_torch:  # a new tensor needs no checks
                    self._arrays[name], self._addresses[_FIELDS.get(name, name)] = array, array.data_ptr()
                else:
                    self._take(name, comm._buffer(array, f"{operation}: {name}", dtype, True, True))

    def _new_tensors(self, comm: Comm, operation: str, kind: Kind, given: Optional[int]) -> None:
        """On a CUDA device. Of callers without torch it makes none, and needs x. New tensors need no checks."""
        outputs, arrays = self._outputs, self._arrays
        missing = [name for name in outputs.formats if name not in arrays] if arrays else []
        if (arrays and not missing) or (not kind.is_torch and "x" in arrays):
            return
        check_new_tensors(operation, kind, given, comm.device, ", ".join(missing if kind.is_torch else missing[:1]))
        if "x" not in arrays:
            x = arrays["x"] = kind.make(f"{operation}: out", outputs.formats["x"][0], outputs.x_shape)
            self._addresses["x"] = x.data_ptr()
        self._shared = kind.make(f"{operation}: out", Dtype.U8, (outputs.nbytes,))
        base: int = self._shared.data_ptr()
        for name, (field, begin) in outputs.parts.items():
            if name not in arrays:
                self._addresses[field] = base + begin


class Room:
    """What a caller of receive has asked for, checked. capacity is None if neither the number nor the memory of x was given."""

    def __init__(
        self, buffer: ExpertBuffer, operation: str, layout: Layout, capacity: Optional[int], alignment: int, out: Any
    ) -> None:
        comm, hidden = buffer._comm, buffer.config.hidden
        chosen(operation, "layout", layout, _LAYOUTS)
        if not 1 <= alignment < 2**32:
            raise InvalidArgumentError(f"{operation}: rank {comm.rank}: alignment {alignment} is outside 1..{2**32 - 1}")
        if capacity is not None and not 0 <= capacity < 2**32:
            raise InvalidArgumentError(f"{operation}: rank {comm.rank}: capacity {capacity} is outside 0..{2**32 - 1}")
        self.layout, self.alignment, self.capacity = layout, alignment, capacity
        self.given: Dict[str, Buffer] = {}
        if out is None:
            return
        given: Mapping[str, Any] = out if isinstance(out, Mapping) else {"x": out}
        formats = buffer._outputs(layout, 0).formats
        for name in given:
            if name not in formats:
                raise InvalidArgumentError(
                    f"{operation}: rank {comm.rank}: out names {name!r}; layout {layout!r} has {', '.join(formats)} here"
                )
        self.given = {
            name: comm._buffer(memory, f"{operation}: {'out' if memory is out else name}", formats[name][0], True, True)
            for name, memory in given.items()
        }
        if "x" not in given:
            return
        if capacity is not None:
            raise InvalidArgumentError(f"{operation}: rank {comm.rank}: the size of out is the capacity: omit capacity=")
        rows = rows_of(self.given["x"], hidden, f"{operation}: out", comm.rank)
        self.capacity = rows // max(buffer.local_experts, 1) if layout == "padded" else rows


def always_enough(buffer: ExpertBuffer, layout: Layout, alignment: int) -> int:
    """The capacity for all that the ranks can send: railhead_ep.h, at RH_EP_PADDED."""
    copies = buffer._comm.world_size * buffer.config.max_tokens_per_rank
    if layout != "flat":
        return copies
    return copies * min(buffer.config.topk, buffer.local_experts) + (alignment - 1) * buffer.local_experts


def needed(rows: Any, tokens: int, layout: Layout, alignment: int) -> int:
    """The capacity for the rows that the local experts receive."""
    if layout == "padded":
        return max(rows, default=0)
    return tokens if layout == "tokens" else sum(-(-n // alignment) * alignment for n in rows)


def _formats(buffer: ExpertBuffer, layout: Layout, capacity: int) -> Formats:
    """Type and shape of each output that the layout has."""
    local, columns, topk = buffer.local_experts, buffer.scale_columns, buffer.config.topk
    each = (local, capacity) if layout == "padded" else (capacity,)
    formats: Formats = {"x": (buffer.config.wire, (*each, buffer.config.hidden))}
    if columns > 0:
        formats["scales"] = (buffer._scale_dtype, (*each, columns))
    formats["counts"] = (Dtype.I32, (local,))
    if layout == "tokens":
        formats["topk_idx"] = (Dtype.I32, (*each, topk))
        formats["topk_weights"] = (Dtype.F32, (*each, topk))
    else:
        formats["offsets"] = (Dtype.I64, (local + 1,))
        formats["weights"] = (Dtype.F32, each)
    formats["source_rank"] = formats["source_token"] = (Dtype.I32, each)
    if buffer._comm.device.ordinal is not None:  # on the CPU the call returns them
        formats["rows"] = formats["tokens"] = (Dtype.I64, (1,))
    return formats


def _check_size(operation: str, name: str, target: Buffer, shape: Tuple[int, ...], rank: int) -> None:
    count = math.prod(shape)
    if name != "x" and target.count != count:  # x's size is the capacity
        raise InvalidArgumentError(f"{operation}: rank {rank}: {name} has {target.count} elements; want {count}, of shape {shape}")


def rows_of(buffer: Buffer, columns: int, what: str, rank: int) -> int:
    """The number of rows of a buffer [..., columns]. A flat buffer is divided into rows of columns elements."""
    if buffer.count % columns != 0 or (len(buffer.shape) > 1 and buffer.shape[-1] != columns):
        name, _, argument = what.partition(": ")
        raise InvalidArgumentError(f"{name}: rank {rank}: {argument} has shape {buffer.shape}; want rows of {columns}")
    return buffer.count // columns


def chosen(operation: str, name: str, value: str, choices: Dict[str, int]) -> int:
    """The number of the choice named value."""
    if value not in choices:
        raise InvalidArgumentError(f"{operation}: {name} {value!r}; want {', '.join(map(repr, choices))}")
    return choices[value]
