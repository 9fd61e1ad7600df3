"""What did each change bring? The before/after tables, and what every verdict in them rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from diagnose.analyze import derive
from diagnose.analyze.optimize.effects import (
    break_even_steps,
    is_bundle,
    is_whole,
    speed,
    starts_elsewhere,
    waiting_shares,
    widest,
)
from diagnose.analyze.optimize.experiment import (
    Outcome,
    Timed,
    describe_worst,
    energy_change,
    memory_change,
    worst_check,
)
from diagnose.analyze.optimize.work import work_gain
from diagnose.analyze.units import BYTES, MILLISECONDS, PERCENT, TIMES, number, percent, scaled
from diagnose.records.experiments import DATA_WAIT, Comparison
from diagnose.records.header import Setting
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval
from diagnose.render.markdown import escape, prose
from diagnose.render.table import Cell, Column, Doubt, code, missing, table

# The forward pass alone and the whole step are different questions, so they never share a table.
_SCOPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Full training step", ("training step",)),
    ("Full training epoch", ("training epoch",)),
    ("Full evaluation pass", ("evaluation pass",)),
    ("Forward pass only", ("forward",)),
    ("Input pipeline and other parts", ()),
)
_UNPROVEN = (
    ("SAME", "No difference within the margin"),
    ("INCONCLUSIVE", "Undecided"),
    ("OTHER_MODEL", "Another model, so neither side is faster"),
    ("OTHER_ANSWERS", "Answers change, so neither side is faster"),
)
# These stand beside the times.
_IN_COLUMNS = [DATA_WAIT.format(side) for side in ("before", "after")]


def proven_changes(outcomes: Sequence[Outcome]) -> list[str]:
    """Each change once: the proven ones in a table, the others by name."""
    single = [each for each in widest(outcomes) if not is_bundle(each.comparison)]
    shown = sorted((each for each in single if each.verdict in ("FASTER", "SLOWER")), key=_rank)
    blocks = table(
        shown,
        [
            Column("change", lambda each: code(each.comparison.key)),
            Column("before → after", _sides, left=True),
            Column("per", lambda each: each.comparison.scope, left=True),
            *TIME_COLUMNS,
            Column("results", _claim, left=True),
        ],
        "No change is proven to be faster or slower.",
    )
    lines = []
    for verdict, words in _UNPROVEN:
        names = [_named(each) for each in single if each.verdict == verdict]
        if names:
            lines.append(f"- {words}: {', '.join(names)}.")
    return [*blocks, "\n".join(lines)] if lines else blocks


def _named(outcome: Outcome) -> str:
    """Of another model, with the work per second of both."""
    gain = work_gain(outcome.comparison)
    return code(outcome.comparison.key) + (f" ({prose(gain.words)})" if gain else "")


def unequal_changes(outcomes: Sequence[Outcome]) -> list[str]:
    """What computes something else, and how much of it."""
    lines = [
        f"- {code(each.comparison.key)}{' as published' if _is_published(each) else ''} "
        f"({prose(each.comparison.after_text)}): {prose(each.reason)}."
        for each in outcomes
        if each.verdict == "NOT_EQUAL"
    ]
    return ["\n".join(lines)] if lines else []


def before_after(outcomes: Sequence[Outcome]) -> list[str]:
    """Every experiment, one table per scope; the published form of a change follows the correct."""
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
            blocks += [f"### {title}", *table(_published_last(chosen), _EXPERIMENT_COLUMNS)]
    return blocks or ["No experiment was run."]


def evidence(outcomes: Sequence[Outcome]) -> list[str]:
    """What each verdict rests on: control, cross-check and the family's p."""
    timed = [(each, each.timed) for each in outcomes if each.timed is not None]
    return table(
        timed,
        [
            Column("change", lambda row: row[0].name),
            Column("scope", lambda row: row[0].comparison.scope, left=True),
            Column("same code against itself", lambda row: row[1].control),
            Column("speed-up by paired t", lambda row: row[1].cross_check, TIMES),
            Column("p", lambda row: f"{row[1].p_value:.2g}"),
            Column("p after Holm", lambda row: _p_text(row[0].family_p)),
            Column("flags", lambda row: "; ".join(row[0].flags), left=True),
        ],
    )


def facts(outcomes: Sequence[Outcome]) -> list[str]:
    """What the experiments recorded beside the times: compile time, graph breaks, bytes."""
    lines: dict[tuple[str, str], str] = {}
    for each in outcomes:
        known = [
            f"{_fact_name(name)} {_fact(name, v)}"
            for name, v in each.comparison.facts.items()
            if name not in _IN_COLUMNS
        ]
        known += [*_pay_back(each.comparison), *each.comparison.notes]
        if known:
            text, place = "; ".join(known), f"{each.name}, {each.comparison.scope}"
            # Every scope of a change carries the same facts, so they stand on one line.
            line = f"- {escape(place)}: {prose(text)}"
            lines.setdefault((each.comparison.key, text), line)
    return ["\n".join(lines.values())] if lines else []


def _pay_back(comparison: Comparison) -> list[str]:
    if "compile_seconds" not in comparison.facts or comparison.after is None:
        return []
    steps = break_even_steps(comparison)
    scope = comparison.scope
    return ["never earned back" if steps is None else f"earned back after {steps:,} x {scope}"]


def _rank(outcome: Outcome) -> tuple[bool, bool, float]:
    """What the job as it is gains first, the whole before its parts."""
    comparison = outcome.comparison
    return starts_elsewhere(comparison), not is_whole(comparison), -speed(outcome)


def _sides(outcome: Outcome) -> str:
    return f"{outcome.comparison.before_text} → {outcome.comparison.after_text}"


def _claim(outcome: Outcome) -> str:
    equality = outcome.comparison.equality
    is_equal = equality is not None and all(check.equal for check in equality.checks)
    return "equal" if is_equal else "differ on purpose"


def _is_published(outcome: Outcome) -> bool:
    return outcome.comparison.form != "after"


def _published_last(outcomes: Sequence[Outcome]) -> list[Outcome]:
    keys = list(dict.fromkeys(each.comparison.key for each in outcomes))
    return sorted(outcomes, key=lambda each: (keys.index(each.comparison.key), _is_published(each)))


def _title(outcome: Outcome) -> str:
    comparison = outcome.comparison
    if _is_published(outcome):
        return f"{comparison.key}, as published: {comparison.after_text}"
    return f"{comparison.key}: {comparison.title}"


def _timed(read: Callable[[Comparison, Timed], Cell]) -> Callable[[Outcome], Cell]:
    """Where results differ, a reader would divide the two times if they stood here."""

    def value(outcome: Outcome) -> Cell:
        if outcome.timed is None:
            return missing(f"{outcome.verdict}: {outcome.reason}")
        return read(outcome.comparison, outcome.timed)

    return value


def _seconds(side: Measurement | None) -> Interval:
    assert side is not None  # it has a speed-up
    return derive.step_seconds(side)


def _utilization(comparison: Comparison) -> Cell:
    assert comparison.before is not None  # it has a speed-up
    assert comparison.after is not None
    used = [derive.utilization(side) for side in (comparison.before, comparison.after)]
    unknown = next((each for each in used if each.value is None), None)
    return unknown or " → ".join(percent(each.value) for each in used if each.value is not None)


def _waiting(outcome: Outcome) -> Cell:
    """Empty where no side has a loader whose waits were timed."""
    shares = waiting_shares(outcome.comparison)
    return shares and " → ".join(map(percent, shares))


def _verdict(outcome: Outcome) -> Cell:
    if outcome.timed is None or not outcome.reason:
        return outcome.verdict
    return Doubt(outcome.verdict, outcome.reason)


def _equality(outcome: Outcome) -> Cell:
    """Yes, no, or not claimed, with the check that says most against it."""
    equality = outcome.comparison.equality
    if equality is None or not equality.checks:
        return missing("no proof of equal results was recorded")
    if all(check.equal for check in equality.checks):
        worst = worst_check(equality.checks)
        if worst.worst == 0:
            return "yes, bit for bit"
        return f"yes ({describe_worst(equality.checks)})"
    answer = "no" if equality.claim == "equal" else "not claimed"
    return f"{answer} ({describe_worst(equality.checks)})"


TIME_COLUMNS: tuple[Column[Outcome], ...] = (
    Column("before ms", _timed(lambda tried, _: _seconds(tried.before)), MILLISECONDS),
    Column("after ms", _timed(lambda tried, _: _seconds(tried.after)), MILLISECONDS),
    Column("speed-up (99 % interval)", _timed(lambda _, timed: timed.speedup), TIMES),
    Column("verdict", _verdict, left=True),
)
# What a change does to the device, its memory and the wait for data.
USE_COLUMNS: tuple[Column[Outcome], ...] = (
    Column("utilization", _timed(lambda tried, _: _utilization(tried)), left=True),
    Column("waiting for data", _waiting, left=True),
    Column("peak memory, change", _timed(lambda tried, _: memory_change(tried)), BYTES),
    Column("energy per sample, change", _timed(lambda tried, _: energy_change(tried)), PERCENT),
)
_EXPERIMENT_COLUMNS: tuple[Column[Outcome], ...] = (
    Column("change", _title),
    Column("scope", lambda each: each.comparison.scope, left=True),
    *TIME_COLUMNS,
    Column("equal results?", _equality, left=True),
    *USE_COLUMNS,
    Column("detectable ≥", _timed(lambda _, timed: timed.detectable), PERCENT),
    Column("blocks", _timed(lambda _, timed: timed.blocks)),
)


def _fact_name(name: str) -> str:
    for unit in ("_seconds", "_microseconds", "_bytes", "_share"):
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
    if name.endswith("_microseconds"):
        return f"{number(value, 3)} µs"
    return f"{number(value)} s" if name.endswith("_seconds") else f"{value:g}"


def _p_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
