"""How often is the tool right, and does a script give back what was promised?"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.analyze.accuracy import (
    MOST_GAIN_ERROR,
    NO_ANSWER,
    Goal,
    Judged,
    answer,
    goals,
    judge,
)
from diagnose.analyze.units import MILLISECONDS, PERCENT, Unit, percent
from diagnose.records.accuracy import AccuracyRecord, PlantedCulprit
from diagnose.render.figures import BLUE, FAINT, GREEN, ORANGE, label, new_axes
from diagnose.render.markdown import Markup, escape
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.table import Cell, Column, Doubt, code, missing, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_NAME = "accuracy.svg"
# Beyond twice the real gain a promise is wrong, whatever it is.
_WIDEST_RATIO = 2.2
_THREE_DIGITS = Unit(1e3, significant=3)
_OVERHEAD = Unit(1e2, "%", significant=2)


def page(record: AccuracyRecord) -> Page:
    cases = judge(record)
    reached = goals(cases, is_short=record.is_short)
    unseen = [each for each in cases if each.result.unseen]
    wrong = [each for each in cases if _verdict(each) != "right" and not each.not_planted]
    picture = image("Promised gain over real gain, script by script", FIGURE_NAME, figures(record))
    blocks = [len(each.twins.slow_seconds) for each in record.cases if each.twins is not None]
    return Page(
        header=record.header,
        title=f"{record.header.label}: how often a diagnosis is right",
        question="How often is the diagnosis of a script right?",
        answer=answer(record),
        sections=[
            Section(
                Place.FIRST_SCREEN,
                "Goals",
                [
                    *table(reached, _GOALS),
                    *_raw_error(cases),
                    *picture,
                ],
            ),
            Section(
                Place.FIRST_SCREEN,
                "Scripts that no rule was made for",
                _unseen(unseen, is_short=record.is_short),
            ),
            Section(Place.LEFT, "Where it is wrong", table(wrong, _CASES, "Nowhere.")),
            _folded("Every script", table(cases, _CASES, "No script was diagnosed.")),
            _folded("What it costs to ask", _cost_table(cases)),
        ],
        method=[
            ("tool", record.tool),
            *_length(record),
            ("scripts", f"{len(record.cases)} of {len(record.planned)}"),
            ("blocks of each twin", max(blocks, default=0)),
        ],
    )


def _length(record: AccuracyRecord) -> list[tuple[str, Cell]]:
    if record.script_seconds is None:
        return []
    return [("each script ends by itself after about", f"{record.script_seconds:g} s")]


def _folded(title: str, blocks: Sequence[str]) -> Section:
    return Section(Place.DETAILS, title, blocks, folded=True)


def _unseen(cases: Sequence[Judged], *, is_short: bool) -> list[str]:
    """Rules can be fitted to scripts that are known; these figures cannot."""
    if not cases:
        return []
    return [
        "Written by the catalog of causes alone, without knowledge of how the tool decides; "
        "they are also among the scripts above.",
        *table(goals(cases, is_short=is_short), _GOALS),
    ]


def _raw_error(cases: Sequence[Judged]) -> list[str]:
    errors = [
        abs(each.said_seconds / each.real.center - 1)
        for each in cases
        if each.gain_error is not None and each.real is not None and not each.not_planted
    ]
    if not errors:
        return []
    return [
        "The error is that of shares of a step. In milliseconds, which were measured in different "
        f"minutes, it is {percent(statistics.median(errors))} at the median."
    ]


_GOALS: tuple[Column[Goal], ...] = (
    Column("figure", lambda goal: goal.name),
    Column("goal", lambda goal: goal.wanted, left=True),
    Column(
        "reached", lambda goal: missing("no case") if goal.value is None else goal.value, PERCENT
    ),
    Column(
        "scripts",
        lambda goal: goal.count if goal.right is None else f"{goal.right} of {goal.count}",
    ),
    Column(
        "verdict",
        lambda goal: {True: "met", False: "missed", None: "no case"}[goal.met],
        left=True,
    ),
)


def _verdict(each: Judged) -> str:
    if each.false_alarm:
        return "false alarm"
    if not each.cause_right:
        return "wrong cause"
    if each.line_right is False:
        return "wrong line"
    missed = len(each.result.culprits) - len(each.promised)
    return "right" if missed == 0 else "second cause missed"


def _planted(culprits: Sequence[PlantedCulprit]) -> str:
    places = (
        f"{escape(each.cause)} at {code(f'{each.file}:' + '/'.join(map(str, each.lines)))}"
        for each in culprits
    )
    return Markup(", ".join(places) or "nothing")


def _said(each: Judged) -> Cell:
    if each.result.answer is None:
        return missing(each.result.answer_reason)
    return ", ".join(found.cause for found in each.findings) or NO_ANSWER


def _where(each: Judged) -> str:
    """A healthy script has no line to name."""
    said = each.findings[:1] if not each.is_healthy else ()
    return Markup("".join(code(f"{found.file}:{found.line}") for found in said))


_CASES: tuple[Column[Judged], ...] = (
    Column("script", lambda each: code(each.result.name)),
    Column("planted", lambda each: _planted(each.result.culprits), left=True),
    Column("said", _said, left=True),
    Column("at", _where, left=True),
    Column(
        Markup("real gain ms [95 % interval]"),
        lambda each: missing(each.result.twins_reason) if each.real is None else each.real,
        MILLISECONDS,
    ),
    Column(
        "promised ms",
        lambda each: None if each.is_healthy else each.said_seconds,
        _THREE_DIGITS,
    ),
    Column(
        "promised share × twin's step, ms",
        lambda each: None if each.is_healthy or each.real is None else each.promised_seconds,
        _THREE_DIGITS,
    ),
    Column("error", lambda each: each.gain_error, PERCENT),
    Column(
        "verdict",
        lambda each: Doubt("not counted", each.not_planted) if each.not_planted else _verdict(each),
        left=True,
    ),
)


def _cost_table(cases: Sequence[Judged]) -> list[str]:
    asked = [(each.result, each.result.answer) for each in cases]
    given = [(result, said) for result, said in asked if said is not None]
    overheads = [said.overhead_share.value for _, said in given]
    rows = [
        (
            "seconds from start to answer",
            [result.seconds for result, _ in given],
            Unit(significant=3),
        ),
        ("steps of the script", [float(said.steps) for _, said in given], Unit(significant=3)),
        ("measuring overhead", [each for each in overheads if each is not None], _OVERHEAD),
    ]
    columns: list[Column[tuple[str, list[float], Unit]]] = [
        Column("", lambda row: row[0]),
        Column("median", lambda row: row[2].write(statistics.median(row[1]))),
        Column("most", lambda row: row[2].write(max(row[1]))),
    ]
    return table([row for row in rows if row[1]], columns, "No script was diagnosed.")


def figures(record: AccuracyRecord) -> Mapping[str, Callable[[], Figure]]:
    compared = [each for each in judge(record) if each.gain_error is not None]
    return {FIGURE_NAME: functools.partial(draw_gains, compared)} if compared else {}


def draw_gains(cases: Sequence[Judged]) -> Figure:
    """One row per script: 1 is a promise kept. The goal as a band; what is wrong in orange."""
    rows = sorted(cases, key=_ratio)
    figure, axes = new_axes(1.0 + 0.165 * len(rows))
    axes.axvspan(1 - MOST_GAIN_ERROR, 1 + MOST_GAIN_ERROR, color=GREEN, alpha=0.15, linewidth=0)
    axes.axvline(1, color=GREEN, linewidth=1)
    for place, each in enumerate(rows):
        right = _verdict(each) == "right"
        color = FAINT if each.not_planted else BLUE if right else ORANGE
        ratio = min(_ratio(each), _WIDEST_RATIO)
        assert each.real is not None
        if each.real.ends is not None:
            # A real gain that may be nothing leaves the promise without an upper end.
            ends = [
                each.promised_seconds / end if end > 0 else _WIDEST_RATIO for end in each.real.ends
            ]
            shown = [min(end, _WIDEST_RATIO) for end in ends]
            axes.plot(shown, [place, place], color=color, alpha=0.5)
        axes.plot([ratio], [place], marker="o" if right else "X", markersize=5, color=color)
        if not right:
            text = f"{_verdict(each)}: said {each.said_cause}"
            axes.text(ratio + 0.03, place, label(text), va="center", fontsize=7, color=color)
    axes.set_yticks(range(len(rows)), [label(each.result.name) for each in rows], fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(-0.05, _WIDEST_RATIO + 0.05)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    axes.set_xlabel(
        "promised gain ÷ real gain; the line is the interval of the real one, the band the goal"
    )
    return figure


def _ratio(each: Judged) -> float:
    assert each.real is not None
    return each.promised_seconds / each.real.center


PART = Part(AccuracyRecord, "How often is the diagnosis of a script right?", page, figures)
