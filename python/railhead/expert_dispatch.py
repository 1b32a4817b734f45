"""The life of a dispatch: sent, received, combined."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Tuple

from ._abi import EpCombineArgs, versioned
from ._buffers import Buffer, Kind, kind_of
from ._device_buffers import check_new_tensors
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

    def __init__(self, buffer: ExpertBuffer, stream: Any, kind: Kind, tokens: int, inputs: Tuple[Any, ...]) -> None:
        self._buffer = buffer
        self._handle = ctypes.c_void_p()
        self._stream = stream  # of its calls, as the caller gave it
        self._kind = kind  # of x, and of new outputs
        self._tokens = tokens
        self._kept = inputs  # memory that the library may still read or write

    def counts(self, *, out: Optional[Tuple[Any, Any]] = None, stream: Any = None) -> Tuple[Any, Any]:
        """The rows of each local expert, and the number of token copies.

        On the CPU it waits until they are known, and returns a list and a number. On a CUDA device it returns two tensors that the
        stream fills, int32 [local_experts] and int64 [1], or fills out, a pair of such buffers."""
        comm, local = self._buffer._comm, self._buffer.local_experts
        at, given = self._at("counts", stream)
        if comm.device.ordinal is None:
            if out is not None:
                raise InvalidArgumentError(f"counts: rank {comm.rank}: out is for CUDA devices; on the CPU counts returns numbers")
            rows, tokens = (ctypes.c_int32 * max(local, 1))(), ctypes.c_uint64()
            self._check(load().rh_ep_dispatch_counts(self._handle, rows, ctypes.byref(tokens), at))
            return list(rows)[:local], tokens.value
        if out is None:
            check_new_tensors("counts", self._kind, given, comm.device)
            out = self._kind.make("counts: out", Dtype.I32, (local,)), self._kind.make("counts: out", Dtype.I64, (1,))
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise InvalidArgumentError(
                f"counts: rank {comm.rank}: out is {type(out).__name__}; want a pair: I32 of {local} elements for rows, I64 of 1 for tokens"
            )
        addresses = []
        for memory, (name, dtype, count) in zip(out, (("rows", Dtype.I32, local), ("tokens", Dtype.I64, 1))):
            target = comm._buffer(memory, f"counts: {name}", dtype, True, True)
            if target.count != count:
                raise InvalidArgumentError(f"counts: rank {comm.rank}: {name} has {target.count} elements; want {count}")
            addresses.append(target.address)
        rows_to, tokens_to = ctypes.cast(addresses[0], _COUNTS), ctypes.cast(addresses[1], _TOKENS)
        self._check(load().rh_ep_dispatch_counts(self._handle, rows_to, tokens_to, at))
        return out[0], out[1]

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
        at, given = self._at("receive", stream)
        space = room.capacity
        if space is None:
            later = buffer._comm.device.ordinal is not None
            space = always_enough(buffer, layout, alignment) if later else needed(*self.counts(stream=stream), layout, alignment)
        rows = Rows(buffer, "receive", room, space, self._kind, given)
        report = self._report_now()
        if report is not None:
            rows.raw.report = ctypes.addressof(report.raw)
        self._check(load().rh_ep_dispatch_recv(self._handle, ctypes.byref(rows.raw), at))
        self._received(space, layout, alignment)
        return Received(self, rows, None if report is None else report.read())

    def _received(self, capacity: int, layout: Layout, alignment: int) -> None:
        """Lets the inputs go once nothing receives the dispatch again. Where the call runs later, too small a capacity is not known yet."""
        if self._buffer._comm.device.ordinal is None or capacity >= always_enough(self._buffer, layout, alignment):
            self._kept = ()

    def _report_now(self) -> Optional[ReportMemory]:
        """Memory for a report that a call writes before it returns. On a device that runs later, reports are read later."""
        comm = self._buffer._comm
        return ReportMemory(comm.world_size) if comm.device.ordinal is None else None

    def _at(self, operation: str, stream: Any) -> Tuple[Optional[int], Optional[int]]:
        """The stream of a call, and the same if the caller has given one: else it is the current one."""
        given = self._stream if stream is None else stream
        at = stream_of(given, operation, self._buffer._comm.device)
        return at, None if given is None else at

    def _check(self, result: int) -> None:
        check_on(result, (self._buffer._comm._handle,))

    def _end(self) -> None:
        """Of a captured dispatch any number of graphs may have a combine."""
        self._kept = ()
        if self in self._buffer._flights:
            self._buffer._flights.remove(self)


def _output(name: str, doc: str) -> Any:
    """The property of an output."""

    def array(self: Received) -> Any:
        return self._rows.array(name)

    return property(array, doc=doc)


class Received:
    """The tokens that this rank received. A row is one token for one local expert; in the layout "tokens" a row is one token.
    Rows after an expert's last row are not written.

    An output that the layout does not have, or that a CUDA device does not write, is None. On a CUDA device the outputs are memory of
    the device, which the stream fills, rows and tokens too. New tensors but x share their memory there: each keeps that of all."""

    def __init__(self, sent: Dispatch, rows: Rows, report: Optional[ExpertReport]) -> None:
        rows.held.clear()  # the call has returned
        self._sent = sent
        self._rows = rows
        self._later = sent._buffer._comm.device.ordinal is not None
        self._out: Any = None  # result of the combine under way
        self._report, self._combine_report = report, None  # type: Optional[ExpertReport], Optional[ExpertReport]
        self.layout = rows.layout
        self._y_rows: int = rows.x_rows if self._later else rows.raw.rows  # what combine may read

    x = _output("x", "of wire_dtype")
    scales = _output("scales", "[rows, scale_columns], float32 or UE8M0 bytes")
    counts = _output("counts", "[local_experts], rows of each")
    offsets = _output("offsets", "[local_experts + 1], the row at which each expert's block begins, and the end")
    weights = _output("weights", "[rows], the router's")
    source_rank = _output("source_rank", "[rows]")
    source_token = _output("source_token", "[rows]")
    topk_idx = _output("topk_idx", '"tokens": [rows, topk], local experts, then -1')
    topk_weights = _output("topk_weights", '"tokens": [rows, topk]')

    @property
    def rows(self) -> Any:
        """The end of the last block; on a CUDA device int64 [1]."""
        return self._rows.array("rows") if self._later else self._rows.raw.rows

    @property
    def tokens(self) -> Any:
        """Token copies; on a CUDA device int64 [1]."""
        return self._rows.array("tokens") if self._later else self._rows.raw.tokens

    @property
    def report(self) -> ExpertReport:
        """The dispatch's report. On a CUDA device it waits until the comm's queued operations have run; of a captured dispatch it is
        the latest replay's. An eager dispatch that has been combined or released there has none: see ExpertBuffer.last_reports."""
        return self._sent._buffer._reports(self._sent._handle)[0] if self._report is None else self._report

    @property
    def combine_report(self) -> Optional[ExpertReport]:
        """The same of the combine; on the CPU None until it has ended."""
        return self._sent._buffer._reports(self._sent._handle)[1] if self._later else self._combine_report

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
        shared expert's output. weighted: y is already multiplied by the weights. In the layout "tokens" y must always be weighted,
        and summed over the rank's experts. out: may be add, but not in the memory of y. Without out a new buffer of y's kind is
        returned; its type is out_dtype, otherwise add's, otherwise y's. dtype= and out_dtype= are required if y, or add and out, have
        no element type. combine ends the dispatch."""
        sent = self._sent
        at, given = sent._at("combine", stream)
        args, out, kept = self._sums(y, add, out, weighted, dtype, out_dtype, given)
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
        sent = self._sent
        at, given = sent._at("combine_send", stream)
        args, out, kept = self._sums(y, add, out, weighted, dtype, out_dtype, given)
        sent._kept += kept
        sent._check(load().rh_ep_combine_send(sent._handle, ctypes.byref(args), at))
        self._out = out

    def combine_receive(self, *, stream: Any = None) -> Any:
        """The second phase: waits for the other ranks' sums, and returns the result of combine."""
        sent = self._sent
        at, _ = sent._at("combine_receive", stream)
        report = sent._report_now()
        written = None if report is None else ctypes.byref(report.raw)
        sent._check(load().rh_ep_combine_recv(sent._handle, written, at))
        self._ended(report)
        out, self._out = self._out, None
        return out

    def release(self, *, stream: Any = None) -> None:
        """Ends a dispatch without a combine. All ranks must call it."""
        self._sent._check(load().rh_ep_release(self._sent._handle, self._sent._at("release", stream)[0]))
        self._sent._end()

    def _sums(
        self,
        y: Any,
        add: Any,
        out: Any,
        weighted: bool,
        dtype: Optional[Dtype],
        out_dtype: Optional[Dtype],
        given: Optional[int],
    ) -> Tuple[EpCombineArgs, Any, Tuple[Any, ...]]:
        """The C struct, the result's memory, and what must stay until the combine has ended."""
        comm, tokens, hidden = self._sent._buffer._comm, self._sent._tokens, self._sent._buffer.config.hidden
        source = comm._buffer(y, "combine: y", dtype, computed=True)
        if rows_of(source, hidden, "combine: y", comm.rank) < self._y_rows:
            raise InvalidArgumentError(f"combine: rank {comm.rank}: y has {source.count // hidden} rows; x had {self._y_rows}")
        addend = None if add is None else comm._buffer(add, "combine: add", out_dtype, computed=True)
        if addend is not None:
            self._check_tokens("add", addend)
            out_dtype = addend.dtype
        if out is None:
            kind = kind_of(y)
            out_dtype = source.dtype if out_dtype is None else out_dtype
            if self._later:
                check_new_tensors("combine", kind, given, comm.device)
            out = kind.make("combine: out", out_dtype, (tokens, hidden))
        target = comm._buffer(out, "combine: out", out_dtype, True, computed=True)
        self._check_tokens("out", target)
        if target.address < source.address + source.nbytes and source.address < target.address + target.nbytes:
            raise InvalidArgumentError(f"combine: rank {comm.rank}: out is in the memory of y, which is read while out is written; pass other memory")
        args = versioned(EpCombineArgs, y=source.address, y_dtype=source.dtype, out_dtype=target.dtype, weighted=weighted, out=target.address)
        if addend is not None:
            args.add = addend.address
        return args, out, (source, target, addend)

    def _check_tokens(self, name: str, buffer: Buffer) -> None:
        comm, tokens = self._sent._buffer._comm, self._sent._tokens
        rows = rows_of(buffer, self._sent._buffer.config.hidden, f"combine: {name}", comm.rank)
        if rows != tokens:
            raise InvalidArgumentError(f"combine: rank {comm.rank}: {name} has {rows} rows; {tokens} tokens were dispatched")

    def _ended(self, report: Optional[ReportMemory]) -> None:
        if report is not None:
            self._combine_report = report.read()
        self._sent._end()
