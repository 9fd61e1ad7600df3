"""What did each change bring? The before/after tables, and what every verdict in them rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.optimize.experiment import Outcome, energy_ratio, memory_change, worst_check
from diagnose.analyze.units import milliseconds, number, percent, scaled, spread
from diagnose.records.experiments import Comparison
from diagnose.records.header import Reading, Setting
from diagnose.render.markdown import Align, Footnotes, Markup, escape, prose, table

# The forward pass alone and the whole step are different questions, so they never share a table.
_SCOPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Full training step", ("training step",)),
    ("Full training epoch", ("training epoch",)),
    ("Full evaluation pass", ("evaluation pass",)),
    ("Forward pass only", ("forward",)),
    ("Input pipeline and other parts", ()),
)
_HEADERS = (
    "optimisation",
    "scope",
    "before ms",
    "after ms",
    Markup("speed-up [95 % interval]"),
    "verdict",
    "equal results?",
    "peak memory",
    "energy per sample",
    "detectable ≥",
    "blocks",
)
_ALIGN: tuple[Align, ...] = (
    *("left", "left", "right", "right", "right", "left", "left"),
    *("right", "right", "right", "right"),
)
_WORDS = (
    "**FASTER**, **SLOWER**: the whole interval lies beyond the margin, and the change stays "
    "proven among all experiments (Holm, 5 %). The margin is 1 %, or what the same code differs "
    "from itself by where that is more.",
    "**SAME**: the whole interval lies within the margin. The column *detectable* says how small "
    "an effect would have been seen in 80 % of cases.",
    "**INCONCLUSIVE**: neither. More blocks or a quieter machine would decide it.",
    "**NOT\\_EQUAL**: both sides do not compute the same, so there is no speed to tell.",
    "**INVALID**: something disturbed the experiment; the reason stands below the table.",
    "**FAILED**, **SKIPPED**: it could not be run; the reason stands below the table.",
)
# Only where it was given: most workloads have no such change.
_OTHER_MODEL = "**OTHER\\_MODEL**: the change makes another model, so there is no speed-up to tell."

_OTHER_ANSWERS = (
    "**OTHER\\_ANSWERS**: the change cuts answers short, so there is no speed-up to tell; its time "
    "stands beside its coverage."
)


def before_after(outcomes: Sequence[Outcome]) -> list[str]:
    """One table per scope; the published form of a change follows the correct one."""
    if not outcomes:
        return ["No experiment was run."]
    blocks, left = [], list(outcomes)
    for title, scopes in _SCOPES:
        # A change that ended before it was timed carries all of its scopes.
        chosen = [
            each
            for each in left
            if not scopes or set(each.comparison.scope.split(" / ")) & set(scopes)
        ]
        left = [each for each in left if each not in chosen]
        if chosen:
            notes = Footnotes()
            rows = [_row(each, notes) for each in _published_last(chosen)]
            blocks += [f"### {title}", table(_HEADERS, rows, _ALIGN), *_lines(notes)]
    words = list(_WORDS)
    if any(each.verdict == "OTHER_MODEL" for each in outcomes):
        words.append(_OTHER_MODEL)
    if any(each.verdict == "OTHER_ANSWERS" for each in outcomes):
        words.append(_OTHER_ANSWERS)
    return [*blocks, "\n".join(f"- {line}" for line in words)]


def evidence(outcomes: Sequence[Outcome]) -> list[str]:
    """What each verdict rests on: control, margin, cross-check and the family's p."""
    rows = [
        [
            each.name,
            each.comparison.scope,
            spread(each.timed.control),
            percent(each.timed.margin),
            spread(each.timed.cross_check),
            _p_text(each.timed.p_value),
            "" if each.family_p is None else _p_text(each.family_p),
            "; ".join(each.flags),
        ]
        for each in outcomes
        if each.timed is not None
    ]
    if not rows:
        return []
    headers = [
        "optimisation",
        "scope",
        "same code against itself",
        "margin",
        "speed-up by paired t",
        "p",
        "p after Holm",
        "flags",
    ]
    align: tuple[Align, ...] = ("left", "left", *("right",) * 5, "left")
    return [table(headers, rows, align)]


def facts(outcomes: Sequence[Outcome]) -> list[str]:
    """What the experiments recorded beside the times: compile time, graph breaks, bytes."""
    lines: dict[tuple[str, str], str] = {}
    for each in outcomes:
        told = [f"{_fact_name(name)} {_fact(name, v)}" for name, v in each.comparison.facts.items()]
        told += each.comparison.notes
        if told:
            text, place = "; ".join(told), f"{each.name}, {each.comparison.scope}"
            # Every scope of a change carries the same facts; one line tells them.
            line = f"- {escape(place)}: {prose(text)}"
            lines.setdefault((each.comparison.key, text), line)
    return ["\n".join(lines.values())] if lines else []


def _published_last(outcomes: Sequence[Outcome]) -> list[Outcome]:
    keys = list(dict.fromkeys(each.comparison.key for each in outcomes))
    return sorted(
        outcomes,
        key=lambda each: (keys.index(each.comparison.key), each.comparison.form != "after"),
    )


def _row(outcome: Outcome, notes: Footnotes) -> list[str]:
    comparison, timed = outcome.comparison, outcome.timed
    why = f"{outcome.verdict}: {outcome.reason}"
    # Where results differ, a reader would divide the two times if they stood here.
    times = [
        milliseconds(derive.step_seconds(side))
        if side is not None and side.timing.slot_seconds and timed is not None
        else notes.missing(why)
        for side in (comparison.before, comparison.after)
    ]
    verdict: str = outcome.verdict
    if timed is not None and outcome.reason:
        verdict = Markup(f"{escape(outcome.verdict)} {notes.missing(outcome.reason)[1:]}")
    return [
        _title(outcome),
        comparison.scope,
        *times,
        notes.missing(why) if timed is None else f"{spread(timed.speedup)}x",
        verdict,
        _equality(comparison, notes),
        _memory(outcome, notes, why),
        _energy(outcome, notes, why),
        notes.missing(why) if timed is None else _reading(timed.detectable, notes),
        notes.missing(why) if timed is None else str(timed.blocks),
    ]


def _title(outcome: Outcome) -> str:
    comparison = outcome.comparison
    if comparison.form == "after":
        return f"{comparison.key}: {comparison.title}"
    return f"{comparison.key}, as published: {comparison.after_text}"


def _equality(comparison: Comparison, notes: Footnotes) -> str:
    equality = comparison.equality
    if equality is None or not equality.checks:
        return notes.missing("no proof of equal results was recorded")
    worst = worst_check(equality.checks)
    if all(check.equal for check in equality.checks):
        answer = "yes"
    else:
        answer = "no" if equality.claim == "equal" else "not claimed"
    found = "shape or finiteness differs" if worst.worst is None else f"worst {worst.worst:.1e}"
    if worst.worst == 0:
        found = "bit for bit"
    text = f"{answer} ({worst.name}: {found}, allowed {worst.tolerance:.0e}"
    counted = [c for c in equality.checks if not c.equal and c.differing_samples is not None]
    if counted:
        most = max(counted, key=lambda check: check.differing_samples or 0)
        text += f"; {most.differing_samples} of {most.samples} samples differ"
    return text + ")"


def _memory(outcome: Outcome, notes: Footnotes, why: str) -> str:
    if outcome.timed is None:
        return notes.missing(why)
    change = memory_change(outcome.comparison)
    if change.value is None:
        return notes.missing(change.reason)
    return f"{'+' if change.value > 0 else ''}{scaled(change.value, 'B')}"


def _energy(outcome: Outcome, notes: Footnotes, why: str) -> str:
    if outcome.timed is None:
        return notes.missing(why)
    ratio = energy_ratio(outcome.comparison)
    return notes.missing(ratio.reason) if ratio.value is None else _signed_percent(ratio.value - 1)


def _reading(reading: Reading, notes: Footnotes) -> str:
    return notes.missing(reading.reason) if reading.value is None else percent(reading.value)


def _signed_percent(share: float) -> str:
    return f"{'+' if share > 0 else ''}{percent(share)}"


def _fact_name(name: str) -> str:
    for unit in ("_seconds", "_bytes", "_share"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _fact(name: str, value: Setting) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "not finite"
    if name.endswith("_bytes"):
        return scaled(value, "B")
    if name.endswith("_share"):
        return percent(value)
    return f"{number(value)} s" if name.endswith("_seconds") else f"{value:g}"


def _p_text(value: float) -> str:
    return f"{value:.2g}"


def _lines(notes: Footnotes) -> list[str]:
    return ["\n".join(notes.lines())] if notes.lines() else []
