"""Which line of the code launches the work, makes the host wait, takes the memory?"""

from __future__ import annotations

from diagnose.analyze.optimize.launches import (
    allocated_bytes,
    by_largest_tensor,
    launches,
    most_repeated,
    place,
    share,
    source_lines,
    times,
    whole,
)
from diagnose.analyze.units import number, percent, scaled
from diagnose.records.experiments import LaunchLine, LaunchMap
from diagnose.render.markdown import Align, Footnotes, prose, table

# The lines after these launch a few operators each: a list of them is the program again.
MOST_LINES = 10

_LAUNCH_HEADERS = (
    "line",
    "code",
    "forward",
    "backward",
    "runs",
    "% of launches",
    "self ms",
    "allocated",
    "largest tensor",
)
_LAUNCH_ALIGN: tuple[Align, ...] = ("left", "left") + ("right",) * 7
_SYNC_ALIGN: tuple[Align, ...] = ("left", "left", "right", "left")
_MEMORY_ALIGN: tuple[Align, ...] = ("left", "left", "right", "right", "right")


def launch_map(map: LaunchMap) -> list[str]:  # noqa: A002 - the name of what it is
    """The answer, the lines by launches, by synchronisations and by memory, and how to read it."""
    if not map.launches:
        return ["No operator ran in the step."]
    blocks: list[str] = [prose(" ".join(_answers(map)))]
    if map.lines:
        blocks += [*_launch_table(map), *_sync_table(map), *_memory_table(map)]
    notes = [
        "Launches that belong to no line of the job's own code: "
        f"{whole(map.unattributed)} of {whole(map.launches)}.",
        *map.notes,
    ]
    return [*blocks, "\n".join(f"- {prose(note)}" for note in notes)]


def _answers(of: LaunchMap) -> list[str]:
    lines = source_lines(of)
    if not lines:
        return [f"None of the {whole(of.launches)} launches comes from a line of the job's code."]
    sentences = [_blame(lines[0], of)]
    repeated = most_repeated(of)
    if repeated is not None and repeated is not lines[0]:
        sentences.append(_blame(repeated, of))
    waiting = [line for line in lines if line.syncs]
    if waiting:
        count = sum(line.syncs for line in waiting)
        most = max(waiting, key=lambda line: line.syncs)
        sentences.append(
            f"The host must wait for an accelerator {times(count)} per step, "
            f"{whole(most.syncs)} of {whole(count)} at {place(most)}."
        )
    return sentences + _largest(of)


def _largest(of: LaunchMap) -> list[str]:
    lines = by_largest_tensor(of)
    if not lines:
        return []
    line, nbytes = lines[0], lines[0].largest_bytes
    equal = sum(each.largest_bytes == nbytes for each in lines) - 1
    others = f" (one as large at {equal} other line{'s' * (equal > 1)})" if equal else ""
    return [
        f"The largest tensor, {scaled(nbytes, 'B')} ({whole(nbytes)} bytes), is made at "
        f"{place(line)}, which allocates {scaled(line.allocated_bytes, 'B')} per step{others}."
    ]


def _blame(line: LaunchLine, of: LaunchMap) -> str:
    return (
        f"{place(line)} in {line.function} launches {whole(launches(line))} of "
        f"{whole(of.launches)} operators ({percent(share(line, of))}), "
        f"{whole(line.backward)} of them in the backward pass: "
        f"it runs {times(line.trips)} per step."
    )


def _launch_table(of: LaunchMap) -> list[str]:
    notes = Footnotes()
    rows = [
        [
            place(line),
            line.code,
            whole(line.forward),
            whole(line.backward),
            whole(line.trips),
            percent(share(line, of)),
            notes.missing(line.seconds.reason)
            if line.seconds.value is None
            else number(1e3 * line.seconds.value, 3),
            scaled(line.allocated_bytes, "B"),
            scaled(line.largest_bytes, "B"),
        ]
        for line in of.lines[:MOST_LINES]
    ]
    blocks = [table(_LAUNCH_HEADERS, rows, _LAUNCH_ALIGN)]
    rest = of.lines[MOST_LINES:]
    if rest:
        count = sum(launches(line) for line in rest)
        blocks.append(f"{len(rest)} more lines launch {whole(count)} operators together.")
    return [*blocks, "\n".join(notes.lines())] if notes.lines() else blocks


def _sync_table(of: LaunchMap) -> list[str]:
    waiting = sorted(
        (line for line in of.lines if line.syncs), key=lambda line: (-line.syncs, place(line))
    )
    if not waiting:
        return ["No line makes the host wait for an accelerator."]
    rows = [
        [place(line), line.code, whole(line.syncs), ", ".join(line.sync_operators)]
        for line in waiting
    ]
    headers = ["line that synchronises", "code", "times per step", "operators"]
    return [table(headers, rows, _SYNC_ALIGN)]


def _memory_table(of: LaunchMap) -> list[str]:
    total = allocated_bytes(of)
    rows = [
        [
            place(line),
            line.code,
            scaled(line.largest_bytes, "B"),
            scaled(line.allocated_bytes, "B"),
            percent(line.allocated_bytes / total),
        ]
        for line in by_largest_tensor(of)[:MOST_LINES]
    ]
    headers = ["line by its largest tensor", "code", "largest tensor", "allocated", "% of all"]
    return [table(headers, rows, _MEMORY_ALIGN)] if rows else []
