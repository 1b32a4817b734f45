"""A pipeline: every rank is a stage, and batches go from the first to the last.

    railhead run -n 4 --daemon -- python3 python/examples/pipeline.py

A stage sends a batch while it receives the next one: both calls are in one group, which runs them concurrently.
"""

import array
from typing import List

import railhead

BATCHES, SIZE = 8, 1024


def stage(batch: "array.array[float]", rank: int) -> "array.array[float]":
    return array.array("f", [2 * x + rank for x in batch])


def run(comm: railhead.Comm) -> List["array.array[float]"]:
    """Returns the outputs of the last stage; an empty list on other ranks."""
    first, last = comm.rank == 0, comm.rank == comm.world_size - 1
    done: List["array.array[float]"] = []
    ready = None  # output of this stage that has not been sent yet
    for number in range(BATCHES + 1):
        coming = array.array("f", [float(number)] * SIZE)
        with railhead.group():
            if not first and number < BATCHES:
                comm.recv(coming, comm.rank - 1)
            if ready is not None and not last:
                comm.send(ready, comm.rank + 1)
        if ready is not None and last:
            done.append(ready)
        ready = stage(coming, comm.rank) if number < BATCHES else None
    return done


with railhead.Session() as session, session.comm() as comm:
    results = run(comm)
    if comm.rank == comm.world_size - 1:
        for number, batch in enumerate(results):
            value = float(number)
            for rank in range(comm.world_size):
                value = 2 * value + rank
            assert batch.tolist() == [value] * SIZE, (number, batch[0], value)
        print(f"{len(results)} batches of {SIZE} went through {comm.world_size} stages")
