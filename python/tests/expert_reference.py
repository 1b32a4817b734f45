"""A reference of dispatch and combine in plain numpy. It computes the results from the tokens of all ranks."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any, Iterator, List, Tuple

import elements
import numpy
from railhead import Dtype, ExpertConfig

F32 = numpy.float32
Array = Any  # a numpy array; the element type is not checked
BLOCK = 128  # elements that share a scale


def rounded(values: Array, dtype: Dtype) -> Array:
    """float32 values, rounded to dtype."""
    return decoded(encoded(values, dtype), dtype).reshape(values.shape)


def encoded(values: Array, dtype: Dtype) -> bytes:
    return elements.encode(values.ravel().tolist(), dtype)


def decoded(memory: bytes, dtype: Dtype) -> Array:
    return numpy.array(elements.decode(memory, dtype), F32)


def expert(number: int, rows: Array) -> Array:
    """The output of a logical expert."""
    return (rows * F32(number + 1)).astype(F32)


@dataclasses.dataclass
class Tokens:
    """The input of one rank's dispatch."""

    x: Array  # [tokens, hidden], representable in dtype
    idx: List[List[int]]
    weights: Array


def tokens_of(config: ExpertConfig, rank: int, count: int, seed: int = 0) -> Tokens:
    """The same in every process. Some entries are -1, and token 1 has no expert."""
    source = random.Random(f"{rank} {seed}")
    values = [source.uniform(-2, 2) * (100 if i % 7 == 0 else 1) for i in range(count * config.hidden)]
    idx = [source.sample(range(config.num_experts), config.topk) for _ in range(count)]
    idx = [[-1 if t == 1 or source.random() < 0.2 else e for e in row] for t, row in enumerate(idx)]
    weights = numpy.array([source.random() for _ in range(count * config.topk)], F32)
    x = rounded(numpy.array(values, F32).reshape(count, config.hidden), Dtype(config.dtype))
    return Tokens(x, idx, weights.reshape(count, config.topk))


def fp8(row: Array, config: ExpertConfig) -> Tuple[bytes, List[float]]:
    """A token quantised to FP8: its codes, and the scale of each block (UE8M0: as a byte)."""
    codes, scales = b"", []
    for block in (row[i : i + BLOCK] for i in range(0, len(row), BLOCK)):
        most = F32(max(numpy.abs(block).max(), F32(1e-4)))
        if config.scale == "f32":
            codes += encoded((block * (F32(448) / most)).astype(F32), Dtype.FP8_E4M3)
            scales.append(float(most / F32(448)))
        else:
            fraction, exponent = math.frexp(float(most) / 448)
            exponent -= fraction == 0.5
            codes += encoded((block / F32(2.0**exponent)).astype(F32), Dtype.FP8_E4M3)
            scales.append(exponent + 127)
    if config.scale == "static":
        return encoded((row / F32(config.static_scale)).astype(F32), Dtype.FP8_E4M3), []
    return codes, scales


def widened(codes: Array, scales: List[float], config: ExpertConfig) -> Array:
    """The dequantised token. codes: float32 values of the FP8 codes."""
    each = [2.0 ** (s - 127) for s in scales] if config.scale == "ue8m0" else scales or [config.static_scale]
    columns = numpy.repeat(numpy.array(each, F32), BLOCK if scales else len(codes))[: len(codes)]
    return (codes * columns).astype(F32)


class Reference:
    """The tokens of all ranks, and the placement: local[r] lists the logical experts of rank r."""

    def __init__(self, config: ExpertConfig, tokens: List[Tokens], local: List[List[int]]) -> None:
        self.config = config
        self.tokens = tokens
        self.local = local

    def wire(self, rank: int, token: int) -> Tuple[bytes, List[float]]:
        """A token in wire_dtype, and its scales."""
        row = self.tokens[rank].x[token]
        return fp8(row, self.config) if self.config.wire == Dtype.FP8_E4M3 else (encoded(row, self.config.wire), [])

    def seen(self, rank: int, token: int) -> Array:
        """A token as the experts get it: dequantised."""
        memory, scales = self.wire(rank, token)
        values = decoded(memory, self.config.wire)
        return widened(values, scales, self.config) if self.config.wire == Dtype.FP8_E4M3 else values

    def choices(self, rank: int, token: int, on: int) -> Iterator[Tuple[int, Array]]:
        """A token's experts on one rank, with their weights, in the token's order."""
        for chosen, weight in zip(self.tokens[rank].idx[token], self.tokens[rank].weights[token]):
            if chosen in self.local[on]:
                yield chosen, weight

    def rows(self, on: int, number: int) -> List[Tuple[int, int, Array]]:
        """The rows of an expert on a rank, in order: source rank, source token, weight."""
        return [
            (rank, token, weight)
            for rank, have in enumerate(self.tokens)
            for token in range(len(have.idx))
            for chosen, weight in self.choices(rank, token, on)
            if chosen == number
        ]

    def copies(self, on: int) -> List[Tuple[int, int]]:
        """The token copies that a rank receives: source rank, source token."""
        everyone = [(rank, token) for rank, have in enumerate(self.tokens) for token in range(len(have.idx))]
        return [(rank, token) for rank, token in everyone if any(self.choices(rank, token, on))]

    def combined(self, rank: int, y_dtype: Dtype, out_dtype: Dtype, combine_dtype: Dtype, add: Array) -> Array:
        """The combined output of a rank, with products, partial sums and sums rounded as railhead_ep.h says."""
        out = numpy.zeros_like(self.tokens[rank].x)
        for token in range(len(out)):
            for on in range(len(self.local)):
                part = numpy.zeros(self.config.hidden, F32)
                for number, weight in self.choices(rank, token, on):
                    part += weight * rounded(expert(number, self.seen(rank, token)), y_dtype)
                out[token] += rounded(part, combine_dtype)
            out[token] += add[token]
        return rounded(out, out_dtype)
