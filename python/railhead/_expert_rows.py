"""Memory for the rows that a dispatch receives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Mapping, Optional, Tuple

from ._abi import EpDispatchOut, versioned
from ._buffers import Buffer, is_torch
from .enums import Dtype
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .expert_parallel import ExpertBuffer

Layout = Literal["padded", "flat", "tokens"]
_LAYOUTS = {"padded": 0, "flat": 1, "tokens": 2}
_FIELDS = {"rows": "rows_ptr", "tokens": "tokens_ptr"}  # names in the C struct, where they differ


class Rows:
    """The outputs of a dispatch: those that the caller has given, and new ones of the kind of `like`. at: the stream of the call."""

    def __init__(self, buffer: ExpertBuffer, operation: str, room: Room, capacity: int, like: Any, at: Optional[int]) -> None:
        comm = buffer._comm
        self.layout = room.layout
        self.arrays: Dict[str, Any] = {}
        self._held: List[Buffer] = []  # until the call has returned
        addresses: Dict[str, int] = {}
        formats = _formats(buffer, room.layout, capacity)
        empties = None
        for name, (dtype, shape) in formats.items():
            target = room.given.get(name)
            if target is not None:
                _check_size(operation, name, target, shape, comm.rank)
                self.arrays[name] = target.owner
            elif comm.device.ordinal is None or is_torch(like) or name == "x":
                empties = empties or comm._empties(operation, like, at)
                self.arrays[name] = empties(dtype, shape)
                if is_torch(like):  # a new tensor needs no checks
                    addresses[_FIELDS.get(name, name)] = self.arrays[name].data_ptr()
                    continue
                target = comm._buffer(self.arrays[name], f"{operation}: {name}", dtype, True, True)
            else:
                continue
            self._held.append(target)
            addresses[_FIELDS.get(name, name)] = target.address
        self.raw = versioned(EpDispatchOut, layout=_LAYOUTS[room.layout], alignment=room.alignment, capacity=capacity, **addresses)
        self.x_rows = math.prod(formats["x"][1][:-1])


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
        given: Mapping[str, Any] = {} if out is None else out if isinstance(out, Mapping) else {"x": out}
        formats = _formats(buffer, layout, 0)
        for name in given:
            if name not in formats:
                raise InvalidArgumentError(
                    f"{operation}: rank {comm.rank}: out names {name!r}; layout {layout!r} has {', '.join(formats)} here"
                )
        self.layout, self.alignment, self.capacity = layout, alignment, capacity
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
    """The capacity for all that the ranks can send: railhead.h, at RH_EP_PADDED."""
    copies = buffer._comm.world_size * buffer.config.max_tokens_per_rank
    if layout != "flat":
        return copies
    return copies * min(buffer.config.topk, buffer.local_experts) + (alignment - 1) * buffer.local_experts


def needed(rows: Any, tokens: int, layout: Layout, alignment: int) -> int:
    """The capacity for the rows that the local experts receive."""
    if layout == "padded":
        return max(rows, default=0)
    return tokens if layout == "tokens" else sum(-(-n // alignment) * alignment for n in rows)


def _formats(buffer: ExpertBuffer, layout: Layout, capacity: int) -> Dict[str, Tuple[Dtype, Tuple[int, ...]]]:
    """Type and shape of each output that the layout has."""
    local, columns, topk = buffer.local_experts, buffer.scale_columns, buffer.config.topk
    each = (local, capacity) if layout == "padded" else (capacity,)
    formats: Dict[str, Tuple[Dtype, Tuple[int, ...]]] = {"x": (buffer.config.wire, (*each, buffer.config.hidden))}
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
