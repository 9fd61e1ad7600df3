"""What does a team lead ask first? How fast the job is, and what a fix is worth."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.units import duration, number, percent
from diagnose.records.diagnosis import Environment, ScriptFinding, Speed, Worth
from diagnose.records.header import Fact, Reading
from diagnose.records.script import NO_FACT, ScriptRecord
from diagnose.records.stats import Interval

STEPS = 1000
DAY_SECONDS = 24 * 3600.0
# Of what a device can do: from here on that is what bounds a step.
BOUND = 0.5
# Bytes are counted in the forward pass; the backward pass moves about twice as many.
FORWARD_AND_BACKWARD = 3


def measure_speed(record: ScriptRecord, mean: float) -> Speed:
    flops = record.flops_by_precision
    return Speed(
        samples_per_second=_per_second(record.samples, mean),
        tokens_per_second=_per_second(record.tokens, mean),
        device_busy=record.device_busy,
        utilization=_utilization(record, mean),
        precision=max(flops, key=lambda name: flops[name], default=""),
    )


def _per_second(per_step: Reading, mean: float) -> Reading:
    return per_step if per_step.value is None else Reading(per_step.value / mean)


def _utilization(record: ScriptRecord, mean: float) -> Reading:
    """What the matrix products would take at the ceilings of their precisions, of a step."""
    if not record.flops_by_precision:
        return Reading(None, "no FLOPs of matrix products were counted")
    if record.ceilings is None:
        return Reading(None, "the ceilings of this device were not measured")
    seconds = 0.0
    for precision, flops in record.flops_by_precision.items():
        ceiling = record.ceilings.of(precision)
        if not ceiling:
            return Reading(None, f"no ceiling was measured for {precision}")
        seconds += flops / ceiling
    return Reading(seconds / mean)


def write_speed(speed: Speed, ranks: int) -> str:
    """As it stands in the first line; what is unknown is left to a line of its own."""
    each = " per rank" if ranks > 1 else ""
    parts = []
    if speed.tokens_per_second.value is not None:
        parts.append(f"{_count(speed.tokens_per_second.value)} tokens/s{each}")
    elif speed.samples_per_second.value is not None:
        parts.append(f"{_count(speed.samples_per_second.value)} samples/s{each}")
    if speed.device_busy.value is not None:
        parts.append(f"device busy {percent(speed.device_busy.value)}")
    used = speed.utilization.value
    if used is not None:
        wrong = ", so that this ceiling is wrong" if used > 1 else ""
        parts.append(f"{percent(used)} of the {speed.precision} speed measured here{wrong}")
    return f" ({', '.join(parts)})" if parts else ""


def write_bound(record: ScriptRecord, speed: Speed, mean: float) -> list[str]:
    """What bounds a healthy step, and what the next ceiling is."""
    used, ceilings = speed.utilization.value, record.ceilings
    if used is None or ceilings is None or not mean:
        return []
    moved = FORWARD_AND_BACKWARD * sum(each.moved_bytes for each in record.suspects)
    rate = ceilings.bytes_per_second
    by_bytes = moved / rate / mean if rate else 0.0
    products = f"large {speed.precision} products"
    least = number(min(used, 1.0) * mean * 1e3, 3)
    speed_told = f"{percent(used)} of the speed of {products} here"
    if used >= BOUND:
        return [f"bound by arithmetic: {speed_told}; at all of it a step takes {least} ms"]
    if by_bytes >= BOUND:
        return [f"bound by memory: {percent(by_bytes)} of what a copy reaches; {speed_told}"]
    return [
        f"bound by neither arithmetic ({speed_told}) nor memory ({percent(by_bytes)} of what a "
        f"copy reaches) but by operators that are small for this device; at the speed of "
        f"{products} a step would take {least} ms"
    ]


def _count(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else number(rate, 3)


def find_worth(findings: Sequence[ScriptFinding], mean: float) -> tuple[Worth, ...]:
    """Of the first fix; of all together at least the best alone, at most the sum and the step."""
    fixes = [each for each in findings if each.gain_ms > 0]
    if not fixes or not mean:
        return ()
    alone = _worth(1, _seconds(fixes[0]), mean)
    if len(fixes) == 1:
        return (alone,)
    gains = [_seconds(each) for each in fixes]
    together = Interval(
        min(mean, sum(each.center for each in gains)),
        max(each.low or 0.0 for each in gains),
        min(mean, sum(each.high or 0.0 for each in gains)),
    )
    return alone, _worth(len(fixes), together, mean)


def _seconds(finding: ScriptFinding) -> Interval:
    low, high = finding.gain_ci
    return Interval(finding.gain_ms / 1e3, low / 1e3, high / 1e3)


def _worth(fixes: int, gain: Interval, mean: float) -> Worth:
    low, high = gain.ends or (gain.center, gain.center)
    daily = DAY_SECONDS / mean
    return Worth(
        fixes,
        gain.center * STEPS,
        (low * STEPS, high * STEPS),
        gain.center * daily,
        (low * daily, high * daily),
    )


def write_worth(worth: Sequence[Worth]) -> str:
    if not worth:
        return ""
    first = worth[0]
    steps = duration(Interval(first.per_1000_steps, *first.per_1000_steps_ci))
    day = duration(Interval(first.per_day, *first.per_day_ci))
    text = f" The top fix saves {steps} per 1,000 steps, {day} of every 24 h"
    for each in worth[1:]:
        text += f"; all {each.fixes} fixes together at most {duration(each.per_day_ci[1])}"
    return f"{text}."


def describe_environment(record: ScriptRecord) -> Environment:
    machine, commit = record.header.machine, record.commit
    name = (commit.value or "").removesuffix("-dirty")
    return Environment(
        tool=record.header.tool_version,
        torch=machine.versions.get("torch", NO_FACT),
        python=machine.versions.get("python", NO_FACT),
        device=machine.device,
        device_name=machine.device_name,
        commit=Fact(name) if name else commit,
        dirty=commit.value.endswith("-dirty") if commit.value else None,
        script=record.script,
        arguments=record.arguments,
    )
