"""What should GitHub show beside the code? One workflow command per line that stands out."""

from __future__ import annotations

from diagnose.analyze.optimize.launches import (
    REPEATED_TRIPS,
    allocated_bytes,
    by_largest_tensor,
    launches,
    share,
    source_lines,
    times,
    whole,
)
from diagnose.analyze.units import percent, scaled
from diagnose.records.experiments import LaunchLine, LaunchMap
from diagnose.render.markdown import clean

# Below a tenth of the step's launches or bytes, even removing the line changes little.
WORTH_A_WARNING = 0.1


def annotate(map: LaunchMap) -> list[str]:  # noqa: A002 - the name of what it is
    """A warning for each line that loops, synchronises, or makes the largest tensor."""
    found = []
    for line in source_lines(map):
        reasons = _reasons(line, map)
        if reasons:
            message = f"{'; '.join(reasons)}: {clean(line.code)}"
            found.append(
                f"::warning file={_escape_property(line.file)},line={line.line}"
                f"::{_escape_data(message)}"
            )
    return found


def _reasons(line: LaunchLine, of: LaunchMap) -> list[str]:
    reasons = []
    if share(line, of) >= WORTH_A_WARNING and line.trips > REPEATED_TRIPS:
        reasons.append(
            f"runs {times(line.trips)} per step and launches {whole(launches(line))} of "
            f"{whole(of.launches)} operators ({percent(share(line, of))}), "
            f"{whole(line.backward)} of them in the backward pass"
        )
    if line.syncs:
        reasons.append(
            f"makes the host wait for an accelerator {times(line.syncs)} per step "
            f"({', '.join(line.sync_operators)})"
        )
    part = line.allocated_bytes / allocated_bytes(of) if line.allocated_bytes else 0.0
    if line in by_largest_tensor(of)[:1] and part >= WORTH_A_WARNING:
        reasons.append(
            f"makes the largest tensor of the step, {scaled(line.largest_bytes, 'B')}, and "
            f"allocates {scaled(line.allocated_bytes, 'B')} ({percent(part)} of all)"
        )
    return reasons


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
