"""Functions that the ranks of the tests run: `python ranks.py FUNCTION [argument...]` with RANK and WORLD_SIZE set."""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import random
import signal
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import elements
from elements import Number
from railhead import Comm, Dtype, Op, Result, Session, errors, group

RANKS: Dict[str, Callable[..., None]] = {}


def rank(function: Callable[..., None]) -> Callable[..., None]:
    RANKS[function.__name__] = function
    return function


def equal(got: Any, want: Any, what: str) -> None:
    if got != want:
        raise AssertionError(f"{what}: got {got}, want {want}")


@contextlib.contextmanager
def expected(kind: type) -> Iterator[List[errors.RailheadError]]:
    """The block must raise an error of exactly this class. The error is appended to the list."""
    caught: List[errors.RailheadError] = []
    try:
        yield caught
    except errors.RailheadError as error:
        if type(error) is not kind:
            raise
        caught.append(error)
        return
    raise AssertionError(f"want {kind.__name__}, but nothing was raised")


def raises(kind: type, call: Callable[[], Any], *words: str) -> errors.RailheadError:
    with expected(kind) as caught:
        call()
    missing = [word for word in words if word not in str(caught[0])]
    equal(missing, [], f"words missing in {caught[0]}")
    return caught[0]


def inputs(world: int, count: int, dtype: Dtype, seed: int = 1) -> List[List[Number]]:
    """Inputs of each rank, the same in every process. They and their products are exact in every dtype."""
    source = random.Random(f"{dtype} {seed}")
    low = 0 if dtype in (Dtype.U8, Dtype.U64) else -2
    return [[source.randint(low, 2) for _ in range(count)] for _ in range(world)]


def joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(parts)


@rank
def reductions(comm: Comm) -> None:
    """Reductions of every dtype and op, on raw bytes."""
    world, me = comm.world_size, comm.rank
    for dtype in Dtype:
        for op in Op:
            for count in (0, 1, 37):
                what = f"{dtype.name} {op.name} of {count}"
                per_rank = inputs(world, count, dtype)
                send = elements.encode(per_rank[me], dtype)
                want = elements.reduced(per_rank, op, dtype)
                equal(comm.all_reduce(send, op, dtype=dtype), want, f"all_reduce {what}")
                equal(comm.reduce(send, world - 1, op, dtype=dtype), want if me == world - 1 else None, f"reduce {what}")
                parts = inputs(world, count * world, dtype, seed=2)
                want = elements.reduced([p[me * count : (me + 1) * count] for p in parts], op, dtype)
                got = comm.reduce_scatter(elements.encode(parts[me], dtype), op, dtype=dtype)
                equal(got, want, f"reduce_scatter {what}")


@rank
def moves(comm: Comm) -> None:
    """Operations that move elements, of every dtype, with a root that is not 0, on raw bytes."""
    world, me, root = comm.world_size, comm.rank, comm.world_size - 1
    for dtype in Dtype:
        for count in (0, 1, 37):
            what = f"{dtype.name} of {count}"
            mine = [elements.encode(v, dtype) for v in inputs(world, count, dtype)]
            equal(comm.all_gather(mine[me], dtype=dtype), joined(mine), f"all_gather {what}")
            equal(comm.gather(mine[me], root, dtype=dtype), joined(mine) if me == root else None, f"gather {what}")
            table = [[elements.encode(v, dtype) for v in inputs(world, count, dtype, seed=10 + r)] for r in range(world)]
            equal(comm.all_to_all(joined(table[me]), dtype=dtype), joined([row[me] for row in table]), f"all_to_all {what}")
            out = bytearray(count * dtype.itemsize)
            send = joined(table[root]) if me == root else None
            equal(comm.scatter(send, root, out=out, dtype=dtype), table[root][me], f"scatter {what}")
            buffer = bytearray(mine[me])
            assert comm.broadcast(buffer, root, dtype=dtype) is buffer
            equal(buffer, mine[root], f"broadcast {what}")


@rank
def in_place(comm: Comm) -> None:
    world, me = comm.world_size, comm.rank
    values = array.array("f", [me + 1.0] * 4)
    assert comm.all_reduce(values, out=values) is values
    total = world * (world + 1) / 2
    equal(values.tolist(), [total] * 4, "all_reduce")
    whole = array.array("i", [-1] * (2 * world))
    part = memoryview(whole)[2 * me : 2 * me + 2]
    part[0], part[1] = me, 10 * me
    comm.all_gather(part, out=whole)
    equal(whole.tolist(), [x for r in range(world) for x in (r, 10 * r)], "all_gather")
    comm.reduce_scatter(whole, Op.MAX, out=part)
    equal(part.tolist(), [me, 10 * me], "reduce_scatter")
    part.release()


@rank
def kinds_of_results(comm: Comm) -> None:
    """Without out the result has the kind of the input."""
    doubles = comm.all_gather(array.array("d", [comm.rank]))
    assert isinstance(doubles, array.array) and doubles.typecode == "d"
    equal(doubles.tolist(), [float(r) for r in range(comm.world_size)], "array.array")
    typed = comm.all_gather(memoryview(array.array("q", [comm.rank, 7])))
    assert isinstance(typed, memoryview) and typed.format == "q"
    equal(typed.tolist(), [x for r in range(comm.world_size) for x in (r, 7)], "memoryview")
    floats = comm.all_gather((ctypes.c_float * 1)(comm.rank))
    equal(floats.tolist(), [float(r) for r in range(comm.world_size)], "ctypes array")
    equal(type(comm.all_gather(b"ab")), bytearray, "bytes")


@rank
def pairs(comm: Comm) -> None:
    """A ring, first with one call at a time, then in both directions in a group. The group keeps temporaries alive until its end."""
    world, me = comm.world_size, comm.rank
    after, before = (me + 1) % world, (me - 1) % world
    got = bytearray(3)
    if me == 0:
        comm.send(b"abc", after)
        comm.recv(got, before)
    else:
        comm.recv(got, before)
        comm.send(got, after)
    equal(got, b"abc", "ring")
    left, right = array.array("i", [0]), array.array("i", [0])
    with group():
        comm.send(array.array("i", [me]), after)
        comm.send(array.array("i", [-me]), before)
        with group():
            comm.recv(left, before)
            comm.recv(right, after)
        total = comm.all_reduce(array.array("i", [1]))
    equal((left[0], right[0], total[0]), (before, -after, world), "group")


@rank
def dropped_group(comm: Comm) -> None:
    """An exception in a group block drops the noted calls: no operation begins, and the comm continues to work."""
    before = comm.status().operation

    def block() -> None:
        with group():
            comm.all_reduce(array.array("f", [1.0]))
            raise KeyError("raised by the caller")

    try:
        block()
    except KeyError:
        pass
    else:
        raise AssertionError("the exception was swallowed")
    equal(comm.status().operation, before, "operations begun")
    equal(comm.all_reduce(array.array("f", [1.0]))[0], float(comm.world_size), "after the block")


@rank
def pre_mul(comm: Comm) -> None:
    world, me = comm.world_size, comm.rank
    for dtype in Dtype:
        with comm.pre_mul_sum(me + 1, dtype) as op:
            got = comm.all_reduce(elements.encode([1, 2], dtype), op, dtype=dtype)
        total = world * (world + 1) // 2
        equal(got, elements.encode([total, 2 * total], dtype), dtype.name)
    for scalar, dtype in ((300, Dtype.U8), (-1, Dtype.U64), (2**31, Dtype.I32)):
        raises(errors.InvalidArgumentError, lambda: comm.pre_mul_sum(scalar, dtype), str(scalar), dtype.name)


@rank
def split(comm: Comm) -> None:
    """Even and odd ranks, in reverse order. The last rank calls split without a color."""
    world, me = comm.world_size, comm.rank
    part: Optional[Comm] = comm.split(None if me == world - 1 else me % 2, key=-me)
    if me == world - 1:
        equal(part, None, "no color")
    else:
        assert part is not None
        members = [r for r in reversed(range(world - 1)) if r % 2 == me % 2]
        equal((part.rank, part.world_size), (members.index(me), len(members)), "rank and world size")
        with part:
            equal(part.all_gather(array.array("i", [me])).tolist(), members, "members")
    comm.barrier()


@rank
def windows(comm: Comm) -> None:
    with comm.alloc_window(4096) as window:
        equal((window.nbytes, bytes(window.memory())), (4096, bytes(4096)), "zeroed")
        window.memory()[:4] = bytes([comm.rank + 1] * 4)
        comm.barrier()
        for r in range(comm.world_size):
            equal(bytes(window.memory(r)[:5]), bytes([r + 1] * 4 + [0]), f"part of rank {r}")
        comm.barrier()
        floats = window.memory().cast("f")
        floats[0] = 1.5
        comm.all_reduce(floats[:1], out=floats[:1])
        equal(floats[0], 1.5 * comm.world_size, "all_reduce in the window")
        raises(errors.InvalidArgumentError, lambda: window.memory(comm.world_size), str(comm.world_size))
        comm.barrier()
    raises(errors.InvalidHandleError, window.memory)


@rank
def registered(comm: Comm) -> None:
    """A memfd is shared, malloc's memory is staged."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 2 * mmap.PAGESIZE)
    shared = mmap.mmap(fd, mmap.PAGESIZE, offset=mmap.PAGESIZE)
    with comm.register_window(shared, fd=fd, fd_offset=mmap.PAGESIZE) as window:
        os.close(fd)
        equal((window.sharing().zero_copy, window.sharing().rank), (True, None), "sharing")
        shared[0] = comm.rank + 1
        comm.barrier()
        equal([window.memory(r)[0] for r in range(comm.world_size)], [r + 1 for r in range(comm.world_size)], "peers' bytes")
        comm.barrier()
        comm.all_reduce(shared, out=shared)
        equal(shared[0], comm.world_size * (comm.world_size + 1) // 2, "all_reduce")
    private = bytearray(64)
    with comm.register_window(private) as window:
        try:
            private.extend(b"more")
        except BufferError:
            pass
        else:
            raise AssertionError("registered memory was resized")
        sharing = window.sharing()
        equal((sharing.zero_copy, sharing.rank), (False, 0), "staged")
        assert sharing.reason, "sharing has no reason"
    private.extend(b"more")
    with comm.register_window(shared) as window:  # without fd the library finds the file by the address
        equal(window.sharing().zero_copy, True, "found by its address")
        shared[1] = 7 + comm.rank
        comm.barrier()
        equal(window.memory(0)[1], 7, "rank 0's byte")
    shared.close()


@rank
def waits_for_a_death(comm: Comm, victim: str) -> None:
    """The victim prints "ready" and sleeps until the test kills it. The errors of the others name it."""
    comm.barrier()
    if comm.rank == int(victim):
        print("ready", flush=True)
        signal.pause()
    error = raises(errors.RankDeadError, lambda: comm.all_reduce(b"x"), f"rank {victim}")
    equal(error.culprit, int(victim), "culprit")
    equal(comm.status().result, Result.RANK_DEAD, "status")
    equal(comm.status().culprit, int(victim), "status's culprit")
    raises(errors.RankDeadError, comm.barrier)
    with expected(errors.RankDeadError), group():
        comm.barrier()


@rank
def mismatch(comm: Comm) -> None:
    def call() -> Any:
        return comm.all_reduce(bytes(8)) if comm.rank == 0 else comm.all_reduce(bytes(4))

    def call_and_barrier() -> None:  # a rank may return from the first call before it sees the mismatch
        call()
        comm.barrier()

    raises(errors.MismatchError, call_and_barrier)


@rank
def abort(comm: Comm) -> None:
    if comm.rank == 1:
        comm.abort()
    error = raises(errors.AbortedError, comm.barrier, "rank 1")
    equal(error.culprit, 1, "culprit")


@rank
def leaves_by_exception(comm: Comm) -> None:
    """An exception leaves rank 1's with block in main. The others fail at once."""
    if comm.rank == 1:
        raise SystemExit(0)
    equal(raises(errors.AbortedError, comm.barrier).culprit, 1, "culprit")


@rank
def late(comm: Comm) -> None:
    """Rank 0 prints "gave up" after its deadline; then the test lets rank 1 continue."""
    comm.barrier()  # Both processes have started, which may take longer than the deadline of the next comm.
    with Session() as session, session.comm(os.environ["RAILHEAD_GROUP"] + "-short", timeout=2) as short:
        if short.rank == 1:
            sys.stdin.readline()
            raises(errors.DeadlineError, short.barrier, "rank 1")
            return
        error = raises(errors.DeadlineError, short.barrier, "rank 1", "barrier")
        equal(error.culprit, 1, "culprit")
        assert isinstance(error, TimeoutError)
        print("gave up", flush=True)


@rank
def finalized(comm: Comm) -> None:
    window = comm.alloc_window(64)
    comm.finalize()
    raises(errors.InvalidHandleError, comm.barrier)
    raises(errors.InvalidHandleError, comm.status)
    raises(errors.InvalidHandleError, window.memory)
    raises(errors.InvalidHandleError, comm.finalize)


@rank
def bad_arguments(comm: Comm) -> None:
    """Errors that are found before the call, so the comm works afterwards."""
    world = comm.world_size
    wrong: List[Callable[[], Any]] = [
        lambda: comm.all_reduce(array.array("f", [1]), out=array.array("f", [1, 2])),
        lambda: comm.all_reduce(array.array("f", [1]), out=array.array("i", [1])),
        lambda: comm.all_reduce(array.array("f", [1]), out=bytes(4), dtype=Dtype.F32),
        lambda: comm.all_reduce(array.array("h", [1])),
        lambda: comm.all_reduce(bytes(3), dtype=Dtype.BF16),
        lambda: comm.all_reduce(memoryview(bytes(8))[::2]),
        lambda: comm.all_gather(b"a", out=bytearray(2 * world - 1)),
        lambda: comm.reduce_scatter(bytes(world + 1)),
        lambda: comm.all_to_all(bytes(world + 1)),
        lambda: comm.broadcast(b"read-only"),
        lambda: comm.broadcast(bytearray(1), world),
        lambda: comm.reduce(b"a", -1),
        lambda: comm.gather(b"a", 2**32),
        lambda: comm.scatter(None, comm.rank),
        lambda: comm.scatter(None, (comm.rank + 1) % world),
        lambda: comm.send(b"a", world),
        lambda: comm.recv(bytearray(1), -1),
        lambda: comm.split(-1),
        lambda: comm.alloc_window(-1),
        lambda: comm.alloc_window(0),
    ]
    for call in wrong:
        assert isinstance(raises(errors.InvalidArgumentError, call), ValueError)
    nothing: Any
    for nothing in ([1.0], None):
        try:
            comm.all_reduce(nothing)
        except TypeError:
            continue
        raise AssertionError("a list or None was accepted as a buffer")
    comm.barrier()


@rank
def forked(comm: Comm) -> None:
    """The child's comm is invalid, but it can join another group. The parent's comm continues to work."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            raises(errors.InvalidHandleError, comm.barrier)
            with Session() as session, session.comm(f"child-{os.environ['RAILHEAD_GROUP']}") as mine:
                equal(mine.all_reduce(b"\1"), bytes([mine.world_size]), "the child's comm")
            status = 0
        finally:
            os._exit(status)
    equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the child's exit status")
    equal(comm.all_reduce(b"\1"), bytes([comm.world_size]), "the parent's comm")


@rank
def threads(comm: Comm) -> None:
    """A call that waits releases the GIL: while a thread of rank 0 waits in a barrier, its main thread runs and releases rank 1."""
    if comm.rank == 1:
        sys.stdin.readline()
        comm.barrier()
        return
    waiter = threading.Thread(target=comm.barrier)
    waiter.start()
    while comm.status().waiting_for != (1,):
        pass
    print("waits", flush=True)
    waiter.join()


def main(device: Any = None) -> None:
    function, arguments = RANKS[sys.argv[1]], sys.argv[2:]
    with Session() as session, session.comm(device=device) as comm:
        equal((comm.rank, comm.world_size), (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])), "torchrun's variables")
        function(comm, *arguments)


if __name__ == "__main__":
    main()
