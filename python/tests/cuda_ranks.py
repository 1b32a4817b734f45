"""Functions that the ranks of the CUDA tests run, rank r on device r; called as those of ranks.py."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, List, Tuple

import elements
import fake_cuda
from fake_cuda import Array, Stream
from railhead import Comm, Dtype, Op, Result, errors, group
from ranks import equal, inputs, main, raises, rank

TYPESTR = {
    Dtype.F32: "<f4", Dtype.F64: "<f8", Dtype.F16: "<f2", Dtype.BF16: "<V2", Dtype.FP8_E4M3: "|V1", Dtype.FP8_E5M2: "|V1",
    Dtype.I8: "|i1", Dtype.U8: "|u1", Dtype.I32: "<i4", Dtype.I64: "<i8", Dtype.U64: "<u8",
}  # fmt: skip


class Protocol:
    """A stream of another library than torch."""

    def __init__(self, stream: Stream) -> None:
        self._handle = stream.cuda_stream

    def __cuda_stream__(self) -> Tuple[int, int]:
        return 0, self._handle


@rank
def sums(comm: Comm) -> None:
    """All types and reductions, out of place and in place, on each form of a stream."""
    equal((comm.device.kind, comm.device.ordinal, str(comm.device)), ("cuda", comm.rank, f"cuda:{comm.rank}"), "device")
    stream = Stream()
    forms: List[Any] = [stream, Protocol(stream), stream.cuda_stream]
    for dtype in Dtype:
        for i, op in enumerate(Op):
            per_rank = inputs(comm.world_size, 37, dtype)
            mine, want = elements.encode(per_rank[comm.rank], dtype), elements.reduced(per_rank, op, dtype)
            send, out = Array(mine, TYPESTR[dtype]), Array(bytes(len(mine)), TYPESTR[dtype])
            given = dtype if TYPESTR[dtype][1] == "V" else None
            form = forms[i % len(forms)]
            assert comm.all_reduce(send, op, out=out, dtype=given, stream=form) is out
            comm.all_reduce(send, op, out=send, dtype=given, stream=form)
            stream.synchronize()
            equal(out.read(), want, f"{dtype.name} {op.name}")
            equal(send.read(), want, f"{dtype.name} {op.name} in place")
            send.free()
            out.free()
    equal(comm.stopped(), False, "stopped")


@rank
def default_stream(comm: Comm) -> None:
    """Without torch and without an argument a call runs on the default stream."""
    array = Array(elements.encode([comm.rank + 1], Dtype.I64), "<i8")
    comm.all_reduce(array, out=array)
    fake_cuda.call("cuStreamSynchronize", None)
    equal(array.read(), elements.encode([sum(range(1, comm.world_size + 1))], Dtype.I64), "the sum")


@rank
def graphs(comm: Comm) -> None:
    """A captured call runs with each launch, on the inputs of then, mixed with eager calls."""
    stream = Stream()
    send, out, eager = Array(bytes(8), "<i8"), Array(bytes(8), "<i8"), Array(bytes(8), "<i8")
    stream.begin_capture()
    comm.all_reduce(send, out=out, stream=stream)
    graph = stream.end_capture()
    for turn in range(5):
        mine = elements.encode([10 * turn + comm.rank], Dtype.I64)
        want = elements.encode([sum(10 * turn + r for r in range(comm.world_size))], Dtype.I64)
        send.write(mine)
        graph.launch(stream)
        comm.all_reduce(send, out=eager, stream=stream)
        stream.synchronize()
        equal((out.read(), eager.read()), (want, want), f"turn {turn}")
    graph.destroy()


@rank
def device_windows(comm: Comm) -> None:
    """All ranks read each part of a window, before and after an all-reduce in it."""
    stream = Stream()
    with comm.alloc_window(1 << 12) as window:
        raises(errors.InvalidArgumentError, window.memory, comm.device.kind, "device_memory")
        own = window.device_memory()
        interface = own.__cuda_array_interface__
        equal((interface["shape"], interface["typestr"], interface["data"]), ((1 << 12,), "|u1", (own.address, False)), "interface")
        total = elements.encode([sum(r + 1 for r in range(comm.world_size))] * 1024, Dtype.F32)
        fake_cuda.call("cuMemcpyHtoD", own.address, elements.encode([comm.rank + 1] * 1024, Dtype.F32), own.nbytes)
        comm.all_reduce(own, out=own, dtype=Dtype.F32, stream=stream)
        stream.synchronize()
        comm.barrier(stream=stream)  # until all have their results
        stream.synchronize()
        for r in range(comm.world_size):
            part = window.device_memory(r)
            equal(fake_cuda.read(part.address, part.nbytes) == total, True, f"the part of rank {r} is the sum")
        comm.barrier(stream=stream)  # until all have read
        stream.synchronize()


@rank
def registered(comm: Comm) -> None:
    """Memory of cudaMalloc is shared between processes."""
    stream, array = Stream(), Array(elements.encode([comm.rank + 1] * 1024, Dtype.I32), "<i4")
    raises(errors.InvalidArgumentError, lambda: comm.register_window(array, fd=0), "fd 0", "pass -1")
    with comm.register_window(array) as window:
        sharing = window.sharing()
        equal((window.nbytes, sharing.zero_copy, sharing.rank, sharing.reason), (4096, True, None, ""), "sharing")
        equal(window.device_memory().address, array.address, "the own part")
        for r in range(comm.world_size):
            part = window.device_memory(r)
            equal(fake_cuda.read(part.address, part.nbytes), elements.encode([r + 1] * 1024, Dtype.I32), f"the part of rank {r}")
        comm.barrier(stream=stream)  # until all have read
        comm.all_reduce(array, out=array, stream=stream)
        stream.synchronize()
        total = sum(r + 1 for r in range(comm.world_size))
        equal(array.read(), elements.encode([total] * 1024, Dtype.I32), "the sum")


@rank
def moved(comm: Comm) -> None:
    """Operations that move elements, on one stream."""
    stream, mine, world = Stream(), bytes([comm.rank + 1] * 8), comm.world_size
    everyone = b"".join(bytes([r + 1] * 8) for r in range(world))
    send, whole, part = Array(mine), Array(bytes(8 * world)), Array(bytes(8))
    comm.all_gather(send, out=whole, stream=stream)
    comm.scatter(whole if comm.rank == 0 else None, out=part, stream=stream)
    stream.synchronize()
    equal((whole.read(), part.read()), (everyone, mine), "all_gather, scatter")
    comm.broadcast(part, 1, stream=stream)
    stream.synchronize()
    equal(part.read(), bytes([2] * 8), "broadcast")
    with group():
        comm.send(send, (comm.rank + 1) % world, stream=stream)
        comm.recv(part, (comm.rank - 1) % world, stream=stream)
    stream.synchronize()
    equal(part.read(), bytes([(comm.rank - 1) % world + 1] * 8), "send and recv")


@rank
def two_comms(comm: Comm) -> None:
    """A comm that was split off has the same device; both are used at once, on streams of their own."""
    second = comm.split(0, -comm.rank)
    assert second is not None
    with second:
        equal((second.device, second.rank), (comm.device, comm.world_size - 1 - comm.rank), "the second comm")
        streams, arrays = [Stream(), Stream()], [Array(elements.encode([comm.rank], Dtype.I32), "<i4") for _ in range(2)]
        for _ in range(3):
            for c, array, stream in zip((comm, second), arrays, streams):
                c.all_reduce(array, Op.MAX, out=array, stream=stream)
        for array, stream in zip(arrays, streams):
            stream.synchronize()
            equal(array.read(), elements.encode([comm.world_size - 1], Dtype.I32), "the maximum")


@rank
def cuda_refusals(comm: Comm) -> None:
    """Nothing is queued by a call with wrong arguments: the sum at the end is right."""
    array, other = Array(bytes(16), "<f4"), Array(bytes(16), "<i4")
    elsewhere = Array(bytes(16), "<f4")
    setattr(elsewhere, "device", type("Device", (), {"id": 7})())
    wrong: List[Tuple[Callable[[], Any], str]] = [
        (lambda: comm.all_reduce(bytes(16), out=array), f"bytes.*host.*cuda:{comm.rank}"),
        (lambda: comm.all_reduce(elsewhere, out=array), f"cuda:7.*cuda:{comm.rank}"),
        (lambda: comm.all_reduce(array), "all_reduce.*out="),
        (lambda: comm.all_reduce(array, out=other), "F32.*I32"),
        (lambda: comm.all_reduce(array, out=array, dtype=Dtype.U8), "U8.*own type"),
        (lambda: comm.all_reduce(array, out=Array(bytes(12), "<f4")), "3 elements"),
        (lambda: comm.all_reduce(Array(bytes(16), "<i2"), out=array), "<i2"),
        (lambda: comm.all_reduce(Array(bytes(16), ">f4"), out=array), ">f4"),
        (lambda: comm.all_reduce(Array(bytes(16), "<f4", (2, 2), strides=(4, 8)), out=array), "not contiguous"),
        (lambda: comm.all_reduce(array, out=Array(bytes(16), "<f4", data=(array.address, True))), "read-only"),
        (lambda: comm.all_reduce(Array(bytes(16), "<f4", mask=array), out=array), "mask"),
        (lambda: comm.all_reduce(array, out=array, stream=-1), "all_reduce.*-1"),
    ]
    for call, why in wrong:
        raises(errors.InvalidArgumentError, call, *why.split(".*"))
    nothing: Any = [1.0]
    for call in (lambda: comm.all_reduce(nothing, out=array), lambda: comm.all_reduce(array, out=array, stream="0")):
        try:
            call()
        except TypeError:
            continue
        raise AssertionError("a list, or text as a stream, was accepted")
    rows = Array(bytes(16), "<f4", (2, 2), strides=(8, 4))  # contiguous, and says so
    comm.all_reduce(rows, out=array)
    fake_cuda.call("cuStreamSynchronize", None)
    equal(array.read(), bytes(16), "the sum")


@rank
def given_up(comm: Comm) -> None:
    """The stop word of a rank whose call waited for one that aborted."""
    if comm.rank == 1:
        sys.stdin.readline()
        comm.abort()
    else:
        array, stream = Array(bytes(4), "<i4"), Stream()
        equal(comm.stopped(), False, "stopped before")
        comm.all_reduce(array, out=array, stream=stream)
        print("queued", flush=True)
        stream.synchronize()
        equal(comm.stopped(), True, "stopped once the stream has run")
        end = time.monotonic() + 60
        while comm.status().result == Result.OK and time.monotonic() < end:
            time.sleep(0.001)
        equal((comm.status().result, comm.status().culprit), (Result.ABORTED, 1), "status")
    comm.finalize()
    raises(errors.InvalidHandleError, comm.stopped, "finalized")


if __name__ == "__main__":
    fake_cuda.enter(int(os.environ["RANK"]))
    main(f"cuda:{os.environ['RANK']}")
