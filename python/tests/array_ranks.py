"""Functions that the ranks of the numpy and torch tests run; called as those of ranks.py."""

from __future__ import annotations

import mmap
import os
from typing import Any, Callable, List, Tuple

import elements
from railhead import Comm, Dtype, Op, errors
from ranks import equal, inputs, joined, main, raises, rank

PLAIN = (Dtype.F32, Dtype.F64, Dtype.F16, Dtype.I8, Dtype.U8, Dtype.I32, Dtype.I64, Dtype.U64)
SMALL = (Dtype.BF16, Dtype.FP8_E4M3, Dtype.FP8_E5M2)


class Numpy:
    """Makes and reads arrays for the checks below."""

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy

    def dtype(self, dtype: Dtype) -> Any:
        if dtype in SMALL:
            import ml_dtypes

            return getattr(ml_dtypes, dtype.array_name)
        return dtype.array_name

    def make(self, memory: bytes, dtype: Dtype, *shape: int) -> Any:
        return self.numpy.frombuffer(bytearray(memory), self.dtype(dtype)).reshape(shape)

    def read(self, values: Any, dtype: Dtype, *shape: int) -> bytes:
        assert isinstance(values, self.numpy.ndarray) and values.dtype == self.numpy.dtype(self.dtype(dtype)), values.dtype
        equal(values.shape, shape, "shape")
        return bytes(values.tobytes())


class Torch:
    def __init__(self) -> None:
        import torch

        self.torch = torch

    def dtype(self, dtype: Dtype) -> Any:
        return getattr(self.torch, dtype.array_name)

    def make(self, memory: bytes, dtype: Dtype, *shape: int) -> Any:
        if not memory:  # frombuffer refuses empty memory
            return self.torch.empty(shape, dtype=self.dtype(dtype))
        return self.torch.frombuffer(bytearray(memory), dtype=self.dtype(dtype)).reshape(shape)

    def read(self, values: Any, dtype: Dtype, *shape: int) -> bytes:
        assert isinstance(values, self.torch.Tensor) and values.dtype == self.dtype(dtype), values.dtype
        equal(tuple(values.shape), shape, "shape")
        return bytes(values.contiguous().view(self.torch.uint8).flatten().tolist())


def kind_of(name: str) -> Any:
    return Numpy() if name == "numpy" else Torch()


@rank
def arrays(comm: Comm, name: str, *dtypes: str) -> None:
    """Every collective on two-dimensional arrays. Results have the input's kind and dtype, and the right shape."""
    kind, world, me = kind_of(name), comm.world_size, comm.rank
    for dtype in (Dtype[d] for d in dtypes):
        per_rank = inputs(world, 6 * world, dtype)
        mine = [elements.encode(values, dtype) for values in per_rank]
        total = elements.reduced(per_rank, Op.SUM, dtype)
        share = len(total) // world
        send = kind.make(mine[me], dtype, 2 * world, 3)
        equal(kind.read(comm.all_reduce(send), dtype, 2 * world, 3), total, f"all_reduce {dtype.name}")
        part = kind.read(comm.reduce_scatter(send), dtype, 2, 3)
        equal(part, total[me * share : (me + 1) * share], f"reduce_scatter {dtype.name}")
        equal(kind.read(comm.all_gather(send), dtype, 2 * world * world, 3), joined(mine), f"all_gather {dtype.name}")
        want = joined([m[me * share : (me + 1) * share] for m in mine])
        equal(kind.read(comm.all_to_all(send), dtype, 2 * world, 3), want, f"all_to_all {dtype.name}")
        out = kind.make(bytes(share), dtype, 2, 3)
        assert comm.scatter(send if me == 0 else None, out=out) is out
        equal(kind.read(out, dtype, 2, 3), mine[0][me * share : (me + 1) * share], f"scatter {dtype.name}")
        rooted = comm.reduce(send), comm.gather(send)
        if me == 0:
            equal(kind.read(rooted[0], dtype, 2 * world, 3), total, f"reduce {dtype.name}")
            equal(kind.read(rooted[1], dtype, 2 * world * world, 3), joined(mine), f"gather {dtype.name}")
        else:
            equal(rooted, (None, None), "results of reduce and gather off root")
        comm.broadcast(send, 1)
        equal(kind.read(send, dtype, 2 * world, 3), mine[1], f"broadcast {dtype.name}")
        if me == 0:
            comm.send(kind.make(mine[0], dtype, 6 * world), 1)
        elif me == 1:
            equal(kind.read(comm.recv(send, 0), dtype, 2 * world, 3), mine[0], f"recv {dtype.name}")


@rank
def array_windows(comm: Comm, name: str, *dtypes: str) -> None:
    """Views of windows: all ranks read what a rank has written."""
    kind, me = kind_of(name), comm.rank
    with comm.alloc_window(64) as window:
        view = window.as_numpy if name == "numpy" else window.as_torch
        for dtype in (Dtype[d] for d in dtypes):
            mine = [elements.encode([r + 1] * (64 // dtype.itemsize), dtype) for r in range(comm.world_size)]
            view(dtype)[:] = kind.make(mine[me], dtype, 64 // dtype.itemsize)
            comm.barrier()
            for r in range(comm.world_size):
                equal(kind.read(view(kind.dtype(dtype), r), dtype, 64 // dtype.itemsize), mine[r], f"{dtype.name} of rank {r}")
            comm.barrier()
    with comm.alloc_window(6) as window:
        view = window.as_numpy if name == "numpy" else window.as_torch
        raises(errors.InvalidArgumentError, lambda: view(Dtype.F32), "6 bytes")


@rank
def numpy_refusals(comm: Comm) -> None:
    import numpy

    read_only = numpy.ones(4)
    read_only.flags.writeable = False
    check_refusals(
        [
            (lambda: comm.all_reduce(numpy.ones((4, 4))[:, 1]), "not contiguous"),
            (lambda: comm.all_reduce(numpy.ones(4, ">f4")), "byte order"),
            (lambda: comm.broadcast(read_only), "read-only"),
            (lambda: comm.all_reduce(numpy.ones(4, "int16")), "int16"),
            (lambda: comm.all_reduce(numpy.ones(4, "bool")), "bool"),
            (lambda: comm.all_reduce(numpy.ones(4, "int16"), dtype=Dtype.U8), "U8 was requested.*int16.*own type"),
            (lambda: comm.all_reduce(numpy.ones(4, "int16"), dtype=Dtype.BF16), "BF16.*int16"),
            (lambda: comm.all_reduce(numpy.ones(4, "float32"), dtype=Dtype.U8), "U8.*float32"),
            (lambda: comm.all_reduce(numpy.ones(4, "uint8"), dtype=Dtype.F32), "F32.*uint8"),
            (lambda: comm.all_reduce(bytes(16), out=numpy.ones(4, "int32"), dtype=Dtype.F32), "out: dtype F32.*int32"),
            (lambda: comm.reduce(numpy.ones(4, "int16"), dtype=Dtype.U8), "U8.*int16"),
            (lambda: comm.reduce_scatter(numpy.ones(4 * comm.world_size, "int16"), dtype=Dtype.U8), "U8.*int16"),
            (lambda: comm.all_reduce(numpy.ones(4, "float32"), dtype=Dtype.I32), "I32"),
            (lambda: comm.all_reduce(numpy.ones(4), out=numpy.ones(4, "float32")), "F64"),
            (lambda: comm.reduce_scatter(numpy.ones((1, comm.world_size))), "first dimension"),
        ]
    )
    moved = comm.all_gather(numpy.full(3, comm.rank, "int16"), dtype=Dtype.U8)
    equal((moved.dtype.name, moved.tolist()), ("int16", [r for r in range(comm.world_size) for _ in range(3)]), "moved as bytes")
    bits = comm.all_reduce(numpy.full(2, 0x3F80, "uint16"), dtype=Dtype.BF16)
    equal(bits.tobytes(), elements.encode([comm.world_size] * 2, Dtype.BF16), "bits of bf16")
    eights = comm.all_reduce(numpy.full(2, 0x38, "uint8"), dtype=Dtype.FP8_E4M3)  # 1.0
    equal(eights.tobytes(), elements.encode([comm.world_size] * 2, Dtype.FP8_E4M3), "bits of FP8")
    equal(float(comm.all_reduce(numpy.array(2.0))), 2.0 * comm.world_size, "a 0-dimensional array")


@rank
def torch_refusals(comm: Comm) -> None:
    import torch

    check_refusals(
        [
            (lambda: comm.all_reduce(torch.ones(4, 4)[:, 1]), "not contiguous"),
            (lambda: comm.all_reduce(torch.ones(4, device="meta")), "meta.*cpu"),
            (lambda: comm.all_reduce(torch.ones(4, dtype=torch.int16)), "int16"),
            (lambda: comm.all_reduce(torch.ones(4, dtype=torch.int16), dtype=Dtype.U8), "U8.*int16"),
            (lambda: comm.all_reduce(torch.ones(4, dtype=torch.bool), dtype=Dtype.U8), "U8.*bool"),
            (lambda: comm.all_reduce(torch.ones(4), out=torch.ones(4, dtype=torch.float64)), "F64"),
            (lambda: comm.all_reduce(torch._neg_view(torch.ones(4))), "negation"),
        ]
    )
    weights = torch.nn.Parameter(torch.ones(3))
    comm.all_reduce(weights, out=weights)
    equal(weights.tolist(), [float(comm.world_size)] * 3, "a parameter, in place")
    equal(comm.all_reduce(torch.tensor(2.0)).item(), 2.0 * comm.world_size, "a 0-dimensional tensor")
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, mmap.PAGESIZE)
    shared = torch.frombuffer(mmap.mmap(fd, mmap.PAGESIZE), dtype=torch.float32)
    shared.fill_(comm.rank)
    with comm.register_window(shared) as window:
        equal(window.sharing().zero_copy, True, "a tensor in a memfd")
        comm.barrier()
        peers = [window.as_torch(torch.float32, r)[0].item() for r in range(comm.world_size)]
        equal(peers, [float(r) for r in range(comm.world_size)], "shared tensors")
        comm.barrier()
    with comm.register_window(torch.ones(16)) as window:
        equal(window.sharing().zero_copy, False, "a tensor of malloc's memory")


def check_refusals(cases: List[Tuple[Callable[[], Any], str]]) -> None:
    for call, why in cases:
        raises(errors.InvalidArgumentError, call, *why.split(".*"))


if __name__ == "__main__":
    main()
