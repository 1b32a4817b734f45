"""Comms: one rank of a group."""

from __future__ import annotations

import ctypes
import dataclasses
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, Type, Union

from ._abi import Choice, CommInfo, CommStatus, versioned
from ._buffers import Buffer
from ._collectives import Collectives, PreMulSum
from ._devices import device_of
from ._library import check, check_on, load, ranks_of
from .enums import Dtype, Result
from .errors import InvalidArgumentError, InvalidHandleError
from .expert_parallel import ExpertBuffer, ExpertConfig
from .window import Window, register

if TYPE_CHECKING:
    from ._collectives import Readable

_SPLIT_NONE = -1

_SCALARS: Dict[Dtype, Any] = {
    Dtype.F64: ctypes.c_double,
    Dtype.I8: ctypes.c_int8,
    Dtype.U8: ctypes.c_uint8,
    Dtype.I32: ctypes.c_int32,
    Dtype.I64: ctypes.c_int64,
    Dtype.U64: ctypes.c_uint64,
}  # the other types are summed in float, and their scalar is a float


@dataclasses.dataclass(frozen=True)
class Status:
    """What a rank is doing, or why its group is broken. None: no rank, or unknown."""

    result: Union[Result, int]  # OK while the group works
    rank: int
    culprit: Optional[int]  # the rank that died, was late or aborted
    reporter: Optional[int]  # the rank that noticed; None: the daemon
    operation: int  # operations that this rank has begun
    bytes: int  # of the current or the interrupted operation
    waiting_for: Tuple[int, ...]  # ranks that this rank waits or waited for
    operation_name: str
    culprit_operation_name: str
    algorithm_name: str  # of the last collective that moved data
    algorithm_why: str  # "default", "tuned", "forced", "only" or "not_zero_copy"
    message: str


class Comm(Collectives):
    """One rank of a group. Session.comm and Comm.split make them.

    The end of a with block finalizes the comm, which waits for the other ranks to do the same. If an exception leaves the block,
    the group is aborted first, so that the other ranks fail at once instead of waiting."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self._ended = False
        self._registered: Dict[int, Buffer] = {}  # memory that peers see, by window; it must stay until the window is freed
        info = versioned(CommInfo)
        check(load().rh_comm_get_info(handle, ctypes.byref(info)))
        self.rank = info.rank
        self.world_size = info.world_size
        self.device = device_of(info.device_kind, info.device_ordinal)
        self.device_stop_word: Optional[int] = info.device_stop_word  # its address for kernels; None on the CPU
        self._stop_word: Optional[int] = info.stop_word  # the same word, for the host

    def __repr__(self) -> str:
        return f"<railhead.Comm rank {self.rank} of {self.world_size} on {self.device}{', finalized' if self._ended else ''}>"

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], exception: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._ended:
            return
        if exception is None:
            self.finalize()
            return
        # Errors of these two calls are ignored: the exception in progress is the cause.
        load().rh_comm_abort(self._handle)
        self._end()

    def finalize(self) -> None:
        """Collective: waits until every rank has called it, then frees the comm and its windows. On a broken group it returns at
        once. The comm, its windows and views of them are invalid afterwards, whatever the result."""
        check(self._end())

    def _end(self) -> int:
        result: int = load().rh_comm_finalize(self._handle)
        if result != Result.BUSY:
            self._ended = True
            self._registered.clear()
        return result

    def abort(self) -> None:
        """Breaks the group: every rank's current and later calls raise AbortedError naming this rank. Any thread."""
        check(load().rh_comm_abort(self._handle))

    def stopped(self) -> bool:
        """Whether an operation of a CUDA comm has given up, so that no output of it or of a later one may be used; status() says
        why some milliseconds later. Ask when the stream has run. It reads one word of memory and synchronises nothing. Always False
        on the CPU, whose calls raise their errors."""
        if self._ended:
            raise InvalidHandleError(f"stopped: rank {self.rank}: the comm was finalized")
        return self._stop_word is not None and ctypes.c_uint32.from_address(self._stop_word).value != 0

    def status(self) -> Status:
        """What this rank is doing, or why the group is broken. Any thread."""
        raw = versioned(CommStatus)
        check(load().rh_comm_get_status(self._handle, ctypes.byref(raw)))
        waiting_for = ranks_of(self.world_size, partial(load().rh_comm_get_waiting_for, self._handle))
        known = raw.result in Result.__members__.values()
        return Status(
            result=Result(raw.result) if known else raw.result,
            rank=raw.rank,
            culprit=raw.culprit if raw.culprit >= 0 else None,
            reporter=raw.reporter if raw.reporter >= 0 else None,
            operation=raw.operation,
            bytes=raw.bytes,
            waiting_for=waiting_for,
            operation_name=raw.operation_name.decode(),
            culprit_operation_name=raw.culprit_operation_name.decode(),
            algorithm_name=raw.algorithm_name.decode(),
            algorithm_why=raw.algorithm_why.decode(),
            message=raw.message.decode("utf-8", "replace"),
        )

    def choice(self, operation: str, nbytes: int, *, in_windows: bool = False) -> Tuple[str, str]:
        """The algorithm of an operation ("all_reduce"), and why it was chosen (Status.algorithm_why). nbytes: the size of the
        larger of a rank's two buffers. in_windows: whether the buffers of all ranks are in windows. Any thread."""
        if not 0 <= nbytes < 2**64:
            raise InvalidArgumentError(f"choice: rank {self.rank}: nbytes {nbytes} is outside 0..{2**64 - 1}")
        raw = versioned(Choice)
        check(load().rh_comm_get_choice(self._handle, operation.encode(), nbytes, in_windows, ctypes.byref(raw)))
        return raw.algorithm.decode(), raw.why.decode()

    def split(self, color: Optional[int], key: int = 0) -> Optional[Comm]:
        """Collective: makes a comm of the ranks with the same color (0 or more), ordered by key, then by rank. A rank without a
        comm must also call it, with color None; it returns None."""
        if color is not None and not 0 <= color < 2**31:
            raise InvalidArgumentError(f"split: rank {self.rank}: color {color} is outside 0..{2**31 - 1}; pass None for no comm")
        if not -(2**31) <= key < 2**31:
            raise InvalidArgumentError(f"split: rank {self.rank}: key {key} does not fit 32 bits")
        handle = ctypes.c_void_p()
        result = load().rh_comm_split(self._handle, _SPLIT_NONE if color is None else color, key, ctypes.byref(handle))
        check_on(result, (self._handle,))
        return Comm(handle) if handle.value else None

    def pre_mul_sum(self, scalar: float, dtype: Dtype) -> PreMulSum:
        """A reduction: a sum for which each rank first multiplies its contribution by its own scalar."""
        kind = _SCALARS.get(Dtype(dtype), ctypes.c_float)
        value = kind(scalar)
        if isinstance(value.value, int) and value.value != scalar:
            raise InvalidArgumentError(f"pre_mul_sum: rank {self.rank}: scalar {scalar} does not fit {Dtype(dtype).name}")
        number = ctypes.c_int32()
        result = load().rh_op_create_pre_mul_sum(self._handle, dtype, ctypes.byref(value), ctypes.byref(number))
        check_on(result, (self._handle,))
        return PreMulSum(self._handle, number.value, Dtype(dtype))

    def alloc_window(self, nbytes: int) -> Window:
        """Collective, with the same size on every rank: zeroed memory that all ranks can access. On a
        CUDA device it is memory of the device, in whole granules (2 MiB)."""
        if nbytes < 0:
            raise InvalidArgumentError(f"alloc_window: rank {self.rank}: nbytes {nbytes} is negative")
        handle = ctypes.c_void_p()
        check_on(load().rh_window_alloc(self._handle, nbytes, None, ctypes.byref(handle)), (self._handle,))
        return Window(self, handle)

    def register_window(self, buffer: Readable, *, fd: Optional[int] = None, fd_offset: int = 0) -> Window:
        """Collective: makes a window of the caller's memory. The memory is kept alive until the window is freed or the comm is
        finalized. The other ranks can map it if it is mapped from a memfd that can be sealed (os.memfd_create with
        MFD_ALLOW_SEALING): from fd at fd_offset, or from a descriptor that the library finds by the address. On a CUDA device they can
        map tensors that torch has allocated with expandable_segments:True, without fd. Window.sharing says whether the memory is
        shared, and if not, what to do. If it is not shared, collectives copy, and only this rank's part can be viewed."""
        return register(self, buffer, fd, fd_offset)

    def expert_buffer(self, config: ExpertConfig) -> ExpertBuffer:
        """Collective, with the same config on every rank: a buffer to dispatch tokens to experts and to combine the experts'
        outputs."""
        return ExpertBuffer(self, config)
