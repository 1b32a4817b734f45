"""Checks the package with torch on GPUs, against torch's own sums, and prints a line for each check of each rank:

    railhead run --daemon --mps -n 2 -- python3 python/tests/gpu_check.py

It needs torch with CUDA and numpy, and the library ($RAILHEAD_LIBRARY). Exit status 0: all ranks passed all checks. `go test` does not run
it, because it needs a GPU; its cases without torch are those of cuda_ranks.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, List, Tuple, Type

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from gpu_checks import check, main  # noqa: E402
from railhead import Comm, Dtype, Op, errors, group  # noqa: E402


def numbers(rank: int, count: int, turn: int = 0, below: int = 4) -> Any:
    """Small integers of a rank, whose sums are exact in every type. below: 2 for FP8, which has few digits."""
    return (torch.arange(count, device="cuda") * (rank + 3) + rank + 7 * turn) % below


def total(comm: Comm, count: int, turn: int = 0, below: int = 4) -> Any:
    return sum((numbers(r, count, turn, below) for r in range(comm.world_size)), torch.zeros(count, dtype=torch.int64, device="cuda"))


def same(got: Any, want: Any, what: str) -> None:
    """Compares bytes, because torch compares elements of few types. It waits for the current stream."""
    want = want.to(got.dtype)
    if got.shape != want.shape or not torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8)):
        raise AssertionError(f"{what}: got {got.flatten()[:8].tolist()}..., want {want.flatten()[:8].tolist()}...")


def raises(kind: Type[BaseException], call: Callable[[], Any], *words: str) -> None:
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"no {missing} in {error}") from error
        return
    raise AssertionError(f"want {kind.__name__}, but nothing was raised")


@check
def sums_of_every_type(comm: Comm) -> None:
    for dtype in Dtype:
        element = getattr(torch, dtype.array_name, None)
        if element is None:
            print(f"rank {comm.rank}: this torch has no {dtype.array_name}: not checked", flush=True)
            continue
        below = 2 if dtype in (Dtype.FP8_E4M3, Dtype.FP8_E5M2) else 4
        for count in (1, 1000, 300_001):
            x, want = numbers(comm.rank, count, 0, below).to(element), total(comm, count, 0, below)
            result = comm.all_reduce(x)
            same(result, want, f"{dtype.name}, {count} elements")
            comm.all_reduce(x, out=x)
            same(x, want, f"{dtype.name}, {count} elements in place")


@check
def reductions(comm: Comm) -> None:
    x = numbers(comm.rank, 5000).float()
    every = torch.stack([numbers(r, 5000).float() for r in range(comm.world_size)])
    same(comm.all_reduce(x, Op.MAX), every.amax(0), "MAX")
    same(comm.all_reduce(x, Op.MIN), every.amin(0), "MIN")
    same(comm.all_reduce(x, Op.PROD), every.prod(0), "PROD")
    torch.testing.assert_close(comm.all_reduce(x, Op.AVG), every.mean(0))


@check
def graphs_replayed_and_mixed_with_eager_calls(comm: Comm) -> None:
    for count in (4096, 2_000_000):
        x, eager = torch.empty(count, dtype=torch.bfloat16, device="cuda"), torch.empty(count, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = x * 2
            result = comm.all_reduce(doubled)
            comm.all_reduce(result, Op.MAX, out=result)
        for turn in range(20):
            x.copy_(numbers(comm.rank, count, turn))
            graph.replay()
            if turn % 3 != 0:
                eager.copy_(numbers(comm.rank, count, turn))
                comm.all_reduce(eager, out=eager)
                same(eager, total(comm, count, turn), f"eager, turn {turn}")
            same(result, 2 * total(comm, count, turn), f"replay {turn} of {count} elements")
        torch.cuda.synchronize()


@check
def streams(comm: Comm) -> None:
    """The current stream, and a stream argument, which wins."""
    side = torch.cuda.Stream()
    x, out = numbers(comm.rank, 10_000).float(), torch.empty(10_000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        result = comm.all_reduce(x)
    side.synchronize()
    same(result, total(comm, 10_000), "the current stream")
    for stream in (side, side.cuda_stream):
        out.zero_()
        torch.cuda.synchronize()
        comm.all_reduce(x, out=out, stream=stream)
        side.synchronize()
        same(out, total(comm, 10_000), "a stream argument")
    raises(errors.InvalidArgumentError, lambda: comm.all_reduce(x, stream=side), "out=")
    torch.cuda.synchronize()


def on_one_gpu(comm: Comm) -> bool:
    """Whether all ranks share a GPU, as far as this torch tells: it cannot view the parts of windows that are on other GPUs."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    mine = torch.tensor(list(str(uuid or comm.rank).encode()[:36].ljust(36)), dtype=torch.uint8, device="cuda")
    return bool((comm.all_gather(mine).view(comm.world_size, -1) == mine).all())


@check
def windows(comm: Comm) -> None:
    for count in (2048, 4_000_000):
        with comm.alloc_window(2 * count) as window:
            x = window.as_torch(torch.bfloat16)
            if x.data_ptr() != window.device_memory().address:
                raise AssertionError("the tensor is not on the window")
            x.copy_(numbers(comm.rank, count))
            comm.all_reduce(x, out=x)
            same(x, total(comm, count), f"{count} elements in a window")
            x.fill_(comm.rank + 1)
            comm.barrier()
            if on_one_gpu(comm):
                for r in range(comm.world_size):
                    same(window.as_torch(Dtype.BF16, r), torch.full((count,), r + 1, device="cuda"), f"the part of rank {r}")
            comm.barrier()
            torch.cuda.synchronize()


@check
def registered_tensors(comm: Comm) -> None:
    """Tensors of torch's allocator, with expandable segments or without, whole and in part, eager and in graphs."""
    for count, first in ((4_000_000, 0), (4_000_000, 4096), (40_000_000, 0)):
        x = torch.zeros(count + first, dtype=torch.bfloat16, device="cuda")[first:]
        torch.cuda.synchronize()
        with comm.register_window(x) as window:
            sharing = window.sharing()
            print(f"rank {comm.rank}: {count} elements from {first}: {sharing}", flush=True)
            if not sharing.zero_copy:
                raise AssertionError(str(sharing))
            for part in (x, x[: count // 2], x[64:3_500_064]):
                part.copy_(numbers(comm.rank, part.numel()))
                comm.all_reduce(part, out=part)
                same(part, total(comm, part.numel()), f"{part.numel()} elements in place")
            world, each = comm.world_size, count // 8 // comm.world_size
            every, mine = x[: each * world], x[comm.rank * each : (comm.rank + 1) * each]
            mine.fill_(comm.rank + 1)
            comm.all_gather(mine, out=every)
            same(every, torch.cat([torch.full((each,), r + 1, device="cuda") for r in range(world)]), "all_gather in place")
            comm.reduce_scatter(every, out=mine)
            same(mine, torch.full((each,), world * (comm.rank + 1), device="cuda"), "reduce_scatter in place")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                x.mul_(2)
                comm.all_reduce(x, out=x)
            for turn in range(3):
                x.copy_(numbers(comm.rank, count, turn))
                graph.replay()
                same(x, 2 * total(comm, count, turn), f"replay {turn} of {count} elements")
            raises(errors.BusyError, window.free, "captured graphs")
            del graph
            torch.cuda.synchronize()
        x.copy_(numbers(comm.rank, count))
        comm.all_reduce(x, out=x)
        same(x, total(comm, count), "after the window was freed")
        torch.cuda.synchronize()


@check
def other_collectives(comm: Comm) -> None:
    me, world, count = comm.rank, comm.world_size, 3000
    x = numbers(me, count * world).float()
    every = [numbers(r, count * world).float() for r in range(world)]
    mine = slice(me * count, (me + 1) * count)
    same(comm.reduce_scatter(x), total(comm, count * world)[mine], "reduce_scatter")
    same(comm.all_gather(x), torch.cat(every), "all_gather")
    same(comm.all_to_all(x), torch.cat([e[mine] for e in every]), "all_to_all")
    same(comm.broadcast(x.clone(), world - 1), every[world - 1], "broadcast")
    reduced, gathered = comm.reduce(x), comm.gather(x)
    if me == 0:
        same(reduced, total(comm, count * world), "reduce")
        same(gathered, torch.cat(every), "gather")
    out = torch.empty(count, device="cuda")
    same(comm.scatter(x if me == 0 else None, out=out), every[0][mine], "scatter")
    received = torch.empty_like(x)
    with group():
        comm.send(x, (me + 1) % world)
        comm.recv(received, (me - 1) % world)
    same(received, every[(me - 1) % world], "send and recv")
    torch.cuda.synchronize()


@check
def a_second_comm_on_a_second_stream(comm: Comm) -> None:
    second = comm.split(0)
    assert second is not None
    with second:
        side, x, y = torch.cuda.Stream(), numbers(comm.rank, 4096).float(), numbers(comm.rank, 4096, 1).float()
        torch.cuda.synchronize()
        out = torch.empty_like(y)
        for _ in range(20):
            result = comm.all_reduce(x)
            second.all_reduce(y, out=out, stream=side)
        torch.cuda.synchronize()
        same(result, total(comm, 4096), "the first comm")
        same(out, total(comm, 4096, 1), "the second comm")
        torch.cuda.synchronize()


@check
def refused_calls(comm: Comm) -> None:
    x = torch.ones(4, 4, device="cuda")
    wrong: List[Tuple[Callable[[], Any], Tuple[str, ...]]] = [
        (lambda: comm.all_reduce(torch.ones(4)), ("cpu", str(comm.device))),
        (lambda: comm.all_reduce(x[:, 1]), ("not contiguous",)),
        (lambda: comm.all_reduce(x.to(torch.int16)), ("int16",)),
        (lambda: comm.all_reduce(x, out=x.double()), ("F32", "F64")),
        (lambda: comm.all_reduce(x, dtype=Dtype.U8), ("own type",)),
    ]
    if torch.cuda.device_count() > 1:
        other = f"cuda:{((comm.device.ordinal or 0) + 1) % torch.cuda.device_count()}"
        wrong.append((lambda: comm.all_reduce(torch.ones(4, device=other)), (other, str(comm.device))))
    for call, words in wrong:
        raises(errors.InvalidArgumentError, call, *words)
    same(comm.all_reduce(x), torch.full((4, 4), comm.world_size, device="cuda"), "a call afterwards")


if __name__ == "__main__":
    sys.exit(main())
