"""Dispatch and combine between rank processes, compared with plain numpy. The assertions are in expert_ranks.py."""

from __future__ import annotations

import signal
import unittest

from support import RankTest, needs

EXACT = ("F32 F32 F32 f32", "F32 F32 F16 f32", "F16 F16 F16 f32")
NARROW = ("BF16 BF16 BF16 f32", "F32 BF16 F32 f32")
FP8 = ("BF16 FP8_E4M3 BF16 f32", "F32 FP8_E4M3 BF16 ue8m0", "F16 FP8_E4M3 F32 static")


class ExpertParallel(RankTest):
    def setUp(self) -> None:
        needs("numpy")

    def test_every_mode_and_layout(self) -> None:
        self.run_experts("round_trips", "numpy", *EXACT)

    def test_every_mode_and_layout_with_ml_dtypes(self) -> None:
        needs("ml_dtypes")
        self.run_experts("round_trips", "numpy", *NARROW, *FP8)

    def test_every_mode_and_layout_in_plain_memory(self) -> None:
        self.run_experts("round_trips", "raw", "BF16 BF16 BF16 f32", "BF16 FP8_E4M3 F32 ue8m0")

    def test_tokens_that_are_already_quantised(self) -> None:
        self.run_experts("quantised_input")

    def test_two_dispatches_in_flight(self) -> None:
        for mode in ("ll", "ht"):
            self.run_experts("two_in_flight", mode)

    def test_a_cached_routing(self) -> None:
        self.run_experts("cached_routing")

    def test_memory_is_held_between_the_phases(self) -> None:
        self.run_experts("held_memory")

    def test_outputs_in_memory_of_the_caller(self) -> None:
        self.run_experts("memory_of_the_caller")

    def test_replicas_and_their_load(self) -> None:
        self.run_experts("replicas")


class Failures(RankTest):
    def setUp(self) -> None:
        needs("numpy")

    def test_invalid_input_is_an_error_or_reported(self) -> None:
        self.run_experts("invalid_input")

    def test_dispatches_continue_without_a_masked_rank(self) -> None:
        self.run_experts("masked")

    def test_a_dead_rank_is_dropped_or_named(self) -> None:
        for on_dead in ("drop", "fail"):
            ranks = self.start_experts("outlives_a_rank", "1", on_dead)
            victim = ranks.pop(1)
            self.assertEqual(victim.line(), "ready")
            victim.process.send_signal(signal.SIGKILL)
            self.assertEqual(victim.finish()[0], -signal.SIGKILL)
            self.finish(ranks)

    def test_bad_configs(self) -> None:
        self.run_experts("configs")

    def test_bad_arguments_are_found_before_the_call(self) -> None:
        self.run_experts("arguments")


if __name__ == "__main__":
    unittest.main()
