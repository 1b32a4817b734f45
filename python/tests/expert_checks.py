"""Inputs and checks of the tests of expert parallelism."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy
from array_ranks import kind_of
from expert_reference import BLOCK, F32, Array, Reference, decoded, encoded, expert, rounded, tokens_of
from railhead import Dtype, ExpertConfig, Received
from ranks import equal

COUNTS = (4, 0, 6)  # tokens of each rank
SHAPE: Dict[str, Any] = {"max_tokens_per_rank": 8, "hidden": 160, "num_experts": 5, "topk": 3}
LOCAL = [[0, 1], [2, 3], [4]]  # experts of each rank
PLAIN = ExpertConfig("ll", dtype=Dtype.F32, **SHAPE)


def plain_tokens(seed: int = 0) -> Reference:
    return Reference(PLAIN, [tokens_of(PLAIN, r, n, seed) for r, n in enumerate(COUNTS)], LOCAL)


def arrays_of(reference: Reference, me: int) -> Tuple[Array, Array, Array]:
    mine = reference.tokens[me]
    return mine.x, numpy.array(mine.idx, "int32").reshape(-1, PLAIN.topk), mine.weights


class Raw:
    """Makes and reads plain memory instead of arrays or tensors."""

    def make(self, memory: bytes, dtype: Dtype, *shape: int) -> Any:
        return memoryview(bytearray(memory)).cast("q") if dtype == Dtype.I64 else bytearray(memory)

    def read(self, values: Any, dtype: Dtype, *shape: int) -> bytes:
        assert isinstance(values, (bytearray, memoryview)), type(values)
        equal(len(bytes(values)), int(numpy.prod(shape)) * dtype.itemsize, "size")
        return bytes(values)


def kind_named(name: str) -> Any:
    return Raw() if name == "raw" else kind_of(name)


def ints(kind: Any, values: Any, dtype: Dtype, *shape: int) -> Array:
    size = "<i4" if dtype == Dtype.I32 else "<i8"
    return numpy.frombuffer(kind.read(values, dtype, *shape), size).reshape(shape)


def floats(kind: Any, values: Any, dtype: Dtype, *shape: int) -> Array:
    return decoded(kind.read(values, dtype, *shape), dtype).reshape(shape)


def inputs_of(kind: Any, config: ExpertConfig, reference: Reference, me: int) -> Tuple[Any, Any, Any]:
    mine = reference.tokens[me]
    n = len(mine.idx)
    ids = numpy.array(mine.idx, "int64").reshape(n, config.topk)
    return (
        kind.make(encoded(mine.x, Dtype(config.dtype)), Dtype(config.dtype), n, config.hidden),
        kind.make(ids.tobytes(), Dtype.I64, n, config.topk),
        kind.make(mine.weights.tobytes(), Dtype.F32, n, config.topk),
    )


def check_rows(kind: Any, reference: Reference, me: int, got: Received, capacity: int) -> Array:
    """Checks all received outputs. Returns the dequantised rows, which are the experts' input."""
    local, copies = reference.local[me], reference.copies(me)
    lead = (len(local), capacity) if got.layout == "padded" else (capacity,)
    per_expert = [reference.rows(me, number) for number in local]
    equal(ints(kind, got.counts, Dtype.I32, len(local)).tolist(), [len(rows) for rows in per_expert], "counts")
    equal((got.tokens, bool(got.report)), (len(copies), False), "copies and report")
    if got.layout == "tokens":
        check_choices(kind, reference, me, got)
        return seen_rows(kind, reference, got, lead, [(row, *copy) for row, copy in enumerate(copies)])
    begins = ints(kind, got.offsets, Dtype.I64, len(local) + 1)
    weights = floats(kind, got.weights, Dtype.F32, *lead).ravel()
    want = []
    for begin, rows in zip(begins, per_expert):
        want += [(begin + i, source, token) for i, (source, token, _) in enumerate(rows)]
        equal(weights[begin : begin + len(rows)].tolist(), [weight for _, _, weight in rows], "weights")
    return seen_rows(kind, reference, got, lead, want)


def check_choices(kind: Any, reference: Reference, me: int, got: Received) -> None:
    copies, topk = reference.copies(me), reference.config.topk
    idx = ints(kind, got.topk_idx, Dtype.I32, len(copies), topk)
    weights = floats(kind, got.topk_weights, Dtype.F32, len(copies), topk)
    for row, (source, token) in enumerate(copies):
        want = list(reference.choices(source, token, me))
        numbers = [reference.local[me].index(number) for number, _ in want]
        equal(idx[row].tolist(), numbers + [-1] * (topk - len(want)), f"local experts of row {row}")
        equal(weights[row][: len(want)].tolist(), [w for _, w in want], f"weights of row {row}")


def seen_rows(
    kind: Any, reference: Reference, got: Received, lead: Tuple[int, ...], want: List[Tuple[int, int, int]]
) -> Array:
    """Checks each (row, source rank, source token) of want. Returns the dequantised rows."""
    config = reference.config
    x = floats(kind, got.x, config.wire, *lead, config.hidden).reshape(-1, config.hidden)
    ranks, tokens = (ints(kind, a, Dtype.I32, *lead).ravel().tolist() for a in (got.source_rank, got.source_token))
    scales = scales_of(kind, reference, got, lead)
    seen = numpy.zeros_like(x)
    for row, source, token in want:
        equal((ranks[row], tokens[row]), (source, token), f"source of row {row}")
        memory, expected = reference.wire(source, token)
        equal(x[row].tolist(), decoded(memory, config.wire).tolist(), f"row {row}, token {token} of rank {source}")
        equal([] if scales is None else scales[row].tolist(), expected, f"scales of row {row}")
        seen[row] = reference.seen(source, token)
    return seen


def scales_of(kind: Any, reference: Reference, got: Received, lead: Tuple[int, ...]) -> Array:
    if got.scales is None:
        return None
    columns = -(-reference.config.hidden // BLOCK)
    if reference.config.scale == "f32":
        return floats(kind, got.scales, Dtype.F32, *lead, columns).reshape(-1, columns)
    return numpy.frombuffer(kind.read(got.scales, Dtype.U8, *lead, columns), "u1").reshape(-1, columns)


def experts_of(reference: Reference, me: int, got: Received, seen: Array, y_dtype: Dtype, combine_dtype: Dtype) -> Array:
    """The outputs of this rank's experts for the rows."""
    y = numpy.zeros_like(seen)
    if got.layout == "tokens":  # weighted, and added over this rank's experts
        for row, (source, token) in enumerate(reference.copies(me)):
            for number, weight in reference.choices(source, token, me):
                y[row] += weight * rounded(expert(number, seen[row]), y_dtype)
        return rounded(y, combine_dtype)
    for e, number in enumerate(reference.local[me]):
        begin, n = got.offsets.tolist()[e], len(reference.rows(me, number))
        y[begin : begin + n] = rounded(expert(number, seen[begin : begin + n]), y_dtype)
    return y
