"""How much work per second? Of a larger model, and of the optimized step against its backbone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.optimize.effects import fact_of
from diagnose.analyze.units import milliseconds, percent, percent_interval, scale, scaled
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval, log_ratio_interval

# Above it, what surrounds the backbone is no longer worth a search.
NEAR_ENOUGH = 0.8


@dataclass(frozen=True)
class WorkGain:
    """How many times the work per second the second side does."""

    words: str  # both rates
    least: float
    most: float


def flop_rate(comparison: Comparison, name: str, side: Measurement) -> Interval | None:
    """FLOP/s of a side whose FLOPs per sample are among the facts of its experiment."""
    flops, samples = fact_of(comparison, f"{name}_flops_per_sample"), side.samples_per_step
    if flops is None or not samples:
        return None
    work = flops * samples
    return derive.step_seconds(side).map(lambda seconds: work / seconds)


def work_gain(comparison: Comparison) -> WorkGain | None:
    """None where the work of a side was not measured, or no interval of it exists."""
    if comparison.before is None or comparison.after is None:
        return None
    first = flop_rate(comparison, "before", comparison.before)
    second = flop_rate(comparison, "after", comparison.after)
    if first is None or second is None or not first.low or not first.high:
        return None
    if second.low is None or second.high is None:
        return None
    words = f"{scaled(first.center, 'FLOP/s')} → {scaled(second.center, 'FLOP/s')}"
    return WorkGain(words, second.low / first.high, second.high / first.low)


def share_of_backbone_rate(record: OptimizeRecord) -> Interval | None:
    """FLOP/s of the optimized step over FLOP/s of the backbone's, paired by block."""
    sides = _backbone_sides(record)
    if sides is None:
        return None
    optimized, backbone = sides
    first, second = optimized.flops_per_step.value, backbone.flops_per_step.value
    if not first or not second:
        return None
    times = derive.step_values(backbone.timing), derive.step_values(optimized.timing)
    return scale(log_ratio_interval(*times).map(math.exp), first / second)


def describe_backbone_share(record: OptimizeRecord) -> str:
    """The share with both rates, or why there is none."""
    measured = record.pace
    if measured is None or measured.status != "done":
        reason = f": {measured.reason}" if measured is not None else ""
        return f"The optimized step was not compared with its backbone{reason}."
    share, sides = share_of_backbone_rate(record), _backbone_sides(record)
    if share is None or sides is None:
        return "The FLOPs of the optimized step or of its backbone could not be counted."
    step, backbone = (_rate(each) for each in sides)
    return (
        f"The optimized step does {step}; the backbone's training step, in the same blocks, "
        f"{backbone}. It reaches {percent_interval(share)} of the speed its FLOPs allow at the "
        f"backbone's rate. {_judge_share(share)}"
    )


def _judge_share(share: Interval) -> str:
    goal = percent(NEAR_ENOUGH)
    if share.low is not None and share.low >= NEAR_ENOUGH:
        return f"That is above {goal}: little is left to gain around the backbone."
    if share.high is not None and share.high < NEAR_ENOUGH:
        return f"That is below {goal}: something around the backbone still costs."
    return f"Whether that is above {goal} is not decided."


def _backbone_sides(record: OptimizeRecord) -> tuple[Measurement, Measurement] | None:
    found = {each.name: each for each in record.pace.measurements} if record.pace else {}
    if "optimised" not in found or "backbone" not in found:
        return None
    return found["optimised"], found["backbone"]


def _rate(measurement: Measurement) -> str:
    seconds, flops = derive.step_seconds(measurement), measurement.flops_per_step.value or 0.0
    return (
        f"{scaled(flops, 'FLOP')} in {milliseconds(seconds)} ms, "
        f"{scaled(flops / seconds.center, 'FLOP/s')}"
    )
