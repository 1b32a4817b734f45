"""Functions that the ranks of the tests of expert parallelism on CUDA devices run; called as those of ranks.py."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import types
import weakref
from typing import Any, Dict, List, Literal, Tuple
from unittest import mock

import expert_reference
import fake_cuda
import numpy
from cuda_ranks import TYPESTR
from expert_checks import COUNTS, LOCAL, PLAIN, SHAPE, Raw, check_rows, experts_of, floats, inputs_of, plain_tokens
from expert_reference import F32, Reference, encoded, tokens_of
from fake_torch import Device, Tensor, Torch
from railhead import Comm, Dtype, ExpertBuffer, ExpertConfig, Received, Result, errors
from ranks import equal, main, raises, rank

LAYOUTS: Tuple[Literal["padded", "flat", "tokens"], ...] = ("padded", "flat", "tokens")
WORLD = len(COUNTS)


class Arrays:
    """Arrays of another library than torch."""

    def __init__(self) -> None:
        self.stream = fake_cuda.Stream()

    def make(self, memory: bytes, dtype: Dtype, *shape: int) -> Any:
        return fake_cuda.Array(memory, TYPESTR[dtype], shape)

    def read(self, array: Any, dtype: Dtype, *shape: int) -> bytes:
        self.stream.synchronize()
        return fake_cuda.read(array.address, array.nbytes) if array.nbytes > 0 else b""


def formats_of(buffer: ExpertBuffer, layout: str, capacity: int) -> Dict[str, Tuple[Dtype, Tuple[int, ...]]]:
    """Type and shape of the outputs, as the documentation of Received states them."""
    local, config = buffer.local_experts, buffer.config
    each = (local, capacity) if layout == "padded" else (capacity,)
    formats: Dict[str, Tuple[Dtype, Tuple[int, ...]]] = {
        "x": (config.wire, (*each, config.hidden)), "counts": (Dtype.I32, (local,)), "rows": (Dtype.I64, (1,)), "tokens": (Dtype.I64, (1,)),
        "source_rank": (Dtype.I32, each), "source_token": (Dtype.I32, each),
    }  # fmt: skip
    if buffer.scale_columns > 0:
        formats["scales"] = (Dtype.F32 if config.scale == "f32" else Dtype.U8, (*each, buffer.scale_columns))
    if layout == "tokens":
        return {**formats, "topk_idx": (Dtype.I32, (*each, config.topk)), "topk_weights": (Dtype.F32, (*each, config.topk))}
    return {**formats, "offsets": (Dtype.I64, (local + 1,)), "weights": (Dtype.F32, each)}


def on_host(kind: Any, buffer: ExpertBuffer, got: Received, capacity: int) -> Any:
    """The outputs in memory of the host, as a CPU comm returns them."""
    formats = formats_of(buffer, got.layout, capacity)
    memory = {name: bytearray(kind.read(getattr(got, name), dtype, *shape)) for name, (dtype, shape) in formats.items()}
    rows, tokens = (int.from_bytes(memory.pop(name), "little") for name in ("rows", "tokens"))
    if got.layout == "tokens":
        for name in memory:
            if name != "counts":
                memory[name] = memory[name][: len(memory[name]) // capacity * tokens]
    else:
        offsets: Any = memoryview(memory["offsets"]).cast("q")
        equal(rows, offsets[-1], "rows")
        memory["offsets"] = offsets
    memory.setdefault("scales", None)  # type: ignore[arg-type]
    return types.SimpleNamespace(layout=got.layout, rows=rows, tokens=tokens, report=got.report, **memory)


def enough(buffer: ExpertBuffer, layout: str, alignment: int) -> int:
    most = WORLD * buffer.config.max_tokens_per_rank
    return most if layout != "flat" else most * min(buffer.config.topk, buffer.local_experts) + (alignment - 1) * buffer.local_experts


def round_trip(kind: Any, buffer: ExpertBuffer, reference: Reference, layout: Any, two_phases: bool, outputs: bool, stream: Any) -> None:
    """A dispatch and its combine, every output compared with the reference. outputs: in the caller's memory."""
    config, me = buffer.config, buffer._comm.rank
    alignment = 4 if layout == "flat" else 1
    capacity = enough(buffer, layout, alignment)
    sums = Dtype.BF16 if config.dtype == Dtype.FP8_E4M3 else Dtype(config.dtype)
    combine = Dtype(sums if config.combine_dtype is None else config.combine_dtype)
    y_dtype = combine if layout == "tokens" else sums
    x, idx, weights = inputs_of(kind, config, reference, me)
    out = None
    if outputs:
        formats = formats_of(buffer, layout, capacity)
        out = {name: kind.make(bytes(math.prod(shape) * dtype.itemsize), dtype, *shape) for name, (dtype, shape) in formats.items()}
    if two_phases:
        sent = buffer.dispatch_send(x, idx, weights, stream=stream)
        pair = (kind.make(bytes(4 * buffer.local_experts), Dtype.I32, buffer.local_experts), kind.make(bytes(8), Dtype.I64, 1)) if outputs else None
        counts, total = sent.counts(out=pair)
        per_expert = [len(reference.rows(me, number)) for number in LOCAL[me]]
        equal(kind.read(counts, Dtype.I32, buffer.local_experts), numpy.array(per_expert, "<i4").tobytes(), "counts before receive")
        equal(int.from_bytes(kind.read(total, Dtype.I64, 1), "little"), len(reference.copies(me)), "copies before receive")
        got = sent.receive(layout, alignment=alignment, out=out)
    else:
        got = buffer.dispatch(x, idx, weights, layout, alignment=alignment, out=out, stream=stream)
    host = on_host(kind, buffer, got, capacity)
    seen = check_rows(Raw(), reference, me, host, host.tokens if layout == "tokens" else capacity)
    y = numpy.zeros((capacity * (buffer.local_experts if layout == "padded" else 1), config.hidden), F32)
    y[: len(seen)] = experts_of(reference, me, host, seen, y_dtype=sums, combine_dtype=combine)
    add = numpy.array([[t - 1.5] * config.hidden for t in range(COUNTS[me])], F32).reshape(-1, config.hidden)
    total_out = kind.make(bytes(COUNTS[me] * config.hidden * sums.itemsize), sums, COUNTS[me], config.hidden) if outputs else None
    arguments: Dict[str, Any] = {"add": kind.make(encoded(add, sums), sums, COUNTS[me], config.hidden), "dtype": y_dtype, "out_dtype": sums, "out": total_out}
    y_on_device = kind.make(encoded(y, y_dtype), y_dtype, *y.shape)
    if two_phases:
        got.combine_send(y_on_device, weighted=layout == "tokens", **arguments)
        result = got.combine_receive()
    else:
        result = got.combine(y_on_device, weighted=layout == "tokens", **arguments)
    want = reference.combined(me, sums, sums, combine, add)
    equal(floats(kind, result, sums, COUNTS[me], config.hidden).tolist(), want.tolist(), f"combined, {layout}")
    equal(buffer.in_flight, (), "dispatches in flight")
    dispatched, combined = buffer.last_reports()
    equal((bool(dispatched), bool(combined), dispatched.tokens), (False, False, host.tokens), "reports after the combine")


@rank
def round_trips(comm: Comm, name: str, mode: Literal["ll", "ht"], *formats: str) -> None:
    """Every layout, in one phase and in two, with formats "dtype wire_dtype combine_dtype scale"."""
    torch = name == "torch"
    kind: Any = Torch(comm.device.ordinal or 0) if torch else Arrays()
    for words in formats:
        *dtypes, scale = words.split()
        fields: Dict[str, Any] = dict(zip(("dtype", "wire_dtype", "combine_dtype"), (Dtype[name] for name in dtypes)))
        config = ExpertConfig(mode, scale=scale, static_scale=0.5, **fields, **SHAPE)  # type: ignore[arg-type]
        reference = Reference(config, [tokens_of(config, r, n) for r, n in enumerate(COUNTS)], LOCAL)
        with comm.expert_buffer(config) as buffer:
            equal(buffer.info().buffer_bytes, config.buffer_size(comm.world_size, "cuda"), "bytes")
            for layout in LAYOUTS:
                for two_phases in (False, True):
                    outputs = not torch or (layout == "padded" and two_phases)
                    round_trip(kind, buffer, reference, layout, two_phases, outputs, None if torch else kind.stream)


def rewrite(inputs: Tuple[Any, Any, Any], reference: Reference, me: int) -> None:
    mine = reference.tokens[me]
    ids = numpy.array(mine.idx, "int64").reshape(-1, PLAIN.topk)
    for tensor, memory in zip(inputs, (encoded(mine.x, Dtype.F32), ids.tobytes(), mine.weights.tobytes())):
        tensor.write(memory)


def check_sums(kind: Any, out: Any, reference: Reference, me: int, what: str, add: float = 0) -> None:
    """The experts return their input."""
    with mock.patch.object(expert_reference, "expert", lambda number, rows: rows):
        want = reference.combined(me, Dtype.F32, Dtype.F32, Dtype.F32, numpy.full_like(reference.tokens[me].x, add))
    equal(floats(kind, out, Dtype.F32, COUNTS[me], PLAIN.hidden).tolist(), want.tolist(), what)


@rank
def captured(comm: Comm, mode: Literal["ll", "ht"]) -> None:
    """A dispatch and its combine in a graph, replayed an odd number of times on the inputs of then, between eager ones."""
    kind, me = Torch(comm.device.ordinal or 0), comm.rank
    buffer = comm.expert_buffer(dataclasses.replace(PLAIN, mode=mode))
    inputs = inputs_of(kind, PLAIN, plain_tokens(), me)
    kind.stream.begin_capture()
    got = buffer.dispatch(*inputs, "flat")
    out = got.combine(got.x)
    graph = kind.stream.end_capture()
    equal(buffer.in_flight, (), "in flight after the capture")
    for turn in range(5):
        reference = plain_tokens(turn)
        rewrite(inputs, reference, me)
        graph.launch(kind.stream)
        if turn % 2 == 1:
            eager = buffer.dispatch(*inputs, "padded")
            check_sums(kind, eager.combine(eager.x), reference, me, f"eager, turn {turn}")
            raises(errors.InvalidHandleError, lambda: eager.report, "combined")
        check_sums(kind, out, reference, me, f"replay {turn}")
        equal(int.from_bytes(kind.read(got.tokens, Dtype.I64, 1), "little"), len(reference.copies(me)), f"copies of replay {turn}")
        assert got.combine_report is not None
        equal((got.report.result, got.report.tokens, bool(got.combine_report)), (Result.OK, len(reference.copies(me)), False), f"report of replay {turn}")
        equal(got.report.dispatch, got.combine_report.dispatch, f"number of replay {turn}")
    raises(errors.BusyError, buffer.destroy, "graph")
    graph.destroy()
    buffer.destroy()


@rank
def cached_routing(comm: Comm, mode: Literal["ll", "ht"]) -> None:
    """A cached routing, whose inputs only the package holds, in eager dispatches and in a graph."""
    kind, me, reference = Torch(comm.device.ordinal or 0), comm.rank, plain_tokens()
    buffer = comm.expert_buffer(dataclasses.replace(PLAIN, mode=mode))
    x, idx, weights = inputs_of(kind, PLAIN, reference, me)
    routing = buffer.routing(idx, weights)
    del idx, weights
    for layout in LAYOUTS[:2]:
        got = buffer.dispatch(x, layout=layout, routing=routing)
        raises(errors.BusyError, routing.destroy, "in flight")
        check_sums(kind, got.combine(got.x), reference, me, f"eager, {layout}")
    kind.stream.begin_capture()
    got = buffer.dispatch(x, routing=routing)
    out = got.combine(got.x)
    graph = kind.stream.end_capture()
    for turn in range(3):
        graph.launch(kind.stream)
        check_sums(kind, out, reference, me, f"replay {turn}")
    raises(errors.BusyError, routing.destroy, "graph")
    graph.destroy()
    routing.destroy()
    raises(errors.InvalidHandleError, lambda: buffer.dispatch(x, routing=routing))
    buffer.destroy()


@rank
def graphs_that_share_a_dispatch(comm: Comm) -> None:
    """A dispatch in one graph, and a combine of it in each of two others."""
    kind, me = Torch(comm.device.ordinal or 0), comm.rank
    with comm.expert_buffer(PLAIN) as buffer:
        inputs = inputs_of(kind, PLAIN, plain_tokens(), me)
        kind.stream.begin_capture()
        got = buffer.dispatch(*inputs)
        graphs, outs = [kind.stream.end_capture()], []
        for _ in range(2):
            kind.stream.begin_capture()
            outs.append(got.combine(got.x))
            graphs.append(kind.stream.end_capture())
        for turn in range(4):
            reference = plain_tokens(turn)
            rewrite(inputs, reference, me)
            graphs[0].launch(kind.stream)
            graphs[1 + turn % 2].launch(kind.stream)
            check_sums(kind, outs[turn % 2], reference, me, f"turn {turn}")
        for graph in graphs:
            graph.destroy()


@rank
def temporaries(comm: Comm, mode: Literal["ll", "ht"]) -> None:
    """Arguments that only the package holds between two phases, and no longer. The memory of a tensor that it let go is overwritten at once, in the
    order of the stream (fake_torch.py)."""
    kind, me, reference = Torch(comm.device.ordinal or 0), comm.rank, plain_tokens()
    shape = (COUNTS[me], PLAIN.hidden)
    with comm.expert_buffer(dataclasses.replace(PLAIN, mode=mode)) as buffer:
        for layout in LAYOUTS[:2]:
            inputs = inputs_of(kind, PLAIN, reference, me)
            memory = [weakref.ref(tensor._memory) for tensor in inputs]
            sent = buffer.dispatch_send(*inputs)
            del inputs
            equal([held() is None for held in memory], [False] * 3, "inputs before the receive phase")
            sent.counts()
            got = sent.receive(layout)
            equal([held() for held in memory], [None] * 3, "inputs after the receive phase was queued")
            kind.stream.synchronize()
            y, add = kind.make(got.x.read(), Dtype.F32, *got.x.shape), kind.make(encoded(numpy.full(shape, 0.5, F32), Dtype.F32), Dtype.F32, *shape)
            memory = [weakref.ref(tensor._memory) for tensor in (y, add)]
            got.combine_send(y, add=add)
            del y, add
            out = got.combine_receive()
            equal([held() for held in memory], [None] * 2, "y and add after the combine was queued")
            held = weakref.ref(out._memory)
            check_sums(kind, out, reference, me, f"{mode}, {layout}", 0.5)
            del out
            equal(held(), None, "the result")


@rank
def nothing_waits(comm: Comm) -> None:
    """Rank 0 queues two dispatches and their combines while the other rank has called nothing."""
    kind = Torch(comm.device.ordinal or 0)
    config = ExpertConfig("ll", max_tokens_per_rank=2, hidden=32, num_experts=2, topk=2, dtype=Dtype.F32)
    with comm.expert_buffer(config) as buffer:
        x = kind.make(encoded(numpy.full((1, 32), comm.rank + 1, F32), Dtype.F32), Dtype.F32, 1, 32)
        idx = kind.make(numpy.array([[0, 1]], "int64").tobytes(), Dtype.I64, 1, 2)
        if comm.rank == 1:
            sys.stdin.readline()
        outs = []
        for _ in range(2):
            sent = buffer.dispatch_send(x, idx)
            sent.counts()
            got = sent.receive("flat")
            got.combine_send(got.x)
            outs.append(got.combine_receive())
            got = buffer.dispatch(x, idx)
            outs.append(got.combine(got.x))
        print("queued", flush=True)
        for out in outs:
            equal(kind.read(out, Dtype.F32, 1, 32), encoded(numpy.full(32, 2 * (comm.rank + 1), F32), Dtype.F32), "the sum")


@rank
def reports(comm: Comm) -> None:
    """Invalid input that is left out, and a capacity that is too small: neither is an error of the call."""
    kind, me = Torch(comm.device.ordinal or 0), comm.rank
    x = kind.make(bytes(2 * 640), Dtype.F32, 2, 160)
    idx = kind.make(numpy.array([[0, 7, -1], [4, 4, 2]], "int64").tobytes(), Dtype.I64, 2, 3)
    with comm.expert_buffer(ExpertConfig("ll", dtype=Dtype.F32, on_invalid="drop", **SHAPE)) as buffer:
        got = buffer.dispatch(x, idx, capacity=1)
        report = got.report
        equal((report.invalid_ids, report.duplicate_ids, report.over_capacity > 0, bool(report)), (1, 1, True, True), "report")
        for word in (f"rank {me}", "topk_idx[1] is 7"):
            assert word in report.message, report.message
        got.release()
    with comm.expert_buffer(PLAIN) as buffer:
        reference = plain_tokens()
        got = buffer.dispatch(*inputs_of(kind, PLAIN, reference, me), "flat", capacity=0)
        report = got.report
        equal((report.result, report.rows > 0, bool(report)), (Result.LIMIT, True, True), "report of too little room")
        assert "capacity is 0" in report.message, report.message
        got = buffer.in_flight[-1].receive("flat", capacity=report.rows)
        check_sums(kind, got.combine(got.x), reference, me, "received again")


def flat_part(x: Tensor, rows: int) -> Tensor:
    """The last rows of x."""
    width = x.shape[-1]
    return x.view((x.numel(),))[x.numel() - rows * width :].view((rows, width))


@rank
def refusals(comm: Comm) -> None:
    """Nothing is queued by a call with wrong arguments: the sums at the end are right."""
    kind, me, reference = Torch(comm.device.ordinal or 0), comm.rank, plain_tokens()
    on, other = str(comm.device), fake_cuda.Stream()
    x, idx, weights = inputs_of(kind, PLAIN, reference, me)
    tokens = COUNTS[me]
    elsewhere, strided = (kind.make(bytes(tokens * 640), Dtype.F32, tokens, 160) for _ in range(2))
    elsewhere.device, strided.contiguous = Device("cuda", 7), False
    array = fake_cuda.Array(bytes(tokens * 640), "<f4", (tokens, 160))

    def tensor(dtype: Dtype, *shape: int) -> Tensor:
        return kind.make(bytes(math.prod(shape) * dtype.itemsize), dtype, *shape)

    unknown: Any = "dense"
    with comm.expert_buffer(PLAIN) as buffer:
        wrong: List[Tuple[Any, Tuple[str, ...]]] = [
            (lambda: buffer.dispatch(elsewhere, idx), ("x: the tensor is on", on)),
            (lambda: buffer.dispatch(strided, idx), ("x: the tensor is not contiguous",)),
            (lambda: buffer.dispatch(numpy.zeros((tokens, 160), F32), idx), ("x: the ndarray is in the memory of the host", on)),
            (lambda: buffer.dispatch(tensor(Dtype.F64, tokens, 160), idx), ("x: dtype F32", "float64")),
            (lambda: buffer.dispatch(tensor(Dtype.F32, tokens, 80), idx), (f"rank {me}", "rows of 160") if tokens else ("rows",)),
            (lambda: buffer.dispatch(x, tensor(Dtype.F32, tokens, 3)), ("topk_idx has F32",)),
            (lambda: buffer.dispatch(x, tensor(Dtype.I64, tokens + 1, 3)), (f"x has {tokens} tokens and topk_idx {tokens + 1}",)),
            (lambda: buffer.dispatch(x, idx, tensor(Dtype.F64, tokens, 3)), ("topk_weights",)),
            (lambda: buffer.dispatch(x, idx, layout=unknown), ("layout 'dense'",)),
            (lambda: buffer.dispatch(x, idx, alignment=0), ("alignment 0",)),
            (lambda: buffer.dispatch(x, idx, capacity=-1), ("capacity -1",)),
            (lambda: buffer.dispatch(x, idx, capacity=1, out=tensor(Dtype.F32, 9, 160)), ("omit capacity",)),
            (lambda: buffer.dispatch(x, idx, out={"y": x}), ("out names 'y'", "source_rank")),
            (lambda: buffer.dispatch(x, idx, out={"counts": tensor(Dtype.I32, 9)}), ("counts has 9 elements", f"want {len(LOCAL[me])}")),
            (lambda: buffer.dispatch(x, idx, out={"counts": tensor(Dtype.I64, len(LOCAL[me]))}), ("counts: dtype I32",)),
            (lambda: buffer.dispatch(x, idx, stream=other), ("torch's current stream", "out=")),
            (lambda: buffer.dispatch(x, idx, stream=-1), ("stream -1",)),
            (lambda: buffer.dispatch(array, idx), ("a new result cannot be a Array: pass out=",)),
            (lambda: buffer.dispatch(array, idx, out={"counts": tensor(Dtype.I32, len(LOCAL[me]))}), ("Array: add memory for x to out=",)),
            (lambda: buffer.dispatch(x, idx, None, "tokens", out=x, stream=other), ("add memory for counts, topk_idx,", "to out=")),
        ]
        for call, words in wrong:
            if tokens > 0 or call is not wrong[4][0]:  # no tokens have no width
                raises(errors.InvalidArgumentError, call, *words)
        equal(buffer.in_flight, (), "in flight after errors")
        got = buffer.dispatch(x, idx, weights)
        y_rows = len(LOCAL[me]) * WORLD * PLAIN.max_tokens_per_rank
        wrong = [
            (lambda: got.combine(tensor(Dtype.F32, y_rows - 1, 160)), (f"y has {y_rows - 1} rows; x had {y_rows}",)),
            (lambda: got.combine(elsewhere), ("y: the tensor is on",)),
            (lambda: got.combine(got.x, out=tensor(Dtype.F32, tokens + 1, 160)), (f"out has {tokens + 1} rows",)),
            (lambda: got.combine(got.x, add=numpy.zeros((tokens, 160), F32)), ("memory of the host",)),
            (lambda: got.combine(got.x, stream=other), ("out=",)),
        ]
        if tokens > 0:  # else out has no memory
            wrong.append((lambda: got.combine(got.x, out=flat_part(got.x, tokens)), ("out is in the memory of y",)))
        for call, words in wrong:
            raises(errors.InvalidArgumentError, call, *words)
        check_sums(kind, got.combine(got.x), reference, me, "after refused calls")
        sent, local = buffer.dispatch_send(x, idx, weights), len(LOCAL[me])
        pair = tensor(Dtype.I32, local), tensor(Dtype.I64, 1)
        one: Any = pair[0]
        three: Any = (*pair, x)
        wrong = [
            (lambda: sent.counts(out=one), (f"rank {me}", "out is Tensor; want a pair")),
            (lambda: sent.counts(out=three), ("want a pair: I32 of",)),
            (lambda: sent.counts(out=(tensor(Dtype.I64, local), pair[1])), ("counts: rows: dtype I32",)),
            (lambda: sent.counts(out=(pair[0], tensor(Dtype.I32, 1))), ("counts: tokens: dtype I64",)),
            (lambda: sent.counts(out=(tensor(Dtype.I32, local + 1), pair[1])), (f"rows has {local + 1} elements; want {local}",)),
            (lambda: sent.counts(out=(pair[0], numpy.zeros(1, "int64"))), ("counts: tokens: the ndarray is in the memory of the host",)),
            (lambda: sent.counts(stream=other), ("torch's current stream",)),
        ]
        for call, words in wrong:
            raises(errors.InvalidArgumentError, call, *words)
        equal(sent.counts(out=pair), pair, "counts in the caller's memory")
        got = sent.receive()
        check_sums(kind, got.combine(got.x), reference, me, "after refused counts")


if __name__ == "__main__":
    device = int(os.environ["RANK"]) % 2
    fake_cuda.enter(device)
    main(f"cuda:{device}")
