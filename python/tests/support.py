"""Processes for the tests: a daemon, and ranks that run a function of ranks.py."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Dict, List, Sequence, Tuple, Union

HERE = Path(__file__).parent
PATIENCE = 300.0  # seconds; far more than a step needs on a busy machine, so reaching it means a hang

_names = itertools.count()


def needs(module: str) -> None:
    """Skips the test if an optional module is missing. If RAILHEAD_REQUIRE_<MODULE> is 1, it fails instead."""
    if importlib.util.find_spec(module) is not None:
        return
    if os.environ.get(f"RAILHEAD_REQUIRE_{module.upper()}") == "1":
        raise AssertionError(f"{module} is not installed, but RAILHEAD_REQUIRE_{module.upper()}=1")
    raise unittest.SkipTest(f"{module} is not installed")


class Daemon:
    """`railhead serve` on a socket of its own."""

    def __init__(self) -> None:
        binary = os.environ.get("RAILHEAD_BIN")
        if not binary:
            raise AssertionError("RAILHEAD_BIN must be the path of the built binary: go build -o railhead ./cmd/railhead")
        self.directory = tempfile.mkdtemp(prefix="railhead-")
        self.socket = os.path.join(self.directory, "rh.sock")
        arguments = [binary, "serve", "--socket", self.socket, "--admin", "127.0.0.1:0", "--log", "error"]
        self.process = subprocess.Popen(arguments)
        end = time.monotonic() + PATIENCE
        while not self._accepts():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the daemon did not come up, exit status {self.process.poll()}")
            time.sleep(0.01)

    def _accepts(self) -> bool:
        # The socket's file exists before the daemon listens.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(self.socket) == 0

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            shutil.rmtree(self.directory, ignore_errors=True)


@functools.lru_cache(maxsize=None)
def daemon() -> Daemon:
    """The daemon that tests share."""
    started = Daemon()
    atexit.register(started.stop)
    return started


def environment(socket: str, **more: str) -> Dict[str, str]:
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    mine = {"RAILHEAD_SOCKET": socket, "RAILHEAD_TIMEOUT_MS": "120000", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**os.environ, **mine, **more}


class Rank:
    """A rank's process."""

    def __init__(self, arguments: Sequence[str], env: Dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that the rank prints. No timeout: the rank's own deadlines end it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def finish(self) -> Tuple[int, str, str]:
        """Waits for the end. Returns exit status, stdout, stderr."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"a rank did not end; it printed {out!r} and {err}") from None
        return self.process.returncode, out, err

    def end(self) -> None:
        """Kills the process, if it is still running, and closes its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class RankTest(unittest.TestCase):
    """A test whose assertions run in rank processes."""

    def start(self, script: Union[str, Path], count: int, *arguments: str, **more: str) -> List[Rank]:
        """Starts count processes of a script, with RANK and WORLD_SIZE set as by torchrun."""
        group = f"python-{os.getpid()}-{next(_names)}"
        ranks = []
        for r in range(count):
            env = environment(daemon().socket, RAILHEAD_GROUP=group, RANK=str(r), WORLD_SIZE=str(count), **more)
            ranks.append(Rank([str(script), *arguments], env))
            self.addCleanup(ranks[-1].end)
        return ranks

    def start_ranks(self, count: int, function: str, *arguments: str, **more: str) -> List[Rank]:
        """Starts a function of ranks.py on count ranks."""
        return self.start(HERE / "ranks.py", count, function, *arguments, **more)

    def run_ranks(self, count: int, function: str, *arguments: str, **more: str) -> List[str]:
        """Runs a function of ranks.py on count ranks, which must all succeed. Returns their outputs."""
        return self.finish(self.start_ranks(count, function, *arguments, **more))

    def run_arrays(self, function: str, *arguments: str) -> None:
        """Runs a function of array_ranks.py on three ranks."""
        self.finish(self.start(HERE / "array_ranks.py", 3, function, *arguments))

    def start_experts(self, function: str, *arguments: str) -> List[Rank]:
        """Starts a function of expert_ranks.py on three ranks."""
        return self.start(HERE / "expert_ranks.py", 3, function, *arguments)

    def run_experts(self, function: str, *arguments: str) -> None:
        self.finish(self.start_experts(function, *arguments))

    def finish(self, ranks: Sequence[Rank]) -> List[str]:
        ends = [rank.finish() for rank in ranks]
        failures = [f"rank process {r}: exit status {status}\n{err}" for r, (status, _, err) in enumerate(ends) if status != 0]
        if failures:
            self.fail("\n".join(failures))
        return [out.strip() for _, out, _ in ends]
