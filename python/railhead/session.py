"""Sessions: a connection to the node's daemon."""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any, Optional, Union

from ._abi import CommConfig, SessionConfig, versioned
from ._devices import request
from ._library import check, load
from .comm import Comm
from .errors import InvalidArgumentError


class Session:
    """A connection to the daemon. socket_path: $RAILHEAD_SOCKET, else the default path. timeout: seconds to wait for the
    daemon's answers, $RAILHEAD_TIMEOUT_MS by default, else 30."""

    def __init__(self, socket_path: Union[None, str, os.PathLike[str]] = None, *, timeout: Optional[float] = None) -> None:
        self._closed = False
        self._handle = ctypes.c_void_p()
        config = versioned(SessionConfig, timeout_ms=_milliseconds(timeout))
        if socket_path is not None:
            config.socket_path = _text(os.fspath(socket_path), "socket_path")
        check(load().rh_connect(ctypes.byref(config), ctypes.byref(self._handle)))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, exception: object, trace: object) -> None:
        if self._closed:
            return
        if exception is None:
            self.close()
        else:
            load().rh_close(self._handle)  # its error is ignored: the exception in progress is the cause

    def comm(
        self,
        group: Optional[str] = None,
        *,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        token: Optional[str] = None,
        timeout: Optional[float] = None,
        reduce_group: int = 0,
        heap_bytes: int = 0,
        reproducible: Optional[bool] = None,
        device: Any = None,
    ) -> Comm:
        """Joins a group and waits until all its ranks have joined. Arguments that are not given come from the environment:
        RAILHEAD_GROUP, RAILHEAD_TOKEN, RAILHEAD_REPRODUCIBLE, and what the launcher (torchrun, mpirun, srun) says of rank, world
        size and job. If neither names the group, the call is refused, because two jobs would form one group. timeout: seconds,
        for forming the group and for every later wait. reduce_group: number of ranks whose contributions are added first, 0 for
        all. heap_bytes: limit of a rank's window memory, 0 for the daemon's default. reproducible: all algorithms add sums in
        the same order; otherwise an algorithm may use its own order. device: the CPU by default; a CUDA device as "cuda:1", 1,
        "GPU-<uuid>", "MIG-<uuid>" or a torch.device; "cuda" is torch's current device, or without torch the calling thread's."""
        for name, value, limit in (("rank", rank, 2**31), ("world_size", world_size, 2**31)):
            if value is not None and not 0 <= value < limit:
                raise InvalidArgumentError(f"comm: {name} {value} is outside 0..{limit - 1}")
        for name, value, limit in (("reduce_group", reduce_group, 2**32), ("heap_bytes", heap_bytes, 2**64)):
            if not 0 <= value < limit:
                raise InvalidArgumentError(f"comm: {name} {value} is outside 0..{limit - 1}")
        wanted = request(device)
        config = versioned(
            CommConfig,
            device_kind=wanted.kind,
            device_ordinal=wanted.ordinal,
            device_uuid=wanted.uuid,
            local_rank=-1,
            local_size=-1,
            node=-1,
            rank=-1 if rank is None else rank,
            world_size=-1 if world_size is None else world_size,
            timeout_ms=_milliseconds(timeout),
            reduce_group=reduce_group,
            heap_bytes=heap_bytes,
            reproducible={None: 0, True: 1, False: 2}[reproducible],
        )
        if group is not None:
            config.group = _text(group, "group")
        if token is not None:
            config.token = _text(token, "token")
        handle = ctypes.c_void_p()
        check(load().rh_comm_init(self._handle, ctypes.byref(config), ctypes.byref(handle)))
        return Comm(handle)

    def close(self) -> None:
        """Ends the session. For the other ranks of comms that are still open, this is like the death of this process."""
        check(load().rh_close(self._handle))
        self._closed = True


def _milliseconds(seconds: Optional[float]) -> int:
    """Rounded up, so that a short time does not become 0, which is the default."""
    if seconds is None:
        return 0
    if not 0 < seconds < 2**32 / 1000:
        raise InvalidArgumentError(f"timeout {seconds} s: want more than 0 s and less than {2**32 // 1000} s")
    return min(math.ceil(seconds * 1000), 2**32 - 1)


def _text(text: str, name: str) -> bytes:
    if "\0" in text:
        raise InvalidArgumentError(f"{name} {text!r} contains a zero byte")
    return os.fsencode(text)
