"""Does a larger model fill the device better? Work per second, where no speed-up may be told."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.optimize.experiment import Outcome, changes_model
from diagnose.analyze.units import milliseconds, number, scaled_spread
from diagnose.records.experiments import Comparison
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval
from diagnose.render.markdown import Align, Footnotes, table

NOT_COUNTED = "the FLOPs of this model were not counted"


def density_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Both models of every change that makes another one; no line calls one of them faster."""
    rows, notes = [], Footnotes()
    for each in outcomes:
        comparison = each.comparison
        if not changes_model(comparison) or each.verdict != "OTHER_MODEL":
            continue
        for name, text, side in (
            ("before", comparison.before_text, comparison.before),
            ("after", comparison.after_text, comparison.after),
        ):
            if side is None:
                continue
            rate, work = derive.samples_per_second(side), flop_rate(comparison, name, side)
            rows.append(
                [
                    comparison.key,
                    text,
                    milliseconds(derive.step_seconds(side)),
                    notes.missing(rate.reason) if rate.value is None else number(rate.value),
                    notes.missing(NOT_COUNTED) if work is None else scaled_spread(work, "FLOP/s"),
                ]
            )
    if not rows:
        return []
    headers = ["change", "model", "ms per epoch", "samples/s", "work per second"]
    align: tuple[Align, ...] = ("left", "left", "right", "right", "right")
    told = (
        "These changes make another model. More work per second is a fuller device; more time per "
        "sample is what it costs. FLOPs are those of the matrix products, forward and backward."
    )
    lines = ["\n".join(notes.lines())] if notes.lines() else []
    return [told, table(headers, rows, align), *lines]


def flop_rate(comparison: Comparison, name: str, side: Measurement) -> Interval | None:
    """FLOP/s of a side whose FLOPs per sample are among the facts of its experiment."""
    flops, samples = comparison.facts.get(f"{name}_flops_per_sample"), side.samples_per_step
    if not isinstance(flops, int | float) or isinstance(flops, bool) or not samples:
        return None
    seconds = derive.step_seconds(side)
    work = float(flops) * samples
    return Interval(
        work / seconds.center,
        None if seconds.high is None else work / seconds.high,
        None if seconds.low is None else work / seconds.low,
    )
