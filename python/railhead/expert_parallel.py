"""Expert parallelism: the buffer through which the ranks of a comm exchange tokens of a mixture of experts."""

from __future__ import annotations

import ctypes
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Sequence, Tuple

from ._abi import EpConfig, EpDispatchIn, EpInfo, versioned
from ._buffers import Buffer, empty, kind_of
from ._devices import KINDS, stream_of
from ._expert_rows import Layout, Outputs, Room, Rows, always_enough, chosen, rows_of
from ._library import check, check_on, load, ranks_of
from .enums import Dtype, Result
from .errors import InvalidArgumentError
from .expert_dispatch import Dispatch, Received
from .expert_report import ExpertReport, ReportMemory

if TYPE_CHECKING:
    from ._collectives import Readable
    from .comm import Comm

_MODES = {"ll": 1, "ht": 2}
_SCALES = {"f32": 0, "ue8m0": 1, "static": 2}
_ON_INVALID = {"error": 0, "drop": 1}
_ON_DEAD = {"fail": 0, "drop": 1}
_LOST_WEIGHTS = {"keep": 0, "renormalize": 1}
_MOST_KNOWN = 64  # sets of outputs that a buffer remembers


@dataclasses.dataclass(frozen=True)
class ExpertConfig:
    """The parameters of an ExpertBuffer, the same on every rank. railhead_ep.h explains each field.

    mode: "ll" (decode) has room for the worst case, "ht" (prefill) for a few chunks. Without tables, rank r holds a block of
    consecutive experts. With tables, physical expert p is a replica of expert physical_expert[p] and is on rank
    physical_rank[p]."""

    mode: Literal["ll", "ht"]
    max_tokens_per_rank: int
    hidden: int  # elements of a token
    num_experts: int
    topk: int  # experts of a token
    dtype: Dtype = Dtype.BF16  # of x: F32, BF16, F16, or FP8_E4M3 with x_scales
    wire_dtype: Optional[Dtype] = None  # of dispatched tokens: F32, BF16, F16 or FP8_E4M3; None: dtype
    combine_dtype: Optional[Dtype] = None  # of sums on their way back: F32, BF16 or F16; None: dtype, BF16 where that is FP8
    scale: Literal["f32", "ue8m0", "static"] = "f32"  # of an FP8 wire: one of 128 elements, or static_scale for all
    static_scale: float = 0.0
    physical_expert: Optional[Sequence[int]] = None
    physical_rank: Optional[Sequence[int]] = None
    on_invalid: Literal["error", "drop"] = "error"
    on_dead: Literal["fail", "drop"] = "fail"
    lost_weights: Literal["keep", "renormalize"] = "keep"

    @property
    def wire(self) -> Dtype:
        """wire_dtype, or its default, dtype."""
        return Dtype(self.dtype if self.wire_dtype is None else self.wire_dtype)

    def buffer_size(self, world_size: int, device: Literal["cpu", "cuda"] = "cpu") -> int:
        """Window memory, in bytes, that a buffer of a comm on such a device uses in each rank's heap. It does not include outputs and private
        memory."""
        nbytes = ctypes.c_uint64()
        raw, tables = self._raw(chosen("buffer_size", "device", device, KINDS))
        check(load().rh_ep_buffer_size(ctypes.byref(raw), _number("world_size", world_size, 2**31), ctypes.byref(nbytes)))
        del tables  # raw points to them
        return nbytes.value

    def _raw(self, device_kind: int) -> Tuple[EpConfig, Tuple[Any, ...]]:
        """The C struct, and the tables that it points to."""
        experts = _table("physical_expert", self.physical_expert)
        ranks = _table("physical_rank", self.physical_rank)
        lengths = {len(table) for table in (experts, ranks) if table is not None} or {0}
        if len(lengths) > 1:
            raise InvalidArgumentError(
                f"expert_buffer: physical_expert has {len(experts)} entries and physical_rank {len(ranks)}; "
                "both need one for each physical expert"
            )
        numbers = ("max_tokens_per_rank", "hidden", "num_experts", "topk")
        combine = Dtype.BF16 if self.dtype == Dtype.FP8_E4M3 else self.dtype
        raw = versioned(
            EpConfig,
            mode=chosen("expert_buffer", "mode", self.mode, _MODES),
            num_physical=lengths.pop(),
            physical_expert=_address(experts),
            physical_rank=_address(ranks),
            dtype=Dtype(self.dtype),
            wire_dtype=self.wire,
            combine_dtype=Dtype(combine if self.combine_dtype is None else self.combine_dtype),
            scale_format=chosen("expert_buffer", "scale", self.scale, _SCALES),
            static_scale=self.static_scale,
            on_invalid=chosen("expert_buffer", "on_invalid", self.on_invalid, _ON_INVALID),
            on_dead=chosen("expert_buffer", "on_dead", self.on_dead, _ON_DEAD),
            lost_weights=chosen("expert_buffer", "lost_weights", self.lost_weights, _LOST_WEIGHTS),
            device_kind=device_kind,
            **{name: _number(name, getattr(self, name), 2**32) for name in numbers},
        )
        return raw, (experts, ranks)


@dataclasses.dataclass(frozen=True)
class ExpertInfo:
    """Properties and memory use of a buffer."""

    local_experts: int  # physical ones of this rank
    num_physical: int
    max_local_experts: int  # of any rank
    scale_columns: int  # scales of a received row; 0: none
    buffer_bytes: int  # window memory of each rank
    private_bytes: int  # of this process
    masked: Tuple[int, ...]  # excluded ranks


class ExpertBuffer:
    """Memory for dispatches and combines. Comm.expert_buffer makes it. destroy(), the end of a with block, or the end of the comm
    frees it.

    Every rank must make the same calls in the same order, even a rank without tokens. At most two dispatches can be in flight,
    which means sent and neither combined nor released."""

    def __init__(self, comm: Comm, config: ExpertConfig) -> None:
        self._comm = comm
        self._handle = ctypes.c_void_p()
        self._destroyed = False
        self._flights: List[Dispatch] = []
        self._known: Dict[Tuple[str, int], Outputs] = {}
        self.config = config
        raw, tables = config._raw(KINDS[comm.device.kind])
        check_on(load().rh_ep_create(comm._handle, ctypes.byref(raw), ctypes.byref(self._handle)), (comm._handle,))
        del tables  # raw points to them
        info = self.info()
        self.local_experts = info.local_experts
        self.scale_columns = info.scale_columns

    def __repr__(self) -> str:
        return f"<railhead.ExpertBuffer of rank {self._comm.rank}, {self.local_experts} of {self.config.num_experts} experts>"

    def __enter__(self) -> ExpertBuffer:
        return self

    def __exit__(self, kind: object, exception: object, trace: object) -> None:
        # After an exception the other ranks may never call destroy, so the end of the comm frees the buffer.
        if exception is None and not self._destroyed and not self._comm._ended:
            self.destroy()

    def destroy(self) -> None:
        """Collective: frees the memory and ends dispatches that are still in flight."""
        result = load().rh_ep_destroy(self._handle)
        if result != Result.BUSY:
            self._destroyed = True
            self._flights.clear()
        check_on(result, (self._comm._handle,))

    def info(self) -> ExpertInfo:
        raw = versioned(EpInfo)
        check(load().rh_ep_get_info(self._handle, ctypes.byref(raw)))
        names = [field.name for field in dataclasses.fields(ExpertInfo) if field.name != "masked"]
        return ExpertInfo(**{name: getattr(raw, name) for name in names}, masked=self._masked())

    def _masked(self) -> Tuple[int, ...]:
        return ranks_of(self._comm.world_size, partial(load().rh_ep_get_masked, self._handle))

    def mask_rank(self, rank: int) -> None:
        """Excludes a rank permanently. Every other rank must call it between the same two dispatches."""
        self._comm._check_rank("mask_rank", "rank", rank)
        check(load().rh_ep_mask_rank(self._handle, rank))

    def load(self) -> Tuple[List[int], List[int]]:
        """Token copies sent to each physical expert by all ranks, and by this rank, summed over all buffers of the comm."""
        experts = self.info().num_physical
        total, local = (ctypes.c_uint64 * experts)(), (ctypes.c_uint64 * experts)()
        check(load().rh_ep_get_load(self._handle, total, local, experts))
        return list(total), list(local)

    @property
    def in_flight(self) -> Tuple[Dispatch, ...]:
        """Dispatches that were sent and neither combined nor released, the earliest first."""
        return tuple(self._flights)

    def last_reports(self) -> Tuple[ExpertReport, ExpertReport]:
        """The reports of the dispatch that ended last, and of its combine. On a CUDA device it waits until the comm's queued
        operations have run."""
        return self._reports(None)

    def _reports(self, handle: Optional[ctypes.c_void_p]) -> Tuple[ExpertReport, ExpertReport]:
        dispatched, combined = ReportMemory(self._comm.world_size), ReportMemory(self._comm.world_size)
        result = load().rh_ep_get_report(self._handle, handle, ctypes.byref(dispatched.raw), ctypes.byref(combined.raw))
        check_on(result, (self._comm._handle,))
        return dispatched.read(), combined.read()

    def _outputs(self, layout: Layout, capacity: int) -> Outputs:
        """The outputs of a layout. An engine has few capacities, so that they are computed once."""
        known = self._known.get((layout, capacity))
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[layout, capacity] = Outputs(self, layout, capacity)
        return known

    def routing(self, topk_idx: Readable, topk_weights: Optional[Readable] = None, *, stream: Any = None) -> ExpertRouting:
        """Checks a routing once, and finds each token's place, for any number of dispatches: see dispatch."""
        return ExpertRouting(self, topk_idx, topk_weights, stream)

    def dispatch(
        self,
        x: Readable,
        topk_idx: Optional[Readable] = None,
        topk_weights: Optional[Readable] = None,
        layout: Layout = "padded",
        *,
        routing: Optional[ExpertRouting] = None,
        x_scales: Optional[Readable] = None,
        capacity: Optional[int] = None,
        alignment: int = 1,
        out: Any = None,
        stream: Any = None,
    ) -> Received:
        """Sends each token to the ranks of its experts, and returns the tokens that this rank received: see Dispatch.receive.

        x: [tokens, hidden]. topk_idx: [tokens, topk], 32 or 64 bits; -1 is no expert. topk_weights: [tokens, topk] in float32,
        all 1 by default. routing: a result of routing(), in place of these two. x_scales: of FP8, [tokens, scale_columns], float32
        or UE8M0 bytes. stream: of this call and of all later ones on the result that are not given one; by default the current one
        of each call. On a CUDA device nothing waits for the call, which may be captured; both phases are one launch.

        After a LimitError (capacity too small) nothing was received: call in_flight[-1].receive with a larger capacity."""
        # Raise errors of these arguments, or of a type that x's library lacks, before anything is sent.
        room = Room(self, "dispatch", layout, capacity, alignment, out)
        if self._comm.device.ordinal is None:
            if "x" not in room.given:
                empty(x, "dispatch: out", self.config.wire, (0,))
            sent = self.dispatch_send(x, topk_idx, topk_weights, routing=routing, x_scales=x_scales, stream=stream)
            return sent.receive(layout, capacity=capacity, alignment=alignment, out=out)
        sent, raw = self._input("dispatch", x, topk_idx, topk_weights, routing, x_scales, stream)
        at, given = sent._at("dispatch", None)
        space = always_enough(self, layout, alignment) if room.capacity is None else room.capacity
        rows = Rows(self, "dispatch", room, space, sent._kind, given)
        result = load().rh_ep_dispatch(self._handle, ctypes.byref(raw), ctypes.byref(rows.raw), ctypes.byref(sent._handle), at)
        self._take(sent, result)
        sent._received(space, layout, alignment)
        return Received(sent, rows, None)

    def dispatch_send(
        self,
        x: Readable,
        topk_idx: Optional[Readable] = None,
        topk_weights: Optional[Readable] = None,
        *,
        routing: Optional[ExpertRouting] = None,
        x_scales: Optional[Readable] = None,
        stream: Any = None,
    ) -> Dispatch:
        """The first phase; the second is the result's receive(). In between the caller may compute, but must not change x,
        topk_idx and topk_weights."""
        sent, raw = self._input("dispatch", x, topk_idx, topk_weights, routing, x_scales, stream)
        at = stream_of(stream, "dispatch", self._comm.device)
        self._take(sent, load().rh_ep_dispatch_send(self._handle, ctypes.byref(raw), ctypes.byref(sent._handle), at))
        return sent

    def _take(self, sent: Dispatch, result: int) -> None:
        """A dispatch that failed may be in flight all the same: then it has a handle."""
        if sent._handle.value:
            self._flights.append(sent)
        check_on(result, (self._comm._handle,))

    def _input(
        self,
        operation: str,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        routing: Optional[ExpertRouting],
        x_scales: Any,
        stream: Any,
    ) -> Tuple[Dispatch, EpDispatchIn]:
        """The tokens and their routing, checked."""
        rank, config = self._comm.rank, self.config
        source = self._comm._buffer(x, f"{operation}: x", config.dtype, computed=True)
        tokens = rows_of(source, config.hidden, f"{operation}: x", rank)
        inputs = self._routing_inputs(operation, topk_idx, topk_weights, routing)
        if x_scales is not None:
            inputs["x_scales"] = (self._scales(x_scales), self.scale_columns)
        for name, (buffer, columns) in inputs.items():
            rows = rows_of(buffer, columns, f"{operation}: {name}", rank)
            if rows != tokens:
                raise InvalidArgumentError(f"{operation}: rank {rank}: x has {tokens} tokens and {name} {rows}")
        raw = self._tokens_in(tokens, inputs)
        raw.x = source.address
        if routing is not None:
            raw.routing = routing._handle.value
        kept = (source, routing, *(buffer for buffer, _ in inputs.values()))
        return Dispatch(self, stream, kind_of(x), tokens, kept), raw

    def _routing_inputs(
        self, operation: str, topk_idx: Optional[Readable], topk_weights: Optional[Readable], routing: Optional[ExpertRouting]
    ) -> Dict[str, Tuple[Buffer, int]]:
        """The inputs that define the routing, with the columns of each."""
        rank, topk = self._comm.rank, self.config.topk
        if routing is not None:
            if topk_idx is not None or topk_weights is not None:
                raise InvalidArgumentError(f"{operation}: rank {rank}: routing replaces topk_idx and topk_weights: omit them")
            return {}
        if topk_idx is None:
            raise InvalidArgumentError(f"{operation}: rank {rank}: topk_idx and routing are None; pass one of them")
        ids = self._comm._buffer(topk_idx, f"{operation}: topk_idx")
        if ids.dtype not in (Dtype.I32, Dtype.I64):
            raise InvalidArgumentError(f"{operation}: rank {rank}: topk_idx has {ids.dtype.name}; want I32 or I64")
        inputs = {"topk_idx": (ids, topk)}
        if topk_weights is not None:
            inputs["topk_weights"] = (self._comm._buffer(topk_weights, f"{operation}: topk_weights", Dtype.F32, computed=True), topk)
        return inputs

    def _tokens_in(self, tokens: int, inputs: Dict[str, Tuple[Buffer, int]]) -> EpDispatchIn:
        ids = inputs.get("topk_idx")
        return versioned(
            EpDispatchIn,
            num_tokens=_number("tokens of x", tokens, 2**32),
            hidden=self.config.hidden,
            idx_dtype=Dtype.I64 if ids is None else ids[0].dtype,
            **{name: buffer.address for name, (buffer, _) in inputs.items()},
        )

    def _scales(self, x_scales: Any) -> Buffer:
        if self.config.dtype != Dtype.FP8_E4M3 or self.scale_columns == 0:
            raise InvalidArgumentError(
                f"dispatch: rank {self._comm.rank}: x_scales need dtype FP8_E4M3 and a scale for each block; this buffer has dtype "
                f"{Dtype(self.config.dtype).name} and scale {self.config.scale!r}"
            )
        return self._comm._buffer(x_scales, "dispatch: x_scales", self._scale_dtype)

    @property
    def _scale_dtype(self) -> Dtype:
        return Dtype.F32 if self.config.scale == "f32" else Dtype.U8


class ExpertRouting:
    """A cached routing: checked and laid out once, for any number of dispatches. ExpertBuffer.routing makes it. destroy(), the
    end of a with block, or the end of its buffer ends it."""

    def __init__(self, buffer: ExpertBuffer, topk_idx: Readable, topk_weights: Optional[Readable], stream: Any) -> None:
        self._buffer = buffer
        self._handle = ctypes.c_void_p()
        inputs = buffer._routing_inputs("routing", topk_idx, topk_weights, None)
        rank = buffer._comm.rank
        rows = {name: rows_of(array, columns, f"routing: {name}", rank) for name, (array, columns) in inputs.items()}
        self.tokens = rows["topk_idx"]
        if rows.get("topk_weights", self.tokens) != self.tokens:
            raise InvalidArgumentError(f"routing: rank {rank}: topk_idx has {self.tokens} tokens and topk_weights {rows['topk_weights']}")
        raw = buffer._tokens_in(self.tokens, inputs)
        # On a GPU they are read in stream order: another stream could reuse memory that the caller lets go before.
        self._inputs = inputs
        at = stream_of(stream, "routing", buffer._comm.device)
        check(load().rh_ep_routing_create(buffer._handle, ctypes.byref(raw), ctypes.byref(self._handle), at))

    def __enter__(self) -> ExpertRouting:
        return self

    def __exit__(self, kind: object, exception: object, trace: object) -> None:
        # After an exception a dispatch with it may be in flight, so the end of the buffer ends the routing.
        if exception is None and not self._buffer._destroyed and not self._buffer._comm._ended:
            self.destroy()

    def destroy(self) -> None:
        """Ends the routing. No dispatch with it may be in flight."""
        check(load().rh_ep_routing_destroy(self._handle))


def _number(name: str, value: int, limit: int) -> int:
    """Refuses a value that ctypes would truncate silently. The library checks the real bounds."""
    if not 0 <= value < limit:
        raise InvalidArgumentError(f"expert_buffer: {name} {value} is outside 0..{limit - 1}")
    return value


def _table(name: str, values: Optional[Sequence[int]]) -> Any:
    if values is None:
        return None
    for p, value in enumerate(values):
        _number(f"{name}[{p}]", int(value), 2**31)
    return (ctypes.c_int32 * len(values))(*(int(value) for value in values))


def _address(table: Any) -> Optional[int]:
    return None if table is None else ctypes.addressof(table)
