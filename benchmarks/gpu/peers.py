#!/usr/bin/env python3
"""All-reduce of Railhead beside NCCL and PyTorch's symmetric memory, on the GPUs of one machine, in one run.

    make lib
    RAILHEAD_LIBRARY=build/librailhead.so PYTHONPATH=python go run ./cmd/railhead run -n 2 -- python3 benchmarks/gpu/peers.py
    RAILHEAD_LIBRARY=... PYTHONPATH=python go run ./cmd/railhead run --mps -n 8 -- python3 benchmarks/gpu/peers.py

Each rank is a process. Rank r uses GPU r * g / n of g GPUs. NCCL takes part if each rank has a GPU of its own. A contender captures OPS
all-reduces into a CUDA graph, which is launched twice back to back; the second launch is timed by CUDA events, so that the ranks' different
launch times do not count. The figure is the slowest rank's time divided by OPS, the median of REPLAYS. Contenders take turns, size by size.
Before it is timed, each result is compared with a sum in fp64.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
from typing import Callable, Dict, List, Optional

os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from railhead import Session
from railhead._abi import CommConfig, versioned
from railhead._library import check, load

OPS = 40
REPLAYS = 21
SIZES = [1 << n for n in range(10, 27)]  # bytes, 1 KiB to 64 MiB
BF16 = 1  # RH_BF16
SUM = 0  # RH_SUM
CUDA = 1  # RH_DEVICE_CUDA


class Contender:
    """run(tensor) adds one all-reduce of the tensor to the current stream and returns the tensor with the result."""

    def __init__(self, name: str, buffer: Callable[[int], torch.Tensor], run: Callable[[torch.Tensor], torch.Tensor], most: int) -> None:
        self.name, self.buffer, self.run, self.most = name, buffer, run, most


def railhead_contenders(session: object, rank: int, world: int, device: int) -> List[Contender]:
    library = load()
    config = versioned(
        CommConfig, device_kind=CUDA, device_ordinal=device, local_rank=-1, local_size=-1, node=-1, rank=rank, world_size=world, heap_bytes=1 << 30
    )
    comm = ctypes.c_void_p()
    check(library.rh_comm_init(session._handle, ctypes.byref(config), ctypes.byref(comm)))  # type: ignore[attr-defined]
    out: Dict[int, torch.Tensor] = {}

    def all_reduce(send: torch.Tensor, recv: torch.Tensor) -> torch.Tensor:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(library.rh_all_reduce(send.data_ptr(), recv.data_ptr(), send.numel(), BF16, SUM, comm, stream))
        return recv

    def copied(send: torch.Tensor) -> torch.Tensor:
        return all_reduce(send, out.setdefault(send.numel(), torch.empty_like(send)))

    window = ctypes.c_void_p()
    check(library.rh_window_alloc(comm, 2 * SIZES[-1], None, ctypes.byref(window)))
    base = ctypes.c_void_p()
    check(library.rh_window_pointer(window, rank, ctypes.byref(base)))

    def view(address: int, nbytes: int) -> torch.Tensor:
        class Memory:
            __cuda_array_interface__ = {"shape": (nbytes // 2,), "typestr": "<i2", "data": (address, False), "version": 3}

        return torch.as_tensor(Memory(), device=f"cuda:{device}").view(torch.bfloat16)

    def windowed(send: torch.Tensor) -> torch.Tensor:
        return all_reduce(send, view(base.value + SIZES[-1], send.numel() * 2))

    return [
        Contender("railhead", lambda nbytes: torch.empty(nbytes // 2, dtype=torch.bfloat16, device=f"cuda:{device}"), copied, SIZES[-1]),
        Contender("railhead window", lambda nbytes: view(base.value, nbytes), windowed, SIZES[-1]),
    ]


def symm_mem_contenders(device: int, sharing: int) -> List[Contender]:
    """sharing: ranks of a GPU. With 8, two-shot of 4 MiB does not end: its blocks wait for blocks of other ranks, for which there is no room."""
    group = dist.group.WORLD.group_name
    most = SIZES[-1] if sharing < 8 else 2 << 20

    def buffer(nbytes: int) -> torch.Tensor:
        tensor = symm_mem.empty(nbytes // 2, dtype=torch.bfloat16, device=f"cuda:{device}")
        symm_mem.rendezvous(tensor, group)
        return tensor

    return [
        Contender("symm_mem 1-shot", buffer, lambda t: torch.ops.symm_mem.one_shot_all_reduce(t, "sum", group), 4 << 20),
        Contender("symm_mem 2-shot", buffer, lambda t: torch.ops.symm_mem.two_shot_all_reduce_(t, "sum", group), most),
    ]


def nccl_contender(rank: int, world: int, device: int) -> Contender:
    group = dist.new_group(backend="nccl")

    def run(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor, group=group)
        return tensor

    return Contender("nccl", lambda nbytes: torch.empty(nbytes // 2, dtype=torch.bfloat16, device=f"cuda:{device}"), run, SIZES[-1])


def is_right(contender: Contender, tensor: torch.Tensor, rank: int, world: int) -> bool:
    """Small integers, so that every order of additions gives the same sum."""
    shares = [torch.randint(-8, 8, (tensor.numel(),), generator=torch.Generator().manual_seed(r)) for r in range(world)]
    tensor.copy_(shares[rank].to(torch.bfloat16))
    torch.cuda.synchronize()
    dist.barrier()
    result = contender.run(tensor)
    torch.cuda.synchronize()
    return torch.equal(result.cpu().to(torch.float64), sum(shares).to(torch.float64))


def time_us(contender: Contender, tensor: torch.Tensor) -> float:
    tensor.zero_()  # sums stay finite
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(OPS):
            contender.run(tensor)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(REPLAYS):
        dist.barrier()
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) * 1000 / OPS])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times.append(slowest.item())
    return statistics.median(times)


def measure(contender: Contender, nbytes: int, rank: int, world: int) -> Optional[float]:
    if nbytes > contender.most:
        return None
    tensor = contender.buffer(nbytes)
    right = torch.tensor([int(is_right(contender, tensor, rank, world))])
    dist.all_reduce(right, op=dist.ReduceOp.MIN)
    if not right.item():
        sys.exit(f"{contender.name}: rank {rank}: wrong sums of {nbytes} bytes")
    return time_us(contender, tensor)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    device = rank * gpus // world
    torch.cuda.set_device(device)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    session = Session()
    contenders = railhead_contenders(session, rank, world, device) + symm_mem_contenders(device, world // gpus)
    if world <= gpus:
        contenders.append(nccl_contender(rank, world, device))
    if rank == 0:
        print(f"{world} ranks on {min(gpus, world)} x {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}; us, bf16, graphs")
        print(f"{'bytes':>10}" + "".join(f"{c.name:>18}" for c in contenders), flush=True)
    for nbytes in SIZES:
        times = [measure(c, nbytes, rank, world) for c in contenders]
        if rank == 0:
            print(f"{nbytes:>10}" + "".join(f"{'-' if t is None else format(t, '.2f'):>18}" for t in times), flush=True)
    os._exit(0)  # captured graphs would be destroyed in any order


main()
