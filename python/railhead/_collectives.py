"""The data path of a comm: collectives, sends and receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Tuple, TypeVar, Union

from ._buffers import Buffer, buffer_of, empty_like
from ._device_buffers import device_buffer_of, new_tensor
from ._devices import CPU, Device, stream_of
from ._groups import note
from ._library import check_on, load
from .enums import Dtype, Op
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Buffer as ProtocolBuffer

    class OnDevice(Protocol):
        """Memory of a CUDA device."""

        @property
        def __cuda_array_interface__(self) -> Dict[str, Any]: ...

    Readable = Union[ProtocolBuffer, numpy.ndarray[Any, Any], torch.Tensor, OnDevice]

T = TypeVar("T")


class PreMulSum:
    """A sum for which each rank first multiplies its contribution by its own scalar. Comm.pre_mul_sum makes it, for that comm and
    dtype. destroy(), the end of a with block, or the end of the comm frees it."""

    def __init__(self, comm: Any, number: int, dtype: Dtype) -> None:
        self._comm = comm
        self.number = number
        self.dtype = dtype

    def destroy(self) -> None:
        check_on(load().rh_op_destroy(self._comm, self.number), ())

    def __enter__(self) -> PreMulSum:
        return self

    def __exit__(self, *exception: object) -> None:
        self.destroy()


class Collectives:
    """Operations of a comm. Every rank must call the same operations in the same order, with the same count, dtype, op and
    root. dtype= is required if a buffer has no element type (bytes count as uint8). Reductions refuse a dtype that is not the
    buffer's own, except of bytes, and of uint8 and uint16 that hold the bits of FP8, bf16 or f16; operations that only move
    elements move any as Dtype.U8. The result is written to out, which may be
    the input if the method says so. Without out a new buffer of the input's kind is returned. Shapes follow torch.distributed's
    ..._tensor functions: the parts of the ranks are concatenated along the first dimension.

    On a CUDA device a call is queued and returns at once; captured by torch.cuda.graph, it runs with each replay. It runs on stream,
    a torch.cuda.Stream, an object with __cuda_stream__ or a CUstream; by default on torch's current stream of the comm's device, in
    a program without torch on the default stream. Nothing is synchronised. The buffers must stay as they are until the call has run
    (torch: record_stream, if they were allocated on another stream)."""

    rank: int
    world_size: int
    device: Device = CPU
    _handle: Any

    # Reductions

    def all_reduce(
        self, send: Readable, op: Union[Op, PreMulSum] = Op.SUM, *, out: Any = None, dtype: Optional[Dtype] = None, stream: Any = None
    ) -> Any:
        """The reduction over ranks of send, with the same bits on every rank. In place: out is send."""
        source = self._buffer(send, "all_reduce: send", dtype, computed=True)
        out, target = self._target("all_reduce", send, source, out, source.shape, source.count, dtype, stream, computed=True)
        self._call("rh_all_reduce", stream, source, target, source.count, source.dtype, _number(op))
        return out

    def reduce_scatter(
        self, send: Readable, op: Union[Op, PreMulSum] = Op.SUM, *, out: Any = None, dtype: Optional[Dtype] = None, stream: Any = None
    ) -> Any:
        """This rank's part of the reduction over ranks of send. In place: out is that part of send."""
        source = self._buffer(send, "reduce_scatter: send", dtype, computed=True)
        count = self._share("reduce_scatter", source)
        shape = self._divided(source, out, "reduce_scatter")
        out, target = self._target("reduce_scatter", send, source, out, shape, count, dtype, stream, computed=True)
        self._call("rh_reduce_scatter", stream, source, target, count, source.dtype, _number(op))
        return out

    def reduce(
        self,
        send: Readable,
        root: int = 0,
        op: Union[Op, PreMulSum] = Op.SUM,
        *,
        out: Any = None,
        dtype: Optional[Dtype] = None,
        stream: Any = None,
    ) -> Any:
        """On root, the reduction over ranks of send; elsewhere None. In place: out is send."""
        self._check_rank("reduce", "root", root)
        source = self._buffer(send, "reduce: send", dtype, computed=True)
        target = None
        if self.rank == root:
            out, target = self._target("reduce", send, source, out, source.shape, source.count, dtype, stream, computed=True)
        self._call("rh_reduce", stream, source, target, source.count, source.dtype, _number(op), root)
        return out if self.rank == root else None

    # Operations that only move elements

    def all_gather(self, send: Readable, *, out: Any = None, dtype: Optional[Dtype] = None, stream: Any = None) -> Any:
        """Every rank's send, in order of rank. In place: send is this rank's part of out."""
        source = self._buffer(send, "all_gather: send", dtype)
        count = self.world_size * source.count
        out, target = self._target("all_gather", send, source, out, self._multiplied(source), count, dtype, stream)
        self._call("rh_all_gather", stream, source, target, source.count, source.dtype)
        return out

    def all_to_all(self, send: Readable, *, out: Any = None, dtype: Optional[Dtype] = None, stream: Any = None) -> Any:
        """Part r of the result is the part that rank r sent to this rank. In place: out is send."""
        source = self._buffer(send, "all_to_all: send", dtype)
        count = self._share("all_to_all", source)
        out, target = self._target("all_to_all", send, source, out, source.shape, source.count, dtype, stream)
        self._call("rh_all_to_all", stream, source, target, count, source.dtype)
        return out

    def broadcast(self, buffer: T, root: int = 0, *, dtype: Optional[Dtype] = None, stream: Any = None) -> T:
        """Fills buffer on every rank with root's buffer, and returns it."""
        self._check_rank("broadcast", "root", root)
        both = self._buffer(buffer, "broadcast: buffer", dtype, writable=True)
        self._call("rh_broadcast", stream, both, both, both.count, both.dtype, root)
        return buffer

    def gather(self, send: Readable, root: int = 0, *, out: Any = None, dtype: Optional[Dtype] = None, stream: Any = None) -> Any:
        """On root, every rank's send in rank order; elsewhere None. In place on root: send is its part of out."""
        self._check_rank("gather", "root", root)
        source = self._buffer(send, "gather: send", dtype)
        target = None
        if self.rank == root:
            count = self.world_size * source.count
            out, target = self._target("gather", send, source, out, self._multiplied(source), count, dtype, stream)
        self._call("rh_gather", stream, source, target, source.count, source.dtype, root)
        return out if self.rank == root else None

    def scatter(
        self, send: Optional[Readable] = None, root: int = 0, *, out: Any = None, dtype: Optional[Dtype] = None, stream: Any = None
    ) -> Any:
        """This rank's part of root's send. Ranks other than root must pass out; their send is None or absent. In place on root:
        out is its part of send."""
        self._check_rank("scatter", "root", root)
        if self.rank == root:
            if send is None:
                raise InvalidArgumentError(f"scatter: rank {self.rank} is root and must pass send")
            source = self._buffer(send, "scatter: send", dtype)
            count = self._share("scatter", source)
            out, target = self._target("scatter", send, source, out, self._divided(source, out, "scatter"), count, dtype, stream)
            self._call("rh_scatter", stream, source, target, count, source.dtype, root)
        else:
            if out is None:
                raise InvalidArgumentError(f"scatter: rank {self.rank} is not root ({root}) and must pass out=")
            target = self._buffer(out, "scatter: out", dtype, writable=True)
            self._call("rh_scatter", stream, None, target, target.count, target.dtype, root)
        return out

    # Between two ranks

    def send(self, buffer: Readable, peer: int, *, dtype: Optional[Dtype] = None, stream: Any = None) -> None:
        """Sends buffer to rank peer, whose recv has the same count and dtype."""
        self._check_rank("send", "peer", peer)
        source = self._buffer(buffer, "send: buffer", dtype)
        at = stream_of(stream, "send", self.device)
        note(self._handle, source)
        check_on(load().rh_send(source.address, source.count, source.dtype, peer, self._handle, at), (self._handle,))

    def recv(self, buffer: T, peer: int, *, dtype: Optional[Dtype] = None, stream: Any = None) -> T:
        """Fills buffer with what rank peer sends, and returns it."""
        self._check_rank("recv", "peer", peer)
        target = self._buffer(buffer, "recv: buffer", dtype, writable=True)
        at = stream_of(stream, "recv", self.device)
        note(self._handle, target)
        check_on(load().rh_recv(target.address, target.count, target.dtype, peer, self._handle, at), (self._handle,))
        return buffer

    def barrier(self, *, stream: Any = None) -> None:
        """Returns when every rank has called it. Writes to windows before the barrier are visible to all ranks after it."""
        at = stream_of(stream, "barrier", self.device)
        note(self._handle)
        check_on(load().rh_barrier(self._handle, at), (self._handle,))

    # Helpers

    def _check_rank(self, operation: str, name: str, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise InvalidArgumentError(f"{operation}: {name} {rank} is outside 0..{self.world_size - 1}")

    def _buffer(
        self, obj: Any, what: str, dtype: Optional[Dtype] = None, writable: bool = False, computed: bool = False
    ) -> Buffer:
        if self.device.ordinal is None:
            return buffer_of(obj, what, dtype, writable, computed)
        return device_buffer_of(obj, what, self.device, dtype, writable, computed)

    def _call(
        self, function: str, stream: Any, source: Optional[Buffer], target: Optional[Buffer], *arguments: int
    ) -> None:
        at = stream_of(stream, function[len("rh_") :], self.device)
        note(self._handle, *(buffer for buffer in (source, target) if buffer is not None))
        addresses = (buffer.address if buffer is not None else None for buffer in (source, target))
        check_on(getattr(load(), function)(*addresses, *arguments, self._handle, at), (self._handle,))

    def _target(
        self,
        operation: str,
        send: Any,
        source: Buffer,
        out: Any,
        shape: Tuple[int, ...],
        count: int,
        dtype: Optional[Dtype],
        stream: Any,
        computed: bool = False,
    ) -> Tuple[Any, Buffer]:
        """The buffer of a result of count elements: out, or a new one."""
        if out is None:
            if self.device.ordinal is None:
                out = empty_like(send, shape)
            else:
                given = None if stream is None else stream_of(stream, operation, self.device)
                out = new_tensor(operation, send, shape, given, self.device)
        target = self._buffer(out, f"{operation}: out", dtype, True, computed)
        if target.dtype != source.dtype:
            raise InvalidArgumentError(
                f"{operation}: send has {source.dtype.name} and out {target.dtype.name}; they must be the same"
            )
        if target.count != count:
            raise InvalidArgumentError(
                f"{operation}: out has {target.count} elements; a send of {source.count} on {self.world_size} ranks needs {count}"
            )
        return out, target

    def _share(self, operation: str, source: Buffer) -> int:
        """The number of elements of each part in a buffer with one part for every rank."""
        if source.count % self.world_size != 0:
            raise InvalidArgumentError(
                f"{operation}: send has {source.count} elements, which is not a multiple of the world size {self.world_size}"
            )
        return source.count // self.world_size

    def _multiplied(self, source: Buffer) -> Tuple[int, ...]:
        first, *rest = source.shape or (1,)
        return (self.world_size * first, *rest)

    def _divided(self, source: Buffer, out: Any, operation: str) -> Tuple[int, ...]:
        first, *rest = source.shape or (1,)
        if out is None and first % self.world_size != 0:
            raise InvalidArgumentError(
                f"{operation}: the first dimension of send, {first}, is not a multiple of the world size {self.world_size}; "
                "pass out="
            )
        return (first // self.world_size, *rest)


def _number(op: Union[Op, PreMulSum]) -> int:
    if isinstance(op, PreMulSum):
        return op.number
    return Op(op)
