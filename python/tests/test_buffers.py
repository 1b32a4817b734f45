"""Which objects are buffers, and of which dtype. Needs no rank."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import unittest
from typing import Any

from railhead import Dtype, InvalidArgumentError
from railhead._buffers import buffer_of, empty


class Buffers(unittest.TestCase):
    def test_dtypes_of_typed_buffers(self) -> None:
        for obj, dtype in (
            (array.array("f", [1]), Dtype.F32),
            (array.array("d", [1]), Dtype.F64),
            (array.array("b", [1]), Dtype.I8),
            (array.array("i", [1]), Dtype.I32),
            (array.array("l", [1]), Dtype.I64),
            (array.array("q", [1]), Dtype.I64),
            (array.array("Q", [1]), Dtype.U64),
            ((ctypes.c_float * 1)(), Dtype.F32),
            ((ctypes.c_uint64 * 1)(), Dtype.U64),
            (b"1", Dtype.U8),
            (bytearray(1), Dtype.U8),
        ):
            buffer = buffer_of(obj, "test")
            self.assertEqual((buffer.dtype, buffer.count), (dtype, 1), repr(obj))

    def test_the_address_is_the_objects_memory(self) -> None:
        for obj in (b"abcd", bytearray(b"abcd"), array.array("i", b"abcd"), memoryview(b"..abcd")[2:]):
            self.assertEqual(ctypes.string_at(buffer_of(obj, "test").address, 4), b"abcd", repr(obj))
        with mmap.mmap(-1, 4096) as mapped:
            mapped[:4] = b"abcd"
            buffer = buffer_of(mapped, "test", writable=True)
            self.assertEqual(ctypes.string_at(buffer.address, 4), b"abcd")
            del buffer

    def test_memory_cannot_be_resized_while_its_buffer_exists(self) -> None:
        memory = bytearray(4)
        buffer = buffer_of(memory, "test", writable=True)
        with self.assertRaises(BufferError):
            memory.extend(b"more")
        del buffer
        gc.collect()
        memory.extend(b"more")

    def test_dtype_of_bytes_and_untyped_words(self) -> None:
        buffer = buffer_of(bytes(6), "test", Dtype.BF16)
        self.assertEqual((buffer.dtype, buffer.count), (Dtype.BF16, 3))
        bits = buffer_of(array.array("H", [1, 2]), "test", Dtype.BF16)
        self.assertEqual((bits.dtype, bits.count), (Dtype.BF16, 2))
        moved = buffer_of(array.array("h", [1, 2]), "test", Dtype.U8)
        self.assertEqual((moved.dtype, moved.count), (Dtype.U8, 4))

    def test_what_is_computed_with_keeps_its_type(self) -> None:
        words, bits, floats = array.array("h", [1, 2]), array.array("H", [1, 2]), array.array("f", [1, 2])
        small = {1: (Dtype.FP8_E4M3, Dtype.FP8_E5M2), 2: (Dtype.BF16, Dtype.F16)}
        cases: Any = (
            (floats, {Dtype.F32}),
            (words, set()),  # int16
            (bits, set(small[2])),  # uint16
            (array.array("I", [1]), set()),
            (array.array("b", bytes(8)), {Dtype.I8}),
            (memoryview(bytes(8)).cast("?"), set()),
            (bytes(8), set(Dtype)),
            (bytearray(8), set(Dtype)),
            (mmap.mmap(-1, 4096), set(Dtype)),
        )
        for obj, good in cases:
            for dtype in Dtype:
                if dtype in good:
                    self.assertEqual(buffer_of(obj, "test", dtype, computed=True).dtype, dtype, repr(obj))
                    continue
                with self.assertRaisesRegex(InvalidArgumentError, f"place: dtype {dtype.name} was requested, .* own type"):
                    buffer_of(obj, "place", dtype, computed=True)
                if dtype == Dtype.U8:
                    self.assertEqual(buffer_of(obj, "test", dtype).dtype, dtype, repr(obj))  # moved
        for obj in (words, bits):
            with self.assertRaisesRegex(InvalidArgumentError, "place: .*convert to one of .*int32") as refused:
                buffer_of(obj, "place", computed=True)
            self.assertNotIn("U8", str(refused.exception))

    def test_empty_has_the_requested_dtype(self) -> None:
        integers = empty(b"", "test", Dtype.I32, (2, 3))
        self.assertEqual((integers.format, integers.tolist()), ("i", [0] * 6))
        self.assertEqual(empty(bytearray(1), "test", Dtype.BF16, (2, 3)), bytearray(12))

    def test_refused_buffers_and_the_reasons(self) -> None:
        floats = array.array("f", [1, 2])
        cases: Any = (
            (array.array("h", [1]), None, False, "'h'.*dtype="),
            (floats, Dtype.BF16, False, "BF16.*'f'"),
            (bytes(3), Dtype.F32, False, "3 bytes.*F32"),
            (b"abc", None, True, "read-only"),
            (memoryview(floats)[::-1], None, False, "not contiguous"),
            (memoryview(bytearray(4)).cast("c"), None, False, "'c'"),
        )
        for obj, dtype, writable, why in cases:
            with self.assertRaisesRegex(InvalidArgumentError, f"place: .*{why}"):
                buffer_of(obj, "place", dtype, writable)
        for nothing in (None, 1.0, [1.0], "text"):
            with self.assertRaisesRegex(TypeError, f"place: {type(nothing).__name__} is not a buffer"):
                buffer_of(nothing, "place")


if __name__ == "__main__":
    unittest.main()
