"""What is wrong in each script for the simulated device, and on which profile?

As in bench/planted, but a script prints its loss once, at the end: a line per step would make the
host wait for the device. `run.py` measures what the repair is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diagnose.measure.twins.cases import ROUNDING, Case, Culprit

HOME = Path(__file__).parent


@dataclass(frozen=True)
class Timed:
    """A script and the device on which its truth holds."""

    case: Case
    profile: str


def _one(name: str, cause: str, profile: str, fixed_work: int = 1) -> Timed:
    # Other rows are in a batch where one step does the work of several.
    tolerance = ROUNDING if fixed_work == 1 else None
    return Timed(
        Case(name, (Culprit(cause),), tolerance, fixed_work=fixed_work, home=HOME), profile
    )


def _healthy(name: str, profile: str) -> Timed:
    return Timed(Case(name, (), ROUNDING, home=HOME), profile)


CASES: tuple[Timed, ...] = (
    _one("input_rows", "input", "slow"),
    _one("launch_rows", "launch", "h100"),
    _one("batch_thin_layers", "batch", "h100", fixed_work=8),
    _healthy("compute_plain", "slow"),
    _healthy("compute_hidden_rows", "slow"),
    _healthy("compute_reads_before_step", "slow"),
    _healthy("compute_reads_after_step", "slow"),
)
