"""Functions that the ranks of the tests of expert parallelism run; called as those of ranks.py."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from typing import Any, Callable, Dict, Literal, Tuple
from unittest import mock

import numpy
from array_ranks import check_refusals, kind_of
from expert_checks import (
    COUNTS,
    LOCAL,
    PLAIN,
    SHAPE,
    arrays_of,
    check_rows,
    experts_of,
    floats,
    inputs_of,
    kind_named,
    plain_tokens,
)
from expert_reference import F32, Reference, encoded, tokens_of
from railhead import Comm, Dtype, ExpertBuffer, ExpertConfig, errors
from ranks import equal, main, raises, rank

LAYOUTS: Tuple[Literal["padded", "flat", "tokens"], ...] = ("padded", "flat", "tokens")


def round_trip(comm: Comm, kind: Any, buffer: ExpertBuffer, reference: Reference, layout: Any) -> None:
    config, me = buffer.config, comm.rank
    add = numpy.array([[t - 1.5] * config.hidden for t in range(COUNTS[me])], F32).reshape(-1, config.hidden)
    sums = Dtype.BF16 if config.dtype == Dtype.FP8_E4M3 else Dtype(config.dtype)
    combine = Dtype(sums if config.combine_dtype is None else config.combine_dtype)
    y_dtype = combine if layout == "tokens" else sums
    got = buffer.dispatch(*inputs_of(kind, config, reference, me), layout, alignment=4 if layout == "flat" else 1)
    counts = [len(reference.rows(me, number)) for number in reference.local[me]]
    capacity = {"padded": max(counts), "flat": sum(-(-n // 4) * 4 for n in counts), "tokens": got.tokens}[layout]
    seen = check_rows(kind, reference, me, got, capacity)
    y = experts_of(reference, me, got, seen, y_dtype=sums, combine_dtype=combine)
    shape = (len(counts), capacity) if layout == "padded" else (capacity,)
    result = got.combine(
        kind.make(encoded(y, y_dtype), y_dtype, *shape, config.hidden),
        add=kind.make(encoded(add, sums), sums, COUNTS[me], config.hidden),
        dtype=y_dtype,
        out_dtype=sums,
    )
    want = reference.combined(me, sums, sums, combine, add)
    equal(floats(kind, result, sums, COUNTS[me], config.hidden).tolist(), want.tolist(), f"combined, {layout}")
    equal((bool(got.combine_report), buffer.in_flight), (False, ()), "report and dispatches in flight")


@rank
def round_trips(comm: Comm, name: str, *formats: str) -> None:
    """Every mode and layout, with formats "dtype wire_dtype combine_dtype scale"."""
    kind = kind_named(name)
    for mode in ("ll", "ht"):
        for words in formats:
            *dtypes, scale = words.split()
            fields: Dict[str, Any] = dict(zip(("dtype", "wire_dtype", "combine_dtype"), (Dtype[name] for name in dtypes)))
            config = ExpertConfig(mode, scale=scale, static_scale=0.5, **fields, **SHAPE)  # type: ignore[arg-type]
            tokens = [tokens_of(config, r, n) for r, n in enumerate(COUNTS)]
            with comm.expert_buffer(config) as buffer:
                for layout in LAYOUTS:
                    round_trip(comm, kind, buffer, Reference(config, tokens, LOCAL), layout)


@rank
def quantised_input(comm: Comm) -> None:
    """Tokens that are already FP8 are sent unchanged, with the caller's scales."""
    config = ExpertConfig("ll", dtype=Dtype.FP8_E4M3, max_tokens_per_rank=2, hidden=130, num_experts=3, topk=1)
    me, world = comm.rank, comm.world_size
    with comm.expert_buffer(config) as buffer:
        codes = numpy.full((1, 130), me + 1, "u1")
        scales = numpy.array([[me + 0.5, 2.0]], F32)
        got = buffer.dispatch(codes, numpy.array([[(me + 1) % world]]), x_scales=scales, layout="flat", out=bytearray(130))
        source = (me - 1) % world
        equal((bytes(got.x), got.scales.tolist()), (bytes([source + 1] * 130), [[source + 0.5, 2.0]]), "codes and scales")
        equal(got.weights.tolist(), [1.0], "weights of 1")
        got.release()
        raises(errors.InvalidArgumentError, lambda: buffer.dispatch(codes, numpy.array([[0]]), out=bytearray(130)), "x_scales", f"rank {me}")
    with comm.expert_buffer(PLAIN) as buffer:
        x, idx, weights = arrays_of(plain_tokens(), me)
        raises(errors.InvalidArgumentError, lambda: buffer.dispatch(x, idx, weights, x_scales=scales), "x_scales", "F32")


@rank
def two_in_flight(comm: Comm, mode: Literal["ll", "ht"]) -> None:
    """Two dispatches at the same time, each in two phases; a third one is refused."""
    me = comm.rank
    references = [plain_tokens(seed) for seed in (1, 2)]
    with comm.expert_buffer(dataclasses.replace(PLAIN, mode=mode)) as buffer:
        sent = [buffer.dispatch_send(*arrays_of(reference, me)) for reference in references]
        equal(buffer.in_flight, tuple(sent), "in flight")
        raises(errors.LimitError, lambda: buffer.dispatch_send(*arrays_of(references[0], me)), "2 dispatches")
        raises(errors.InvalidArgumentError, sent[1].receive, "order")
        rows, copies = sent[0].counts()
        equal(rows, [len(references[0].rows(me, number)) for number in LOCAL[me]], "counts")
        equal(copies, len(references[0].copies(me)), "copies")
        received = [one.receive("flat") for one in sent]
        for got, reference in zip(received, references):
            seen = check_rows(kind_of("numpy"), reference, me, got, got.rows)
            got.combine_send(experts_of(reference, me, got, seen, Dtype.F32, Dtype.F32))
        for got, reference in zip(received, references):
            want = reference.combined(me, Dtype.F32, Dtype.F32, Dtype.F32, numpy.zeros_like(reference.tokens[me].x))
            equal(got.combine_receive().tolist(), want.tolist(), "combined")
        equal(buffer.in_flight, (), "in flight after both combines")
        raises(errors.InvalidHandleError, received[0].combine_receive)


@rank
def held_memory(comm: Comm) -> None:
    """Between two phases the caller's memory is held: it can be neither resized nor freed."""
    x, out = bytearray(4 * 160), bytearray(4 * 160)
    with comm.expert_buffer(PLAIN) as buffer:
        sent = buffer.dispatch_send(x, numpy.array([[0, 2, 4]]))
        check_held(x, True)
        got = sent.receive("tokens")
        check_held(x, False)
        got.combine_send(bytes(got.x), dtype=Dtype.F32, out=out, out_dtype=Dtype.F32)
        check_held(out, True)
        assert got.combine_receive() is out
        check_held(out, False)


def check_held(memory: bytearray, held: bool) -> None:
    try:
        memory.extend(b"more")
    except BufferError:
        assert held, "the memory is held"
    else:
        assert not held, "the memory is not held"


@rank
def memory_of_the_caller(comm: Comm) -> None:
    """out= of receive and combine, weighted y, and a second receive after a capacity that was too small."""
    me, reference = comm.rank, plain_tokens()
    with comm.expert_buffer(PLAIN) as buffer:
        arrays = arrays_of(reference, me)
        raises(errors.LimitError, lambda: buffer.dispatch(*arrays, "flat", capacity=0), f"rank {me}", "capacity")
        memory = numpy.full((20, PLAIN.hidden), -1.0, F32)
        got = buffer.in_flight[-1].receive("flat", out=memory)
        assert got.x is memory
        seen = check_rows(kind_of("numpy"), reference, me, got, 20)
        equal(memory[got.rows :].tolist(), [[-1.0] * PLAIN.hidden] * (20 - got.rows), "rows after the last")
        y = experts_of(reference, me, got, seen, Dtype.F32, Dtype.F32)
        weights = numpy.zeros((20, 1), F32)
        weights[: got.rows, 0] = got.weights[: got.rows]
        both = numpy.ones_like(reference.tokens[me].x)
        result = got.combine(weights * y, add=both, out=both, weighted=True)
        assert result is both
        want = reference.combined(me, Dtype.F32, Dtype.F32, Dtype.F32, numpy.ones_like(both))
        equal(both.tolist(), want.tolist(), "added in place")
        padded = buffer.dispatch(*arrays_of(reference, me), out=numpy.zeros((len(LOCAL[me]), 10, PLAIN.hidden), F32))
        check_rows(kind_of("numpy"), reference, me, padded, 10)
        padded.release()


@rank
def replicas(comm: Comm) -> None:
    """Ranks 0 and 2 hold replicas of expert 0. They send to their own replica, and rank 1 alternates. The load counts the copies."""
    tables = {"physical_expert": [0, 1, 0], "physical_rank": numpy.array([0, 1, 2])}
    config = ExpertConfig("ll", 4, hidden=8, num_experts=2, topk=1, dtype=Dtype.F32, **tables)  # type: ignore[arg-type]
    with comm.expert_buffer(config) as buffer:
        info = buffer.info()
        equal((buffer.local_experts, info.num_physical, info.max_local_experts, info.masked), (1, 3, 1, ()), "info")
        equal(info.buffer_bytes, config.buffer_size(comm.world_size), "bytes")
        x = numpy.full((4, 8), comm.rank, F32)
        got = buffer.dispatch(x, numpy.zeros((4, 1), "int64"), layout="flat")
        equal(got.source_rank.tolist(), {0: [0, 0, 0, 0, 1, 1], 1: [], 2: [1, 1, 2, 2, 2, 2]}[comm.rank], "sources")
        equal(got.combine(2 * got.x).tolist(), (2 * x).tolist(), "combined")
        comm.barrier()
        total, local = buffer.load()
        equal((total, local), ([6, 0, 6], [[4, 0, 0], [2, 0, 2], [0, 0, 4]][comm.rank]), "load")


@rank
def invalid_input(comm: Comm) -> None:
    """Invalid ids and duplicate experts: an error before anything is sent, or dropped and reported."""
    x, idx = numpy.ones((2, 160), F32), numpy.array([[0, 7, -1], [4, 4, 2]])
    with comm.expert_buffer(PLAIN) as buffer:
        raises(errors.InvalidArgumentError, lambda: buffer.dispatch(x, idx), f"rank {comm.rank}", "topk_idx[1] is 7")
        buffer.dispatch(x, numpy.array([[0, 1, 2], [4, 3, 2]])).release()
    with comm.expert_buffer(ExpertConfig("ll", dtype=Dtype.F32, on_invalid="drop", **SHAPE)) as buffer:
        got = buffer.dispatch(x, idx, capacity=1)
        report = got.report
        assert report, "nothing was reported"
        equal((report.invalid_ids, report.duplicate_ids, report.over_capacity), (1, 1, 2), "report")
        for word in (f"rank {comm.rank}", "topk_idx[1] is 7"):
            assert word in report.message, report.message
        got.release()


@rank
def masked(comm: Comm) -> None:
    """Ranks 0 and 1 mask rank 2; rank 2 masks them. All continue."""
    lost = (2,) if comm.rank != 2 else (0, 1)
    with comm.expert_buffer(ExpertConfig("ll", dtype=Dtype.F32, lost_weights="renormalize", **SHAPE)) as buffer:
        for other in lost:
            buffer.mask_rank(other)
        equal(buffer.info().masked, lost, "masked")
        x = numpy.ones((1, 160), F32)
        got = buffer.dispatch(x, numpy.array([[0, 2, 4]]))
        equal((got.report.lost_ranks, got.report.lost_copies), (lost, len(lost)), "report")
        equal(got.combine(got.x).tolist(), (3 * x).tolist(), "renormalized")
        assert got.combine_report is not None
        equal(got.combine_report.lost_ranks, lost, "combine's report")
        raises(errors.InvalidArgumentError, lambda: buffer.mask_rank(3), "0..2")


@rank
def outlives_a_rank(comm: Comm, victim: str, on_dead: Literal["fail", "drop"]) -> None:
    """The victim is killed. With on_dead "drop" the others continue without it; with "fail" their error names it."""
    config = ExpertConfig("ll", dtype=Dtype.F32, on_dead=on_dead, **SHAPE)
    buffer = comm.expert_buffer(config)
    comm.barrier()
    if comm.rank == int(victim):
        print("ready", flush=True)
        signal.pause()
    x, idx = numpy.ones((1, 160), F32), numpy.array([[0, 2, 4]])
    if on_dead == "fail":
        equal(raises(errors.RankDeadError, lambda: buffer.dispatch(x, idx), f"rank {victim}").culprit, int(victim), "culprit")
    else:
        got = buffer.dispatch(x, idx)
        equal(got.combine(got.x).tolist(), (2 * x).tolist(), "the sum over the surviving ranks")
        assert got.combine_report is not None
        equal(got.combine_report.lost_ranks, (int(victim),), "lost")
    os._exit(0)  # finalize would fail, because the comm is broken


@rank
def cached_routing(comm: Comm) -> None:
    """A dispatch with a cached routing receives the same rows as one with its topk_idx and topk_weights."""
    x, idx, weights = arrays_of(plain_tokens(), 0)
    with comm.expert_buffer(PLAIN) as buffer:
        with buffer.routing(idx, weights) as routing:
            equal(routing.tokens, len(x), "tokens")
            plain = buffer.dispatch(x, idx, weights, "flat")
            for _ in range(3):
                got = buffer.dispatch(x, layout="flat", routing=routing, capacity=plain.rows)
                equal(got.x.tolist(), plain.x.tolist(), "rows")
                raises(errors.BusyError, routing.destroy, "in flight")
                got.release()
            plain.release()
            check_refusals(
                [
                    (lambda: buffer.dispatch(x, idx, routing=routing), "routing replaces topk_idx and topk_weights"),
                    (lambda: buffer.dispatch(x), "topk_idx and routing are None"),
                    (lambda: buffer.dispatch(x[1:].copy(), routing=routing), f"{len(x) - 1} tokens.*made of {len(x)}"),
                    (lambda: buffer.routing(idx, weights[:2]), "topk_weights 2"),
                ]
            )
            raises(errors.UnsupportedError, lambda: buffer.dispatch(x, idx, stream=64), "CPU comm")
        raises(errors.InvalidHandleError, lambda: buffer.dispatch(x, routing=routing))


@rank
def configs(comm: Comm) -> None:
    """Invalid configs, and a config that differs between ranks."""

    def made(**fields: Any) -> Callable[[], Any]:
        return lambda: comm.expert_buffer(ExpertConfig(**{"mode": "ll", "dtype": Dtype.F32, **SHAPE, **fields}))

    check_refusals(
        [
            (made(mode="fast"), "mode 'fast'.*'ll', 'ht'"),
            (made(scale="f16"), "scale 'f16'"),
            (made(on_dead="keep"), "on_dead 'keep'"),
            (made(hidden=-1), "hidden -1"),
            (made(topk=2**32 + 1), "topk 4294967297"),
            (made(max_tokens_per_rank=0), "max_tokens_per_rank 0"),
            (made(dtype=Dtype.I32), "dtype"),
            (made(physical_expert=[0, 1], physical_rank=[0]), "2 entries.*1"),
            (made(physical_expert=[0, 1, 2, 3, 2**31]), "physical_expert[4]"),
            (made(physical_expert=[0, 1, 2, 3, 3]), "expert 4"),
            (made(physical_rank=[0, 0, 0, 0, comm.world_size]), "physical_rank[4]"),
            (lambda: PLAIN.buffer_size(0), "world_size 0"),
            (lambda: PLAIN.buffer_size(-1), "world_size -1"),
            (lambda: PLAIN.buffer_size(2, "cuda:0"), "buffer_size: device 'cuda:0'.*'cpu', 'cuda'"),  # type: ignore[arg-type]
        ]
    )
    raises(errors.MismatchError, made(hidden=128 + comm.rank), "hidden")


@rank
def arguments(comm: Comm) -> None:
    """Errors that are found before the call, so the buffer works afterwards."""
    me, (x, idx, weights) = comm.rank, arrays_of(plain_tokens(), 0)
    with comm.expert_buffer(PLAIN) as buffer:
        unknown: Any = "dense"
        check_refusals(
            [
                (lambda: buffer.dispatch(x.astype("float64"), idx), "x: dtype F32.*float64"),
                (lambda: buffer.dispatch(x.view("int8"), idx), "x: dtype F32.*int8.*own type"),
                (lambda: buffer.dispatch(x, idx, weights.view("int8")), "topk_weights: dtype F32.*int8"),
                (lambda: buffer.dispatch(x[:, :80].copy(), idx), f"rank {me}.*x has shape (4, 80).*rows of 160"),
                (lambda: buffer.dispatch(x, idx[:3]), "4 tokens.*topk_idx 3"),
                (lambda: buffer.dispatch(x, idx[:, :2].copy()), "topk_idx has shape (4, 2)"),
                (lambda: buffer.dispatch(x, idx.astype("float32")), "topk_idx has F32"),
                (lambda: buffer.dispatch(x, idx, weights[:2]), "topk_weights 2"),
                (lambda: buffer.dispatch(x, idx, weights.astype("float64")), "topk_weights"),
                (lambda: buffer.dispatch(x, idx, layout=unknown), "layout 'dense'.*'padded', 'flat', 'tokens'"),
                (lambda: buffer.dispatch(x, idx, alignment=0), "alignment 0"),
                (lambda: buffer.dispatch(x, idx, capacity=-1), "capacity -1"),
                (lambda: buffer.dispatch(x, idx, capacity=1, out=x), "omit capacity"),
                (lambda: buffer.dispatch(x, idx, out=bytes(640)), "read-only"),
            ]
        )
        equal(buffer.in_flight, (), "in flight after errors")
        got = buffer.dispatch(x, idx, weights, "flat")
        y = got.x
        check_refusals(
            [
                (lambda: got.combine(y[:-1]), f"y has {got.rows - 1} rows"),
                (lambda: got.combine(y.view("int8"), dtype=Dtype.F32), "y: dtype F32.*int8"),
                (lambda: got.combine(y, add=x.view("int8"), out_dtype=Dtype.F32), "add: dtype F32.*int8"),
                (lambda: got.combine(y.astype("int32")), "y_dtype i32"),
                (lambda: got.combine(bytes(y)), "y_dtype u8"),
                (lambda: got.combine(y, out=x[:2]), "out has 2 rows.*4 tokens"),
                (lambda: got.combine(y, add=x, out=x.astype("float16")), "combine: out.*F32"),
                (got.combine_receive, "no combine under way"),
            ]
        )
        assert got.combine(y, out_dtype=Dtype.F16).dtype == numpy.float16
    narrow = dataclasses.replace(PLAIN, wire_dtype=Dtype.FP8_E4M3)
    with comm.expert_buffer(narrow) as buffer, mock.patch.dict(sys.modules, {"ml_dtypes": None}):
        raises(errors.InvalidArgumentError, lambda: buffer.dispatch(x, idx), "float8_e4m3fn", "bytes")
        equal(buffer.in_flight, (), "in flight after a missing type")
    raises(errors.InvalidHandleError, buffer.info)
    raises(errors.InvalidHandleError, buffer.destroy)
    buffer = comm.expert_buffer(PLAIN)
    comm.finalize()
    raises(errors.InvalidHandleError, lambda: buffer.dispatch(x, idx))


if __name__ == "__main__":
    main()
