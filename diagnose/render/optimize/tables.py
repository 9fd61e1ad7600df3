"""What do changes bring beside their single gains? Ladder, plans, limits and curves as tables."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.optimize.effects import changed_answers, fact_of
from diagnose.analyze.optimize.experiment import Outcome, time_ratio
from diagnose.analyze.optimize.ladder import climb, judge_ladder
from diagnose.analyze.optimize.plans import (
    EXAMPLE_BATCH,
    EXAMPLE_BATCHES,
    LIMIT,
    Plan,
    count_samples,
    find_plans,
    is_limit,
    total_times,
)
from diagnose.analyze.units import (
    AS_READ,
    PERCENT,
    TIMES,
    Unit,
    duration,
    number,
    percent,
)
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.render.markdown import prose
from diagnose.render.optimize.experiments import TIME_COLUMNS, USE_COLUMNS
from diagnose.render.table import Cell, Column, code, missing, table

_SHARE = Unit(1e2, "%", shortest=True)
Pair = tuple[float, float]


# --- the ladder ---


def ladder(record: OptimizeRecord) -> list[str]:
    """One change on top of the other, each step against the base in its own blocks."""
    lost = [
        f"- {code(each.comparison.key)} on top: {each.verdict}. {prose(each.reason)}"
        for each in judge_ladder(record)
        if each.timed is None
    ]
    added: Column[Outcome] = Column("changes so far", lambda step: f"+ {step.comparison.key}")
    nothing = "No change is certain to gain, so nothing was put together."
    blocks = table(climb(record), [added, *TIME_COLUMNS, *USE_COLUMNS], nothing)
    return [*blocks, "\n".join(lost)] if lost else blocks


# --- evaluations ---


def plan_table(outcomes: Sequence[Outcome]) -> list[str]:
    plans = find_plans(outcomes)
    columns: list[Column[Plan]] = [
        Column("plan", lambda row: row.outcome.comparison.title),
        Column("parts", lambda row: code(", ".join(row.parts)), left=True),
        Column("predicted", _predicted, TIMES),
        Column(
            "measured (99 % interval)", lambda row: row.measured or _not_timed(row.outcome), TIMES
        ),
        Column("difference", lambda row: row.difference or _no_difference(row), PERCENT),
        Column("what it says", lambda row: row.interaction, left=True),
        Column("answers that change", lambda row: _changed(row.outcome)),
    ]
    scales = {fact_of(each.outcome.comparison, "batch_scale") for each in plans} - {None, 1.0}
    lines = [f"- Batches are {number(scale)} of the guide's." for scale in scales if scale]
    inert = {key for each in plans for key in each.inert}
    if inert:
        names = code(", ".join(sorted(inert)))
        lines.append(f"- Set, but without effect on this device: {names}.")
    return [*table(plans, columns), *(["\n".join(lines)] if lines else [])]


def _predicted(plan: Plan) -> Cell:
    unknown = f"not timed in the plan's own blocks: {', '.join(plan.missing)}"
    return missing(unknown) if plan.predicted is None else plan.predicted


def _no_difference(plan: Plan) -> Cell:
    return _predicted(plan) if plan.missing else _not_timed(plan.outcome)


def _not_timed(outcome: Outcome) -> Cell:
    return missing(outcome.reason or "it was not timed")


def _changed(outcome: Outcome) -> Cell:
    return changed_answers(outcome.comparison) or _not_timed(outcome)


def totals(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    """How long the whole evaluation takes: as it was, with the best single change, by plan."""
    rows = total_times(record, outcomes)
    if not rows:
        return []
    example = (
        ""
        if record.samples
        else f", the guide's {EXAMPLE_BATCHES} batches of {EXAMPLE_BATCH} as an example; "
        "`--samples` takes your number"
    )
    return [
        f"For {count_samples(record)} samples{example}. It assumes that all questions cost the "
        "same, and leaves out what is done once, such as loading the model.",
        *table(
            rows,
            [
                Column("evaluation", lambda row: row.name),
                Column("batch", lambda row: row.batch),
                Column("processes", lambda row: row.processes),
                Column("batches", lambda row: row.batches),
                Column("s per batch", lambda row: row.seconds_per_batch),
                Column("total", lambda row: duration(row.seconds)),
                Column(
                    "as it was, in the same blocks",
                    lambda row: row.base_seconds and duration(row.base_seconds),
                ),
            ],
        ),
    ]


def coverage(outcomes: Sequence[Outcome]) -> list[str]:
    """One row per limit of tokens; nothing where none was tried."""
    tried = [each for each in outcomes if is_limit(each.comparison)]
    tried.sort(key=lambda each: each.comparison.facts.get("natural_stop") is True)
    columns: list[Column[Outcome]] = [
        Column("limit, tokens", lambda row: _both(row, LIMIT, AS_READ)),
        Column("stop", _stop, left=True),
        Column("coverage", lambda row: _both(row, "coverage_share", _SHARE)),
        Column("mean tokens written", lambda row: _both(row, "mean_tokens", AS_READ)),
        Column("time before ÷ after (99 % interval)", _ratio, TIMES),
        Column("answers that change", _changed),
    ]
    words = (
        "Coverage is the share of the reference answers that are no longer than the limit. A fixed "
        "length writes as many tokens as the limit allows; a natural stop ends each batch with its "
        "longest answer, so that a limit above it costs nothing and lowering it gains nothing. "
        "Where answers change, the ratio of the times is no speed-up."
    )
    return [*table(tried, columns), *_lengths(tried[0].comparison), words] if tried else []


def _both(outcome: Outcome, name: str, unit: Unit) -> Cell:
    facts = [fact_of(outcome.comparison, f"{side}_{name}") for side in ("before", "after")]
    known = [unit.write(round(each, 3)) for each in facts if each is not None]
    return " → ".join(known) if len(known) == len(facts) else missing(f"no {name} was recorded")


def _stop(outcome: Outcome) -> str:
    return "natural" if outcome.comparison.facts.get("natural_stop") else "fixed length"


def _ratio(outcome: Outcome) -> Cell:
    return time_ratio(outcome.comparison) or _not_timed(outcome)


def _lengths(facts: Comparison) -> list[str]:
    """What the reference answers are like, once for all rows."""
    count, within = fact_of(facts, "reference_answers"), fact_of(facts, "within_10_tokens_share")
    mean, longest = fact_of(facts, "reference_mean_tokens"), fact_of(facts, "longest_reference")
    if count is None or within is None or mean is None or longest is None:
        return []
    words = (
        f"The {count:g} reference answers have {number(mean, 3)} tokens on average and "
        f"{longest:g} at most; {percent(within)} have 10 or fewer."
    )
    return [prose(words)]


# --- what training loses ---


def losses(outcomes: Sequence[Outcome]) -> list[str]:
    """Both sides at equal numbers of samples, of every change whose numerics may differ."""
    # Every scope of a change carries the same curves.
    once = {each.comparison.key: each for each in outcomes if len(each.comparison.curves) > 1}
    rows = []
    for each in once.values():
        before, *_, after = each.comparison.curves.values()
        pairs = list(zip(before, after, strict=False))
        if pairs:
            rows.append((each, pairs[(len(pairs) - 1) // 2], pairs[-1]))
    columns: list[Column[tuple[Outcome, Pair, Pair]]] = [
        Column("change", lambda row: code(row[0].comparison.key)),
        Column("sides", lambda row: " → ".join(row[0].comparison.curves), left=True),
        Column("loss after half of the samples", lambda row: _arrow(row[1])),
        Column("loss at the end", lambda row: _arrow(row[2])),
        Column("difference", lambda row: row[2][1] / row[2][0] - 1 if row[2][0] else None, PERCENT),
    ]
    words = "One seed: a small difference proves nothing."
    return [*table(rows, columns), words] if rows else []


def _arrow(pair: Pair) -> str:
    return f"{number(pair[0])} → {number(pair[1])}"
