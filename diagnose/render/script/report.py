"""What does a person read about their script? The answer, the causes, and what is not it.

A page with one figure: where a step's time goes, and what each cause would save.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.analyze.script.claims import gain_of, usual_seconds
from diagnose.analyze.script.rules import diagnose
from diagnose.analyze.script.words import name_line
from diagnose.analyze.units import MILLISECONDS, PERCENT, number, percent
from diagnose.records.diagnosis import Diagnosis, ScriptFinding
from diagnose.records.script import Change, ScriptRecord, Site, Suspect
from diagnose.records.stats import Interval
from diagnose.render.figures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    label,
    new_axes,
)
from diagnose.render.markdown import prose
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.script.terminal import (
    excluded_lines,
    how,
    undecided_lines,
    unknown_lines,
    write_option,
)
from diagnose.render.table import Cell, Column, code, missing, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_NAME = "script.svg"
MOST_LINES = 12
_COLORS = {
    "input": ORANGE,
    "forward": BLUE,
    "backward": SKY,
    "optimizer": GREEN,
    "host": PURPLE,
    "evaluation": "#E69F00",
    "checkpoint": "#F0E442",
    "logging": "#882255",
    "communication": "#000000",
}


# --- in the report ---


def page(record: ScriptRecord) -> Page:
    diagnosis = diagnose(record)
    return Page(
        header=record.header,
        title=f"{record.header.label}: where the time of {record.script} goes",
        question="Why is the script slow?",
        answer=diagnosis.sentence,
        sections=[
            Section(
                Place.FIRST_SCREEN, "Where a step's time goes", _first_screen(record, diagnosis)
            ),
            Section(Place.TO_DO, "What to do", _advice(record, diagnosis.findings)),
            Section(
                Place.TO_DO, _options(diagnosis), bullets(map(write_option, diagnosis.options))
            ),
            Section(Place.EXCLUDED, "Excluded", bullets(excluded_lines(diagnosis))),
            Section(Place.LEFT, "Undecided", bullets(undecided_lines(diagnosis))),
            Section(Place.LEFT, "Unknown", bullets(unknown_lines(diagnosis))),
            Section(Place.LEFT, "Notes", bullets(diagnosis.notes)),
            Section(Place.DETAILS, "Everything that was tried", _tried(record), folded=True),
            Section(Place.DETAILS, "Lines that take the most time", _busiest(record), folded=True),
        ],
        method=_method(record, diagnosis),
    )


def _options(diagnosis: Diagnosis) -> str:
    return "Options" if any(each.tried for each in diagnosis.options) else "Options, not tried"


def _first_screen(record: ScriptRecord, diagnosis: Diagnosis) -> list[str]:
    causes = [each for each in diagnosis.findings if each.cause != "compute"]
    columns: list[Column[ScriptFinding]] = [
        Column("cause", lambda each: each.cause),
        Column("line", lambda each: code(name_line(each.file, each.line)), left=True),
        Column("saves ms per step", lambda each: _gain(each), MILLISECONDS),
        Column("of a step", lambda each: each.share, PERCENT),
        Column("how it is known", how, left=True),
    ]
    return [
        *image("phases of a step, and what each cause would save", FIGURE_NAME, figures(record)),
        *table(causes, columns),
    ]


def _gain(finding: ScriptFinding) -> Interval:
    low, high = finding.gain_ci
    return Interval(finding.gain_ms / 1e3, low / 1e3, high / 1e3)


def _advice(record: ScriptRecord, findings: Sequence[ScriptFinding]) -> list[str]:
    lines = []
    for each in findings:
        line = f"- **{each.cause}** at {code(name_line(each.file, each.line))}"
        text = _source(record, each)
        line += f" ({code(text)}): " if text else ": "
        lines.append(f"{line}{prose(each.advice)}. Evidence: {prose(each.evidence)}.")
    return ["\n".join(lines)] if lines else []


def _source(record: ScriptRecord, finding: ScriptFinding) -> str:
    """The statement itself, as it stood when it was measured."""
    growth = record.growth.site if record.growth is not None else None
    sites: list[Site | None] = [
        *(each.site for each in record.suspects),
        *(each.site for each in record.changes),
        record.double_site,
        record.autocast.site if record.autocast is not None else None,
        growth,
    ]
    here = (finding.file, finding.line)
    return next((each.code for each in sites if each and (each.file, each.line) == here), "")


def bullets(texts: Iterable[str]) -> list[str]:
    lines = [f"- {prose(each)}" for each in texts]
    return ["\n".join(lines)] if lines else []


def _tried(record: ScriptRecord) -> list[str]:
    usual = usual_seconds(record)

    def gain(change: Change) -> Cell:
        if change.failed:
            return missing(f"the script failed with {change.failed}")
        windows = record.windows if len(record.ranks) < 2 else record.ranks[0].windows
        found = gain_of(windows, change, usual)
        if found is None:
            return missing("too few windows for an interval")
        # What doubling a line adds is what the line costs.
        return found

    columns: list[Column[Change]] = [
        Column("change", lambda each: each.what),
        Column("cause", lambda each: each.cause, left=True),
        Column("line", lambda each: code(_name(each.site)), left=True),
        Column("ms per step", gain, MILLISECONDS),
    ]
    told = (
        "Saved by the change, or added where a line ran twice, against unchanged steps beside it."
    )
    return [told, *table(record.changes, columns)] if record.changes else []


def _name(site: Site | None) -> str:
    return name_line(site.file, site.line) if site is not None else ""


def _busiest(record: ScriptRecord) -> list[str]:
    return table(record.suspects[:MOST_LINES], suspect_columns())


def suspect_columns() -> list[Column[Suspect]]:
    return [
        Column("line", lambda each: code(_name(each.site))),
        Column("code", lambda each: code(each.site.code), left=True),
        Column("phase", lambda each: each.phase, left=True),
        Column("ms per step", lambda each: each.seconds, MILLISECONDS),
        Column("backward ms", lambda each: each.backward_seconds or None, MILLISECONDS),
        Column("operators", lambda each: each.launches),
        Column("runs", lambda each: each.trips),
        Column("values read", lambda each: each.syncs or None),
    ]


def _method(record: ScriptRecord, diagnosis: Diagnosis) -> list[tuple[str, Cell]]:
    rows: list[tuple[str, Cell]] = [
        ("script", record.script),
        ("a step ends with", f"{'an' if record.boundary[0] in 'aeiou' else 'a'} {record.boundary}"),
        ("steps seen", record.steps),
    ]
    if "share" in diagnosis.overhead:
        share = percent(diagnosis.overhead["share"])
        rows.append(("measuring overhead", f"{share} of an unmodified step"))
    return rows


def figures(record: ScriptRecord) -> Mapping[str, Callable[[], Figure]]:
    if not record.phases or not record.step_seconds:
        return {}
    return {FIGURE_NAME: functools.partial(draw_step, diagnose(record))}


def draw_step(diagnosis: Diagnosis) -> Figure:
    """One step as a stacked bar of its phases; below it what each cause would save."""
    causes = [each for each in diagnosis.findings if each.cause != "compute"]
    figure, axes = new_axes(1.7 + 0.42 * (len(causes) + len(diagnosis.excluded)))
    names, start = ["one step"], 0.0
    for phase, ms in diagnosis.phases.items():
        width = max(0.0, ms)
        color = _COLORS.get(phase, FAINT)
        axes.barh(0, width, left=start, height=0.62, color=color, label=f"{phase} {number(ms, 3)}")
        start += width
    for place, each in enumerate(causes, start=1):
        names.append(each.cause)
        fill = INK if each.verified else "white"
        axes.barh(place, each.gain_ms, height=0.4, facecolor=fill, edgecolor=INK)
        axes.plot(each.gain_ci, [place, place], color=FAINT, linewidth=2)
        text = f"{number(each.gain_ms, 3)} ms, {label(name_line(each.file, each.line))}"
        axes.text(max(each.gain_ms, each.gain_ci[1]) + 0.015 * start, place, text, va="center")
    for place, out in enumerate(diagnosis.excluded, start=1 + len(causes)):
        names.append(out.cause)
        most = max(0.0, out.gain_ci[1])
        axes.plot([0, most], [place, place], color=FAINT, linewidth=2)
        text = f"excluded: at most {number(most, 3)} ms"
        axes.text(most + 0.015 * start, place, text, va="center", color=FAINT)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.05 * start)
    axes.set_xlabel("ms per step; filled: tried, open: estimated, with the 95 % interval")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    return figure


PART = Part(ScriptRecord, "Why is the script slow?", page, figures)
