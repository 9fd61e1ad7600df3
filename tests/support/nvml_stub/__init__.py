"""How is the NVML stand-in built, and how does Python code run against it?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def find_compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_stub(compiler: str, directory: Path) -> dict[str, str]:
    """Compile the stub as libnvidia-ml.so.1; returns the environment that makes it be found."""
    library = directory / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("stub.c")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *options, "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=120)
    # The loader reads this variable at the start of a process only, so a test needs a new one.
    inherited = os.environ.get("LD_LIBRARY_PATH")
    paths = [str(directory), inherited] if inherited else [str(directory)]
    return {"LD_LIBRARY_PATH": os.pathsep.join(paths)}


def find_library(environment: Mapping[str, str]) -> Path:
    """The stub itself, from the environment that build_stub returned."""
    return Path(environment["LD_LIBRARY_PATH"].split(os.pathsep)[0]) / "libnvidia-ml.so.1"


def run_python(code: str, extra: Mapping[str, str]) -> Any:
    """Run `code` in a new process of the project; what it prints last is the JSON answer."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **extra},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
