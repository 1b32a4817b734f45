"""Every collective between rank processes, compared with plain Python. The assertions are in ranks.py."""

from __future__ import annotations

import array
import contextlib
import unittest
from concurrent import futures

import railhead
from railhead import Result, Session
from support import RankTest, daemon


class Collectives(RankTest):
    def test_reductions_of_every_dtype_and_op(self) -> None:
        self.run_ranks(3, "reductions")

    def test_operations_that_move_elements_of_every_dtype(self) -> None:
        self.run_ranks(3, "moves")

    def test_world_size_1(self) -> None:
        self.run_ranks(1, "reductions")
        self.run_ranks(1, "moves")

    def test_in_place(self) -> None:
        self.run_ranks(2, "in_place")

    def test_a_new_result_has_the_kind_of_the_input(self) -> None:
        self.run_ranks(2, "kinds_of_results")

    def test_sends_and_receives_alone_and_in_groups(self) -> None:
        self.run_ranks(3, "pairs")

    def test_an_exception_in_a_group_drops_its_calls(self) -> None:
        self.run_ranks(2, "dropped_group")

    def test_pre_mul_sums(self) -> None:
        self.run_ranks(3, "pre_mul")

    def test_split_by_color_and_key(self) -> None:
        self.run_ranks(4, "split")


class Windows(RankTest):
    def test_every_rank_reads_every_part(self) -> None:
        self.run_ranks(2, "windows")

    def test_registered_memory(self) -> None:
        self.run_ranks(2, "registered")


class OneProcess(unittest.TestCase):
    def test_one_thread_drives_several_ranks_in_a_group(self) -> None:
        with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor() as pool:
            sessions = [stack.enter_context(Session(daemon().socket)) for _ in range(3)]
            joins = [pool.submit(s.comm, "one-process", rank=r, world_size=3) for r, s in enumerate(sessions)]
            comms = [join.result() for join in joins]
            with railhead.group():
                totals = [comm.all_reduce(array.array("i", [comm.rank + 1])) for comm in comms]
            self.assertEqual([total.tolist() for total in totals], [[6]] * 3)
            for end in [pool.submit(comm.finalize) for comm in comms]:
                end.result()

    def test_statuses(self) -> None:
        with Session(daemon().socket) as session, session.comm("statuses", rank=0, world_size=1) as comm:
            before = comm.status()
            self.assertEqual((before.result, before.rank, before.culprit, before.waiting_for), (Result.OK, 0, None, ()))
            self.assertEqual(before.operation_name, "none")
            comm.all_reduce(bytes(100))
            self.assertEqual(comm.status().operation, before.operation + 1)
            self.assertEqual(comm.choice("all_reduce", 100), ("none", "none"))  # world size 1 runs no algorithm

    def test_choices(self) -> None:
        with futures.ThreadPoolExecutor(2) as pool, Session(daemon().socket) as a, Session(daemon().socket) as b:
            made = [pool.submit(s.comm, "choices", rank=r, world_size=2, reproducible=True) for r, s in enumerate((a, b))]
            comms = [m.result() for m in made]
            for comm in comms:
                self.assertEqual(comm.choice("all_reduce", 1 << 20, in_windows=True), ("pull", "default"))
                self.assertEqual(comm.choice("gather", 1), ("pipe", "only"))
                with self.assertRaisesRegex(railhead.InvalidArgumentError, "all_reduces"):
                    comm.choice("all_reduces", 1)
            for end in [pool.submit(comm.finalize) for comm in comms]:
                end.result()


if __name__ == "__main__":
    unittest.main()
