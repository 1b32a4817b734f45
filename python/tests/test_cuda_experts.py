"""Expert parallelism on CUDA devices, with the driver for tests, on which the GPU's kernels run on the CPU, and with a stand-in of torch
(fake_torch.py). The assertions are in cuda_expert_ranks.py. gpu_check_torch_experts.py checks torch on GPUs."""

from __future__ import annotations

import os
import unittest

from support import HERE, RankTest, needs


class CudaExperts(RankTest):
    def setUp(self) -> None:
        needs("numpy")
        for name in ("RAILHEAD_CUDA_LIBRARY", "RAILHEAD_FAKE_CUDA_KERNELS"):
            self.assertIn(name, os.environ, "go test ./python builds the driver for tests")

    def run_cuda(self, function: str, *arguments: str) -> None:
        self.finish(self.start(HERE / "cuda_expert_ranks.py", 3, function, *arguments))

    def test_every_layout_in_tensors(self) -> None:
        self.run_cuda("round_trips", "torch", "ll", "F32 F32 F32 f32", "BF16 FP8_E4M3 BF16 f32")
        self.run_cuda("round_trips", "torch", "ht", "BF16 FP8_E4M3 BF16 f32")

    def test_every_layout_in_arrays_of_the_caller(self) -> None:
        self.run_cuda("round_trips", "arrays", "ll", "BF16 BF16 BF16 f32", "F16 FP8_E4M3 F32 ue8m0")

    def test_captures_and_replays(self) -> None:
        for mode in ("ll", "ht"):
            self.run_cuda("captured", mode)

    def test_a_cached_routing(self) -> None:
        for mode in ("ll", "ht"):
            self.run_cuda("cached_routing", mode)

    def test_graphs_that_share_a_dispatch(self) -> None:
        self.run_cuda("graphs_that_share_a_dispatch")

    def test_memory_lives_until_the_calls_that_use_it_are_queued(self) -> None:
        for mode in ("ll", "ht"):
            self.run_cuda("temporaries", mode)

    def test_no_call_waits_for_another_rank(self) -> None:
        ranks = self.start(HERE / "cuda_expert_ranks.py", 2, "nothing_waits")
        self.assertEqual(ranks[0].line(), "queued")
        stdin = ranks[1].process.stdin
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()
        self.finish(ranks)

    def test_reports(self) -> None:
        self.run_cuda("reports")

    def test_refused_calls(self) -> None:
        self.run_cuda("refusals")


if __name__ == "__main__":
    unittest.main()
