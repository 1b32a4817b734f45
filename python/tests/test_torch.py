"""torch's CPU tensors. The assertions are in array_ranks.py."""

from __future__ import annotations

import unittest
from typing import List

from array_ranks import PLAIN, SMALL
from railhead import Dtype
from support import RankTest, needs

LATE = (Dtype.U64, Dtype.FP8_E4M3, Dtype.FP8_E5M2)  # float8 came with torch 2.1, uint64 with 2.3
EARLY = [dtype.name for dtype in (*PLAIN, *SMALL) if dtype not in LATE]


def late_dtypes() -> List[str]:
    import torch

    missing = [dtype.array_name for dtype in LATE if not hasattr(torch, dtype.array_name)]
    if missing:
        raise unittest.SkipTest(f"torch {torch.__version__} has no {', '.join(missing)}")
    return [dtype.name for dtype in LATE]


class Torch(RankTest):
    def setUp(self) -> None:
        needs("torch")

    def test_collectives(self) -> None:
        self.run_arrays("arrays", "torch", *EARLY)

    def test_collectives_of_later_dtypes(self) -> None:
        self.run_arrays("arrays", "torch", *late_dtypes())

    def test_windows(self) -> None:
        self.run_arrays("array_windows", "torch", *EARLY)

    def test_windows_of_later_dtypes(self) -> None:
        self.run_arrays("array_windows", "torch", *late_dtypes())

    def test_expert_parallelism(self) -> None:
        needs("numpy")
        self.run_experts("round_trips", "torch", "F32 F32 F32 f32", "BF16 BF16 BF16 f32", "F32 F16 BF16 f32")

    def test_expert_parallelism_of_float8(self) -> None:
        needs("numpy")
        late_dtypes()
        self.run_experts("round_trips", "torch", "BF16 FP8_E4M3 BF16 f32")

    def test_refused_and_shared_tensors(self) -> None:
        self.run_arrays("torch_refusals")


if __name__ == "__main__":
    unittest.main()
