"""Comms on CUDA devices, with the driver for tests, on which the GPU's kernels run on the CPU. The assertions are in cuda_ranks.py.
gpu_check.py checks torch on GPUs. gpu_check_experts.py runs on both."""

from __future__ import annotations

import os
import sys
import types
import unittest
from typing import Optional
from unittest import mock

import fake_torch
import railhead
from railhead import Device, Session, errors
from railhead._buffers import buffer_of
from railhead._device_buffers import device_buffer_of, new_tensor
from railhead._devices import Request, current_stream, request
from support import HERE, RankTest, daemon


class Cuda(RankTest):
    def setUp(self) -> None:
        for name in ("RAILHEAD_CUDA_LIBRARY", "RAILHEAD_FAKE_CUDA_KERNELS"):
            self.assertIn(name, os.environ, "go test ./python builds the driver for tests")

    def run_cuda(self, function: str) -> None:
        self.finish(self.start(HERE / "cuda_ranks.py", 2, function))

    def test_sums_of_every_type_on_a_stream(self) -> None:
        self.run_cuda("sums")

    def test_the_default_stream(self) -> None:
        self.run_cuda("default_stream")

    def test_captures_and_replays(self) -> None:
        self.run_cuda("graphs")

    def test_operations_that_move_elements(self) -> None:
        self.run_cuda("moved")

    def test_windows(self) -> None:
        self.run_cuda("device_windows")

    def test_registered_memory(self) -> None:
        self.run_cuda("registered")

    def test_two_comms_on_two_streams(self) -> None:
        self.run_cuda("two_comms")

    def test_dispatch_and_combine_have_the_bytes_and_reports_of_the_cpu(self) -> None:
        self.finish(self.start(HERE / "gpu_check_experts.py", 2, "2", "1"))

    def test_the_death_of_a_rank_in_dispatches(self) -> None:
        for arguments in (("die",), ("drop",), ("drop", "ht")):
            *survivors, victim = self.start(HERE / "gpu_check_experts.py", 3, *arguments)
            self.assertNotEqual(victim.finish()[0], 0)
            self.finish(survivors)

    def test_refused_calls(self) -> None:
        self.run_cuda("cuda_refusals")

    def test_the_stop_word(self) -> None:
        ranks = self.start(HERE / "cuda_ranks.py", 2, "given_up")
        self.assertEqual(ranks[0].line(), "queued")
        stdin = ranks[1].process.stdin
        assert stdin is not None
        stdin.write("abort\n")
        stdin.flush()
        self.finish(ranks)


class OnTheCpu(unittest.TestCase):
    def test_device_memory_and_streams_are_refused(self) -> None:
        memory = types.SimpleNamespace(__cuda_array_interface__={})
        with Session(daemon().socket) as session, session.comm("cuda-on-cpu", rank=0, world_size=1, device="cpu") as comm:
            self.assertEqual((str(comm.device), comm.device_stop_word, comm.stopped()), ("cpu", None, False))
            with self.assertRaisesRegex(errors.InvalidArgumentError, "CUDA device.*CPU"):
                comm.all_reduce(memory)
            with self.assertRaisesRegex(errors.RailheadError, "stream"):
                comm.all_reduce(bytes(4), stream=16)
            with comm.alloc_window(4) as window, self.assertRaisesRegex(errors.InvalidArgumentError, "on the host"):
                window.device_memory()


class Tensor:
    """What the package asks of torch's tensors, for the checks of their device."""

    def __init__(self, kind: str, index: Optional[int], contiguous: bool = True) -> None:
        self.device = fake_torch.Device(kind, index)
        self.is_contiguous = lambda: contiguous
        self.is_neg = lambda: False
        self.element_size, self.numel, self.data_ptr = (lambda: 4), (lambda: 6), (lambda: 0x1000)
        self.dtype, self.shape = "torch.float32", (2, 3)
        self.new_empty = lambda shape: (shape, kind, index)


class Tensors(unittest.TestCase):
    """The checks of tensors that need no GPU, with a stand-in of torch. gpu_check.py has those of torch itself."""

    def setUp(self) -> None:
        cuda = types.SimpleNamespace(is_initialized=lambda: True, current_stream=lambda ordinal: types.SimpleNamespace(cuda_stream=7))
        patch = mock.patch.dict(sys.modules, torch=types.SimpleNamespace(Tensor=Tensor, cuda=cuda))
        patch.start()
        self.addCleanup(patch.stop)

    def test_a_tensor_must_be_on_the_comms_device(self) -> None:
        buffer = device_buffer_of(Tensor("cuda", 1), "test", Device("cuda", 1), None)
        self.assertEqual((buffer.address, buffer.nbytes, buffer.dtype, buffer.shape), (0x1000, 24, railhead.Dtype.F32, (2, 3)))
        for tensor in (Tensor("cuda", 0), Tensor("cpu", None)):
            with self.assertRaisesRegex(errors.InvalidArgumentError, "test: the tensor is on.*comm's device is cuda:1"):
                device_buffer_of(tensor, "test", Device("cuda", 1), None)
        with self.assertRaisesRegex(errors.InvalidArgumentError, "comm's device is cpu"):
            buffer_of(Tensor("cuda", 0), "test")
        with self.assertRaisesRegex(errors.InvalidArgumentError, "not contiguous"):
            device_buffer_of(Tensor("cuda", 1, contiguous=False), "test", Device("cuda", 1), None)

    def test_a_new_result_is_of_the_current_stream(self) -> None:
        self.assertEqual(new_tensor("test", Tensor("cuda", 1), (6,), 7, Device("cuda", 1)), ((6,), "cuda", 1))
        with self.assertRaisesRegex(errors.InvalidArgumentError, "test: .*0x7.*0x8.*out="):
            new_tensor("test", Tensor("cuda", 1), (6,), 8, Device("cuda", 1))


class Devices(unittest.TestCase):
    def test_what_a_device_argument_asks_for(self) -> None:
        self.assertEqual(request(None), Request(0))
        self.assertEqual(request("cpu"), Request(0))
        for same in ("cuda:3", 3, Device("cuda", 3)):
            self.assertEqual(request(same), Request(1, 3), repr(same))
        self.assertEqual(request("GPU-0a-1"), Request(1, -1, b"GPU-0a-1"))
        with mock.patch.dict(sys.modules):
            sys.modules.pop("torch", None)
            self.assertEqual(request("cuda"), Request(1, -1))
        for wrong in ("gpu", "cuda:", "cuda:-1", f"cuda:{2**31}", -1, "GPU-\0"):
            with self.assertRaisesRegex(railhead.InvalidArgumentError, "comm: device", msg=repr(wrong)):
                request(wrong)
        for kind in (True, 1.0, object()):
            with self.assertRaisesRegex(TypeError, "comm: device", msg=repr(kind)):
                request(kind)

    def test_torch_names_the_current_device_and_stream(self) -> None:
        streams = {0: 0, 1: 0x700}
        cuda = types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            current_device=lambda: 1,
            current_stream=lambda ordinal: types.SimpleNamespace(cuda_stream=streams[ordinal]),
        )
        with mock.patch.dict(sys.modules, torch=types.SimpleNamespace(cuda=cuda, device=type("device", (), {}))):
            self.assertEqual(request("cuda"), Request(1, 1))
            self.assertEqual([current_stream(Device("cuda", ordinal)) for ordinal in (0, 1)], [0, 0x700])
            cuda.is_initialized = lambda: False
            self.assertEqual(current_stream(Device("cuda", 1)), 0)
            cuda.is_available = lambda: False
            self.assertEqual(request("cuda"), Request(1, -1))


if __name__ == "__main__":
    unittest.main()
