"""numpy arrays. The assertions are in array_ranks.py."""

from __future__ import annotations

import subprocess
import sys
import unittest

from array_ranks import PLAIN, SMALL
from support import RankTest, environment, needs


class Numpy(RankTest):
    def setUp(self) -> None:
        needs("numpy")

    def test_collectives(self) -> None:
        self.run_arrays("arrays", "numpy", *(dtype.name for dtype in PLAIN))

    def test_collectives_with_ml_dtypes(self) -> None:
        needs("ml_dtypes")
        self.run_arrays("arrays", "numpy", *(dtype.name for dtype in SMALL))

    def test_windows(self) -> None:
        self.run_arrays("array_windows", "numpy", *(dtype.name for dtype in PLAIN))

    def test_windows_with_ml_dtypes(self) -> None:
        needs("ml_dtypes")
        self.run_arrays("array_windows", "numpy", *(dtype.name for dtype in SMALL))

    def test_refused_arrays_and_arrays_as_bytes(self) -> None:
        self.run_arrays("numpy_refusals")


class Imports(unittest.TestCase):
    def test_the_package_imports_neither_numpy_nor_torch(self) -> None:
        code = (
            "import sys, railhead; from railhead._buffers import buffer_of; buffer_of(b'1', 'x'); "
            "print({'numpy', 'torch'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], env=environment(""), capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), "set()")


if __name__ == "__main__":
    unittest.main()
