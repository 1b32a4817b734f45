"""What the checks on GPUs share: a program is a list of checks, which each rank runs in turn."""

from __future__ import annotations

import os
import time
import traceback
from typing import Callable, List, Optional

import torch

from railhead import Comm, Session

Check = Callable[[Comm], None]
CHECKS: List[Check] = []


def check(function: Check) -> Check:
    """Adds a check to those of the program, in the order of its text."""
    CHECKS.append(function)
    return function


def no_call_gave_up(comm: Comm) -> None:
    torch.cuda.synchronize()
    if comm.stopped():
        raise AssertionError(f"stopped: {comm.status().message}")


def run(comm: Comm) -> Optional[str]:
    """The name of the check that failed. The later ones do not run, because the ranks may differ in their calls."""
    for function in [*CHECKS, no_call_gave_up]:
        began = time.monotonic()
        try:
            function(comm)
            torch.cuda.synchronize()
        except BaseException:
            print(f"rank {comm.rank}: FAILED {function.__name__}\n{traceback.format_exc()}\nstatus: {comm.status()}", flush=True)
            return function.__name__
        print(f"rank {comm.rank}: ok {function.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
    return None


def main() -> int:
    """The exit status of this rank."""
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % torch.cuda.device_count())
    with Session() as session:
        comm = session.comm(device="cuda", timeout=15)
        failed = run(comm)
        if failed is not None:
            comm.abort()
        comm.finalize()
    return 0 if failed is None else 1
