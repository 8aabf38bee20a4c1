"""pip install ./python: the package lpsgd, with the library that scripts/build has made (docs/pytorch-hook.md)."""

import os
import pathlib
import re
import shutil

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parent / "build"
SCRATCH = BUILD / "python-package"


def version():
    text = (HERE.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"^project\(lpsgd VERSION (\S+)", text, re.MULTILINE)[1]


class BuildWithLibrary(build_py):
    def run(self):
        if getattr(self, "editable_mode", False):  # the package finds the library in the build folder
            return super().run()
        shutil.rmtree(self.build_lib, ignore_errors=True)  # of an older revision
        super().run()
        library = pathlib.Path(os.environ.get("LPSGD_LIBRARY") or BUILD / "release" / "liblpsgd.so")
        if not library.is_file():
            raise SystemExit(f"{library}: no such file; scripts/build makes it, and LPSGD_LIBRARY may name another one")
        shutil.copy2(library, pathlib.Path(self.build_lib) / "lpsgd" / "liblpsgd.so")


class OfThisMachine(bdist_wheel):
    """For any Python 3: the library is called through ctypes."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


SCRATCH.mkdir(parents=True, exist_ok=True)
setup(
    version=version(),
    packages=["lpsgd"],
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": OfThisMachine},
    options={"build": {"build_base": str(SCRATCH)}, "egg_info": {"egg_base": str(SCRATCH)}},
)
