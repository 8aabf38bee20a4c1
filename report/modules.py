"""Prints in one line which module a report lacks, and how to install it. As a program it lists all as JSON."""

import importlib
import json
import os
import subprocess
import sys
from importlib import metadata

DEBIANS = "/usr/bin/python3"
PACKAGES = {
    name: "python3-" + name for name in ("numpy", "scipy", "matplotlib", "pandas", "thrift", "yaml")
}


def require(script, *names):
    """Ends the program with status 2 unless this interpreter has the modules."""
    missing = [name for name in names if not has(name)]
    if not missing:
        return
    if debian_has(missing):
        advice = (
            f"{DEBIANS} has {'it' if len(missing) == 1 else 'them'}: {DEBIANS} {os.path.relpath(script)} ..."
        )
    else:
        advice = "install: apt-get install " + " ".join(PACKAGES[name] for name in missing)
    name = os.path.splitext(os.path.basename(script))[0]
    print(f"{name}: {sys.executable} has no module {' and '.join(missing)}; {advice}", file=sys.stderr)
    sys.exit(2)


def has(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def debian_has(names):
    command = [DEBIANS, "-c", "import " + ", ".join(names)]
    try:
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def version(name):
    """None if the module is missing."""
    try:
        importlib.import_module(name)
        return metadata.version({"yaml": "PyYAML"}.get(name, name))
    except metadata.PackageNotFoundError:
        return "of an unknown version"
    except ImportError:
        return None


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "modules": {name: version(name) for name in PACKAGES},
                "packages": PACKAGES,
            }
        )
    )
