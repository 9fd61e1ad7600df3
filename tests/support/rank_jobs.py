"""How do tests run a job of several ranks? As its user does, and with a fault on purpose."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cli import ROOT, processes_with

SCRIPT = ROOT / "diagnose" / "ddp_bandwidth.py"
FAULTS = ROOT / "tests" / "support" / "rank_faults"
LABEL = "ranks"
# Long enough for a loaded machine to start all ranks, short enough to wait for.
TIMEOUT_SECONDS = 10
_LIMIT_SECONDS = 240
_WIND_UP_SECONDS = 5.0


@dataclass(frozen=True)
class Job:
    """What a job left behind: words, files, processes."""

    code: int
    out: str
    err: str
    reports: Path
    left: list[int]

    @property
    def complaints(self) -> list[str]:
        lines = self.err.splitlines()
        return [each.removeprefix("diagnose: ") for each in lines if each.startswith("diagnose: ")]

    @property
    def record(self) -> dict[str, Any]:
        (path,) = self.reports.glob("*/bandwidth.json")
        record: dict[str, Any] = json.loads(path.read_text())
        return record


def options(reports: Path) -> list[str]:
    words = ["--quick", "--max-bytes", "256K", "--timeout", str(TIMEOUT_SECONDS)]
    return [*words, "--label", LABEL, "--reports", str(reports)]


def torchrun(reports: Path, *more: str, ranks: int = 2, fault: str = "", cwd: Path = ROOT) -> Job:
    """The script under torchrun; `fault` is what rank_faults/ does in one of its ranks."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words += [f"--nproc-per-node={ranks}", str(SCRIPT), *options(reports), *more]
    return finish(start(words, {}, fault=fault, cwd=cwd), reports)


def by_hand(
    reports: Path, rank: int, world_size: int, port: int, *more: str, fault: str = ""
) -> Started:
    """One process of a job that nobody but the test starts."""
    words = [sys.executable, str(SCRIPT), *options(reports), *more]
    place = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    return start(words, {"MASTER_ADDR": "127.0.0.1", **place}, fault=fault)


@dataclass(frozen=True)
class Started:
    """A job on its way, and the mark that all its processes carry."""

    process: subprocess.Popen[str]
    token: str


def start(
    words: list[str], variables: Mapping[str, object], fault: str = "", cwd: Path = ROOT
) -> Started:
    token = uuid.uuid4().hex
    inherited = {name: value for name, value in os.environ.items() if name != "RANK"}
    environment = {**inherited, "OMP_NUM_THREADS": "1", "JOB_TOKEN": token}
    environment |= {name: str(value) for name, value in variables.items()}
    if fault:
        environment |= {"FAULT": fault, "PYTHONPATH": str(FAULTS)}
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Started(process, token)


def finish(started: Started, reports: Path) -> Job:
    out, err = started.process.communicate(timeout=_LIMIT_SECONDS)
    return Job(started.process.returncode, out, err, reports, find_left(started.token))


def find_left(token: str) -> list[int]:
    """Processes of a job that is over; a killed one needs a moment to go."""
    deadline = time.monotonic() + _WIND_UP_SECONDS
    while (left := processes_with(token)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
