"""Which BLAS PyTorch uses in this process. Debian's PyTorch loads whatever `libblas.so.3` is. The reference
BLAS is many times slower, so a comparison with it means nothing."""

import sys


def blas():
    """The BLAS library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split()[-1] for line in file if "blas" in line or "mkl" in line}
    libraries = sorted(path for path in paths if path.startswith("/") and ".so" in path)
    return next((path for path in libraries if "blas" in path), libraries[0] if libraries else "its own")


def refuse_reference_blas():
    """Call it after `import torch`."""
    if "/blas/libblas" in blas():
        sys.exit("this PyTorch computes with the reference BLAS, which makes it many times slower: "
                 "apt-get install libopenblas0-pthread")
