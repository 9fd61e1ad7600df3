"""Where does an effect sit, what do all changes bring together, and what is excluded?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.units import milliseconds, percent, percent_interval, spread
from diagnose.analyze.verdicts import MATTERS, within
from diagnose.records.experiments import Comparison
from diagnose.records.header import Reading
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval
from diagnose.render.markdown import Footnotes, escape, prose, table


@dataclass(frozen=True)
class Factor:
    """A suspect that the first report ruled out, and the experiments that try it again."""

    name: str
    first_report: str
    keys: tuple[str, ...]


FACTORS = (
    Factor(
        "data loading",
        "a batch loads in 12.4 ms",
        (
            "dataset_clone",
            "dataset_batched",
            "loader_prefetch",
            "loader_persistent",
            "loader_drop_last",
        ),
    ),
    Factor("mmap I/O", "preloading changed nothing", ("dataset_preload",)),
    Factor("number of workers", "2, 4 and 8 workers are equally fast", ("loader_workers",)),
)


def find(
    outcomes: Sequence[Outcome], key: str, scope: str | None = None, form: str = "after"
) -> Outcome | None:
    """The first outcome of a change, in this scope if one is given.

    A change that ended before it was timed carries all of its scopes.
    """
    return next(
        (
            each
            for each in outcomes
            if each.comparison.key == key
            and each.comparison.form == form
            and scope in (None, *each.comparison.scope.split(" / "))
        ),
        None,
    )


WHOLE_OF = {"training step": "a whole step", "part, forward and backward": "the part, both passes,"}
# What a scope does before its backward pass begins.
FORWARD_OF = {"training step": "forward", "part, forward and backward": "part, forward"}


def locations(outcomes: Sequence[Outcome]) -> list[str]:
    """Does an effect sit in the forward or in the backward pass? One line per change."""
    lines = []
    for step in outcomes:
        scope = FORWARD_OF.get(step.comparison.scope)
        if scope is None or step.comparison.form != "after":
            continue
        forward = find(outcomes, step.comparison.key, scope)
        if forward is None or forward.timed is None or step.timed is None:
            continue
        if _samples(forward) != _samples(step):
            continue
        lines.append(f"- {prose(_location(forward, step))}")
    if not lines:
        return ["No change was measured both in the forward pass alone and in the whole step."]
    return ["\n".join(lines)]


def backward_share(forward: Outcome, step: Outcome) -> float | None:
    """The part of the time saved by a whole step that the forward pass does not save."""
    if step.verdict not in ("FASTER", "SLOWER"):
        return None
    saved, in_forward = saved_seconds(step.comparison), saved_seconds(forward.comparison)
    if saved is None or in_forward is None or not saved.center:
        return None
    return min(1.0, max(0.0, 1 - in_forward.center / saved.center))


def saved_seconds(comparison: Comparison) -> Interval | None:
    if comparison.before is None or comparison.after is None:
        return None
    return derive.difference(comparison.before, comparison.after).seconds


def first_report_table(outcomes: Sequence[Outcome]) -> list[str]:
    """The table 优化前 / 优化后 / 提升 of the first report, for this machine."""
    whole = find(outcomes, "all_together", "training step")
    if whole is None:
        return ["All changes together were not measured."]
    before, after = whole.comparison.before, whole.comparison.after
    if whole.timed is None or before is None or after is None:
        return [f"All changes together: {escape(whole.verdict)}. {prose(_stop(whole.reason))}"]
    notes = Footnotes()
    gain = f"{spread(whole.timed.speedup)}x, {whole.verdict}"
    rows = [
        [
            "训练速度 training speed, it/s",
            spread(_inverse(derive.step_seconds(before))),
            spread(_inverse(derive.step_seconds(after))),
            gain,
            "2.2 → 4.9, 2.2x",
        ],
        _power_row(before, after, notes),
        _utilization_row(before, after, notes),
    ]
    headers = ["指标 metric", "优化前 before", "优化后 after", "提升 gain", "first report"]
    return [table(headers, rows), *_lines(notes)]


def excluded_factors(outcomes: Sequence[Outcome]) -> list[str]:
    """What the first report ruled out, tried again."""
    step = full_step(outcomes)
    rows = []
    for factor in FACTORS:
        tried = [
            each
            for each in outcomes
            if each.comparison.key in factor.keys and each.comparison.form == "after"
        ]
        for each in tried:
            result = "–" if each.timed is None else f"{spread(each.timed.speedup)}x"
            what = f"{each.comparison.key}, {each.comparison.scope}"
            answer = factor_answer(each, step)
            rows.append([factor.name, factor.first_report, what, result, each.verdict, answer])
        if not tried:
            rows.append([factor.name, factor.first_report, "–", "–", "–", "not measured here"])
    headers = ["factor", "first report", "experiment", "speed-up", "verdict", "answer"]
    return [table(headers, rows, ("left", "left", "left", "right", "left", "left"))]


def factor_answer(outcome: Outcome, step: Measurement | None) -> str:
    """Whether a factor can be the cause of a slow step, as far as this experiment tells."""
    if outcome.verdict == "SAME":
        return "excluded: it changes nothing"
    if outcome.timed is None:
        return f"cannot tell: {outcome.reason}"
    share = share_of_step(outcome.comparison, step)
    if share is not None and within(share, MATTERS):
        return f"excluded: it moves a step by {percent_interval(share)} at most"
    if outcome.verdict == "INCONCLUSIVE":
        return f"cannot tell: {outcome.reason}"
    text = f"not excluded: {outcome.verdict.lower()} per {outcome.comparison.scope}"
    return text if share is None else f"{text}, up to {percent_interval(share)} of a step"


def share_of_step(comparison: Comparison, step: Measurement | None) -> Interval | None:
    """Seconds saved per batch over the seconds of a step of as many samples.

    An upper bound: a loader that works ahead hides behind the step.
    """
    saved, before = saved_seconds(comparison), comparison.before
    if step is None or saved is None or before is None or comparison.scope != "batch":
        return None
    if before.samples_per_step != step.samples_per_step:
        return None
    seconds = derive.step_seconds(step).center
    return Interval(
        saved.center / seconds,
        None if saved.low is None else saved.low / seconds,
        None if saved.high is None else saved.high / seconds,
    )


def _location(forward: Outcome, step: Outcome) -> str:
    key = step.comparison.key
    saved, in_forward = saved_seconds(step.comparison), saved_seconds(forward.comparison)
    if saved is None or in_forward is None:
        return f"{key}: not timed"
    whole = WHOLE_OF[step.comparison.scope]
    times = (
        f"{key}: {whole} saves {milliseconds(saved)} ms ({step.verdict}), its forward pass "
        f"alone {milliseconds(in_forward)} ms ({forward.verdict})"
    )
    share = backward_share(forward, step)
    if share is None:
        return f"{times}; the effect on the whole is not proven"
    where, part = ("backward", share) if share > 0.5 else ("forward", 1 - share)
    return f"{times}; {percent(part)} of the effect sits in the {where} pass"


def _samples(outcome: Outcome) -> int | None:
    before = outcome.comparison.before
    return None if before is None else before.samples_per_step


def full_step(outcomes: Sequence[Outcome]) -> Measurement | None:
    """The step that the loader must not delay: the fastest one, so the claim is the hardest."""
    whole = find(outcomes, "all_together", "training step")
    if whole is None or whole.timed is None:
        return None
    return whole.comparison.after


def _power_row(before: Measurement, after: Measurement, notes: Footnotes) -> list[str]:
    first, second = derive.watts(before), derive.watts(after)
    cells = [_watts(first, notes), _watts(second, notes)]
    gain = (
        notes.missing(first.reason or second.reason)
        if first.value is None or second.value is None
        else f"{100 * (second.value / first.value - 1):+.0f} %"
    )
    return ["GPU功率 GPU power, W", *cells, gain, "200 → 320, +60 %"]


def _utilization_row(before: Measurement, after: Measurement, notes: Footnotes) -> list[str]:
    first, second = derive.power_share(before), derive.power_share(after)
    cells = [_reading(first, notes), _reading(second, notes)]
    gain = (
        notes.missing(first.reason or second.reason)
        if first.value is None or second.value is None
        else f"{100 * (second.value - first.value):+.0f} points"
    )
    return ["利用率估算 utilisation estimate, W ÷ limit", *cells, gain, "44 % → 71 %, +27 points"]


def _watts(reading: Reading, notes: Footnotes) -> str:
    return notes.missing(reading.reason) if reading.value is None else f"{reading.value:.0f}"


def _inverse(interval: Interval) -> Interval:
    return Interval(
        1 / interval.center,
        None if interval.high is None else 1 / interval.high,
        None if interval.low is None else 1 / interval.low,
    )


def _reading(reading: Reading, notes: Footnotes) -> str:
    return notes.missing(reading.reason) if reading.value is None else percent(reading.value)


def _lines(notes: Footnotes) -> list[str]:
    return ["\n".join(notes.lines())] if notes.lines() else []


def _stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
