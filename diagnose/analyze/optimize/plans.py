"""What do changes bring as a bundle, in which order are they worth it, and how long will it take?

A plan is predicted from its parts, as if they had nothing in common, and then measured against
the base in the same blocks. What the two differ by is what adding up gains cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.optimize.coverage import changed_answers, fact_of
from diagnose.analyze.optimize.effects import find
from diagnose.analyze.optimize.experiment import Outcome, changes_answers, time_ratio
from diagnose.analyze.optimize.ladder import Interaction, multiply, over
from diagnose.analyze.units import duration, percent_interval, scale, spread
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval
from diagnose.render.markdown import Align, Footnotes, Markup, prose, table

PASS = "evaluation pass"
PARTS = "parts"
# The evaluation of the published guide; the example where the user names no number of samples.
EXAMPLE_BATCHES, EXAMPLE_BATCH = 6699, 32
# In the order of the guide: what it would do first.
GUIDE_PRIORITY = ("tokens_16", "workers_4", "batch_half_more", "processes_2")
_PLAN_WORDS = (
    "Predicted: the measured effects of the single changes on the same questions, multiplied. "
    "Measured: the whole plan against the base, in interleaved blocks. The difference is measured "
    "over predicted."
)
_ETA_WORDS = (
    "Total = batches × seconds per batch. It takes all questions for alike and leaves out what is "
    "done once, such as loading the model."
)


@dataclass(frozen=True)
class Plan:
    """One bundle. Ratios are time before over time after: 2.0 takes half the time."""

    outcome: Outcome
    parts: tuple[str, ...]
    missing: tuple[str, ...]  # parts without a measurement of their own, on the same questions
    predicted: Interval | None
    measured: Interval | None

    @property
    def difference(self) -> Interval | None:
        """Measured over predicted, less 1."""
        if self.predicted is None or self.measured is None:
            return None
        share = over(self.measured, self.predicted)
        low, high = share.low, share.high
        return Interval(
            share.center - 1,
            None if low is None else low - 1,
            None if high is None else high - 1,
        )

    @property
    def sentence(self) -> str:
        """For the answer at the top; empty where nothing was timed."""
        if self.measured is None:
            return ""
        comparison = self.outcome.comparison
        words = f"{comparison.title}: {spread(self.measured)}x"
        if self.predicted is not None:
            words += f", predicted {spread(self.predicted)}x"
        changed = changed_answers(comparison)
        return f"{words}, {changed} answers change" if changes_answers(comparison) else words


def find_plans(outcomes: Sequence[Outcome]) -> list[Plan]:
    return [_plan(each, outcomes) for each in outcomes if PARTS in each.comparison.facts]


def plan_lines(outcomes: Sequence[Outcome]) -> list[str]:
    plans, notes = find_plans(outcomes), Footnotes()
    if not plans:
        return []
    rows = [_plan_row(each, notes) for each in plans]
    headers = [
        "plan",
        "parts",
        "predicted",
        Markup("measured [95 % interval]"),
        "difference",
        "what it says",
        "answers that change",
    ]
    align: tuple[Align, ...] = ("left", "left", "right", "right", "right", "left", "right")
    left_out = [
        f"- {prose(each.outcome.comparison.title)}: left out here: {prose(str(text))}"
        for each in plans
        if (text := each.outcome.comparison.facts.get("left_out"))
    ]
    listed = ["\n".join(left_out)] if left_out else []
    return [table(headers, rows, align), *_lines(notes), *listed, _PLAN_WORDS]


def priority_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The single changes of the base, by what they save."""
    ranked = rank(outcomes)
    if not ranked:
        return []
    rows = []
    for place, (each, ratio) in enumerate(ranked, 1):
        guide = GUIDE_PRIORITY.index(each.comparison.key) + 1 if _is_in_guide(each) else None
        rows.append(
            [
                str(place),
                f"{each.comparison.key}: {each.comparison.title}",
                f"{spread(ratio)}x",
                each.verdict,
                changed_answers(each.comparison),
                "" if guide is None else str(guide),
            ]
        )
    headers = [
        "priority",
        "change",
        Markup("time before ÷ after [95 % interval]"),
        "verdict",
        "answers that change",
        "in the guide",
    ]
    align: tuple[Align, ...] = ("right", "left", "right", "left", "right", "right")
    return [table(headers, rows, align)]


def rank(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Interval]]:
    """What was tried on the base alone, the largest saving first."""
    timed = [
        (each, ratio)
        for each in outcomes
        if starts_from_base(each.comparison)
        and PARTS not in each.comparison.facts
        and (ratio := time_ratio(each.comparison)) is not None
        and each.verdict != "INVALID"
    ]
    return sorted(timed, key=lambda pair: -pair[1].center)


def starts_from_base(comparison: Comparison) -> bool:
    """A gain over something else than the base is no gain of the job as it is."""
    elsewhere = comparison.facts.get("starts_elsewhere") is True
    return comparison.form == "after" and comparison.scope == PASS and not elsewhere


def eta_lines(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    """How long the whole evaluation takes: as it was, with the best single change, by plan."""
    base = find_base(outcomes)
    if base is None or base.before is None:
        return []
    samples = record.samples or EXAMPLE_BATCHES * EXAMPLE_BATCH
    own = batch_of(record, base, "before")
    rows = [[*_eta_row("as it was", base.before, own, 1, samples), ""]]
    for name, comparison in _worth_telling(outcomes):
        if comparison.before is not None and comparison.after is not None:
            processes = int(fact_of(comparison, "after_processes") or 1)
            batch = batch_of(record, comparison, "after")
            row = _eta_row(name, comparison.after, batch, processes, samples)
            # On a machine that others use too, only neighbours in time can be compared.
            rows.append([*row, duration(eta_seconds(comparison.before, own, 1, samples))])
    headers = ["evaluation", "batch", "processes", "batches", "s per batch", "total"]
    headers.append("as it was, in the same blocks")
    example = (
        ""
        if record.samples
        else f", the guide's {EXAMPLE_BATCHES} batches of {EXAMPLE_BATCH} as an example; "
        "`--samples` takes your number"
    )
    return [f"For {samples} samples{example}:", table(headers, rows), _ETA_WORDS]


def eta_seconds(side: Measurement, batch: int, processes: int, samples: int) -> Interval:
    """Batches of one process times the seconds of a batch."""
    count = math.ceil(samples / (batch * processes))
    return scale(batch_seconds(side, batch, processes), count)


def batch_seconds(side: Measurement, batch: int, processes: int) -> Interval:
    """While each process answers one batch, all of them together answer so many more samples."""
    share = batch * processes / (side.samples_per_step or batch * processes)
    return scale(derive.step_seconds(side), share)


def batch_of(record: OptimizeRecord, comparison: Comparison, name: str) -> int:
    """The size's own batch, unless the change is about it."""
    size = record.workload.settings.get("batch_size")
    found = fact_of(comparison, f"{name}_batch_size")
    return int(found or (size if isinstance(size, int) else 1))


def find_base(outcomes: Sequence[Outcome]) -> Comparison | None:
    """An experiment that timed the job as it was."""
    timed = (
        each.comparison
        for each in outcomes
        if starts_from_base(each.comparison) and time_ratio(each.comparison) is not None
    )
    return next(timed, None)


def _plan(outcome: Outcome, outcomes: Sequence[Outcome]) -> Plan:
    parts = tuple(str(outcome.comparison.facts[PARTS]).split(", "))
    single = {key: find(outcomes, key, outcome.comparison.scope) for key in parts}
    ratios = {
        key: ratio
        for key, each in single.items()
        if each is not None
        and _same_start(each.comparison, outcome.comparison)
        and (ratio := time_ratio(each.comparison)) is not None
    }
    missing = tuple(key for key in parts if key not in ratios)
    predicted = None if missing else multiply(tuple(ratios.values()))
    return Plan(outcome, parts, missing, predicted, time_ratio(outcome.comparison))


def _same_start(part: Comparison, plan: Comparison) -> bool:
    """What a part gains on other questions or answers says nothing about the plan."""
    if part.before is None or not starts_from_base(part):
        return False
    return plan.before is None or part.before.samples_per_step == plan.before.samples_per_step


def _plan_row(plan: Plan, notes: Footnotes) -> list[str]:
    comparison = plan.outcome.comparison
    why = plan.outcome.reason or "it was not timed"
    unknown = f"not measured alone on the plan's questions: {', '.join(plan.missing)}"
    apart = plan.difference
    if plan.predicted is None or plan.measured is None or apart is None:
        difference, verdict = notes.missing(unknown if plan.missing else why), ""
    else:
        difference = Markup(prose(percent_interval(apart)))
        verdict = Interaction(plan.predicted, plan.measured).verdict
    return [
        comparison.title,
        ", ".join(plan.parts),
        notes.missing(unknown) if plan.predicted is None else f"{spread(plan.predicted)}x",
        notes.missing(why) if plan.measured is None else f"{spread(plan.measured)}x",
        difference,
        verdict,
        changed_answers(comparison) or notes.missing(why),
    ]


def _worth_telling(outcomes: Sequence[Outcome]) -> list[tuple[str, Comparison]]:
    """The best change that is proven to keep the answers, and every plan."""
    best = next((each for each, _ in rank(outcomes) if each.verdict == "FASTER"), None)
    told = [] if best is None else [(best.comparison.key, best.comparison)]
    plans = find_plans(outcomes)
    return told + [
        (each.outcome.comparison.title, each.outcome.comparison)
        for each in plans
        if each.measured is not None
    ]


def _eta_row(name: str, side: Measurement, batch: int, processes: int, samples: int) -> list[str]:
    return [
        name,
        str(batch),
        str(processes),
        str(math.ceil(samples / (batch * processes)) * processes),
        spread(batch_seconds(side, batch, processes)),
        duration(eta_seconds(side, batch, processes, samples)),
    ]


def _is_in_guide(outcome: Outcome) -> bool:
    return outcome.comparison.key in GUIDE_PRIORITY


def _lines(notes: Footnotes) -> list[str]:
    return ["\n".join(notes.lines())] if notes.lines() else []
