#!/usr/bin/env python3
"""Faults on real GPUs: what the ranks of a group hear when one of them is late, skips an operation, calls another one, dies or aborts.

    RAILHEAD_LIBRARY=build/librailhead.so PYTHONPATH=python railhead run --mps -n 2 -- python3 benchmarks/gpu/faults.py late skip count abort
    for r in 0 1; do RAILHEAD_LIBRARY=... PYTHONPATH=python RANK=$r WORLD_SIZE=2 python3 benchmarks/gpu/faults.py kill & done; wait

Each rank is a process; rank 1 commits the fault while graphs of all-reduces are replayed. For each scenario every other rank checks the result and
whom it names, and how long it took. kill is for ranks without MPS, where a
killed rank can take the others with it, and without `run`, which ends all ranks when one dies. The exit status is 0 if all
ranks have heard what is right.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Tuple

import torch

from railhead import Session
from railhead._abi import CommConfig, CommStatus, versioned
from railhead._library import check, load
from railhead.enums import Result

BF16, SUM, CUDA = 1, 0, 1
OPS, COUNT, TIMEOUT_MS = 8, 4096, 2000
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CULPRIT = 1


class Group:
    """A comm, a graph of OPS all-reduces, and the stream that replays it."""

    def __init__(self, session: Any, name: str, device: int) -> None:
        self.library = load()
        self.comm = ctypes.c_void_p()
        config = versioned(
            CommConfig, device_kind=CUDA, device_ordinal=device, local_rank=-1, local_size=-1, node=-1, rank=RANK, world_size=WORLD, timeout_ms=TIMEOUT_MS
        )
        config.group = name.encode()
        config.token = b"faults"
        check(self.library.rh_comm_init(session._handle, ctypes.byref(config), ctypes.byref(self.comm)))
        self.data = torch.zeros(COUNT, dtype=torch.bfloat16, device=f"cuda:{device}")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(OPS):
                self.all_reduce(COUNT)

    def all_reduce(self, count: int) -> int:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        result: int = self.library.rh_all_reduce(self.data.data_ptr(), self.data.data_ptr(), count, BF16, SUM, self.comm, stream)
        return result

    def replay(self, times: int) -> None:
        for _ in range(times):
            self.graph.replay()
        torch.cuda.synchronize()

    def status(self) -> CommStatus:
        raw = versioned(CommStatus)
        check(self.library.rh_comm_get_status(self.comm, ctypes.byref(raw)))
        return raw


def late(group: Group) -> None:
    time.sleep(TIMEOUT_MS / 1000 + 0.5)


def skip(group: Group) -> None:
    check(group.library.rh_barrier(group.comm, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
    group.replay(1)


def count(group: Group) -> None:
    group.all_reduce(COUNT // 2)
    torch.cuda.synchronize()


def abort(group: Group) -> None:
    check(group.library.rh_comm_abort(group.comm))


def kill(group: Group) -> None:
    for _ in range(50):
        group.graph.replay()
    time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


# What the culprit does, and the result that the others get within so many seconds.
SCENARIOS: Dict[str, Tuple[Callable[[Group], None], Result, float]] = {
    "late": (late, Result.TIMEOUT, TIMEOUT_MS / 1000 + 1),
    "skip": (skip, Result.MISMATCH, 1),
    "count": (count, Result.MISMATCH, 1),
    "abort": (abort, Result.ABORTED, 1),
    "kill": (kill, Result.RANK_DEAD, 2),
}


def play(session: Any, name: str, device: int) -> bool:
    fault, expected, limit = SCENARIOS[name]
    group = Group(session, f"faults-{name}", device)
    group.replay(20)
    assert group.status().result == 0
    begin = time.monotonic()
    if RANK == CULPRIT:
        time.sleep(0.1)  # the others have read their status, and wait in the next replay
        begin = time.monotonic()
        fault(group)
        took, s = time.monotonic() - begin, group.status()
        print(f"{name}: rank {RANK}, the culprit: {s.message.decode()}", flush=True)
    else:
        group.replay(100 if name == "kill" else 1)
        while group.status().result == 0 and time.monotonic() - begin < limit + 5:
            time.sleep(0.0002)
        took, s = time.monotonic() - begin, group.status()
    # Of two different calls either may be the one that is reported first.
    named = s.culprit == CULPRIT or expected == Result.MISMATCH
    good = RANK == CULPRIT or (s.result == expected and named and took <= limit)
    if RANK != CULPRIT:
        print(f"{name}: rank {RANK}: {'right' if good else 'WRONG'} after {took * 1000:.1f} ms: result {s.result}, culprit {s.culprit}: {s.message.decode()}", flush=True)
    group.replay(2)  # ends at once
    group.library.rh_comm_finalize(group.comm)
    return good


def main() -> None:
    device = RANK * torch.cuda.device_count() // WORLD
    torch.cuda.set_device(device)
    session = Session()
    good = [play(session, name, device) for name in sys.argv[1:]]
    sys.stdout.flush()
    os._exit(0 if all(good) else 1)


main()
