"""How do tests run a job of several ranks? As its user does, and with a fault on purpose."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.cli import ROOT, Outcome, Started, started

FAULTS = ROOT / "tests" / "support" / "rank_faults"
LABEL = "ranks"
# Long enough for a loaded machine to start all ranks, short enough to wait for.
TIMEOUT_SECONDS = 10


def torchrun(
    script: str,
    *words: object,
    ranks: int = 2,
    cwd: Path = ROOT,
    extra: Mapping[str, str] | None = None,
) -> AbstractContextManager[Started]:
    """A script of diagnose/ under torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={ranks}", str(ROOT / "diagnose" / script)]
    return started([*launcher, *map(str, words)], extra, cwd)


def by_hand(
    script: str,
    *words: object,
    rank: int = 0,
    ranks: int = 1,
    port: int = 0,
    extra: Mapping[str, str] | None = None,
) -> AbstractContextManager[Started]:
    """One process of a job that nobody but the test starts."""
    place = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port or find_free_port()}
    variables = {name: str(value) for name, value in place.items()}
    command = [sys.executable, str(ROOT / "diagnose" / script), *map(str, words)]
    return started(command, {"MASTER_ADDR": "127.0.0.1", **variables, **(extra or {})})


def bandwidth_options(reports: Path) -> list[str]:
    """Of ddp_bandwidth.py: five sizes, as fast as possible."""
    words = ["--quick", "--max-bytes", "256K", "--timeout", str(TIMEOUT_SECONDS)]
    return [*words, "--label", LABEL, "--reports", str(reports)]


def fault_variables(fault: str) -> dict[str, str]:
    """With these, one rank of the job suffers what rank_faults/ does."""
    return {"FAULT": fault, "PYTHONPATH": str(FAULTS)}


def read_bandwidth(reports: Path) -> dict[str, Any]:
    (path,) = reports.glob("*/bandwidth.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def finish(job: AbstractContextManager[Started]) -> Outcome:
    with job as running:
        return running.finish()


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
