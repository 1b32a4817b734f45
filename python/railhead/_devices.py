"""Devices of comms, and streams of CUDA devices. This module never imports torch: a program that uses it has imported it."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any, NamedTuple, Optional

from .errors import InvalidArgumentError

_CPU, _CUDA = 0, 1  # RH_DEVICE_...
KINDS = {"cpu": _CPU, "cuda": _CUDA}  # of Device.kind


@dataclasses.dataclass(frozen=True)
class Device:
    """The device of a comm. str() gives torch's name for it: "cpu", "cuda:1"."""

    kind: str  # "cpu" or "cuda"
    ordinal: Optional[int] = None  # the CUDA driver's number, which is torch's too; the CPU has none

    def __str__(self) -> str:
        return self.kind if self.ordinal is None else f"{self.kind}:{self.ordinal}"


CPU = Device("cpu")


def device_of(kind: int, ordinal: int) -> Device:
    """The device that rh_comm_info tells."""
    return Device("cuda", ordinal) if kind == _CUDA else CPU


class Request(NamedTuple):
    """The fields of rh_comm_config that name a device."""

    kind: int
    ordinal: int = -1  # -1: not given
    uuid: Optional[bytes] = None


def request(device: Any) -> Request:
    """What a caller's device argument asks for."""
    if device is None:
        return Request(_CPU)
    if isinstance(device, int) and not isinstance(device, bool):
        return _numbered(device, device)
    torch = sys.modules.get("torch")
    if not isinstance(device, (str, Device)) and (torch is None or not isinstance(device, torch.device)):
        raise TypeError(f"comm: device is a {type(device).__name__}; pass 'cuda', 'cuda:1', 1, 'GPU-<uuid>', a torch.device or 'cpu'")
    name = str(device)
    if name == "cpu":
        return Request(_CPU)
    if name == "cuda":
        return Request(_CUDA, _current_device())
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]*", name):
        return Request(_CUDA, uuid=name.encode())
    number = re.fullmatch(r"cuda:([0-9]+)", name)
    if number is None:
        raise InvalidArgumentError(f"comm: device {name!r}: want 'cuda', 'cuda:1', 1, 'GPU-<uuid>', 'MIG-<uuid>' or 'cpu'")
    return _numbered(int(number.group(1)), device)


def _numbered(ordinal: int, device: Any) -> Request:
    if not 0 <= ordinal < 2**31:
        raise InvalidArgumentError(f"comm: device {device!r}: its number is outside 0..{2**31 - 1}")
    return Request(_CUDA, ordinal)


def _current_device() -> int:
    """torch's current device. Without torch, -1: the library takes the current one of the calling thread."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return -1
    return int(torch.cuda.current_device())


def current_stream(device: Device) -> int:
    """torch's current stream of the device, or 0, the default stream, in a program that does not use torch's CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream(device.ordinal).cuda_stream)


def stream_of(stream: Any, operation: str, device: Device) -> Optional[int]:
    """The CUstream of a caller's stream argument. None on the CPU, which has no streams."""
    if stream is None:
        return None if device.ordinal is None else current_stream(device)
    handle = stream
    if not isinstance(stream, int):
        handle = getattr(stream, "cuda_stream", None)
        protocol = getattr(stream, "__cuda_stream__", None)
        if handle is None and protocol is not None:
            handle = protocol()[1]  # (version, CUstream)
    if not isinstance(handle, int) or isinstance(handle, bool):
        raise TypeError(
            f"{operation}: stream is a {type(stream).__name__}; pass a torch.cuda.Stream, an object with __cuda_stream__, or a "
            "CUstream as an integer"
        )
    if not 0 <= handle < 2**64:
        raise InvalidArgumentError(f"{operation}: stream {handle} is no CUstream: it is outside 0..{2**64 - 1}")
    return handle
