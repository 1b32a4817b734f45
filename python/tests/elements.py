"""Elements of every dtype in plain Python: encoding, decoding and reference reductions."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
import struct
from typing import List, Sequence, Tuple, Union

from railhead import Dtype, Op

Number = Union[int, float]

_STRUCT = {
    Dtype.F32: "f", Dtype.F64: "d", Dtype.F16: "e", Dtype.I8: "b", Dtype.U8: "B", Dtype.I32: "i", Dtype.I64: "q", Dtype.U64: "Q",
}  # fmt: skip
# Exponent bits and mantissa bits of the types that struct does not have.
_SMALL = {Dtype.BF16: (8, 7), Dtype.FP8_E4M3: (4, 3), Dtype.FP8_E5M2: (5, 2)}

INTEGERS = (Dtype.I8, Dtype.U8, Dtype.I32, Dtype.I64, Dtype.U64)


def encode(values: Sequence[Number], dtype: Dtype) -> bytes:
    """The bytes of values, rounded to nearest, ties to even. Integers wrap."""
    if dtype in INTEGERS:
        return b"".join(_wrapped(int(v), dtype).to_bytes(dtype.itemsize, "little") for v in values)
    if dtype in _STRUCT:
        return struct.pack(f"={len(values)}{_STRUCT[dtype]}", *values)
    return b"".join(_code(float(v), dtype).to_bytes(dtype.itemsize, "little") for v in values)


def decode(memory: Union[bytes, bytearray, memoryview], dtype: Dtype) -> List[Number]:
    if dtype in _STRUCT:
        return list(struct.unpack(f"={len(memory) // dtype.itemsize}{_STRUCT[dtype]}", memory))
    codes = struct.unpack(f"={len(memory) // dtype.itemsize}{'H' if dtype.itemsize == 2 else 'B'}", memory)
    return [_value(code, dtype) for code in codes]


def reduced(inputs: Sequence[Sequence[Number]], op: Op, dtype: Dtype) -> bytes:
    """The bytes of the reduction, element by element, of one sequence for each rank."""
    return encode([_fold(column, op, dtype) for column in zip(*inputs)], dtype)


def _fold(column: Tuple[Number, ...], op: Op, dtype: Dtype) -> Number:
    if op in (Op.MIN, Op.MAX):
        return min(column) if op == Op.MIN else max(column)
    step = operator.mul if op == Op.PROD else operator.add
    if dtype in INTEGERS:
        total = _signed(_wrapped(int(functools.reduce(step, column)), dtype), dtype)
        return math.trunc(total / len(column)) if op == Op.AVG else total
    # As floats from the start, because -2.0 * 0.0 is -0.0.
    wide = functools.reduce(lambda a, b: _widened(step(a, b), dtype), map(float, column))
    return _widened(wide / len(column), dtype) if op == Op.AVG else wide


def _widened(value: float, dtype: Dtype) -> float:
    """Rounded to the accumulator's type."""
    if dtype == Dtype.F64:
        return value
    rounded: float = struct.unpack("=f", struct.pack("=f", value))[0]
    return rounded


def _wrapped(value: int, dtype: Dtype) -> int:
    return value & ((1 << 8 * dtype.itemsize) - 1)


def _signed(value: int, dtype: Dtype) -> int:
    bits = 8 * dtype.itemsize
    return value - 2**bits if dtype in (Dtype.I8, Dtype.I32, Dtype.I64) and value >= 2 ** (bits - 1) else value


def _value(code: int, dtype: Dtype) -> float:
    exponent_bits, mantissa_bits = _SMALL[dtype]
    exponent = code >> mantissa_bits & (2**exponent_bits - 1)
    mantissa = code & (2**mantissa_bits - 1)
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 2**exponent_bits - 1 and (dtype != Dtype.FP8_E4M3 or mantissa == 7):
        size = math.inf if mantissa == 0 and dtype != Dtype.FP8_E4M3 else math.nan
    elif exponent == 0:
        size = math.ldexp(mantissa, 1 - bias - mantissa_bits)
    else:
        size = math.ldexp(2**mantissa_bits + mantissa, exponent - bias - mantissa_bits)
    return -size if code >> (exponent_bits + mantissa_bits) else size


@functools.lru_cache(maxsize=None)
def _values(dtype: Dtype) -> List[float]:
    """The non-negative finite values, indexed by code. They ascend."""
    return list(itertools.takewhile(math.isfinite, (_value(code, dtype) for code in range(2 ** (8 * dtype.itemsize - 1)))))


def _code(value: float, dtype: Dtype) -> int:
    """The code of the nearest value. value must be within the finite range."""
    values, size = _values(dtype), abs(value)
    above = min(bisect.bisect_left(values, size), len(values) - 1)
    nearest: int = min((above, max(above - 1, 0)), key=lambda code: (abs(values[code] - size), code & 1))
    sign: int = 1 << (8 * dtype.itemsize - 1) if math.copysign(1, value) < 0 else 0
    return nearest | sign
