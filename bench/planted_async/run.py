"""What is each repair worth on the simulated device, by the device's own clock?

    PYTHONPATH=$(make -s fakegpu) TORCH_DEVICE_BACKEND_AUTOLOAD=1 \\
        python -m bench.planted_async.run [NAME...]

The device is simulated (tests/support/fakegpu): its figures say whether a tool is right about
this device, and nothing about any hardware.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.planted_async.clock import BLOCKS, WARM_UP
from bench.planted_async.truth import CASES, Timed
from diagnose.measure.jobs import ROOT
from diagnose.measure.twins.cases import fixed_script

STEPS = 48
DEADLINE_SECONDS = 300


@dataclass(frozen=True)
class Side:
    """One twin: seconds of a step, share of the time that the device was busy, its last line."""

    seconds: float
    busy: float
    kernels: float
    blocks: tuple[float, ...]  # seconds of a step in each
    printed: str


@dataclass(frozen=True)
class Truth:
    """Both twins, and how many steps of the slow one a step of the repaired one replaces."""

    slow: Side
    fixed: Side
    fixed_work: int
    block_steps: int

    @property
    def gain_seconds(self) -> float:
        """Of one step of the slow twin."""
        return self.slow.seconds - self.fixed.seconds / self.fixed_work

    @property
    def gain_share(self) -> float:
        return self.gain_seconds / self.slow.seconds


def measure(timed: Timed, environment: Mapping[str, str], steps: int = STEPS) -> Truth:
    with TemporaryDirectory() as scratch:
        slow, fixed = (
            _run(script, {**environment, **timed.variables}, steps, timed.case.ranks)
            for script in (timed.case.slow, fixed_script(timed.case, Path(scratch)))
        )
    block_steps = max(1, (steps - WARM_UP) // BLOCKS)
    return Truth(slow, fixed, timed.case.fixed_work, block_steps)


def _run(script: Path, environment: Mapping[str, str], steps: int, ranks: int) -> Side:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words = [*(launcher if ranks > 1 else ()), "-m", "bench.planted_async.clock"]
    done = subprocess.run(
        [sys.executable, *words, str(script), str(steps)],
        cwd=ROOT, env=dict(environment), capture_output=True, text=True, check=False,
        timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{script} failed:\n{done.stderr}")
    *_, printed, measured = done.stdout.splitlines()
    seen = json.loads(measured)
    return Side(**{**seen, "blocks": tuple(seen["blocks"])}, printed=printed)


def main(names: list[str]) -> None:
    print(f"{'script':28}{'profile':>8}{'slow ms':>10}{'busy':>7}{'fixed ms':>10}{'gain':>7}")
    for timed in CASES:
        if names and timed.case.name not in names:
            continue
        truth = measure(timed, os.environ)
        print(
            f"{timed.case.name:28}{timed.profile:>8}{truth.slow.seconds * 1e3:10.2f}"
            f"{truth.slow.busy:7.0%}{truth.fixed.seconds * 1e3:10.2f}{truth.gain_share:7.0%}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
