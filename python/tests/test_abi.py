"""Compares the package's enums, structs and functions with client/include/railhead.h and railhead_ep.h."""

from __future__ import annotations

import ctypes
import re
import unittest
from typing import Any, Dict, List, Tuple

import railhead
from railhead import Dtype, Op, Result, _abi
from support import HERE

HEADERS = [HERE.parent.parent / "client" / "include" / name for name in ("railhead.h", "railhead_ep.h")]
TEXT = re.sub(r"/\*.*?\*/", "", "\n".join(header.read_text() for header in HEADERS), flags=re.S)

STRUCTS = {
    "rh_session_config": _abi.SessionConfig,
    "rh_comm_config": _abi.CommConfig,
    "rh_comm_status": _abi.CommStatus,
    "rh_comm_info": _abi.CommInfo,
    "rh_choice": _abi.Choice,
    "rh_window_config": _abi.WindowConfig,
    "rh_window_info": _abi.WindowInfo,
    "rh_register_config": _abi.RegisterConfig,
    "rh_window_sharing": _abi.WindowSharing,
    "rh_ep_config": _abi.EpConfig,
    "rh_ep_info": _abi.EpInfo,
    "rh_ep_report": _abi.EpReport,
    "rh_ep_dispatch_in": _abi.EpDispatchIn,
    "rh_ep_dispatch_out": _abi.EpDispatchOut,
    "rh_ep_combine_args": _abi.EpCombineArgs,
}

SCALARS: Dict[str, Any] = {
    "uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32, "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t,
    "rh_op": ctypes.c_int32, "rh_dtype": ctypes.c_int32, "rh_result": ctypes.c_int, "float": ctypes.c_float,
}  # fmt: skip


def enumerators(prefix: str) -> List[Tuple[str, int]]:
    return [(name, int(number)) for name, number in re.findall(rf"\b{prefix}(\w+) = (\d+)", TEXT)]


class Abi(unittest.TestCase):
    def test_numbers(self) -> None:
        everything = enumerators("RH_")
        self.assertEqual([(f"ERR_{r.name}" if r else r.name, r.value) for r in Result], everything[: len(Result)])
        self.assertEqual([(d.name, d.value) for d in Dtype], everything[len(Result) : len(Result) + len(Dtype)])
        self.assertEqual([(o.name, o.value) for o in Op], everything[len(Result) + len(Dtype) :])

    def test_version(self) -> None:
        parts = [re.search(rf"#define RH_VERSION_{part} (\d+)", TEXT) for part in ("MAJOR", "MINOR", "PATCH")]
        self.assertEqual(".".join(part.group(1) for part in parts if part), railhead.__version__)

    def test_structs(self) -> None:
        found = dict((name, body) for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", TEXT, flags=re.S))
        self.assertEqual(set(found), set(STRUCTS))
        for name, struct in STRUCTS.items():
            fields = [field_of(line) for line in found[name].split(";") if line.strip()]
            self.assertEqual([(n, getattr(t, "_length_", 0), ctypes.sizeof(t)) for n, t in fields],
                             [(f[0], getattr(f[1], "_length_", 0), ctypes.sizeof(f[1])) for f in struct._fields_], name)  # fmt: skip

    def test_functions(self) -> None:
        found = re.findall(r"^([\w ]+?\*?) ?\b(rh_\w+)\(([^)]*)\);", TEXT, flags=re.M)
        self.assertEqual([name for _, name, _ in found], list(_abi.FUNCTIONS))
        for result, name, parameters in found:
            arguments = [] if parameters == "void" else [kind_of(p.strip()) for p in parameters.split(",")]
            declared = _abi.FUNCTIONS[name]
            self.assertEqual((kind_of(result + " r"), arguments), (kind(declared[0]), [kind(a) for a in declared[1]]), name)


def field_of(declaration: str) -> Tuple[str, Any]:
    match = re.fullmatch(r"\s*(.+?)(\w+)(?:\[(\d+)\])?\s*", declaration)
    assert match is not None, declaration
    kind, name, length = match.groups()
    base = ctypes.c_void_p if "*" in kind else ctypes.c_char if kind.strip() == "char" else SCALARS[kind.strip()]
    return name, base * int(length) if length else base


def kind_of(parameter: str) -> str:
    """A pointer, or the size and signedness of a number."""
    words = parameter.split()
    return "pointer" if "*" in parameter else kind(SCALARS[" ".join(words[:-1])])


def kind(declared: Any) -> str:
    if declared in (ctypes.c_void_p, ctypes.c_char_p) or hasattr(declared, "contents"):
        return "pointer"
    return f"{ctypes.sizeof(declared)} bytes{', signed' if declared(-1).value < 0 else ''}"


if __name__ == "__main__":
    unittest.main()
