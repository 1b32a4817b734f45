#!/usr/bin/env python3
"""Many replays of a graph of all-reduces, with checks of the results on the GPU.

    RAILHEAD_LIBRARY=build/librailhead.so PYTHONPATH=python railhead run --mps -n 4 -- python3 benchmarks/gpu/replays.py

Each rank is a process. The graph has an all-reduce of each of BUFFERS, in bf16. After every CHECK_EACH replays the inputs get new random values and
the outputs NaNs, and after one more replay each output is compared with the sum in fp64. --replays and --seconds bound the run; fewer
replays than asked for are a failure. The exit status is 0 if every rank has found every sum right.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, List, Tuple

import torch

from railhead import Comm, Session

# Bytes, and whether the buffers lie in a window. By default these are oneshot, twoshot and pull.
BUFFERS: List[Tuple[int, bool]] = [(4 << 10, False), (64 << 10, False), (1 << 20, False), (4 << 20, True)]
CHECK_EACH = 1000
SEED = 20261201


class Reduced:
    """An all-reduce with its buffers."""

    def __init__(self, comm: Comm, nbytes: int, in_window: bool) -> None:
        self.comm, self.count = comm, nbytes // 2
        if in_window:
            self.window = comm.alloc_window(2 * nbytes)
            self.send, self.recv = self.window.as_torch(torch.bfloat16).split(self.count)
        else:
            self.send, self.recv = (torch.zeros(self.count, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.algorithm = comm.choice("all_reduce", nbytes, in_windows=in_window)[0]

    def call(self) -> None:
        self.comm.all_reduce(self.send, out=self.recv)

    def share(self, rank: int, turn: int) -> Any:
        generator = torch.Generator(device="cuda").manual_seed(SEED + 1000 * turn + 7 * self.count + rank)
        return torch.randn(self.count, generator=generator, device="cuda").to(torch.bfloat16)

    def renew(self, turn: int) -> None:
        self.send.copy_(self.share(self.comm.rank, turn))
        self.recv.fill_(float("nan"))

    def wrong(self, turn: int) -> int:
        """The elements that are not the sum in fp64, to the rounding of f32 additions and of the result to bf16. A NaN is wrong too."""
        shares = [self.share(r, turn).double() for r in range(self.comm.world_size)]
        exact, magnitude = sum(shares[1:], shares[0]), sum((s.abs() for s in shares[1:]), shares[0].abs())
        bound = exact.abs() * 2**-8 + magnitude * self.comm.world_size * 2**-24
        return int((~((self.recv.double() - exact).abs() <= bound)).sum())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replays", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=100)
    wanted = parser.parse_args()
    begin = time.monotonic()
    comm = Session().comm(device="cuda", timeout=20)
    calls = [Reduced(comm, *buffer) for buffer in BUFFERS]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call.call()
    done, checks, wrong, replaying = 0, 0, 0, 0.0
    ends = torch.zeros(1, device="cuda")
    while done < wanted.replays and not comm.stopped():
        since = time.monotonic()
        for _ in range(CHECK_EACH - 1):
            graph.replay()
        torch.cuda.synchronize()
        replaying += time.monotonic() - since
        for call in calls:
            call.renew(checks)
        graph.replay()
        wrong = sum(call.wrong(checks) for call in calls)
        done, checks = done + CHECK_EACH, checks + 1
        # All ranks stop at the same replay.
        ends.fill_(wrong > 0 or time.monotonic() - begin > wanted.seconds)
        if comm.all_reduce(ends).item() != 0:
            break
    torch.cuda.synchronize()
    good = wrong == 0 and done >= wanted.replays and not comm.stopped()
    sizes = ", ".join(f"{nbytes >> 10} KiB {call.algorithm}" for (nbytes, _), call in zip(BUFFERS, calls))
    print(
        f"rank {comm.rank} of {comm.world_size}: {'right' if good else 'WRONG'}: {done} replays of ({sizes}), {checks} checks, {wrong} wrong elements in the last; "
        f"{replaying / max(done, 1) * 1e6:.1f} us a replay{'; stopped: ' + comm.status().message if comm.stopped() else ''}",
        flush=True,
    )
    del graph
    comm.finalize()
    return 0 if good else 1


sys.exit(main())
