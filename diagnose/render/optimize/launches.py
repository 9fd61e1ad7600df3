"""Which line of the code launches the work, makes the host wait, takes the memory?"""

from __future__ import annotations

import re

from diagnose.analyze.optimize.launches import (
    by_largest_tensor,
    describe_launches,
    find_reasons,
    launches,
    most_repeated,
    place,
    share,
    source_lines,
    whole,
)
from diagnose.analyze.units import MILLISECONDS, percent, scaled
from diagnose.records.experiments import LaunchLine, LaunchMap
from diagnose.render.markdown import clean, prose
from diagnose.render.table import Column, code, table

# The lines after these launch a few operators each: a list of them is the program again.
MOST_LINES = 10
MOST_LARGEST = 3


def blamed_line(of: LaunchMap) -> list[str]:
    """The loop that launches most, else the line that does, as code, and why."""
    lines = source_lines(of)
    if not lines:
        return [f"None of the {whole(of.launches)} launches comes from a line of the job's code."]
    line = most_repeated(of) or lines[0]
    reasons = dict.fromkeys([describe_launches(line, of), *find_reasons(line, of)])
    return [f"{code(place(line))} {prose('; it '.join(reasons))}.", code_block(line)]


def code_block(line: LaunchLine) -> str:
    """The line as it stands, in a fence that it cannot close."""
    text = f"{clean(line.code)}  # {clean(place(line))}, in {clean(line.function)}"
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{text}\n{fence}"


def launch_map(of: LaunchMap) -> list[str]:
    """The lines that stand out by launches, synchronizations or memory, and how to read it."""
    lines = _stand_out(of)
    blocks = table(
        lines,
        [
            Column("line", lambda line: code(place(line))),
            Column("code", lambda line: code(line.code), left=True),
            Column("forward", lambda line: whole(line.forward)),
            Column("backward", lambda line: whole(line.backward)),
            Column("runs", lambda line: whole(line.trips)),
            Column("% of launches", lambda line: percent(share(line, of))),
            Column("self ms", lambda line: line.seconds, MILLISECONDS),
            Column("host waits", lambda line: whole(line.syncs) if line.syncs else None),
            Column("for", lambda line: code(", ".join(line.sync_operators)), left=True),
            Column("allocated", lambda line: scaled(line.allocated_bytes, "B")),
            Column("largest tensor", lambda line: scaled(line.largest_bytes, "B")),
        ],
    )
    rest = [line for line in of.lines if line not in lines]
    count = sum(launches(line) for line in rest)
    notes = [
        *([f"{len(rest)} more lines launch {whole(count)} operators together."] if rest else []),
        "Launches that belong to no line of the job's own code: "
        f"{whole(of.unattributed)} of {whole(of.launches)}.",
        *of.notes,
    ]
    return [*blocks, "\n".join(f"- {prose(note)}" for note in notes)]


def _stand_out(of: LaunchMap) -> list[LaunchLine]:
    """The lines with the most launches, those that wait, and those with the largest tensors."""
    largest = by_largest_tensor(of)[:MOST_LARGEST]
    return [
        line
        for place, line in enumerate(of.lines)
        if place < MOST_LINES or line.syncs or line in largest
    ]
