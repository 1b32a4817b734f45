"""Exceptions: one class for each result of the library."""

from __future__ import annotations

from typing import Dict, Optional, Type, Union

from .enums import Result


class LibraryError(ImportError):
    """The shared library was not found, or its version does not match this package."""


class RailheadError(Exception):
    """A call failed. The message names the rank and the operation, and says what happened and what to do."""

    result: Union[Result, int] = Result.OK

    def __init__(self, message: str, culprit: Optional[int] = None) -> None:
        super().__init__(message)
        self.message = message
        self.culprit = culprit
        """The rank that died, was late, aborted, or made a different call; None if unknown."""


class InvalidArgumentError(RailheadError, ValueError):
    """An argument is wrong; nothing was done."""

    result = Result.INVALID_ARGUMENT


class InvalidHandleError(RailheadError):
    """The session, comm or window was closed before, or belongs to the process that this one was forked from."""

    result = Result.INVALID_HANDLE


class UnsupportedError(RailheadError):
    """This build, kernel or device does not support the call."""

    result = Result.UNSUPPORTED


class OutOfMemoryError(RailheadError, MemoryError):
    """A heap is full, or the machine has no memory for its pages."""

    result = Result.OUT_OF_MEMORY


class SystemCallError(RailheadError):
    """A system call failed."""

    result = Result.SYSTEM


class NoDaemonError(RailheadError, ConnectionError):
    """Nothing listens on the socket: start `railhead serve`."""

    result = Result.NO_DAEMON


class DaemonLostError(RailheadError, ConnectionError):
    """No daemon answers. Collectives continue without it; set-up calls work again with the next daemon."""

    result = Result.DAEMON_LOST


class VersionMismatchError(RailheadError):
    """Library and daemon have no protocol version in common."""

    result = Result.VERSION_MISMATCH


class SocketPermissionError(RailheadError, PermissionError):
    """The other end of the socket runs as another user."""

    result = Result.PERMISSION


class ProtocolError(RailheadError):
    """The other end violated the protocol."""

    result = Result.PROTOCOL


class DeadlineError(RailheadError, TimeoutError):
    """A rank (culprit, if known) or the daemon did not arrive before the deadline. The group is broken."""

    result = Result.TIMEOUT


class RankMissingError(RailheadError, TimeoutError):
    """The group did not form: ranks did not join before the deadline."""

    result = Result.RANK_MISSING


class WorldSizeMismatchError(RailheadError):
    """The ranks of a group gave different world sizes."""

    result = Result.WORLD_SIZE_MISMATCH


class TokenMismatchError(RailheadError):
    """The ranks of a group gave different tokens."""

    result = Result.TOKEN_MISMATCH


class RankTakenError(RailheadError):
    """Two processes claim the same rank."""

    result = Result.RANK_TAKEN


class GroupBusyError(RailheadError):
    """A group of this name is already running."""

    result = Result.GROUP_BUSY


class RankDeadError(RailheadError):
    """The process of a rank (culprit) has ended. The group is broken."""

    result = Result.RANK_DEAD


class AbortedError(RailheadError):
    """A rank (culprit) called abort. The group is broken."""

    result = Result.ABORTED


class DrainingError(RailheadError):
    """The daemon is shutting down and takes no new groups."""

    result = Result.DRAINING


class MismatchError(RailheadError):
    """The ranks called different operations, or the same one with different arguments."""

    result = Result.MISMATCH


class LimitError(RailheadError):
    """A named bound was reached."""

    result = Result.LIMIT


class BusyError(RailheadError):
    """Another thread is inside a call on this comm, or a group has noted calls that need it."""

    result = Result.BUSY


class StaleError(RailheadError):
    """KV: the peer has used the blocks again or freed them, or is another process than the reference's."""

    result = Result.STALE


class RefusedError(RailheadError):
    """KV: the reference does not allow it."""

    result = Result.REFUSED


class ExpiredError(RailheadError):
    """KV: the time of the grant is over."""

    result = Result.EXPIRED


class CancelledError(RailheadError):
    """KV: the transfer was cancelled."""

    result = Result.CANCELLED


class PathLostError(RailheadError):
    """KV: the connection to the peer's node was lost."""

    result = Result.PATH_LOST


class StalledError(RailheadError):
    """KV: the transfer moved too few bytes for too long."""

    result = Result.STALLED


class NoPeerError(RailheadError):
    """KV: no agent has this name."""

    result = Result.NO_PEER


class NameTakenError(RailheadError):
    """KV: another agent has this name."""

    result = Result.NAME_TAKEN


ERROR_OF_RESULT: Dict[int, Type[RailheadError]] = {error.result: error for error in RailheadError.__subclasses__()}


def error_of(result: int, message: str, culprit: Optional[int] = None) -> RailheadError:
    """The exception for a result. A result that this package does not know becomes a plain RailheadError with its number."""
    known = ERROR_OF_RESULT.get(result)
    if known is not None:
        return known(message, culprit)
    error = RailheadError(message, culprit)
    error.result = result
    return error
