"""The life of a dispatch: sent, received, combined."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Tuple

from ._abi import EpCombineArgs, versioned
from ._devices import stream_of
from ._expert_rows import Layout, Room, Rows, always_enough, needed, rows_of
from ._library import check_on, load
from .enums import Dtype
from .errors import InvalidArgumentError
from .expert_report import ExpertReport, ReportMemory

if TYPE_CHECKING:
    from ._collectives import Readable
    from .expert_parallel import ExpertBuffer

_COUNTS, _TOKENS = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_uint64)


class Dispatch:
    """Tokens that were sent but not received. ExpertBuffer.dispatch_send makes it.

    Its calls, and those of its Received, take stream=. By default they run on the stream that the dispatch was given, else on the
    current one."""

    def __init__(self, buffer: ExpertBuffer, stream: Any, x: Any, tokens: int, inputs: Tuple[Any, ...]) -> None:
        self._buffer = buffer
        self._handle = ctypes.c_void_p()
        self._stream = stream  # of its calls, as the caller gave it
        self._x = x  # outputs have its kind
        self._tokens = tokens
        self._kept = inputs  # memory that the library may still read or write

    def counts(self, *, out: Optional[Tuple[Any, Any]] = None, stream: Any = None) -> Tuple[Any, Any]:
        """The rows of each local expert, and the number of token copies.

        On the CPU it waits until they are known, and returns a list and a number. On a CUDA device it returns two tensors that the
        stream fills, int32 [local_experts] and int64 [1], or fills out, a pair of such buffers."""
        comm, local, at = self._buffer._comm, self._buffer.local_experts, self._at("counts", stream)
        if comm.device.ordinal is None:
            if out is not None:
                raise InvalidArgumentError(f"counts: rank {comm.rank}: out is for CUDA devices; on the CPU counts returns numbers")
            rows, tokens = (ctypes.c_int32 * max(local, 1))(), ctypes.c_uint64()
            self._check(load().rh_ep_dispatch_counts(self._handle, rows, ctypes.byref(tokens), at))
            return list(rows)[:local], tokens.value
        formats = (("rows", Dtype.I32, local), ("tokens", Dtype.I64, 1))
        if out is None:
            empties = comm._empties("counts", self._x, at)
            out = empties(Dtype.I32, (local,)), empties(Dtype.I64, (1,))
        targets = [comm._buffer(memory, f"counts: {name}", dtype, True, True) for memory, (name, dtype, _) in zip(out, formats)]
        for target, (name, _, count) in zip(targets, formats):
            if target.count != count:
                raise InvalidArgumentError(f"counts: rank {comm.rank}: {name} has {target.count} elements; want {count}")
        rows_to, tokens_to = (target.address for target in targets)
        self._check(load().rh_ep_dispatch_counts(self._handle, ctypes.cast(rows_to, _COUNTS), ctypes.cast(tokens_to, _TOKENS), at))
        return out

    def receive(
        self, layout: Layout = "padded", *, capacity: Optional[int] = None, alignment: int = 1, out: Any = None, stream: Any = None
    ) -> Received:
        """The second phase: waits for the tokens, and groups them by local expert.

        layout: "padded" is x [local_experts, capacity, hidden]; "flat" is [capacity, hidden], expert after expert, each from a
        multiple of alignment rows on; "tokens" is [capacity, hidden], each token once. capacity: by default the number of
        received rows, which costs a call of counts(); on a CUDA device, where the host does not wait for it, as many as the ranks
        can send. out: memory for x, whose size then is the capacity, or a mapping with the memory of any of the outputs, by their
        names in Received. The others are new buffers of x's kind; where x is no torch tensor, a CUDA device does not write them.

        After a LimitError (capacity too small; on a CUDA device the report's result) nothing was received, and receive can be
        called again."""
        buffer = self._buffer
        room = Room(buffer, "receive", layout, capacity, alignment, out)
        at = self._at("receive", stream)
        space = room.capacity
        if space is None:
            later = buffer._comm.device.ordinal is not None
            space = always_enough(buffer, layout, alignment) if later else needed(*self.counts(stream=stream), layout, alignment)
        rows = Rows(buffer, "receive", room, space, self._x, at)
        report = self._report_now()
        if report is not None:
            rows.raw.report = ctypes.addressof(report.raw)
        self._check(load().rh_ep_dispatch_recv(self._handle, ctypes.byref(rows.raw), at))
        self._kept = ()
        return Received(self, rows, None if report is None else report.read())

    def _report_now(self) -> Optional[ReportMemory]:
        """Memory for a report that a call writes before it returns. On a device that runs later, reports are read later."""
        comm = self._buffer._comm
        return ReportMemory(comm.world_size) if comm.device.ordinal is None else None

    def _at(self, operation: str, stream: Any) -> Optional[int]:
        return stream_of(self._stream if stream is None else stream, operation, self._buffer._comm.device)

    def _check(self, result: int) -> None:
        check_on(result, (self._buffer._comm._handle,))

    def _end(self) -> None:
        """Of a captured dispatch any number of graphs may have a combine."""
        self._kept = ()
        if self in self._buffer._flights:
            self._buffer._flights.remove(self)


class Received:
    """The tokens that this rank received. A row is one token for one local expert; in the layout "tokens" a row is one token.
    Rows after an expert's last row are not written.

    An output that the layout does not have, or that a CUDA device does not write, is None. On a CUDA device the outputs are memory of
    the device, which the stream fills, rows and tokens too."""

    def __init__(self, sent: Dispatch, rows: Rows, report: Optional[ExpertReport]) -> None:
        arrays = rows.arrays
        later = sent._buffer._comm.device.ordinal is not None
        self._sent = sent
        self._out: Any = None  # result of the combine under way
        self._report, self._combine_report = report, None  # type: Optional[ExpertReport], Optional[ExpertReport]
        self.layout = rows.layout
        self.x = arrays["x"]  # of wire_dtype
        self.scales: Any = arrays.get("scales")  # [rows, scale_columns], float32 or UE8M0 bytes
        self.counts: Any = arrays.get("counts")  # [local_experts], rows of each
        self.offsets: Any = arrays.get("offsets")  # [local_experts + 1], the row at which each expert's block begins, and the end
        self.weights: Any = arrays.get("weights")  # [rows], the router's
        self.source_rank: Any = arrays.get("source_rank")  # [rows]
        self.source_token: Any = arrays.get("source_token")  # [rows]
        self.topk_idx: Any = arrays.get("topk_idx")  # "tokens": [rows, topk], local experts, then -1
        self.topk_weights: Any = arrays.get("topk_weights")  # "tokens": [rows, topk]
        self.rows: Any = arrays.get("rows") if later else rows.raw.rows  # the end of the last block; on a CUDA device int64 [1]
        self.tokens: Any = arrays.get("tokens") if later else rows.raw.tokens  # token copies; on a CUDA device int64 [1]
        self._y_rows: int = rows.x_rows if later else rows.raw.rows  # what combine may read

    @property
    def report(self) -> ExpertReport:
        """The dispatch's report. On a CUDA device it waits until the comm's queued operations have run; of a captured dispatch it is
        the latest replay's. An eager dispatch that has been combined or released there has none: see ExpertBuffer.last_reports."""
        return self._sent._buffer._reports(self._sent._handle)[0] if self._report is None else self._report

    @property
    def combine_report(self) -> Optional[ExpertReport]:
        """The same of the combine; on the CPU None until it has ended."""
        later = self._sent._buffer._comm.device.ordinal is not None
        return self._sent._buffer._reports(self._sent._handle)[1] if later else self._combine_report

    def combine(
        self,
        y: Readable,
        *,
        add: Optional[Readable] = None,
        out: Any = None,
        weighted: bool = False,
        dtype: Optional[Dtype] = None,
        out_dtype: Optional[Dtype] = None,
        stream: Any = None,
    ) -> Any:
        """Returns the combined outputs of the experts: [tokens, hidden], for each token the sum of weight * y over its experts,
        plus add.

        y: in the layout of x, of F32, BF16 or F16; on a CUDA device with as many rows as x. add: [tokens, hidden], such as the
        shared expert's output; may be out. weighted: y is already multiplied by the weights. In the layout "tokens" y must always
        be weighted, and summed over the rank's experts. Without out a new buffer of y's kind is returned; its type is out_dtype,
        otherwise add's, otherwise y's. dtype= and out_dtype= are required if y, or add and out, have no element type. combine ends
        the dispatch."""
        sent, at = self._sent, self._sent._at("combine", stream)
        args, out, kept = self._sums(y, add, out, weighted, dtype, out_dtype, at)
        report = sent._report_now()
        written = None if report is None else ctypes.byref(report.raw)
        sent._check(load().rh_ep_combine(sent._handle, ctypes.byref(args), written, at))
        del kept  # until the call has returned
        self._ended(report)
        return out

    def combine_send(
        self,
        y: Readable,
        *,
        add: Optional[Readable] = None,
        out: Any = None,
        weighted: bool = False,
        dtype: Optional[Dtype] = None,
        out_dtype: Optional[Dtype] = None,
        stream: Any = None,
    ) -> None:
        """The first phase of combine; combine_receive is the second. The library uses y, add and out until combine_receive has
        returned (on a CUDA device: has run)."""
        sent, at = self._sent, self._sent._at("combine_send", stream)
        args, out, kept = self._sums(y, add, out, weighted, dtype, out_dtype, at)
        sent._kept += kept
        sent._check(load().rh_ep_combine_send(sent._handle, ctypes.byref(args), at))
        self._out = out

    def combine_receive(self, *, stream: Any = None) -> Any:
        """The second phase: waits for the other ranks' sums, and returns the result of combine."""
        sent, at = self._sent, self._sent._at("combine_receive", stream)
        report = sent._report_now()
        written = None if report is None else ctypes.byref(report.raw)
        sent._check(load().rh_ep_combine_recv(sent._handle, written, at))
        self._ended(report)
        return self._out

    def release(self, *, stream: Any = None) -> None:
        """Ends a dispatch without a combine. All ranks must call it."""
        self._sent._check(load().rh_ep_release(self._sent._handle, self._sent._at("release", stream)))
        self._sent._end()

    def _sums(
        self,
        y: Any,
        add: Any,
        out: Any,
        weighted: bool,
        dtype: Optional[Dtype],
        out_dtype: Optional[Dtype],
        at: Optional[int],
    ) -> Tuple[EpCombineArgs, Any, Tuple[Any, ...]]:
        """The C struct, the result's memory, and what must stay until the combine has ended."""
        comm, tokens, hidden = self._sent._buffer._comm, self._sent._tokens, self._sent._buffer.config.hidden
        rank = comm.rank
        source = comm._buffer(y, "combine: y", dtype, computed=True)
        if rows_of(source, hidden, "combine: y", rank) < self._y_rows:
            raise InvalidArgumentError(f"combine: rank {rank}: y has {source.count // hidden} rows; x had {self._y_rows}")
        if out_dtype is None:
            given = out if add is None else add
            out_dtype = source.dtype if given is None else comm._buffer(given, "combine: out or add").dtype
        if out is None:
            out = comm._empties("combine", y, at)(out_dtype, (tokens, hidden))
        buffers = {"out": comm._buffer(out, "combine: out", out_dtype, True, computed=True)}
        if add is not None:
            buffers["add"] = comm._buffer(add, "combine: add", out_dtype, computed=True)
        for name, buffer in buffers.items():
            rows = rows_of(buffer, hidden, f"combine: {name}", rank)
            if rows != tokens:
                raise InvalidArgumentError(f"combine: rank {rank}: {name} has {rows} rows; {tokens} tokens were dispatched")
        addresses = {name: buffer.address for name, buffer in buffers.items()}
        args = versioned(EpCombineArgs, y=source.address, y_dtype=source.dtype, out_dtype=out_dtype, weighted=weighted, **addresses)
        return args, out, (source, *buffers.values())

    def _ended(self, report: Optional[ReportMemory]) -> None:
        if report is not None:
            self._combine_report = report.read()
        self._sent._end()
