"""Railhead: collective communication between the ranks of a node, through shared memory.

    with railhead.Session() as session, session.comm() as comm:  # $RAILHEAD_SOCKET; rank and job from the launcher
        total = comm.all_reduce(numpy_array_or_torch_tensor_or_buffer)

The package binds librailhead.so.0 through ctypes. Calls release the GIL. Only one thread at a time may use a comm."""

from ._collectives import PreMulSum
from ._device_buffers import DeviceMemory
from ._devices import Device
from ._groups import group
from ._version import __version__
from .comm import Comm, Status
from .enums import Dtype, Op, Result
from .errors import (
    AbortedError,
    BusyError,
    CancelledError,
    DaemonLostError,
    DeadlineError,
    DrainingError,
    ExpiredError,
    GroupBusyError,
    InvalidArgumentError,
    InvalidHandleError,
    LibraryError,
    LimitError,
    MismatchError,
    NameTakenError,
    NoDaemonError,
    NoPeerError,
    OutOfMemoryError,
    PathLostError,
    ProtocolError,
    RailheadError,
    RankDeadError,
    RankMissingError,
    RankTakenError,
    RefusedError,
    SocketPermissionError,
    StaleError,
    StalledError,
    SystemCallError,
    TokenMismatchError,
    UnsupportedError,
    VersionMismatchError,
    WorldSizeMismatchError,
)
from .expert_dispatch import Dispatch, Received
from .expert_parallel import ExpertBuffer, ExpertConfig, ExpertInfo, ExpertRouting
from .expert_report import ExpertReport
from .session import Session
from .window import Sharing, Window

__all__ = [
    "AbortedError",
    "BusyError",
    "CancelledError",
    "Comm",
    "DaemonLostError",
    "DeadlineError",
    "Device",
    "DeviceMemory",
    "Dispatch",
    "DrainingError",
    "Dtype",
    "ExpertBuffer",
    "ExpertConfig",
    "ExpertInfo",
    "ExpertReport",
    "ExpertRouting",
    "ExpiredError",
    "GroupBusyError",
    "InvalidArgumentError",
    "InvalidHandleError",
    "LibraryError",
    "LimitError",
    "MismatchError",
    "NameTakenError",
    "NoDaemonError",
    "NoPeerError",
    "Op",
    "OutOfMemoryError",
    "PathLostError",
    "PreMulSum",
    "ProtocolError",
    "RailheadError",
    "RankDeadError",
    "RankMissingError",
    "RankTakenError",
    "Received",
    "RefusedError",
    "Result",
    "Session",
    "Sharing",
    "SocketPermissionError",
    "StaleError",
    "StalledError",
    "Status",
    "SystemCallError",
    "TokenMismatchError",
    "UnsupportedError",
    "VersionMismatchError",
    "Window",
    "WorldSizeMismatchError",
    "__version__",
    "group",
]
