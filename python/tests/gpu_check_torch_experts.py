"""Checks expert parallelism with torch on GPUs, eager and in CUDA graphs, against its definition computed by torch, and prints a line for each
check of each rank:

    railhead run --daemon --mps -n 2 -- python3 python/tests/gpu_check_torch_experts.py

It needs torch with CUDA, and the library ($RAILHEAD_LIBRARY). Exit status 0: all ranks passed all checks. `go test` does not run it, because it
needs a GPU; its cases without torch are those of cuda_expert_ranks.py."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, Callable, List, Literal, Optional, Tuple

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from gpu_checks import check, main  # noqa: E402
from railhead import Comm, Dtype, ExpertBuffer, ExpertConfig, ExpertRouting, Received, Result, errors  # noqa: E402

BLOCK = 128  # elements that share a scale
BF16_ROUNDING = 2.0**-8  # the largest relative error of rounding to bf16, which has 8 bits

LAYOUTS: Tuple[Literal["padded", "flat", "tokens"], ...] = ("padded", "flat", "tokens")
SMALL = ExpertConfig("ll", max_tokens_per_rank=40, hidden=512, num_experts=14, topk=4, on_invalid="drop")
FP8 = dataclasses.replace(SMALL, wire_dtype=Dtype.FP8_E4M3)
CONFIGS = (
    SMALL,
    FP8,
    dataclasses.replace(FP8, scale="ue8m0"),
    dataclasses.replace(SMALL, hidden=7168, num_experts=256, topk=8),
    dataclasses.replace(SMALL, mode="ht", max_tokens_per_rank=300),
    dataclasses.replace(FP8, mode="ht"),
)


class Tokens:
    """The tokens of one rank."""

    def __init__(self, config: ExpertConfig, rank: int, turn: int, count: Optional[int] = None) -> None:
        g = torch.Generator().manual_seed(1000 * turn + rank)
        n = int(torch.randint(0, config.max_tokens_per_rank + 1, (1,), generator=g)) if count is None else count
        self.x = torch.randn(n, config.hidden, generator=g).bfloat16().cuda()
        idx = torch.rand(n, config.num_experts, generator=g).argsort(1)[:, : config.topk].contiguous()
        idx[torch.rand(n, config.topk, generator=g) < 0.1] = -1  # no expert
        self.idx, self.weights = idx.cuda(), torch.rand(n, config.topk, generator=g).cuda()


def quantised(config: ExpertConfig, x: Any) -> Tuple[Any, Any]:
    """FP8 codes of rows, and a scale for each block."""
    blocks = x.float().view(len(x), config.hidden // BLOCK, BLOCK)
    most = blocks.abs().amax(-1).clamp_min(1e-4)
    largest = torch.full_like(most, 448)  # torch divides by, and into, a number by multiplying with a reciprocal
    if config.scale == "f32":
        codes = (blocks * (largest / most).unsqueeze(-1)).to(torch.float8_e4m3fn)
        return codes.view(x.shape), most / largest
    fraction, exponent = torch.frexp(most.double() / largest.double())
    exponent = exponent - (fraction == 0.5).int()
    codes = (blocks / torch.exp2(exponent.float()).unsqueeze(-1)).to(torch.float8_e4m3fn)
    return codes.view(x.shape), (exponent + 127).to(torch.uint8)


def widened(config: ExpertConfig, codes: Any, scales: Any) -> Any:
    """The rows that the experts compute with, in float32."""
    if config.wire != Dtype.FP8_E4M3:
        return codes.float()
    factors = scales if config.scale == "f32" else torch.exp2(scales.float() - 127)
    return codes.float() * factors.unsqueeze(-1).expand(*factors.shape, BLOCK).reshape(codes.shape)


def sent(config: ExpertConfig, x: Any) -> Tuple[Any, Any]:
    return quantised(config, x) if config.wire == Dtype.FP8_E4M3 else (x, None)


def factor(expert: Any) -> Any:
    """What an expert multiplies its input by."""
    return (1 + expert % 7).float() / 4


def first_expert(buffer: ExpertBuffer) -> int:
    """The ranks hold blocks of consecutive experts, the first ones one more."""
    comm, experts = buffer._comm, buffer.config.num_experts
    return comm.rank * (experts // comm.world_size) + min(comm.rank, experts % comm.world_size)


def experts(buffer: ExpertBuffer, got: Received) -> Any:
    """The outputs of this rank's experts for the received rows, in bf16. It reads nothing on the host. Rows that were not received hold anything,
    and so do their outputs."""
    local, x = buffer.local_experts, widened(buffer.config, got.x, got.scales)
    own = factor(torch.arange(local, device="cuda") + first_expert(buffer))
    if got.layout == "padded":
        return (x * own.view(-1, 1, 1)).bfloat16()
    if got.layout == "flat":
        of = torch.bucketize(torch.arange(len(x), device="cuda"), got.offsets[1:].contiguous(), right=True).clamp(max=local - 1)
        return (x * own[of].unsqueeze(-1)).bfloat16()
    parts = (got.topk_weights * own[got.topk_idx.clamp(0, local - 1)]).masked_fill(got.topk_idx < 0, 0)
    return (x * parts.sum(-1, keepdim=True)).bfloat16()


def layer(buffer: ExpertBuffer, tokens: Tokens, layout: Any, add: Any = None) -> Tuple[Received, Any]:
    got = buffer.dispatch(tokens.x, tokens.idx, tokens.weights, layout, alignment=16 if layout == "flat" else 1)
    return got, got.combine(experts(buffer, got), weighted=layout == "tokens", add=add)


def same(got: Any, want: Any, what: str) -> None:
    """Compares bytes. It waits for the current stream."""
    got, want = got.contiguous(), want.to(got.device).contiguous()
    if got.dtype != want.dtype or got.shape != want.shape:
        raise AssertionError(f"{what}: {got.dtype} {tuple(got.shape)}, want {want.dtype} {tuple(want.shape)}")
    a, b = got.view(torch.uint8).flatten(), want.view(torch.uint8).flatten()
    if not torch.equal(a, b):
        at = int((a != b).nonzero()[0]) // got.element_size()
        wrong = int((a != b).sum())
        raise AssertionError(f"{what}: {wrong} of {len(a)} bytes differ; element {at}: {got.flatten()[at].item()}, want {want.flatten()[at].item()}")


def check_rows(buffer: ExpertBuffer, got: Received, everyone: List[Tokens], what: str) -> None:
    """Every row that this rank received, and what is told about it."""
    config, begin = buffer.config, first_expert(buffer)
    rows: List[Tuple[int, Any, Any, Any]] = []  # where they begin; sources, tokens, weights
    for e in range(buffer.local_experts):
        found = [(t.idx == begin + e).nonzero() for t in everyone]
        source = torch.cat([torch.full((len(f),), r, dtype=torch.int32, device="cuda") for r, f in enumerate(found)])
        weights = torch.cat([t.weights[f[:, 0], f[:, 1]] for t, f in zip(everyone, found)])
        rows.append((int(got.offsets[e]), source, torch.cat([f[:, 0] for f in found]), weights))
    same(got.counts, torch.tensor([len(s) for _, s, _, _ in rows], dtype=torch.int32), f"{what}: counts")
    flat, scales = got.x.view(-1, config.hidden), None if got.scales is None else got.scales.view(-1, buffer.scale_columns)
    end = 0
    for e, (at, source, token, weights) in enumerate(rows):
        own = slice(at, at + len(source))
        same(got.source_rank.flatten()[own], source, f"{what}: source ranks of expert {e}")
        same(got.source_token.flatten()[own], token.int(), f"{what}: source tokens of expert {e}")
        same(got.weights.flatten()[own], weights, f"{what}: weights of expert {e}")
        x = torch.cat([t.x[token[source == r]] for r, t in enumerate(everyone)])
        codes, wanted = sent(config, x)
        same(flat[own], codes, f"{what}: rows of expert {e}")
        if scales is not None:
            same(scales[own], wanted, f"{what}: scales of expert {e}")
        end = max(end, at + len(source))
    if got.layout == "flat" and not end <= int(got.rows) == int(got.offsets[-1]):
        raise AssertionError(f"{what}: rows {int(got.rows)}, offsets {got.offsets.tolist()}")
    check_copies(buffer, got, everyone, what)


def check_copies(buffer: ExpertBuffer, got: Received, everyone: List[Tokens], what: str) -> None:
    begin = first_expert(buffer)
    here = [((t.idx >= begin) & (t.idx < begin + buffer.local_experts)).any(1) for t in everyone]
    same(got.tokens, torch.tensor([sum(int(h.sum()) for h in here)]), f"{what}: copies")
    if got.layout != "tokens":
        return
    codes, scales = zip(*(sent(buffer.config, t.x[h]) for t, h in zip(everyone, here)))
    n = int(got.tokens)
    same(got.x[:n], torch.cat(codes), f"{what}: tokens")
    if got.scales is not None:
        same(got.scales[:n], torch.cat(scales), f"{what}: scales")
    same(got.source_token[:n], torch.cat([h.nonzero()[:, 0].int() for h in here]), f"{what}: source tokens")


def check_sums(config: ExpertConfig, out: Any, tokens: Tokens, world: int, what: str, add: Any = None) -> None:
    """The definition in float64; the bound is of the roundings to bf16: of y, of a rank's sum, and of the result."""
    codes, scales = sent(config, tokens.x)
    x = widened(config, codes, scales).double()
    parts = (tokens.weights.double() * factor(tokens.idx).double()).masked_fill(tokens.idx < 0, 0).sum(1, keepdim=True)
    want, size = x * parts, x.abs() * parts
    if add is not None:
        want, size = want + add.double(), size + add.double().abs()
    error = (out.double() - want).abs()
    bound = ((1 + BF16_ROUNDING) ** 3 - 1 + 1e-6) * size
    if out.dtype != torch.bfloat16 or out.shape != tokens.x.shape or not bool((error <= bound).all()):
        bad = (~(error <= bound)).nonzero()
        first = tuple(bad[0].tolist()) if len(bad) else ()
        detail = f"; {first}: got {out[first].item()}, want {want[first].item()} within {bound[first].item()}" if first else ""
        raise AssertionError(f"{what}: {out.dtype} {tuple(out.shape)}, {len(bad)} of {out.numel()} elements wrong, {world} ranks{detail}")


def everyone_of(comm: Comm, config: ExpertConfig, turn: int, count: Optional[int] = None) -> List[Tokens]:
    return [Tokens(config, r, turn, count) for r in range(comm.world_size)]


def name_of(config: ExpertConfig) -> str:
    return f"{config.mode}, {config.wire.name} {config.scale}, hidden {config.hidden}, {config.num_experts} experts"


@check
def every_layout_eager(comm: Comm) -> None:
    for config in CONFIGS:
        with comm.expert_buffer(config) as buffer:
            for turn, layout in enumerate(LAYOUTS):
                what, everyone = f"{name_of(config)}, {layout}", everyone_of(comm, config, turn)
                mine = everyone[comm.rank]
                add = torch.randn(mine.x.shape, device="cuda").bfloat16()
                got, out = layer(buffer, mine, layout, add)
                check_sums(config, out, mine, comm.world_size, what, add)
                if layout == "tokens":
                    check_copies(buffer, got, everyone, what)
                else:
                    check_rows(buffer, got, everyone, what)
                dispatched, combined = buffer.last_reports()
                if dispatched or combined or dispatched.result != Result.OK:
                    raise AssertionError(f"{what}: {dispatched}, {combined}")


@check
def cached_routings(comm: Comm) -> None:
    """Dispatches with a cached routing, of other tokens each time, eager and in a graph. Its inputs are overwritten once it has been made."""
    for config in CONFIGS:
        with comm.expert_buffer(config) as buffer:
            mine = Tokens(config, comm.rank, 5)
            idx, weights = mine.idx.clone(), mine.weights.clone()
            with buffer.routing(idx, weights) as routing:
                idx.fill_(-2)
                weights.fill_(7)
                eager(buffer, routing, mine)
                replayed(buffer, routing, mine)


def eager(buffer: ExpertBuffer, routing: ExpertRouting, mine: Tokens) -> None:
    comm, config = buffer._comm, buffer.config
    for turn, layout in enumerate(LAYOUTS):
        what = f"{name_of(config)}, cached routing, {layout}"
        everyone = everyone_of(comm, config, 5)
        for tokens in everyone:
            tokens.x.mul_(1 + turn)
        mine.x.copy_(everyone[comm.rank].x)
        got = buffer.dispatch(mine.x, layout=layout, routing=routing)
        out = got.combine(experts(buffer, got), weighted=layout == "tokens")
        check_sums(config, out, mine, comm.world_size, what)
        if layout != "tokens":
            check_rows(buffer, got, everyone, what)


def replayed(buffer: ExpertBuffer, routing: ExpertRouting, mine: Tokens) -> None:
    comm, config = buffer._comm, buffer.config
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = buffer.dispatch(mine.x, routing=routing)
        out = got.combine(experts(buffer, got))
    for turn in range(3):
        mine.x.mul_(-2)
        graph.replay()
        check_sums(config, out, mine, comm.world_size, f"{name_of(config)}, cached routing, replay {turn}")
    del graph, got, out
    torch.cuda.synchronize()


@check
def two_phases_on_another_stream(comm: Comm) -> None:
    """Sends on the current stream, receives on another that waits for it, with work between."""
    side = torch.cuda.Stream()
    for mode in ("ll", "ht"):
        two_phases(comm, dataclasses.replace(SMALL, mode=mode), side)


def two_phases(comm: Comm, config: ExpertConfig, side: Any) -> None:
    with comm.expert_buffer(config) as buffer:
        for turn in range(6):
            mine = Tokens(config, comm.rank, turn)
            flight = buffer.dispatch_send(mine.x, mine.idx, mine.weights)
            rows, copies = flight.counts()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                got = flight.receive("flat")
                got.combine_send(experts(buffer, got))
            torch.cuda.current_stream().wait_stream(side)
            out = got.combine_receive()
            check_sums(config, out, mine, comm.world_size, f"{config.mode}, turn {turn}")
            same(rows, got.counts, "counts")
            same(copies, got.tokens, "copies")
            torch.cuda.synchronize()


@check
def captured_and_replayed(comm: Comm) -> None:
    """Two layers of each layout in a graph, replayed with other tokens, between eager layers."""
    for config in CONFIGS:
        count = config.max_tokens_per_rank - 3 * comm.rank
        static, buffer = Tokens(config, comm.rank, 0, count), comm.expert_buffer(config)
        for layout in LAYOUTS:
            what = f"{name_of(config)}, {layout}"
            layer(buffer, static, layout)  # torch's libraries are loaded before the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                got, first = layer(buffer, static, layout)
                _, second = layer(buffer, static, layout, first)
            for turn in range(5):
                everyone = [Tokens(config, r, turn + 10, config.max_tokens_per_rank - 3 * r) for r in range(comm.world_size)]
                mine = everyone[comm.rank]
                for name in ("x", "idx", "weights"):
                    getattr(static, name).copy_(getattr(mine, name))
                graph.replay()
                if turn % 2 == 1:
                    _, out = layer(buffer, mine, layout)
                    check_sums(config, out, mine, comm.world_size, f"{what}, eager after replay {turn}")
                check_sums(config, first, mine, comm.world_size, f"{what}, replay {turn}")
                check_sums(config, second, mine, comm.world_size, f"{what}, second layer of replay {turn}", first)
                (check_copies if layout == "tokens" else check_rows)(buffer, got, everyone, f"{what}, replay {turn}")
                if got.report or got.combine_report:
                    raise AssertionError(f"{what}, replay {turn}: {got.report}, {got.combine_report}")
            torch.cuda.synchronize()
            del graph
            torch.cuda.synchronize()
        buffer.destroy()


@check
def invalid_ids_are_reported(comm: Comm) -> None:
    with comm.expert_buffer(SMALL) as buffer:
        mine = Tokens(SMALL, comm.rank, 1, 4)
        mine.idx[:] = torch.arange(4, device="cuda")
        mine.idx[2, 1], mine.idx[3, 3] = 99, 1
        got, out = layer(buffer, mine, "padded")
        report = buffer.last_reports()[0]
        if (report.invalid_ids, report.duplicate_ids) != (1, 1) or "token 2: topk_idx[1] is 99" not in report.message:
            raise AssertionError(str(report))
        mine.idx[2, 1] = mine.idx[3, 3] = -1
        check_sums(SMALL, out, mine, comm.world_size, "without the two")


@check
def refused_calls(comm: Comm) -> None:
    with comm.expert_buffer(SMALL) as buffer:
        mine = Tokens(SMALL, comm.rank, 2, 6)
        x, idx = mine.x, mine.idx
        wrong: List[Tuple[Callable[[], Any], Tuple[str, ...]]] = [
            (lambda: buffer.dispatch(x.cpu(), idx), ("cpu", str(comm.device))),
            (lambda: buffer.dispatch(x, idx.cpu()), ("topk_idx", "cpu")),
            (lambda: buffer.dispatch(x.t().contiguous().t(), idx), ("not contiguous",)),
            (lambda: buffer.dispatch(x.float(), idx), ("BF16", "float32")),
            (lambda: buffer.dispatch(x, idx.float()), ("topk_idx has F32",)),
            (lambda: buffer.dispatch(x, idx, stream=torch.cuda.Stream()), ("torch's current stream",)),
        ]
        for call, words in wrong:
            try:
                call()
            except errors.InvalidArgumentError as error:
                if any(word not in str(error) for word in words):
                    raise AssertionError(f"no {words} in {error}") from error
            else:
                raise AssertionError(f"nothing was raised, want {words}")
        _, out = layer(buffer, mine, "padded")
        check_sums(SMALL, out, mine, comm.world_size, "after refused calls")


@check
def times(comm: Comm) -> None:
    """Prints how long a dispatch and its combine take, in a graph, and how long their Python calls take."""
    repeats = 20
    for tokens in (1, 32, 128):
        config = ExpertConfig("ll", max_tokens_per_rank=128, hidden=7168, num_experts=256, topk=8)
        with comm.expert_buffer(config) as buffer:
            mine = Tokens(config, comm.rank, tokens, tokens)
            room = comm.world_size * tokens * config.topk
            y = torch.ones(room, config.hidden, dtype=torch.bfloat16, device="cuda")
            result = torch.empty_like(mine.x)

            def call() -> None:
                buffer.dispatch(mine.x, mine.idx, mine.weights, "flat", capacity=room).combine(y, out=result)

            for _ in range(3):
                call()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            queued = (time.perf_counter() - began) / repeats * 1e6
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(repeats):
                    call()
            took = []
            for _ in range(repeats):
                torch.cuda.synchronize()
                began = time.perf_counter()
                graph.replay()
                torch.cuda.synchronize()
                took.append((time.perf_counter() - began) / repeats * 1e6)
            if comm.rank == 0:
                took.sort()
                print(f"{tokens} tokens, bf16, 7168, top-8 of 256, {comm.world_size} ranks: dispatch and combine {took[repeats // 2]:.1f} us in a graph, "
                      f"two Python calls {queued:.1f} us", flush=True)  # fmt: skip
            del graph
            torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
