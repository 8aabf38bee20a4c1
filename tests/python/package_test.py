"""The package as pip installs it: a wheel with every module and the library, that works away from the sources.

    LPSGD_LIBRARY=... package_test.py

Ends with 77, a skip, without pip, setuptools and wheel.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
missing = [name for name in ("pip", "setuptools", "wheel") if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: Python has no {', '.join(missing)}")
    sys.exit(77)


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lpsgd-test-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def wheel(self, **environment):
        words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
                 "--disable-pip-version-check", "--wheel-dir", str(self.root), str(SOURCE / "python")]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environment})

    def test_it_works_away_from_the_sources(self):
        before = set((SOURCE / "python").rglob("*"))
        done = self.wheel()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set((SOURCE / "python").rglob("*")), before, "nothing is written among the sources")
        (wheel,) = self.root.glob("*.whl")
        version = re.search(r"^project\(lpsgd VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        self.assertRegex(wheel.name, rf"^lpsgd-{re.escape(version)}-py3-none-linux_\w+\.whl$")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.root / "site")
            metadata = archive.read(f"lpsgd-{version}.dist-info/METADATA").decode()
        self.assertRegex(metadata, r"\nRequires-Dist: torch ?\(?>=1\.13\)?\n")
        packed = {path.name for path in (self.root / "site" / "lpsgd").iterdir()}
        modules = {path.name for path in (SOURCE / "python" / "lpsgd").glob("*.py")}
        self.assertEqual(packed, modules | {"liblpsgd.so"})
        # PyTorch is not needed for the library itself.
        program = (
            "import importlib.util, sys\n"
            "spec = importlib.util.spec_from_file_location('library', sys.argv[1])\n"
            "library = importlib.util.module_from_spec(spec)\n"
            "spec.loader.exec_module(library)\n"
            "coder = library.Coder('{codec: onebit}', [('w', 'dense', (64, 64))], rank=0, ranks=2, seed=1)\n"
            "print(coder.codecs[0])\n"
        )
        environment = {name: value for name, value in os.environ.items() if name not in ("LPSGD_LIBRARY", "PYTHONPATH")}
        module = self.root / "site" / "lpsgd" / "library.py"
        done = subprocess.run([sys.executable, "-c", program, str(module)], capture_output=True, text=True, timeout=100,
                              check=False, cwd=self.root, env=environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("kind: onebit", done.stdout)

    def test_libraries_that_are_needed(self):
        """Those of docs/pytorch-hook.md, and those of every C++ program."""
        words = ["readelf", "--dynamic", "--wide", os.environ["LPSGD_LIBRARY"]]
        shown = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", shown))
        page = (SOURCE / "docs" / "pytorch-hook.md").read_text()
        named = re.search(r"is linked with: on Debian `(\S+)`, `(\S+)` and `(\S+)`", page).groups()
        self.assertEqual(needed - {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64"},
                         {name.rstrip("0123456789.") for name in named})

    def test_without_the_library(self):
        done = self.wheel(LPSGD_LIBRARY=str(self.root / "none.so"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("none.so: no such file; scripts/build makes it", done.stderr)


if __name__ == "__main__":
    unittest.main()
