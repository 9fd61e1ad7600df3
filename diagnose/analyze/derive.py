"""Which numbers follow from a record? Pure functions; a missing number keeps its reason."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diagnose.records import codec
from diagnose.records.header import Reading, Setting
from diagnose.records.run import GpuUse, Measurement, RunRecord, StageResult, Timing
from diagnose.records.stats import CONFIDENCE, Interval, hodges_lehmann, percentile_bound

# The step that the reader asked about: the deepest stage that was measured, from the whole
# job down to its parts.
HEADLINE_STAGES = ("full_model", "real_data", "training", "inference")
# By the binomial rule of stats.percentile_bound.
STEPS_FOR_PERCENTILE = {0.90: 64, 0.99: 662}
# A step above its ceiling by more than noise means that the ceiling was measured too low.
CEILING_EXCEEDED = 1.05


@dataclass(frozen=True)
class Difference:
    """What the result costs over its reference, block by block."""

    seconds: Interval
    share: Interval  # of the result
    blocks: int


def find_stage(record: RunRecord, key: str) -> StageResult | None:
    return next((stage for stage in record.stages if stage.key == key), None)


def results(record: RunRecord, key: str) -> tuple[Measurement, ...]:
    """The results of a stage that can be believed: one that ended well."""
    stage = find_stage(record, key)
    if stage is None or stage.status != "done":
        return ()
    return tuple(each for each in stage.measurements if each.role == "result")


def result(record: RunRecord, key: str) -> Measurement | None:
    return next(iter(results(record, key)), None)


def reference(record: RunRecord, key: str) -> Measurement | None:
    stage = find_stage(record, key)
    if stage is None or stage.status != "done":
        return None
    return next((each for each in stage.measurements if each.role == "reference"), None)


def fastest(measurements: Iterable[Measurement]) -> Measurement | None:
    return min(measurements, key=lambda each: step_seconds(each).center, default=None)


def shown(stage: StageResult) -> Measurement | None:
    """The one measurement that stands for a stage: its fastest result."""
    measured = [each for each in stage.measurements if each.role == "result"]
    return fastest(measured or stage.measurements)


def loader_series(record: RunRecord) -> dict[str, dict[Setting, Measurement]]:
    """Loader configurations by number of workers, one row for what else differs."""
    measurements = results(record, "loader")
    names = varying_settings(measurements, but="workers")
    series: dict[str, dict[Setting, Measurement]] = {}
    for each in measurements:
        name = describe_settings(each, names) or str(each.settings.get("storage", "data"))
        series.setdefault(name, {})[each.settings.get("workers")] = each
    return series


def steps(record: RunRecord) -> list[tuple[str, Measurement]]:
    """The result of every stage that runs steps: neither limits of the device nor loading alone."""
    keys = [stage.key for stage in record.stages if stage.key not in ("ceilings", "loader")]
    found = [(key, result(record, key)) for key in keys]
    return [(key, each) for key, each in found if each is not None]


def headline(record: RunRecord) -> tuple[str, Measurement] | None:
    for key in HEADLINE_STAGES:
        found = result(record, key)
        if found is not None:
            return key, found
    return None


def step_values(timing: Timing) -> list[float]:
    """Seconds per step of every slot."""
    return [seconds / timing.steps_per_slot for seconds in timing.slot_seconds]


def step_seconds(measurement: Measurement) -> Interval:
    return hodges_lehmann(step_values(measurement.timing))


def difference(
    slower: Measurement, faster: Measurement, confidence: float = CONFIDENCE
) -> Difference:
    """Slot i of both ran in block i, so the drift of the machine cancels in each pair."""
    pairs = list(zip(step_values(slower.timing), step_values(faster.timing), strict=False))
    return Difference(
        hodges_lehmann([a - b for a, b in pairs], confidence),
        hodges_lehmann([(a - b) / a for a, b in pairs], confidence),
        len(pairs),
    )


def stage_differences(record: RunRecord, key: str) -> list[Difference]:
    """Every measurement of a stage against the next: the result against its references."""
    stage = find_stage(record, key)
    if stage is None or stage.status != "done":
        return []
    return [difference(*pair) for pair in itertools.pairwise(stage.measurements)]


def stage_difference(record: RunRecord, key: str) -> Difference | None:
    """What the stage itself adds."""
    return next(iter(stage_differences(record, key)), None)


def samples_per_second(measurement: Measurement) -> Reading:
    if measurement.samples_per_step is None:
        return Reading(None, "this measurement processes no samples")
    return Reading(measurement.samples_per_step / step_seconds(measurement).center)


def watts(measurement: Measurement) -> Reading:
    return _over_gpus(measurement, lambda use: use.watts, sum)


def utilization(measurement: Measurement) -> Reading:
    return _over_gpus(measurement, lambda use: use.utilization, _mean)


def power_share(measurement: Measurement) -> Reading:
    limit = _over_gpus(measurement, lambda use: use.power_limit_watts, sum)
    return _ratio(watts(measurement), limit, "the power limit is 0 W")


def joules_per_sample(measurement: Measurement) -> Reading:
    if measurement.samples_per_step is None:
        return Reading(None, "this measurement processes no samples")
    timing = measurement.timing
    samples = measurement.samples_per_step * timing.steps_per_slot * len(timing.slot_seconds)
    return _ratio(
        _over_gpus(measurement, lambda use: use.joules, sum), Reading(samples), "no samples"
    )


def precision_name(measurement: Measurement) -> str:
    """The dtype that the matrix products run in: "bfloat16 autocast" multiplies in bfloat16."""
    words = str(measurement.settings.get("dtype") or "").split()
    return words[0] if words else ""


def ceilings(record: RunRecord, kind: str) -> list[Measurement]:
    return [each for each in results(record, "ceilings") if each.settings.get("ceiling") == kind]


def rate(measurement: Measurement, amount: Reading) -> Interval | None:
    """Amount per second."""
    if amount.value is None:
        return None
    of_one = amount.value
    return step_seconds(measurement).map(lambda seconds: of_one / seconds)


def operation_seconds(measurement: Measurement) -> Interval:
    """Seconds of one operation, where a step repeats it to be long enough for the clock."""
    count = measurement.settings.get("operations_per_step")
    repeats = count if isinstance(count, int) and count > 0 else 1
    return hodges_lehmann([value / repeats for value in step_values(measurement.timing)])


def matmul_rate(record: RunRecord, dtype: str) -> Interval | None:
    for each in ceilings(record, "matmul"):
        if precision_name(each) == dtype:
            return rate(each, each.flops_per_step)
    return None


def attainable_share(record: RunRecord, measurement: Measurement) -> Reading:
    """FLOP/s of the step over the FLOP/s of a large matrix product in the same precision."""
    if measurement.flops_per_step.value is None:
        return measurement.flops_per_step
    share = attainable_interval(record, measurement)
    if share is None:
        dtype = precision_name(measurement) or "this precision"
        return Reading(None, f"no measured matrix-product ceiling for {dtype}")
    return Reading(share.center)


def attainable_interval(record: RunRecord, measurement: Measurement) -> Interval | None:
    """The share of attainable between its worst and its best case.

    Step and ceiling were not measured in the same blocks, so nothing cancels: the slow end of
    the one meets the fast end of the other.
    """
    achieved = rate(measurement, measurement.flops_per_step)
    ceiling = matmul_rate(record, precision_name(measurement))
    if achieved is None or ceiling is None or not ceiling.center:
        return None
    share = achieved.center / ceiling.center
    if achieved.ends is None or ceiling.ends is None:
        return Interval(share, None, None)
    return Interval(share, achieved.ends[0] / ceiling.ends[1], achieved.ends[1] / ceiling.ends[0])


def credible_share(record: RunRecord, measurement: Measurement) -> Reading:
    """The share of attainable, unless it is impossible: then the ceiling itself is wrong."""
    share = attainable_share(record, measurement)
    if share.value is None or share.value <= CEILING_EXCEEDED:
        return share
    return Reading(
        None,
        f"the step runs at {share.value:.0%} of the ceiling that was measured for it, so that "
        "ceiling was disturbed",
    )


def moving_share(record: RunRecord, measurement: Measurement) -> Interval | None:
    """Of a step, what moving its operands would take at the measured rate of this memory.

    At most: operands that a cache still holds are not moved.
    """
    measured = ceilings(record, "memory")
    best = rate(measured[0], measured[0].bytes_per_step) if measured else None
    own = rate(measurement, measurement.bytes_per_step)
    if best is None or own is None or not best.center:
        return None
    share = own.center / best.center
    if own.ends is None or best.ends is None:
        return Interval(share, None, None)
    return Interval(share, own.ends[0] / best.ends[1], own.ends[1] / best.ends[0])


def percentile(timing: Timing, share: float) -> Reading:
    """A bound in seconds that holds for this share of the steps with 99 % confidence."""
    steps = timing.step_seconds
    if not steps:
        reason = timing.step_clock_reason or "single steps were not timed"
        return Reading(None, reason)
    bound = percentile_bound(steps, share)
    if bound is None:
        return Reading(None, f"p{share * 100:.0f} needs {STEPS_FOR_PERCENTILE[share]} steps")
    return Reading(bound)


def varying_settings(measurements: Iterable[Measurement], but: str = "") -> tuple[str, ...]:
    """The settings in which measurements differ, in the order in which they were recorded.

    None is no value of its own: the prefetch factor of a loader without workers is unset.
    """
    measurements = list(measurements)
    names = dict.fromkeys(name for each in measurements for name in each.settings)
    return tuple(name for name in names if name != but and len(_values(measurements, name)) > 1)


def _values(measurements: Iterable[Measurement], name: str) -> set[str]:
    return {str(m.settings[name]) for m in measurements if m.settings.get(name) is not None}


def describe_settings(measurement: Measurement, names: Iterable[str]) -> str:
    words = []
    for name in names:
        value = measurement.settings.get(name)
        if isinstance(value, bool):
            words.append(name if value else f"no {name}")
        elif isinstance(value, str):
            words.append(value)
        else:
            words.append(f"{name} {'unset' if value is None else value}")
    return ", ".join(words).replace("_", " ")


def no_power_reason(record: RunRecord) -> str:
    """Empty when some stage has a power trace, else why none has."""
    if any(trace.watts for stage in record.stages for trace in stage.power):
        return ""
    for stage in record.stages:
        for measurement in stage.measurements:
            if measurement.gpus_reason:
                return measurement.gpus_reason
    return (
        record.header.machine.gpus_reason
        or record.header.machine.nvml.reason
        or "no power was sampled"
    )


def fingerprint(record: object) -> str:
    """The sha256 of the record as it reads back from its file.

    A whole number in a float field is written as 2 and read as 2.0; a figure drawn before the
    record was saved must still belong to it afterwards.
    """
    read_back = codec.from_dict(type(record), json.loads(codec.dumps(record)))
    return hashlib.sha256(codec.dumps(read_back)).hexdigest()


def _over_gpus(
    measurement: Measurement,
    read: Callable[[GpuUse], Reading],
    combine: Callable[[list[float]], float],
) -> Reading:
    """One number for all GPUs of the job; if one of them did not answer, there is none."""
    if not measurement.gpus:
        return Reading(None, measurement.gpus_reason or "no GPU was observed")
    values = []
    for use in measurement.gpus:
        reading = read(use)
        if reading.value is None:
            return reading
        values.append(reading.value)
    return Reading(combine(values))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _ratio(above: Reading, below: Reading, zero: str) -> Reading:
    if above.value is None:
        return above
    if below.value is None:
        return below
    return Reading(above.value / below.value) if below.value else Reading(None, zero)
