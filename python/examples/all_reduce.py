"""An all-reduce with only the standard library:

    railhead run -n 4 --daemon -- python3 python/examples/all_reduce.py
"""

import array

import railhead

with railhead.Session() as session, session.comm() as comm:
    mine = array.array("f", [comm.rank, 1.0])
    total = comm.all_reduce(mine)
    ranks = range(comm.world_size)
    assert total.tolist() == [float(sum(ranks)), float(len(ranks))], total
    print(f"rank {comm.rank} of {comm.world_size}: {total.tolist()}")
