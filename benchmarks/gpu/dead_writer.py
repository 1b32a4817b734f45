#!/usr/bin/env python3
"""A rank is killed while its kernels store into the memory of another one. Nothing may change in the memory that the other rank gets afterwards.

    railhead serve &
    RAILHEAD_LIBRARY=build/librailhead.so PYTHONPATH=python python3 benchmarks/gpu/dead_writer.py

This process is the survivor, rank 0; each round has a victim, rank 1, a process of its own. Both use the first GPU. Not for ranks under MPS, where a
killed client can take the others with it. Rounds:

    alive  a check of the check: the victim lives and stores, so words must change
    plain  the victim is killed
    child  the same; the victim has a forked child that did not exec, which holds whatever it has inherited until the end of the round

The ranks replay a graph of an all-to-all and an all-reduce between windows and of an all-reduce between other buffers. The victim has a second
stream whose graph stores into the survivor's window. It is killed in the middle of both. The survivor must hear RANK_DEAD with rank 1. It finalizes
the comm, forms a group of its own, allocates a window twice as large, fills it, and reads it for CHECK_SECONDS. The exit status is 0 if every round was right.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from typing import Any, List, Tuple

import torch

from railhead import Comm, Session
from railhead.enums import Result
from railhead.errors import RailheadError

SEND = 64 << 20  # bytes of the first half of each rank's window, and of the second
HEAP = 1 << 30  # the most window memory of a rank
OUTSIDE = 1 << 20  # bytes of the buffers outside windows
TIMEOUT = 5.0  # seconds; a waiting kernel of a dead rank, whose process ends it no more, ends itself by then
CHECK_SECONDS = 1.5
PATTERN = 0x5A17C0DE


class Rank:
    """A rank with its window, and a graph of collectives that store into the other one's."""

    def __init__(self, session: Session, group: str, rank: int) -> None:
        self.comm = session.comm(group, rank=rank, world_size=2, token="dead_writer", timeout=TIMEOUT, heap_bytes=HEAP, device="cuda:0")
        self.window = self.comm.alloc_window(2 * SEND)
        self.send, self.recv = self.window.as_torch(torch.float32).split(SEND // 4)
        outside = torch.ones(OUTSIDE // 4, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(10):
                self.comm.all_to_all(self.send, out=self.recv)
                self.comm.all_reduce(self.send, out=self.recv)
                self.comm.all_reduce(outside, out=outside)
        self.outside = outside


def victim(group: str, fork: bool) -> None:
    """Says ready when its context is open, joins when told to, and replays until it is killed."""
    torch.ones(1, device="cuda")
    session = Session()
    print("ready", flush=True)
    sys.stdin.readline()
    me = Rank(session, group, 1)
    theirs = me.window.as_torch(torch.int32, rank=0)
    stores = torch.cuda.CUDAGraph()
    with torch.cuda.graph(stores):
        for _ in range(20):
            theirs.add_(1)
    side = torch.cuda.Stream()
    child = 0
    if fork:
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks, which is what is tried here
        child = os.fork()
        if child == 0:  # touches nothing of CUDA or Railhead
            time.sleep(20)
            os._exit(0)
    print(f"child {child}", flush=True)
    while True:
        if torch.cuda.current_stream().query():
            for _ in range(4):
                me.graph.replay()
        if side.query():
            with torch.cuda.stream(side):
                for _ in range(4):
                    stores.replay()


def changed_words(memory: Any, seconds: float) -> int:
    """Fills the memory and reads it again and again. The words that have changed."""
    memory.fill_(PATTERN)
    torch.cuda.synchronize()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        changed = int((memory != PATTERN).sum())
        if changed != 0:
            return changed
    return 0


class Victim:
    def __init__(self, group: str, kind: str) -> None:
        self.group, self.kind = group, kind
        self.process = subprocess.Popen([sys.executable, __file__, "--victim", group, "--kind", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hears(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def says(self, word: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(word):
            raise RuntimeError(f"the victim said {line!r}, not {word}")
        return line.strip()


def hear(comm: Comm) -> Tuple[bool, str, float]:
    """Waits until the group is broken: whether the cause is right, the message, and how long it took."""
    begin = time.monotonic()
    while comm.status().result == Result.OK and time.monotonic() < begin + TIMEOUT + 2:
        time.sleep(0.0002)
    status = comm.status()
    return status.result == Result.RANK_DEAD and status.culprit == 1, status.message, time.monotonic() - begin


def end(rank: Rank) -> None:
    """Gives the rank's memory back. A live graph would keep it."""
    torch.cuda.synchronize()
    rank.graph.reset()
    try:
        rank.comm.finalize()
    except RailheadError:
        pass  # the cause of the broken group, which has been read


def end_child(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def alone(session: Session, group: str) -> Tuple[int, str]:
    """A group of this process, whose window is filled with zeros by the library, and then by this process. The words that change."""
    comm = session.comm(group, rank=0, world_size=1, token="dead_writer", timeout=TIMEOUT, heap_bytes=HEAP, device="cuda:0")
    window = comm.alloc_window(4 * SEND)
    memory = window.as_torch(torch.int32)
    zeros = int((memory != 0).sum())
    changed = changed_words(memory, CHECK_SECONDS)
    comm.finalize()
    return zeros + changed, f"{zeros} words of the new window are not zero, {changed} of {memory.numel()} have changed"


def play(session: Session, v: Victim) -> bool:
    v.says("ready")
    v.hears("go")
    me = Rank(session, v.group, 0)
    child = int(v.says("child").split()[1])
    if v.kind == "alive":
        changed = changed_words(me.recv.view(torch.int32), CHECK_SECONDS)
        v.process.kill()
        good, said, took = changed != 0, f"{changed} words have changed, as they must", 0.0
    else:
        for _ in range(20):
            me.graph.replay()
        time.sleep(random.uniform(0.02, 0.1))
        free = torch.cuda.mem_get_info()[0]
        v.process.kill()
        named, message, took = hear(me.comm)
        end(me)
        changed, found = alone(session, v.group + " alone")
        said = f"heard after {took * 1000:.1f} ms: {message}; {found}; {(torch.cuda.mem_get_info()[0] - free) >> 20} MiB more are free"
        good = named and changed == 0
    v.process.wait()
    if child != 0:
        end_child(child)
    if v.kind == "alive":
        end(me)
    print(f"{v.group}: {'right' if good else 'WRONG'}: {said}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4, help="of each kind")
    parser.add_argument("--victim", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.victim is not None:
        victim(wanted.victim, wanted.kind == "child")
    torch.cuda.set_device(0)
    session = Session()
    kinds = ["alive"] + ["plain", "child"] * wanted.rounds
    victims: List[Victim] = []
    good = True
    for i, kind in enumerate(kinds):
        while len(victims) < min(i + 2, len(kinds)):  # the next one starts meanwhile
            victims.append(Victim(f"{len(victims)} {kinds[len(victims)]}", kinds[len(victims)]))
        try:
            good = play(session, victims[i]) and good
        except (RailheadError, RuntimeError, OSError) as error:
            print(f"{victims[i].group}: WRONG: {error}", flush=True)
            good = False
            break
    for v in victims:
        v.process.kill()
    sys.stdout.flush()
    os._exit(0 if good else 1)


main()
