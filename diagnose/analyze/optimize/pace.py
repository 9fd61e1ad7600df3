"""How near does the optimised step come to what its FLOPs allow at its backbone's rate?"""

from __future__ import annotations

import math

from diagnose.analyze import derive
from diagnose.analyze.units import milliseconds, percent, percent_interval, scale, scaled
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval, log_ratio_interval
from diagnose.render.markdown import prose

# Above it, what surrounds the backbone is no longer worth a search.
NEAR_ENOUGH = 0.8


def pace(record: OptimizeRecord) -> Interval | None:
    """FLOP/s of the optimised step over FLOP/s of the backbone's, paired by block."""
    sides = _sides(record)
    if sides is None:
        return None
    optimised, backbone = sides
    first, second = optimised.flops_per_step.value, backbone.flops_per_step.value
    if not first or not second:
        return None
    ratio = log_ratio_interval(_per_step(backbone), _per_step(optimised))
    return scale(_exponential(ratio), first / second)


def pace_lines(record: OptimizeRecord) -> list[str]:
    """For the report: the ratio with both rates, or why there is none."""
    if record.pace is None:
        return ["The optimised step was not held against its backbone."]
    if record.pace.status != "done":
        return [
            f"The optimised step was not held against its backbone: {prose(record.pace.reason)}"
        ]
    ratio, sides = pace(record), _sides(record)
    if ratio is None or sides is None:
        return ["The FLOPs of the optimised step or of its backbone could not be counted."]
    rates = [_rate(each) for each in sides]
    return [
        f"The optimised step does {rates[0]}; the backbone's training step, in the same blocks, "
        f"{rates[1]}. At the backbone's rate its own FLOPs would allow more: it reaches "
        f"**{percent_interval(ratio)}** of that speed. {_verdict(ratio)}"
    ]


def _verdict(ratio: Interval) -> str:
    goal = percent(NEAR_ENOUGH)
    if ratio.low is not None and ratio.low >= NEAR_ENOUGH:
        return f"That is above {goal}: little is left to gain around the backbone."
    if ratio.high is not None and ratio.high < NEAR_ENOUGH:
        return f"That is below {goal}: something around the backbone still costs."
    return f"Whether that is above {goal} is not decided."


def _sides(record: OptimizeRecord) -> tuple[Measurement, Measurement] | None:
    found = {each.name: each for each in record.pace.measurements} if record.pace else {}
    if "optimised" not in found or "backbone" not in found:
        return None
    return found["optimised"], found["backbone"]


def _per_step(measurement: Measurement) -> list[float]:
    timing = measurement.timing
    return [seconds / timing.steps_per_slot for seconds in timing.slot_seconds]


def _exponential(interval: Interval) -> Interval:
    low, high = interval.low, interval.high
    return Interval(
        math.exp(interval.center),
        None if low is None else math.exp(low),
        None if high is None else math.exp(high),
    )


def _rate(measurement: Measurement) -> str:
    seconds, flops = derive.step_seconds(measurement), measurement.flops_per_step.value or 0.0
    return (
        f"{scaled(flops, 'FLOP')} in {milliseconds(seconds)} ms, "
        f"{scaled(flops / seconds.center, 'FLOP/s')}"
    )
