"""Which lines of a launch map stand out, and why?"""

from __future__ import annotations

from diagnose.analyze.optimize.effects import PASS, STEP
from diagnose.analyze.units import percent, scaled
from diagnose.records.experiments import LaunchLine, LaunchMap

# A line inside a model runs once per layer or loss term by design; a loop over samples or
# positions runs more often than that.
REPEATED_TRIPS = 8
# Below a tenth of the step's launches or bytes, even removing the line changes little.
WORTH_A_WARNING = 0.1


def span(of: LaunchMap) -> str:
    """What one map covers."""
    return PASS if of.form == PASS else STEP


def place(line: LaunchLine) -> str:
    """file:line, or the name of a row that stands for no line of the user's."""
    return f"{line.file}:{line.line}" if line.file else line.function


def launches(line: LaunchLine) -> int:
    return line.forward + line.backward


def share(line: LaunchLine, of: LaunchMap) -> float:
    return launches(line) / of.launches if of.launches else 0.0


def source_lines(of: LaunchMap) -> list[LaunchLine]:
    """The lines that somebody can edit, in the map's order: most launches first."""
    return [line for line in of.lines if line.file]


def most_repeated(of: LaunchMap) -> LaunchLine | None:
    """The line with the most launches among those that run often enough to be a loop."""
    return next((line for line in source_lines(of) if line.trips > REPEATED_TRIPS), None)


def by_largest_tensor(of: LaunchMap) -> list[LaunchLine]:
    """Largest single tensor first; of equals, the line that makes more of them."""
    lines = [line for line in source_lines(of) if line.largest_bytes]
    return sorted(lines, key=lambda line: (-line.largest_bytes, -line.allocated_bytes))


def describe_launches(line: LaunchLine, of: LaunchMap) -> str:
    backward = f", {whole(line.backward)} of them in the backward pass" if line.backward else ""
    return (
        f"runs {_times(line.trips)} per {span(of)} and launches {whole(launches(line))} of "
        f"{whole(of.launches)} operators ({percent(share(line, of))}){backward}"
    )


def find_reasons(line: LaunchLine, of: LaunchMap) -> list[str]:
    """Why a line stands out: it loops, makes the host wait, or makes the largest tensor."""
    reasons = []
    if share(line, of) >= WORTH_A_WARNING and line.trips > REPEATED_TRIPS:
        reasons.append(describe_launches(line, of))
    if line.syncs:
        reasons.append(
            f"makes the host wait for an accelerator {_times(line.syncs)} per {span(of)} "
            f"({', '.join(line.sync_operators)})"
        )
    allocated = sum(each.allocated_bytes for each in of.lines)
    part = line.allocated_bytes / allocated if allocated else 0.0
    if line in by_largest_tensor(of)[:1] and part >= WORTH_A_WARNING:
        reasons.append(
            f"makes the largest tensor of the {span(of)}, {scaled(line.largest_bytes, 'B')}, and "
            f"allocates {scaled(line.allocated_bytes, 'B')} ({percent(part)} of all)"
        )
    return reasons


def whole(count: int) -> str:
    """1 152: digits in groups of three."""
    return f"{count:,}".replace(",", " ")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{whole(count)} times"
