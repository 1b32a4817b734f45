"""Where the library is found, and the errors if it is not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import HERE


def load(library: str, path: str = str(HERE.parent), **more: str) -> str:
    """Loads the library in another process. Returns the last line that the process prints."""
    env = {**os.environ, "RAILHEAD_LIBRARY": library, "PYTHONPATH": path, **more}
    code = "from railhead import _library; print(_library.load()._name)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


class Library(unittest.TestCase):
    def compiled(self, source: str) -> str:
        """The path of a shared library compiled from source."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        code, library = Path(directory.name, "other.c"), Path(directory.name, "other.so")
        code.write_text(source)
        subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", str(code), "-o", str(library)], check=True)
        return str(library)

    def test_the_environment_variable_comes_first(self) -> None:
        self.assertEqual(load(os.environ["RAILHEAD_LIBRARY"]), os.environ["RAILHEAD_LIBRARY"])

    def test_the_bundled_library_comes_next_then_the_systems(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            package, system = Path(directory, "railhead"), Path(directory, "system")
            for source in (HERE.parent / "railhead").glob("*.py"):
                (package / source.name).parent.mkdir(exist_ok=True)
                (package / source.name).write_bytes(source.read_bytes())
            for folder in (package / "lib", system):
                folder.mkdir()
                (folder / "librailhead.so.0").symlink_to(Path(os.environ["RAILHEAD_LIBRARY"]).resolve())
            bundled = package / "lib" / "librailhead.so.0"
            self.assertEqual(load("", directory, LD_LIBRARY_PATH=str(system)), str(bundled))
            bundled.unlink()
            self.assertEqual(load("", directory, LD_LIBRARY_PATH=str(system)), "librailhead.so.0")

    def test_the_error_of_a_missing_library_says_how_to_build_it(self) -> None:
        message = load("/nowhere/librailhead.so.0")
        for words in ("LibraryError", "/nowhere/librailhead.so.0", "make lib", "RAILHEAD_LIBRARY"):
            self.assertIn(words, message)

    def test_missing_functions_are_named(self) -> None:
        message = load(self.compiled("unsigned rh_get_version(void) { return 100; }"))
        for words in ("LibraryError", "rh_all_reduce", "make lib"):
            self.assertIn(words, message)

    def test_the_error_of_another_version_names_both(self) -> None:
        from railhead._abi import FUNCTIONS

        functions = "".join(f"int {name}(void) {{ return 0; }}\n" for name in FUNCTIONS if name != "rh_get_version")
        message = load(self.compiled(functions + "unsigned rh_get_version(void) { return 10203; }"))
        for words in ("LibraryError", "version 1.2.3", "0.2.*"):
            self.assertIn(words, message)


if __name__ == "__main__":
    unittest.main()
