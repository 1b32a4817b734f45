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
    STALE = 23
    REFUSED = 24
    EXPIRED = 25
    CANCELLED = 26
    PATH_LOST = 27
    STALLED = 28
    NO_PEER = 29
    NAME_TAKEN = 30


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


# In the order of the numbers: a list is looked up faster than a dictionary of members.
_ITEMSIZE = [4, 2, 8, 2, 1, 1, 1, 1, 4, 8, 8]
_ARRAY_NAME = [
    "float32", "bfloat16", "float64", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32", "int64", "uint64",
]  # fmt: skip

DTYPE_OF_ARRAY_NAME = {name: Dtype(number) for number, name in enumerate(_ARRAY_NAME)}


class Op(enum.IntEnum):
    """A reduction. Comm.pre_mul_sum makes more of them."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4
