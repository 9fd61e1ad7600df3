"""How does the fake GPU get from C++ source to a directory for PYTHONPATH?

`build(directory)` compiles once per machine and version of torch, and copies the Python side
and its package metadata beside the library. Nothing is loaded here: the process that builds
never sees the device.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent
CACHE = Path(__file__).parents[3] / ".cache" / "fakegpu"
METADATA = "fakegpu-0.dist-info"
LIBRARY = "libfakegpu.so"

# Most of the time goes into reading torch's headers, so more optimisation would buy nothing.
# -w: the warnings are all about torch's headers.
FLAGS = ("-std=c++20", "-O1", "-w", "-shared", "-fPIC")


class BuildError(Exception):
    """The library could not be compiled; the message is the compiler's."""


def find_compiler() -> str | None:
    """The C++ compiler that $CXX names, else the usual ones, else None."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    return None


def build(directory: Path) -> Path:
    """The directory to put on PYTHONPATH, inside the given cache directory.

    Any number of processes may call this at once: one compiles, the others wait for it.
    """
    # Imported here: collecting the tests should not have to import torch.
    import torch

    recipe = "\n".join((torch.__version__, sys.platform, *FLAGS)).encode()
    for part in sorted((SOURCE / "source").iterdir()):
        recipe += part.read_bytes()
    site = directory / hashlib.sha256(recipe).hexdigest()[:16]
    site.mkdir(parents=True, exist_ok=True)
    with (site / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (site / LIBRARY).exists():
            _compile(site / LIBRARY)
        for folder, copy in (("device", "fakegpu"), (METADATA, METADATA)):
            for part in (SOURCE / folder).iterdir():
                if part.is_file():
                    _replace(site / copy / part.name, part.read_bytes())
    return site


def _compile(library: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    compiler = find_compiler()
    if compiler is None:
        raise BuildError("no C++ compiler found; install g++ or name one in CXX")
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        unfinished = Path(scratch) / library.name
        command = [compiler, *FLAGS, str(SOURCE / "source" / "fakegpu.cpp"), "-o", str(unfinished)]
        command += [f"-I{path}" for path in include_paths()]
        command += [f"-L{path}" for path in library_paths()]
        command += ["-ltorch_cpu", "-lc10"]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if outcome.returncode != 0:
            raise BuildError(f"{' '.join(command)}\n{outcome.stderr}")
        unfinished.replace(library)


def _replace(path: Path, content: bytes) -> None:
    """Write without a moment in which another process could read half of it."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


if __name__ == "__main__":
    # Only the directory goes to standard output: PYTHONPATH=$(make -s fakegpu).
    try:
        print(build(CACHE))
    except BuildError as error:
        sys.exit(str(error))
