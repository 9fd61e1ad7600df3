"""Does a shorter limit still hold the answers? Coverage, tokens really written, and the time."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.optimize.experiment import Outcome, time_ratio
from diagnose.analyze.units import milliseconds, number, percent, spread
from diagnose.records.experiments import Comparison
from diagnose.records.header import Setting
from diagnose.render.markdown import Align, Footnotes, Markup, prose, table

LIMIT = "max_new_tokens"
_WORDS = (
    "Coverage is the share of the reference answers that are no longer than the limit, in the "
    "tokens of this model. A fixed length writes as many tokens as the limit allows, whatever "
    "the model would rather say; a natural stop ends each batch with its longest answer, so that "
    "a limit above it costs nothing and lowering it gains nothing. Where answers change, the "
    "ratio of the times is what the shorter answers save, and no speed-up."
)


def coverage_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """One row per limit and mode; nothing where no limit was tried."""
    tried = [each for each in outcomes if is_limit(each.comparison)]
    if not tried:
        return []
    notes, rows = Footnotes(), []
    for natural in (False, True):
        mode = [each for each in tried if each.comparison.facts.get("natural_stop") is natural]
        if mode:
            rows.append(_row(mode[0], "before", notes))
        rows += [_row(each, "after", notes) for each in mode]
    headers = [
        "limit, tokens",
        "stop",
        "coverage",
        "mean tokens written",
        "ms per pass",
        Markup("time before ÷ after [95 % interval]"),
        "answers that change",
    ]
    align: tuple[Align, ...] = ("right", "left", *("right",) * 5)
    lines = ["\n".join(notes.lines())] if notes.lines() else []
    return [table(headers, rows, align), *lines, *_lengths(tried), _WORDS]


def is_limit(comparison: Comparison) -> bool:
    """Whether the change is a limit alone; a plan changes more at once."""
    return f"after_{LIMIT}" in comparison.facts and "parts" not in comparison.facts


def fact_of(comparison: Comparison, name: str) -> float | None:
    """A number among the facts, or None."""
    value: Setting = comparison.facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def changed_answers(comparison: Comparison) -> str:
    """How many answers differ, of how many; empty where nothing was compared."""
    checks = () if comparison.equality is None else comparison.equality.checks
    counted = [each for each in checks if each.differing_samples is not None and each.samples]
    if not counted:
        return ""
    worst = max(counted, key=lambda each: each.differing_samples or 0)
    return f"{worst.differing_samples} of {worst.samples}"


def _row(outcome: Outcome, name: str, notes: Footnotes) -> list[str]:
    comparison, is_after = outcome.comparison, name == "after"
    side = comparison.after if is_after else comparison.before
    why = outcome.reason or "not recorded"
    ratio = time_ratio(comparison) if is_after else None
    changed = changed_answers(comparison)
    cells = [
        _number(comparison, f"{name}_{LIMIT}", notes),
        "natural" if comparison.facts.get("natural_stop") else "fixed length",
        _percent(comparison, f"{name}_coverage_share", notes),
        _number(comparison, f"{name}_mean_tokens", notes),
        notes.missing(why) if side is None else milliseconds(derive.step_seconds(side)),
    ]
    if not is_after:
        return [*cells, "1", ""]
    told = notes.missing(why) if ratio is None else f"{spread(ratio)}x"
    return [*cells, told, changed or notes.missing(why)]


def _number(comparison: Comparison, name: str, notes: Footnotes) -> str:
    value = fact_of(comparison, name)
    return notes.missing(f"no {name} was recorded") if value is None else f"{value:.3g}"


def _percent(comparison: Comparison, name: str, notes: Footnotes) -> str:
    value = fact_of(comparison, name)
    return notes.missing(f"no {name} was recorded") if value is None else percent(value)


def _lengths(tried: Sequence[Outcome]) -> list[str]:
    """What the reference answers are like, once for all rows."""
    facts = tried[0].comparison
    count, within = fact_of(facts, "reference_answers"), fact_of(facts, "within_10_tokens_share")
    mean, longest = fact_of(facts, "reference_mean_tokens"), fact_of(facts, "longest_reference")
    if count is None or within is None or mean is None or longest is None:
        return []
    words = (
        f"The {count:g} reference answers have {number(mean, 3)} tokens on average and "
        f"{longest:g} at most; {percent(within)} have 10 or fewer."
    )
    if facts.facts.get("asks_usual_answers_only") is True:
        words += (
            " Coverage counts them all. The passes ask only questions with answers of 10 or fewer, "
            "which is what a CPU has time for: with a natural stop, a limit above gains nothing."
        )
    return [prose(words)]
