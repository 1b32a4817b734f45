"""The enums of railhead.h: results, element types, reductions. The numbers never change."""

from __future__ import annotations

import enum


class Result(enum.IntEnum):
    """The result of a library call."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    UNSUPPORTED = 3
    OUT_OF_MEMORY = 4
    SYSTEM = 5
    NO_DAEMON = 6
    DAEMON_LOST = 7
    VERSION_MISMATCH = 8
    PERMISSION = 9
    PROTOCOL = 10
    TIMEOUT = 11
    RANK_MISSING = 12
    WORLD_SIZE_MISMATCH = 13
    TOKEN_MISMATCH = 14
    RANK_TAKEN = 15
    GROUP_BUSY = 16
    RANK_DEAD = 17
    ABORTED = 18
    DRAINING = 19
    MISMATCH = 20
    LIMIT = 21
    BUSY = 22


class Dtype(enum.IntEnum):
    """An element type."""

    F32 = 0
    BF16 = 1
    F64 = 2
    F16 = 3
    FP8_E4M3 = 4
    FP8_E5M2 = 5
    I8 = 6
    U8 = 7
    I32 = 8
    I64 = 9
    U64 = 10

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return _ITEMSIZE[self]

    @property
    def array_name(self) -> str:
        """The name of the type in numpy (with ml_dtypes) and torch."""
        return _ARRAY_NAME[self]


_ITEMSIZE = {
    Dtype.F32: 4, Dtype.BF16: 2, Dtype.F64: 8, Dtype.F16: 2, Dtype.FP8_E4M3: 1, Dtype.FP8_E5M2: 1,
    Dtype.I8: 1, Dtype.U8: 1, Dtype.I32: 4, Dtype.I64: 8, Dtype.U64: 8,
}  # fmt: skip

_ARRAY_NAME = {
    Dtype.F32: "float32",
    Dtype.BF16: "bfloat16",
    Dtype.F64: "float64",
    Dtype.F16: "float16",
    Dtype.FP8_E4M3: "float8_e4m3fn",
    Dtype.FP8_E5M2: "float8_e5m2",
    Dtype.I8: "int8",
    Dtype.U8: "uint8",
    Dtype.I32: "int32",
    Dtype.I64: "int64",
    Dtype.U64: "uint64",
}

DTYPE_OF_ARRAY_NAME = {name: dtype for dtype, name in _ARRAY_NAME.items()}


class Op(enum.IntEnum):
    """A reduction. Comm.pre_mul_sum makes more of them."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4
