"""Checks MoE dispatch and combine on GPUs: each call is also made on the CPU, and every byte of the results and every word of the reports is
compared. Then it times them in graphs. It prints a line for each check of each rank:

    RAILHEAD_CUDA_LIBRARY=libcuda.so.1 railhead run --daemon --mps -n 2 -- python3 python/tests/gpu_check_experts.py ROUNDS [SEED]
    ... python3 python/tests/gpu_check_experts.py die [ht]    the last rank kills itself in the middle of its replays, and the others must say so; without --mps
    ... python3 python/tests/gpu_check_experts.py drop [ht]   the same with RH_EP_DEAD_DROP: the others go on without it

It needs the library ($RAILHEAD_LIBRARY) and no other package. $RAILHEAD_CHECK_GPUS (1): rank r uses GPU r modulo that. Exit status 0: all ranks
passed. `go test` runs it on the driver for tests."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import struct
import sys
import time
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import fake_cuda  # noqa: E402  # it only calls the driver, whichever that is
from railhead import Comm, Dtype, Session  # noqa: E402
from railhead._abi import EpCombineArgs, EpConfig, EpDispatchIn, EpDispatchOut, EpInfo, EpReport, versioned  # noqa: E402
from railhead._devices import KINDS  # noqa: E402
from railhead._library import last_error_message, load  # noqa: E402

SUMS = (Dtype.F32, Dtype.BF16, Dtype.F16)
LL, HT = 1, 2
PADDED, FLAT, TOKENS = 0, 1, 2
NAMES = {LL: "ll", HT: "ht"}


class Host:
    """Memory and calls on the CPU."""

    stream: Optional[int] = None

    def __init__(self) -> None:
        self._memory: List[Any] = []

    def put(self, data: bytes) -> int:
        self._memory.append(ctypes.create_string_buffer(data, max(len(data), 1)))
        return ctypes.addressof(self._memory[-1])

    def get(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def wait(self) -> None:
        pass

    def end(self) -> None:
        self._memory.clear()


class OnGpu(Host):
    def __init__(self) -> None:
        super().__init__()
        self.queue = fake_cuda.Stream()
        self.stream = self.queue.cuda_stream

    def put(self, data: bytes) -> int:
        self._memory.append(fake_cuda.Array(data))
        return int(self._memory[-1].address)

    def get(self, address: int, nbytes: int) -> bytes:
        return fake_cuda.read(address, nbytes) if nbytes > 0 else b""

    def wait(self) -> None:
        self.queue.synchronize()

    def end(self) -> None:
        for array in self._memory:
            array.free()
        self._memory.clear()


def ok(result: int, what: str) -> None:
    if result != 0:
        raise AssertionError(f"{what}: {last_error_message()}")


def new_buffer(comm: Comm, c: Dict[str, int]) -> Tuple[c_void_p, EpInfo]:
    handle, info = c_void_p(), versioned(EpInfo)
    ok(load().rh_ep_create(comm._handle, byref(versioned(EpConfig, device_kind=KINDS[comm.device.kind], **c)), byref(handle)), "create")
    ok(load().rh_ep_get_info(handle, byref(info)), "info")
    return handle, info


def draw_config(r: random.Random, mode: int) -> Dict[str, Any]:
    c: Dict[str, Any] = {
        "mode": mode, "max_tokens_per_rank": r.choice((1, 5, 33, 128)), "hidden": r.choice((8, 33, 129, 1024, 7168)),
        "num_experts": r.choice((1, 7, 64, 256)), "dtype": r.choice(SUMS), "combine_dtype": r.choice(SUMS), "scale_format": r.randrange(3),
        "static_scale": 0.37, "on_invalid": 1, "on_dead": r.randrange(2),
    }  # fmt: skip
    if c["hidden"] == 7168:
        c["max_tokens_per_rank"] = min(c["max_tokens_per_rank"], 5)
    if mode == HT and r.random() < 0.4:  # a rank has four positions for another one's tokens
        c["max_tokens_per_rank"] = 7
    c["topk"] = r.randint(1, min(8, c["num_experts"]))
    c["wire_dtype"] = r.choice((c["dtype"], r.choice(SUMS), Dtype.FP8_E4M3))
    if r.random() < 0.2:
        c["dtype"] = c["wire_dtype"] = Dtype.FP8_E4M3
    return c


def noise(r: random.Random, nbytes: int) -> bytes:
    """Bytes that are mostly finite numbers of any type."""
    data = bytearray(r.randbytes(nbytes))
    data[3::4] = b"\x3c" * len(data[3::4])
    if nbytes > 4 and r.random() < 0.3:
        at = r.randrange(nbytes // 4) * 4 + 3
        data[at : at + 1] = b"\x7f"
    return bytes(data)


class Play:
    """A dispatch of this rank and its end."""

    def __init__(self, common: random.Random, own: random.Random, c: Dict[str, Any], info: EpInfo, world: int) -> None:
        self.c, self.local, self.columns = c, int(info.local_experts), int(info.scale_columns)
        self.tokens = own.randint(0, c["max_tokens_per_rank"] + 1)
        self.layout, self.alignment, self.two, self.looks = own.randrange(3), own.choice((0, 1, 16)), own.random() < 0.5, own.random() < 0.3
        self.cached = own.random() < 0.3
        self.releases, self.weighted, self.adds = common.random() < 0.2, own.random() < 0.3, own.random() < 0.5
        self.y_dtype, self.out_dtype = own.choice(SUMS), own.choice(SUMS)
        most = world * c["max_tokens_per_rank"]
        self.capacity = most
        if self.layout == FLAT:
            self.capacity = most * min(c["topk"], self.local) + self.alignment * self.local
        self.rows = self.capacity * (self.local if self.layout == PADDED else 1)
        self.tried = own.randint(0, self.capacity) if own.random() < 0.3 else self.capacity
        k, hidden = c["topk"], c["hidden"]
        ids: List[int] = []
        for _ in range(self.tokens * k):
            ids.append(own.choice((-1, -2, c["num_experts"])) if own.random() < 0.1 else own.randrange(c["num_experts"]))
        self.idx = struct.pack(f"<{len(ids)}q", *ids)
        self.weights = struct.pack(f"<{len(ids)}f", *(own.random() * 2 for _ in ids))
        self.scale_bytes = self.columns * (4 if c["scale_format"] == 0 else 1)
        self.x, self.scales = noise(own, self.tokens * hidden * Dtype(c["dtype"]).itemsize), noise(own, self.tokens * self.scale_bytes)
        self.y, self.add = noise(own, self.rows * hidden * self.y_dtype.itemsize), noise(own, self.tokens * hidden * self.out_dtype.itemsize)


class Flight:
    """A play on one side."""

    def __init__(self, side: Host, buffer: c_void_p, play: Play, world: int) -> None:
        self.side, self.buffer, self.p, self.handle = side, buffer, play, c_void_p()
        self.routing = c_void_p()
        self.ranks = (ctypes.c_int32 * world)()
        self.report = versioned(EpReport, lost_ranks=ctypes.addressof(self.ranks), lost_capacity=world)
        self.outputs: Dict[str, Tuple[int, int]] = {}
        self.results: List[Any] = []

    def _out(self, name: str, nbytes: int) -> int:
        address = self.side.put(b"\xa5" * nbytes)
        self.outputs[name] = (address, nbytes)
        return address

    def _note(self) -> int:
        self.side.wait()
        names = [name for name, *_ in EpReport._fields_ if name not in ("lost_ranks", "lost_capacity")]
        self.results.append({name: getattr(self.report, name) for name in names})
        return int(self.report.result)

    def _room(self, capacity: int) -> EpDispatchOut:
        p, c = self.p, self.p.c
        fields: Dict[str, int] = {
            "x": self._out("x", p.rows * c["hidden"] * Dtype(c["wire_dtype"]).itemsize), "counts": self._out("counts", 4 * p.local),
            "source_rank": self._out("source_rank", 4 * p.rows), "source_token": self._out("source_token", 4 * p.rows),
            "rows_ptr": self._out("rows", 8), "tokens_ptr": self._out("tokens", 8),
        }  # fmt: skip
        if p.columns > 0:
            fields["scales"] = self._out("scales", p.rows * p.scale_bytes)
        if p.layout == TOKENS:
            fields["topk_idx"], fields["topk_weights"] = self._out("topk_idx", 4 * p.rows * c["topk"]), self._out("topk_weights", 4 * p.rows * c["topk"])
        else:
            fields["offsets"], fields["weights"] = self._out("offsets", 8 * (p.local + 1)), self._out("weights", 4 * p.rows)
        return versioned(EpDispatchOut, layout=p.layout, alignment=p.alignment, capacity=capacity, report=ctypes.addressof(self.report), **fields)

    def begin(self) -> None:
        p, lib, s = self.p, load(), self.side.stream
        tokens = versioned(
            EpDispatchIn, x=self.side.put(p.x), x_scales=self.side.put(p.scales) if p.c["dtype"] == Dtype.FP8_E4M3 else None,
            topk_idx=self.side.put(p.idx), topk_weights=self.side.put(p.weights), num_tokens=p.tokens, hidden=p.c["hidden"], idx_dtype=Dtype.I64,
        )  # fmt: skip
        if p.cached:
            self._cache(tokens)
        out = self._room(p.tried)
        if p.two:
            ok(lib.rh_ep_dispatch_send(self.buffer, byref(tokens), byref(self.handle), s), "send")
            if p.looks:
                ok(lib.rh_ep_dispatch_counts(self.handle, self._counts("look", 4 * p.local), self._total("looked"), s), "counts")
            result = lib.rh_ep_dispatch_recv(self.handle, byref(out), s)
        else:
            result = lib.rh_ep_dispatch(self.buffer, byref(tokens), byref(out), byref(self.handle), s)
        if self._note() == 0:
            ok(result, "dispatch")
            return
        self.results[-1].pop("message")  # the CPU returns it too; one of the two is enough
        ok(lib.rh_ep_dispatch_recv(self.handle, byref(self._room(p.capacity)), s), "receive again")
        self._note()

    def _cache(self, tokens: EpDispatchIn) -> None:
        """Makes a cached routing, which replaces the tokens' own."""
        ok(load().rh_ep_routing_create(self.buffer, byref(tokens), byref(self.routing), self.side.stream), "routing_create")
        tokens.topk_idx, tokens.topk_weights, tokens.routing = None, None, self.routing.value

    def _counts(self, name: str, nbytes: int) -> Any:
        return ctypes.cast(self._out(name, nbytes), load().rh_ep_dispatch_counts.argtypes[1])

    def _total(self, name: str) -> Any:
        return ctypes.cast(self._out(name, 8), load().rh_ep_dispatch_counts.argtypes[2])

    def end(self) -> None:
        p, lib, s = self.p, load(), self.side.stream
        if p.releases:
            ok(lib.rh_ep_release(self.handle, s), "release")
            self.side.wait()
        else:
            args = versioned(
                EpCombineArgs, y=self.side.put(p.y), y_dtype=p.y_dtype, out_dtype=p.out_dtype, weighted=p.weighted or p.layout == TOKENS,
                add=self.side.put(p.add) if p.adds else None, out=self._out("out", len(p.add)),
            )  # fmt: skip
            if p.two:
                ok(lib.rh_ep_combine_send(self.handle, byref(args), s), "combine_send")
                ok(lib.rh_ep_combine_recv(self.handle, byref(self.report), s), "combine_recv")
            else:
                ok(lib.rh_ep_combine(self.handle, byref(args), byref(self.report), s), "combine")
            self._note()
        if p.cached:
            ok(lib.rh_ep_routing_destroy(self.routing), "routing_destroy")
        self.results += [(name, self.side.get(*at)) for name, at in sorted(self.outputs.items())]


def compare(rank: int, what: str, cpu: List[Any], gpu: List[Any]) -> None:
    for a, b in zip(cpu, gpu):
        if a == b:
            continue
        if isinstance(a, dict):
            raise AssertionError(f"rank {rank}: {what}: the CPU reports {a}, the GPU {b}")
        at = next(i for i, (x, y) in enumerate(zip(a[1], b[1])) if x != y)
        raise AssertionError(f"rank {rank}: {what}: byte {at} of {len(a[1])} of {a[0]}: {a[1][at]:#x} on the CPU, {b[1][at]:#x} on the GPU")
    if len(cpu) != len(gpu):
        raise AssertionError(f"rank {rank}: {what}: {len(cpu)} results on the CPU, {len(gpu)} on the GPU")


def play_round(seed: int, cpu: Comm, gpu: Comm) -> None:
    common = random.Random(seed)
    c = draw_config(common, HT if seed % 2 == 0 else LL)
    sides: List[Tuple[Host, c_void_p, EpInfo]] = []
    for side, comm in ((Host(), cpu), (OnGpu(), gpu)):
        buffer, info = new_buffer(comm, c)
        sides.append((side, buffer, info))
    for pair in range(2):
        own = random.Random(seed * 1000 + pair * 100 + gpu.rank)
        plays = [Play(common, own, c, sides[0][2], gpu.world_size) for _ in range(2)]
        together = common.random() < 0.5
        results = []
        for side, buffer, _ in sides:
            a, b = (Flight(side, buffer, p, gpu.world_size) for p in plays)
            for step in (a.begin, b.begin, a.end, b.end) if together else (a.begin, a.end, b.begin, b.end):
                step()
            results.append((a.results, b.results))
            side.end()
        for i in range(2):
            compare(gpu.rank, f"seed {seed}, dispatch {2 * pair + i}, {c}, layout {plays[i].layout}", results[0][i], results[1][i])
    for _, buffer, _ in sides:
        ok(load().rh_ep_destroy(buffer), "destroy")


class Layers:
    """Dispatch and combine of one shape, eager or captured, with a routing that is drawn uniformly."""

    def __init__(self, comm: Comm, tokens: int, wire: Dtype, hidden: int, experts: int, topk: int, mode: int = LL, drops: bool = False) -> None:
        self.side, self.tokens, self.hidden = OnGpu(), tokens, hidden
        c = {"mode": mode, "max_tokens_per_rank": max(tokens, 1), "hidden": hidden, "num_experts": experts, "topk": topk, "dtype": Dtype.BF16, "wire_dtype": wire,
             "combine_dtype": Dtype.BF16, "on_invalid": 1, "on_dead": int(drops), "lost_weights": 1}  # fmt: skip
        self.buffer, info = new_buffer(comm, c)
        r, rows = random.Random(comm.rank), comm.world_size * max(tokens, 1) * min(topk, info.local_experts)
        ids = [e for _ in range(tokens) for e in r.sample(range(experts), topk)]
        put, ones = self.side.put, b"\x80\x3f"  # bf16 1
        self.tokens_in = versioned(EpDispatchIn, x=put(ones * (tokens * hidden)), topk_idx=put(struct.pack(f"<{len(ids)}q", *ids)),
                                   topk_weights=put(struct.pack("<f", 1 / topk) * len(ids)), num_tokens=tokens, hidden=hidden, idx_dtype=Dtype.I64)  # fmt: skip
        self.rows_out = versioned(EpDispatchOut, layout=FLAT, capacity=rows, x=put(bytes(rows * hidden * 2)), scales=put(bytes(rows * 4 * (hidden // 128 + 1))))
        self.out = put(bytes(tokens * hidden * 2))
        self.sums = versioned(EpCombineArgs, y=put(ones * (rows * hidden)), y_dtype=Dtype.BF16, out_dtype=Dtype.BF16, out=self.out)

    def cache(self) -> None:
        """The calls have a cached routing from here on."""
        routing = c_void_p()
        ok(load().rh_ep_routing_create(self.buffer, byref(self.tokens_in), byref(routing), self.side.stream), "routing_create")
        self.tokens_in.topk_idx, self.tokens_in.topk_weights, self.tokens_in.routing = None, None, routing.value

    def call(self) -> None:
        handle = c_void_p()
        ok(load().rh_ep_dispatch(self.buffer, byref(self.tokens_in), byref(self.rows_out), byref(handle), self.side.stream), "dispatch")
        ok(load().rh_ep_combine(handle, byref(self.sums), None, self.side.stream), "combine")

    def check(self, what: str) -> None:
        self.side.wait()
        got = self.side.get(self.out, self.tokens * self.hidden * 2)
        if got != b"\x80\x3f" * (self.tokens * self.hidden):  # each token's weights add up to 1
            raise AssertionError(f"{what}: wrong sums: {got[:16].hex()}...")


def time_layers(comm: Comm, mode: int, tokens: int, wire: Dtype, hidden: int, experts: int, cached: bool) -> None:
    calls, repeats = 20, 20
    layers = Layers(comm, tokens, wire, hidden, experts, 8, mode)
    if cached:
        layers.cache()
    layers.call()
    layers.check("eager")
    layers.side.queue.begin_capture()
    for _ in range(calls):
        layers.call()
    graph = layers.side.queue.end_capture()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        graph.launch(layers.side.queue)
        layers.side.wait()
        times.append((time.perf_counter() - began) / calls * 1e6)
    layers.check("replays")
    layers.call()
    layers.check("eager after replays")
    graph.destroy()
    if comm.rank == 0:
        print(f"{comm.world_size} ranks, {NAMES[mode]}, {wire.name}, {tokens} tokens{', cached routing' if cached else ''}: dispatch and combine {sorted(times)[repeats // 2]:.1f} us "
              f"(median of {repeats} graphs of {calls})", flush=True)  # fmt: skip
    ok(load().rh_ep_destroy(layers.buffer), "destroy")
    layers.side.end()


def die(comm: Comm, drops: bool, mode: int) -> None:
    """The last rank dies. The others replay until their kernels give up, and must name it; with drops they go on: weights are renormalized."""
    layers = Layers(comm, 4, Dtype.BF16, 256, 16, 8, mode, drops)
    layers.side.queue.begin_capture()
    for _ in range(4):
        layers.call()
    graph = layers.side.queue.end_capture()
    for launches in range(40 if drops else 1000000):
        graph.launch(layers.side.queue)
        layers.side.wait()
        if launches == 5 and comm.rank == comm.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.stopped():
            break
    if drops:
        layers.call()
        layers.check("without the last rank")
        if comm.stopped():
            raise AssertionError("a kernel gave up: " + comm.status().message)
    began = time.monotonic()
    while comm.status().result == 0 and time.monotonic() < began + 10:
        time.sleep(0.001)
    message = comm.status().message
    if "has died" not in message or f"rank {comm.world_size - 1} " not in message:
        raise AssertionError(message)
    print(f"rank {comm.rank}: ok: {message}", flush=True)


def main() -> int:
    if sys.argv[1] in ("die", "drop"):
        fake_cuda.enter(0)
        with Session() as session:
            comm = session.comm(device="cuda:0", timeout=20)
            die(comm, sys.argv[1] == "drop", HT if sys.argv[2:] == ["ht"] else LL)
            comm.finalize()
        return 0
    rounds, rank = int(sys.argv[1]), int(os.environ["RANK"])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    gpu = rank % int(os.environ.get("RAILHEAD_CHECK_GPUS", "1"))
    fake_cuda.enter(gpu)
    with Session() as session:
        comm, cpu = session.comm(device=f"cuda:{gpu}", timeout=20), session.comm(group="cpu of the check", timeout=20)
        for n in range(rounds):
            play_round(seed + n, cpu, comm)
        print(f"rank {rank}: ok: {rounds} rounds have the CPU's bytes and reports, seed {seed}", flush=True)
        if comm.stopped():
            raise AssertionError(comm.status().message)
        sizes: Tuple[int, ...] = (1, 8, 32, 128) if rounds > 2 else (3,)
        hidden, experts = (7168, 256) if rounds > 2 else (256, 16)
        for mode in (LL, HT):
            for tokens in sizes:
                for wire in (Dtype.BF16, Dtype.FP8_E4M3):
                    time_layers(comm, mode, tokens, wire, hidden, experts, cached=False)
                time_layers(comm, mode, tokens, Dtype.BF16, hidden, experts, cached=True)
        print(f"rank {rank}: ok: graphs", flush=True)
        comm.finalize()
        cpu.finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
