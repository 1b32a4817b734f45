#!/usr/bin/env python3
"""Large all-reduces outside windows and of registered tensors, on one GPU that ranks share.

    make lib
    export RAILHEAD_LIBRARY=build/librailhead.so PYTHONPATH=python
    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True    # or not
    railhead run --daemon --mps -n 4 -- python3 benchmarks/gpu/large_sums.py
    RAILHEAD_ALGO=^pull railhead run --daemon --mps -n 4 -- python3 benchmarks/gpu/large_sums.py    # none is copied to a window

us for one operation: a graph of OPS all-reduces is replayed twice, the second replay is timed; median of REPLAYS, the slowest rank. Beside each
figure is the algorithm; pull outside windows means that the buffers are copied to a window of the library and back."""

from __future__ import annotations

import gc
import os
import statistics
from typing import Any, Tuple

import torch

from railhead import Comm, Op, Session

OPS, REPLAYS = 10, 7
MIB = (2, 4, 8, 16, 32, 64)


def timed(comm: Comm, send: Any, recv: Any) -> Tuple[float, str]:
    comm.all_reduce(send, out=recv)
    torch.cuda.synchronize()
    algorithm, graph, times = comm.status().algorithm_name, torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(OPS):
            comm.all_reduce(send, out=recv)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(REPLAYS):
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / OPS)
    slowest = comm.all_reduce(torch.tensor([statistics.median(times)], device="cuda"), Op.MAX)
    return float(slowest), algorithm


def measure(comm: Comm, dtype: Any, mib: int) -> None:
    count = (mib << 20) // torch.empty(0, dtype=dtype).element_size()
    send, recv = torch.zeros(count, dtype=dtype, device="cuda"), torch.zeros(count, dtype=dtype, device="cuda")
    outside = timed(comm, send, recv)
    with comm.register_window(send) as window, comm.register_window(recv):
        inside = timed(comm, send, recv)
        zero_copy = window.sharing().zero_copy
        gc.collect()  # the graph
    if comm.rank == 0:
        name = str(dtype).replace("torch.", "")
        print(f"{comm.world_size} ranks {name:9} {mib:3} MiB {outside[0]:8.1f} {outside[1]:8} registered {inside[0]:8.1f} {inside[1]:8} zero-copy {zero_copy}", flush=True)


def main() -> None:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % torch.cuda.device_count())
    with Session() as session:
        comm = session.comm(device="cuda")
        for dtype in (torch.bfloat16, torch.int32):
            for mib in MIB:
                measure(comm, dtype, mib)
        comm.finalize()


if __name__ == "__main__":
    main()
