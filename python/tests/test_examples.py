"""Runs the examples, started directly and by `railhead run`."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

from support import HERE, PATIENCE, RankTest, environment, needs

EXAMPLES = HERE.parent / "examples"


class Examples(RankTest):
    def test_all_reduce(self) -> None:
        printed = self.finish(self.start(EXAMPLES / "all_reduce.py", 3))
        self.assertEqual(printed, [f"rank {r} of 3: [3.0, 3.0]" for r in range(3)])

    def test_pipeline(self) -> None:
        printed = self.finish(self.start(EXAMPLES / "pipeline.py", 3))
        self.assertEqual(printed, ["", "", "8 batches of 1024 went through 3 stages"])

    def test_moe(self) -> None:
        needs("numpy")
        printed = self.finish(self.start(EXAMPLES / "moe.py", 3))
        for r, experts in enumerate(("0..2", "3..5", "6..7")):
            self.assertRegex(printed[r], rf"^rank {r}: 16 tokens went out, \d+ came to experts {experts}$")

    def test_all_reduce_under_railhead_run(self) -> None:
        command = [os.environ["RAILHEAD_BIN"], "run", "-n", "2", "--daemon", "--", sys.executable, str(EXAMPLES / "all_reduce.py")]
        done = subprocess.run(command, env=environment(""), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("of 2: [1.0, 2.0]"), 2, done.stdout)


if __name__ == "__main__":
    unittest.main()
