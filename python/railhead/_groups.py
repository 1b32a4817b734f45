"""group(): calls inside the block are noted, and run together at its end."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator, List

from ._buffers import Buffer
from ._library import check, check_on, load


class _Noted(threading.local):
    """State of this thread's open groups, kept until the outermost group ends."""

    def __init__(self) -> None:
        self.depth = 0
        self.buffers: List[Buffer] = []
        self.comms: List[Any] = []  # their handles


_noted = _Noted()


def note(comm: Any, *buffers: Buffer) -> None:
    """Keeps the buffers of a call alive until the group ends. Outside a group it does nothing."""
    if _noted.depth > 0:
        _noted.buffers.extend(buffers)
        _noted.comms.append(comm)


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Collectives, sends and receives inside the block are noted, and run at its end. Each comm first runs all its sends and
    receives concurrently, then its collectives in order. Buffers, also returned ones, are filled when the outermost block has
    ended. If an exception leaves the block, nothing runs."""
    library = load()
    check(library.rh_group_start())
    _noted.depth += 1
    try:
        yield
    except BaseException:
        # An invalid call makes the library drop the noted calls. The library has no other call for that.
        library.rh_barrier(None, None)
        library.rh_group_end()
        raise
    else:
        check_on(library.rh_group_end(), _noted.comms)
    finally:
        _noted.depth -= 1
        if _noted.depth == 0:
            _noted.buffers.clear()
            _noted.comms.clear()
