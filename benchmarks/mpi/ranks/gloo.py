"""gloo.py - loop.c for torch's Gloo: the same arguments and lines, the loop in Python, as Gloo is called from there.

    python3 gloo.py SOCKET CPUS BYTES RENDEZVOUS

RENDEZVOUS is the path of a file that does not exist yet, by which the ranks find each other. CPUS is not heeded: a rank of
Gloo has a second thread, for its sockets, and both on one CPU take four times as long.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist

PERIOD = 1024  # as in loop.c: sums are exact


def inputs(rank, iteration, pattern):
    """A view of count elements, (i + shift) mod PERIOD each."""
    shift = (7 * iteration + 13 * rank) % PERIOD
    return pattern[shift : pattern.numel() - PERIOD + shift]


def loop(send, pattern, rank, iterations, with_reduce):
    """Times iterations of: rewrite, all-reduce (or not, to know the cost of the rest), read. Gloo reduces in place."""
    start = time.monotonic_ns()
    for i in range(iterations):
        send.copy_(inputs(rank, i, pattern))
        if with_reduce:
            dist.all_reduce(send)
        send.sum()
    return start, time.monotonic_ns()


def wrong(result, pattern, ranks, iteration):
    expected = sum(inputs(rank, iteration, pattern).to(torch.float64) for rank in range(ranks))
    return int((result.to(torch.float64) != expected).sum())


def measure(memory, count, rank, ranks, iterations):
    send = memory[:count]
    pattern = (torch.arange(count + PERIOD) % PERIOD).to(torch.float32)
    loop(send, pattern, rank, 1, True)  # warms up
    wrong_elements = wrong(send, pattern, ranks, 0)
    dist.barrier()
    reduced = loop(send, pattern, rank, iterations, True)
    wrong_elements += wrong(send, pattern, ranks, iterations - 1)
    dist.barrier()
    cost = loop(send, pattern, rank, iterations, False)
    return (*reduced, *cost, wrong_elements, 0)


def main():
    path, _, most, rendezvous = sys.argv[1:]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=ranks)
    memory = torch.zeros(int(most) // 4)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"%d %d\n" % (rank, ranks))
        for line in connection.makefile():
            size, iterations = map(int, line.split())
            answer = measure(memory, size // 4, rank, ranks, iterations)
            connection.sendall((" ".join(map(str, answer)) + "\n").encode())
    dist.destroy_process_group()


main()
