"""Which lines of a launch map stand out? What the table, the figure and the annotations share."""

from __future__ import annotations

from diagnose.records.experiments import LaunchLine, LaunchMap

# A line inside a model runs once per layer or loss term by design; a loop over samples or
# positions runs more often than that.
REPEATED_TRIPS = 8


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


def allocated_bytes(of: LaunchMap) -> int:
    return sum(line.allocated_bytes for line in of.lines)


def whole(count: int) -> str:
    """1 152: digits in groups of three."""
    return f"{count:,}".replace(",", " ")


def times(count: int) -> str:
    return "once" if count == 1 else f"{whole(count)} times"
