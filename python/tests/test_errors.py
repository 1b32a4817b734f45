"""Exceptions of failed calls, between rank processes. The assertions of ranks are in ranks.py."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import unittest
from typing import Any, Dict

from railhead import Comm, Result, Session, errors
from railhead.session import _milliseconds
from support import Daemon, RankTest, daemon


class BrokenGroups(RankTest):
    def test_the_other_ranks_name_a_killed_rank(self) -> None:
        ranks = self.start_ranks(3, "waits_for_a_death", "1")
        victim = ranks.pop(1)
        self.assertEqual(victim.line(), "ready")
        victim.process.send_signal(signal.SIGKILL)
        self.assertEqual(victim.finish()[0], -signal.SIGKILL)
        self.finish(ranks)

    def test_different_calls_are_a_mismatch_on_every_rank(self) -> None:
        self.run_ranks(3, "mismatch")

    def test_every_rank_names_the_rank_that_aborted(self) -> None:
        self.run_ranks(3, "abort")

    def test_an_exception_that_leaves_a_with_block_aborts_the_group(self) -> None:
        self.run_ranks(3, "leaves_by_exception")

    def test_a_late_rank_is_named_at_the_deadline(self) -> None:
        ranks = self.start_ranks(2, "late")
        self.assertEqual(ranks[0].line(), "gave up")
        self.finish(ranks[::-1])  # closes rank 1's stdin, on which it waits


class Ranks(RankTest):
    def test_bad_arguments_are_found_before_the_call(self) -> None:
        self.run_ranks(2, "bad_arguments")

    def test_calls_after_finalize_are_refused(self) -> None:
        self.run_ranks(2, "finalized")

    def test_a_forked_child_can_join_another_group(self) -> None:
        self.run_ranks(2, "forked")

    def test_a_call_that_waits_releases_the_gil(self) -> None:
        ranks = self.start_ranks(2, "threads")
        self.assertEqual(ranks[0].line(), "waits")
        self.finish(ranks[::-1])


class Forming(unittest.TestCase):
    def test_no_daemon(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "none.sock")
            with self.assertRaisesRegex(errors.NoDaemonError, path) as caught:
                Session(path)
        self.assertIsInstance(caught.exception, ConnectionError)
        self.assertIs(caught.exception.result, Result.NO_DAEMON)

    def test_a_missing_rank_is_listed(self) -> None:
        with Session(daemon().socket) as session:
            with self.assertRaisesRegex(errors.RankMissingError, "rank 1 of 2"):
                session.comm("lonely", rank=0, world_size=2, timeout=0.2)

    def test_bad_arguments_of_sessions_and_comms(self) -> None:
        for timeout in (0, -1, float("nan"), 2**32):
            with self.assertRaisesRegex(errors.InvalidArgumentError, "timeout"):
                Session(daemon().socket, timeout=timeout)
        with Session(daemon().socket, timeout=60) as session:
            for name, value in (("rank", -1), ("world_size", 2**31), ("reduce_group", -1), ("heap_bytes", 2**64)):
                arguments: Dict[str, Any] = {"rank": 0, "world_size": 1, name: value}
                with self.assertRaisesRegex(errors.InvalidArgumentError, name):
                    session.comm("arguments", **arguments)
            with self.assertRaisesRegex(errors.InvalidArgumentError, "zero byte"):
                session.comm("a\0b", rank=0, world_size=1)

    def test_seconds_become_milliseconds(self) -> None:
        for seconds, milliseconds in ((None, 0), (0.0001, 1), (0.2, 200), (1.0005, 1001), (60, 60000)):
            self.assertEqual(_milliseconds(seconds), milliseconds)

    def test_a_lost_daemon(self) -> None:
        own = Daemon()
        try:
            session = Session(own.socket)
            comm: Comm = session.comm("lost", rank=0, world_size=1)
        finally:
            own.stop(signal.SIGKILL)
        self.assertEqual(comm.all_reduce(b"\5"), b"\5")
        with self.assertRaises(errors.DaemonLostError):
            comm.alloc_window(64)
        session.close()
        with self.assertRaises(errors.InvalidHandleError):
            comm.barrier()
        with self.assertRaises(errors.InvalidHandleError):
            session.close()


class Classes(unittest.TestCase):
    def test_every_result_has_its_own_class(self) -> None:
        self.assertEqual(set(errors.ERROR_OF_RESULT), set(Result) - {Result.OK})

    def test_an_unknown_result_keeps_its_number(self) -> None:
        error = errors.error_of(99, "from a later release")
        self.assertEqual((type(error), error.result, str(error)), (errors.RailheadError, 99, "from a later release"))

    def test_errors_can_be_pickled(self) -> None:
        for result in errors.ERROR_OF_RESULT:
            error = pickle.loads(pickle.dumps(errors.error_of(result, "why", 3)))
            self.assertEqual((error.result, error.message, error.culprit, str(error)), (result, "why", 3, "why"))


if __name__ == "__main__":
    unittest.main()
