"""Finds, loads and checks librailhead.so.0. Calls through ctypes.CDLL release the GIL."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any, Callable, Iterable, Tuple

from ._abi import FUNCTIONS, CommStatus, versioned
from ._version import __version__
from .errors import LibraryError, error_of

NAME = "librailhead.so.0"
_BUNDLED = Path(__file__).parent / "lib" / NAME


def _open() -> ctypes.CDLL:
    named = os.environ.get("RAILHEAD_LIBRARY")
    path = named or (str(_BUNDLED) if _BUNDLED.exists() else NAME)
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        where = f"$RAILHEAD_LIBRARY ({named})" if named else f"{_BUNDLED}, then the system's library paths"
        raise LibraryError(
            f"cannot load {NAME}: {error}. Searched: {where}. Build it with `make lib` in Railhead's repository and set "
            "RAILHEAD_LIBRARY to the file, or install it with `make install`"
        ) from error


def _check_version(library: ctypes.CDLL) -> None:
    library.rh_get_version.restype = ctypes.c_uint32
    number: int = library.rh_get_version()
    major, minor = (int(part) for part in __version__.split(".")[:2])
    if (number // 10000, number // 100 % 100) != (major, minor):
        found = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        raise LibraryError(
            f"{library._name} has version {found}; this package needs {major}.{minor}.*: install both from the same release"
        )


@functools.lru_cache(maxsize=None)
def load() -> Any:
    """The library, with all functions of railhead.h declared."""
    library = _open()
    missing = [name for name in FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise LibraryError(
            f"{library._name} lacks {', '.join(missing)}: it is not the {NAME} of this release; build that with `make lib`"
        )
    _check_version(library)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def check(result: int) -> None:
    """Raises the error of a call on this thread if it has failed."""
    if result != 0:
        raise error_of(result, last_error_message())


def check_on(result: int, comms: Iterable[Any]) -> None:
    """Like check, for a call on one of these comms (rh_comm handles), whose status may name the rank that caused the failure."""
    if result == 0:
        return
    message = last_error_message()  # before another call overwrites it
    status = versioned(CommStatus)
    for handle in comms:
        if load().rh_comm_get_status(handle, ctypes.byref(status)) == 0 and status.result == result and status.culprit >= 0:
            raise error_of(result, message, status.culprit)
    raise error_of(result, message)


def ranks_of(world_size: int, ask: Callable[[Any, int, Any], int]) -> Tuple[int, ...]:
    """The set of ranks that the library call ask(array, capacity, count) returns."""
    ranks, count = (ctypes.c_int32 * world_size)(), ctypes.c_int32()
    check(ask(ranks, world_size, ctypes.byref(count)))
    return tuple(ranks[: count.value])


def last_error_message() -> str:
    message: bytes = load().rh_last_error_message()
    return message.decode("utf-8", "replace")
