"""What does a person read about a change? The verdicts, both sides beside each other, the lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.analyze.prove.proof import prove
from diagnose.analyze.script.words import name_line
from diagnose.analyze.units import BYTES, MILLISECONDS, Unit, number, percent
from diagnose.records.header import Reading
from diagnose.records.prove import (
    AFTER,
    Equality,
    LineChange,
    Proof,
    ProveRecord,
    SideFacts,
    Speed,
    starts_of,
)
from diagnose.records.stats import Interval
from diagnose.render.markdown import Markup, github_warning, prose
from diagnose.render.page import Page, Place, Section
from diagnose.render.part import Part
from diagnose.render.table import Cell, Column, code, missing, table, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

JOULES = Unit(suffix="J")


@dataclass(frozen=True)
class _Row:
    what: str
    before: Cell
    after: Cell
    verdict: Cell = None


def summarize(proof: Proof) -> str:
    """As Markdown: for a terminal, a pull request and the summary of a job."""
    blocks = [f"**{prose(proof.sentence)}**", *_sides(proof), *_lines(proof)]
    blocks += ["\n".join(f"- {prose(each)}" for each in proof.notes)] if proof.notes else []
    return "\n\n".join(blocks)


def _sides(proof: Proof) -> list[str]:
    speed, equality = proof.speed, proof.equality
    nothing = missing(speed.reason or "nothing was timed")
    rows = [
        _Row(
            f"time per {speed.per}"
            if speed.per == "step"
            else "time per step before, same samples",
            nothing if speed.before_ms is None else f"{number(speed.before_ms)} ms",
            nothing if speed.after_ms is None else f"{number(speed.after_ms)} ms",
            f"{speed.verdict} {_ratio(speed)}".strip(),
        ),
        _Row("results", *_values(equality), equality.text),
        _Row("peak memory", *(written(each, BYTES) for each in proof.memory_bytes)),
        _Row("energy per step", *(written(each, JOULES) for each in proof.joules_per_step)),
    ]
    if speed.samples_per_second is not None:
        rows.insert(1, _Row("samples per second", *map(number, speed.samples_per_second)))
    columns: list[Column[_Row]] = [
        Column("", lambda row: row.what),
        Column(proof.before, lambda row: row.before),
        Column(proof.after, lambda row: row.after),
        Column("verdict", lambda row: row.verdict, left=True),
    ]
    reasons = [each for each in (speed.reason, equality.reason) if each]
    return [*table(rows, columns), *(prose(each[0].upper() + each[1:] + ".") for each in reasons)]


def _ratio(speed: Speed) -> str:
    if speed.ratio is None:
        return ""
    if speed.ratio_ci is None:
        return f"{number(speed.ratio)}x"
    return f"{Unit().write(Interval(speed.ratio, *speed.ratio_ci))}x"


def _values(equality: Equality) -> tuple[Cell, Cell]:
    """Where they differ, both values; else how far they were compared."""
    if equality.verdict == "DIVERGES" and equality.allowed is not None:
        return (
            f"{equality.what} {_value(equality.before)}",
            f"{equality.what} {_value(equality.after)}",
        )
    return (f"{equality.steps} steps" if equality.steps else None), None


def _value(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.8g}"


def _lines(proof: Proof) -> list[str]:
    columns: list[Column[LineChange]] = [
        Column("line", lambda each: _name(each)),
        Column("code", lambda each: code(each.code), left=True),
        Column("phase", lambda each: each.phase, left=True),
        Column("before ms", lambda each: each.before_ms / 1e3, MILLISECONDS),
        Column("after ms", lambda each: each.after_ms / 1e3, MILLISECONDS),
        Column("edited lines", _edited, left=True),
    ]
    return table(proof.lines, columns)


def _name(change: LineChange) -> Markup:
    return code(name_line(change.file, change.line))


def _edited(change: LineChange) -> str:
    if change.edit is None:
        return ""
    first, last = change.edit
    return str(first) if first == last else f"{first}-{last}"


def annotate(proof: Proof) -> list[str]:
    """For GitHub: a warning on the line that got slower."""
    if proof.speed.verdict != "SLOWER":
        return []
    slower = [each for each in proof.lines if each.side == AFTER]
    named = [each for each in slower if each.edited] or slower
    return [
        github_warning(
            each.file,
            each.line,
            f"takes {number(each.after_ms, 3)} ms per step, before {number(each.before_ms, 3)} ms",
        )
        for each in named[:1]
    ]


def outputs(proof: Proof) -> dict[str, str]:
    """What a step of a workflow hands on."""
    ratio = proof.speed.ratio
    return {
        "speed": proof.speed.verdict,
        "ratio": "" if ratio is None else f"{ratio:.4f}",
        "equality": proof.equality.text,
    }


# --- in the report ---


def page(record: ProveRecord) -> Page:
    proof = prove(record)
    return Page(
        header=record.header,
        title=f"{record.header.label}: {record.before.title} against {record.after.title}",
        question="Is the change faster, and does it compute the same?",
        answer=proof.sentence,
        sections=[
            Section(Place.FIRST_SCREEN, "Before and after", _sides(proof)),
            Section(Place.BEFORE_AFTER, "Which lines changed their time", _lines(proof)),
            Section(Place.LEFT, "Notes", ["\n".join(f"- {prose(each)}" for each in proof.notes)])
            if proof.notes
            else Section(Place.LEFT, "Notes", []),
            Section(Place.DETAILS, "Phases of a step", _phases(proof), folded=True),
        ],
        method=_method(record, proof),
    )


def _phases(proof: Proof) -> list[str]:
    columns: list[Column[tuple[str, tuple[float, float]]]] = [
        Column("phase", lambda row: row[0]),
        Column("before ms", lambda row: row[1][0] / 1e3, MILLISECONDS),
        Column("after ms", lambda row: row[1][1] / 1e3, MILLISECONDS),
    ]
    return table(proof.phases.items(), columns)


def _method(record: ProveRecord, proof: Proof) -> list[tuple[str, Cell]]:
    control = proof.speed.control
    rows: list[tuple[str, Cell]] = [
        ("before", _named(record.before)),
        ("after", _named(record.after)),
        ("starts of both sides", len(starts_of(record.windows))),
        ("blocks of three windows", proof.speed.blocks),
        ("confidence of the interval, at any time", percent(proof.speed.confidence)),
        ("steps compared", proof.equality.steps),
    ]
    if record.arguments:
        rows.append(("arguments of the script", shlex.join(record.arguments)))
    if control is not None:
        rows.append(("a side against itself", Reading(control)))
    return rows


def _named(facts: SideFacts) -> str:
    git = f", commit {facts.commit[:12]}, tree {facts.tree[:12]}" if facts.commit else ""
    return f"{facts.title} ({facts.script}{git})"


def figures(record: ProveRecord) -> Mapping[str, Callable[[], Figure]]:
    return {}


PART = Part(ProveRecord, "Is the change faster, and does it compute the same?", page, figures)
