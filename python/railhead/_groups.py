"""group(): calls that are noted and run together at its end."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator, List

from ._buffers import Buffer
from ._library import check, check_on, load


class _Noted(threading.local):
    """What this thread's open groups need until the outermost one ends."""

    def __init__(self) -> None:
        self.depth = 0
        self.buffers: List[Buffer] = []
        self.comms: List[Any] = []  # their handles


_noted = _Noted()


def note(comm: Any, *buffers: Buffer) -> None:
    """Keeps the buffers of a call until the group's end; outside of a group there is nothing to do."""
    if _noted.depth > 0:
        _noted.buffers.extend(buffers)
        _noted.comms.append(comm)


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Collectives, sends and receives inside the block are only noted; its end runs them: of each comm first all sends and
    receives, at the same time, then the collectives in order. Buffers, also returned ones, are filled when the outermost
    block has ended. After an exception in the block nothing is run."""
    library = load()
    check(library.rh_group_start())
    _noted.depth += 1
    try:
        yield
    except BaseException:
        # A wrong call makes the library drop what it has noted: it cannot know that an exception was raised here.
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
