"""A mixture-of-experts layer with expert parallelism; needs numpy:

    railhead run -n 4 --daemon -- python3 python/examples/moe.py

Each rank routes its own tokens, and runs its experts on the tokens of all ranks.
"""

import numpy
import railhead

TOKENS, HIDDEN, EXPERTS, TOPK = 16, 64, 8, 2


def expert(number: int, rows: numpy.ndarray) -> numpy.ndarray:
    """Stands for the MLP of an expert."""
    return rows * (number + 1)


with railhead.Session() as session, session.comm() as comm:
    config = railhead.ExpertConfig(
        "ll", max_tokens_per_rank=TOKENS, hidden=HIDDEN, num_experts=EXPERTS, topk=TOPK, dtype=railhead.Dtype.F32
    )
    random = numpy.random.default_rng(comm.rank)
    x = random.standard_normal((TOKENS, HIDDEN), "float32")
    topk_idx = numpy.argsort(random.random((TOKENS, EXPERTS)))[:, :TOPK].copy()
    topk_weights = numpy.full((TOKENS, TOPK), 1 / TOPK, "float32")

    with comm.expert_buffer(config) as buffer:
        held = comm.all_gather(numpy.array([buffer.local_experts]))
        first = int(held[: comm.rank].sum())  # this rank's experts are first, first + 1, ...
        sent = buffer.dispatch_send(x, topk_idx, topk_weights)
        shared = 0.5 * x  # overlaps with the dispatch: an expert that every rank has
        got = sent.receive("flat")
        y = numpy.empty_like(got.x)
        for e in range(buffer.local_experts):
            begin, end = got.offsets[e], got.offsets[e + 1]
            y[begin:end] = expert(first + e, got.x[begin:end])
        out = got.combine(y, add=shared)

    want = x * ((topk_idx + 1).mean(axis=1, keepdims=True) + 0.5)
    assert numpy.allclose(out, want, atol=1e-4), numpy.abs(out - want).max()
    print(f"rank {comm.rank}: {TOKENS} tokens went out, {got.tokens} came to experts {first}..{first + buffer.local_experts - 1}")
