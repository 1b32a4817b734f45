"""The life of a dispatch: sent, received, combined."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Tuple

from ._abi import EpCombineArgs, EpDispatchOut, EpReport, versioned
from ._buffers import Buffer, buffer_of, empty
from ._library import check_on, load
from .enums import Dtype
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from ._collectives import Readable
    from .expert_parallel import ExpertBuffer

Layout = Literal["padded", "flat", "tokens"]
_LAYOUTS = {"padded": 0, "flat": 1, "tokens": 2}


@dataclasses.dataclass(frozen=True)
class ExpertReport:
    """Counts of lost, invalid and dropped tokens. False if there were none."""

    lost_ranks: Tuple[int, ...]  # masked, dead or late
    lost_copies: int  # token copies that did not reach these ranks, or did not come back
    invalid_ids: int  # entries of topk_idx
    duplicate_ids: int
    excess_tokens: int  # beyond max_tokens_per_rank
    non_finite: int  # tokens
    over_capacity: int  # rows, on the receiver
    message: str  # the first of each: rank, token, value

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in dataclasses.fields(self))


class Dispatch:
    """Tokens that were sent but not received. ExpertBuffer.dispatch_send makes it."""

    def __init__(
        self, buffer: ExpertBuffer, handle: ctypes.c_void_p, stream: Optional[int], x: Any, tokens: int, inputs: Tuple[Any, ...]
    ) -> None:
        self._buffer = buffer
        self._handle = handle
        self._stream = stream  # of its calls
        self._x = x  # outputs have its kind
        self._tokens = tokens
        self._kept = inputs  # memory that the library may still read or write

    def counts(self) -> Tuple[List[int], int]:
        """Waits until sizes are known: the rows of each local expert, and the number of token copies."""
        local = self._buffer.local_experts
        rows, tokens = (ctypes.c_int32 * max(local, 1))(), ctypes.c_uint64()
        self._check(load().rh_ep_dispatch_counts(self._handle, rows, ctypes.byref(tokens), self._stream))
        return list(rows)[:local], tokens.value

    def receive(
        self, layout: Layout = "padded", *, capacity: Optional[int] = None, alignment: int = 1, out: Any = None
    ) -> Received:
        """The second phase: waits for the tokens, and groups them by local expert.

        layout: "padded" is x [local_experts, capacity, hidden]; "flat" is [capacity, hidden], expert after expert, each from a
        multiple of alignment rows on; "tokens" is [capacity, hidden], each token once. capacity: by default the number of
        received rows, which costs a call of counts(). out: memory for x; its size is then the capacity.

        After a LimitError (capacity too small) nothing was received, and receive can be called again."""
        buffer, config = self._buffer, self._buffer.config
        capacity = room(buffer, layout, capacity, alignment, out)
        if capacity is None:
            capacity = self._needed(layout, alignment)
        shape = (buffer.local_experts, capacity) if layout == "padded" else (capacity,)
        arrays = self._outputs(layout, shape)
        arrays["x"] = self._empty(config.wire, (*shape, config.hidden)) if out is None else out
        dtypes = {"x": config.wire}  # out may be bytes
        targets = {
            name: buffer_of(a, f"receive: {name}", dtypes.get(name), True, True) for name, a in arrays.items() if a is not None
        }
        report = _Report(buffer._comm.world_size)
        raw = versioned(
            EpDispatchOut,
            report=ctypes.addressof(report.raw),
            layout=_LAYOUTS[layout],
            alignment=alignment,
            capacity=capacity,
            **{name: target.address for name, target in targets.items()},
        )
        self._check(load().rh_ep_dispatch_recv(self._handle, ctypes.byref(raw), self._stream))
        self._kept = ()
        return Received(self, layout, arrays, raw, report.read())

    def _needed(self, layout: Layout, alignment: int) -> int:
        """The capacity that the incoming tokens need."""
        rows, tokens = self.counts()
        if layout == "padded":
            return max(rows, default=0)
        return tokens if layout == "tokens" else sum(-(-n // alignment) * alignment for n in rows)

    def _outputs(self, layout: Layout, shape: Tuple[int, ...]) -> Dict[str, Any]:
        """Memory for all outputs but x, by their names in the C struct. None: the layout does not have that output."""
        local, columns, topk = self._buffer.local_experts, self._buffer.scale_columns, self._buffer.config.topk
        by_token = layout == "tokens"
        return {
            "scales": self._empty(self._buffer._scale_dtype, (*shape, columns)) if columns > 0 else None,
            "counts": self._empty(Dtype.I32, (local,)),
            "offsets": None if by_token else self._empty(Dtype.I64, (local + 1,)),
            "weights": None if by_token else self._empty(Dtype.F32, shape),
            "source_rank": self._empty(Dtype.I32, shape),
            "source_token": self._empty(Dtype.I32, shape),
            "topk_idx": self._empty(Dtype.I32, (*shape, topk)) if by_token else None,
            "topk_weights": self._empty(Dtype.F32, (*shape, topk)) if by_token else None,
        }

    def _empty(self, dtype: Dtype, shape: Tuple[int, ...]) -> Any:
        return empty(self._x, "receive: out", dtype, shape)

    def _check(self, result: int) -> None:
        check_on(result, (self._buffer._comm._handle,))

    def _end(self) -> None:
        self._kept = ()
        self._buffer._flights.remove(self)


class Received:
    """The tokens that this rank received. A row is one token for one local expert; in the layout "tokens" a row is one token.
    Rows after an expert's last row are not written."""

    def __init__(self, sent: Dispatch, layout: Layout, arrays: Dict[str, Any], raw: EpDispatchOut, report: ExpertReport) -> None:
        self._sent = sent
        self._out: Any = None  # result of the combine under way
        self.layout = layout
        self.x = arrays["x"]  # of wire_dtype
        self.scales = arrays["scales"]  # [rows, scale_columns], float32 or UE8M0 bytes; None: without
        self.counts = arrays["counts"]  # [local_experts], rows of each
        self.offsets = arrays["offsets"]  # [local_experts + 1], the row at which each expert's block begins, and the end
        self.weights = arrays["weights"]  # [rows], the router's
        self.source_rank = arrays["source_rank"]  # [rows]
        self.source_token = arrays["source_token"]  # [rows]
        self.topk_idx = arrays["topk_idx"]  # "tokens": [rows, topk], local experts, then -1
        self.topk_weights = arrays["topk_weights"]  # "tokens": [rows, topk]
        self.rows: int = raw.rows  # the end of the last block
        self.tokens: int = raw.tokens  # token copies
        self.report = report
        self.combine_report: Optional[ExpertReport] = None  # once combined

    def combine(
        self,
        y: Readable,
        *,
        add: Optional[Readable] = None,
        out: Any = None,
        weighted: bool = False,
        dtype: Optional[Dtype] = None,
        out_dtype: Optional[Dtype] = None,
    ) -> Any:
        """Returns the combined outputs of the experts: [tokens, hidden], for each token the sum of weight * y over its experts,
        plus add.

        y: in the layout of x, of F32, BF16 or F16. add: [tokens, hidden], such as the shared expert's output; may be out.
        weighted: y is already multiplied by the weights. In the layout "tokens" y must always be weighted, and summed over the
        rank's experts. Without out a new buffer of y's kind is returned; its type is out_dtype, otherwise add's, otherwise y's.
        dtype= and out_dtype= are required if y, or add and out, have no element type. combine ends the dispatch."""
        self.combine_send(y, add=add, out=out, weighted=weighted, dtype=dtype, out_dtype=out_dtype)
        return self.combine_receive()

    def combine_send(
        self,
        y: Readable,
        *,
        add: Optional[Readable] = None,
        out: Any = None,
        weighted: bool = False,
        dtype: Optional[Dtype] = None,
        out_dtype: Optional[Dtype] = None,
    ) -> None:
        """The first phase of combine; combine_receive is the second. The library uses y, add and out until combine_receive has
        returned."""
        tokens, hidden = self._sent._tokens, self._sent._buffer.config.hidden
        rank = self._sent._buffer._comm.rank
        source = buffer_of(y, "combine: y", dtype, computed=True)
        if rows_of(source, hidden, "combine: y", rank) < self.rows:
            raise InvalidArgumentError(f"combine: rank {rank}: y has {source.count // hidden} rows; x had {self.rows}")
        if out_dtype is None:
            given = out if add is None else add
            out_dtype = source.dtype if given is None else buffer_of(given, "combine: out or add").dtype
        if out is None:
            out = empty(y, "combine: out", out_dtype, (tokens, hidden))
        buffers = {"out": buffer_of(out, "combine: out", out_dtype, True, computed=True)}
        if add is not None:
            buffers["add"] = buffer_of(add, "combine: add", out_dtype, computed=True)
        for name, buffer in buffers.items():
            rows = rows_of(buffer, hidden, f"combine: {name}", rank)
            if rows != tokens:
                raise InvalidArgumentError(f"combine: rank {rank}: {name} has {rows} rows; {tokens} tokens were dispatched")
        raw = versioned(
            EpCombineArgs,
            y=source.address,
            y_dtype=source.dtype,
            out_dtype=out_dtype,
            weighted=weighted,
            **{name: buffer.address for name, buffer in buffers.items()},
        )
        self._sent._kept += (source, *buffers.values())
        self._sent._check(load().rh_ep_combine_send(self._sent._handle, ctypes.byref(raw), self._sent._stream))
        self._out = out

    def combine_receive(self) -> Any:
        """The second phase: waits for the other ranks' sums, and returns the result of combine."""
        report = _Report(self._sent._buffer._comm.world_size)
        self._sent._check(load().rh_ep_combine_recv(self._sent._handle, ctypes.byref(report.raw), self._sent._stream))
        self.combine_report = report.read()
        self._sent._end()
        return self._out

    def release(self) -> None:
        """Ends a dispatch without a combine. All ranks must call it."""
        self._sent._check(load().rh_ep_release(self._sent._handle, self._sent._stream))
        self._sent._end()


def room(buffer: ExpertBuffer, layout: Layout, capacity: Optional[int], alignment: int, out: Any) -> Optional[int]:
    """The requested capacity, given as a number or by out; None: as much as is needed."""
    rank, hidden = buffer._comm.rank, buffer.config.hidden
    chosen("receive", "layout", layout, _LAYOUTS)
    if not 1 <= alignment < 2**32:
        raise InvalidArgumentError(f"receive: rank {rank}: alignment {alignment} is outside 1..{2**32 - 1}")
    if capacity is not None and not 0 <= capacity < 2**32:
        raise InvalidArgumentError(f"receive: rank {rank}: capacity {capacity} is outside 0..{2**32 - 1}")
    if out is None:
        return capacity
    if capacity is not None:
        raise InvalidArgumentError(f"receive: rank {rank}: the size of out is the capacity: omit capacity=")
    rows = rows_of(buffer_of(out, "receive: out", buffer.config.wire, True, computed=True), hidden, "receive: out", rank)
    return rows // max(buffer.local_experts, 1) if layout == "padded" else rows


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


class _Report:
    """Memory to which the library writes a report, with room for every rank."""

    def __init__(self, world_size: int) -> None:
        self._ranks = (ctypes.c_int32 * world_size)()
        self.raw = versioned(EpReport, lost_ranks=ctypes.addressof(self._ranks), lost_capacity=world_size)

    def read(self) -> ExpertReport:
        fields = {field.name: getattr(self.raw, field.name) for field in dataclasses.fields(ExpertReport)}
        fields["lost_ranks"] = tuple(self._ranks[: self.raw.lost_count])
        fields["message"] = self.raw.message.decode("utf-8", "replace")
        return ExpertReport(**fields)
