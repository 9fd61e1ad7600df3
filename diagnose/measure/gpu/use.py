"""What did one GPU do during these windows? Samples and windows in, a record out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnose.measure.gpu.energy import (
    NO_WINDOW,
    Series,
    Window,
    count_growth,
    count_joules,
    count_seconds_with,
    find_changes,
    integrate_watts,
    values_within,
)
from diagnose.measure.gpu.quantities import CLOCK_LIMITS, GAUGES, INSTANT, Pick, PowerKind, Quantity
from diagnose.records.header import Reading
from diagnose.records.run import GpuUse

# Counter and power samples come from one sensor; further apart than this, one of them is wrong.
MAX_DISAGREEMENT = 0.05
# Fewer samples of a changing load differ from the counter by chance alone.
MIN_SAMPLES_TO_CHECK = 20
# nvml.h: utilization is sampled over 1/6 s to 1 s, depending on the GPU.
UTILIZATION_SECONDS = 1.0
BLURRED = "averaged over up to 1 s: shared with the neighbouring slots"


NOTHING = Series(reason="it was not sampled")


@dataclass(frozen=True)
class GpuTrace:
    """Everything that was sampled of one GPU."""

    series: Mapping[str, Series] = field(default_factory=dict)  # by the quantity's name
    watts_kind: PowerKind = INSTANT
    dropped_at: Sequence[float] = ()  # when a power reading of 0 W or less was dropped
    doubt: str = ""  # why this may not be, or not only be, the GPU that was used
    missing: Series = NOTHING  # why there is nothing of a quantity without a series

    def __getitem__(self, name: str) -> Series:
        return self.series.get(name, self.missing)


def summarize(trace: GpuTrace, windows: Sequence[Window], idle_watts: Reading) -> GpuUse:
    """The device under test during all the slots of one measurement."""
    windows = sorted(windows)
    joules, source = measure_joules(trace, windows)
    joules = _with_remark(joules, trace.doubt)
    picked = {
        name: _pick(trace[each.name], windows, pick)
        for each in GAUGES
        for name, pick in each.picks.items()
    }
    picked["utilization"] = mean_utilization(trace, windows)
    return GpuUse(
        gpu=0,
        joules=joules,
        joules_source=f"{source} ({trace.doubt})" if source and trace.doubt else source,
        watts=mean_watts(joules, windows),
        idle_watts=_with_remark(idle_watts, trace.doubt),
        throttle_seconds={each.name: _throttled(trace, each, windows) for each in CLOCK_LIMITS},
        dropped_samples=sum(
            begin <= at <= end for begin, end in windows for at in trace.dropped_at
        ),
        **picked,
    )


def measure_joules(trace: GpuTrace, windows: Sequence[Window]) -> tuple[Reading, str]:
    """The energy of the windows and where the number is from."""
    counted = count_joules(trace["joules"], windows)
    integrated = integrate_watts(trace["watts"], windows, trace.watts_kind.average_seconds)
    if counted.value is None:
        if trace["joules"].values:
            # A counter that exists but failed here (reload, loss) is a finding, not to be papered
            # over with samples of the same broken time.
            return counted, ""
        if integrated.value is None:
            return Reading(None, f"{counted.reason}; power samples: {integrated.reason}"), ""
        kind = "" if trace.watts_kind == INSTANT else f" ({trace.watts_kind.name})"
        return integrated, "power samples" + kind
    # Averaged samples lag behind by half a second, so they disagree without anything being wrong.
    enough = len(values_within(trace["watts"], windows)) >= MIN_SAMPLES_TO_CHECK
    if trace.watts_kind == INSTANT and enough and integrated.value and counted.value > 0:
        apart = abs(integrated.value / counted.value - 1)
        if apart > MAX_DISAGREEMENT:
            return counted, f"energy counter (power samples disagree by {apart:.0%})"
    return counted, "energy counter"


def measure_watts(trace: GpuTrace, begin: float, end: float) -> Reading:
    """Mean power of one stretch of time; the samples may cover a little less than all of it."""
    power = trace["watts"].at
    known = find_changes(trace["joules"]) or ((power[0], power[-1]) if power else (begin, end))
    window = (max(begin, known[0]), min(end, known[1]))
    if window[1] - window[0] < (end - begin) / 2:
        reason = trace["joules"].reason or trace["watts"].reason
        return Reading(None, reason or "less than half of the time was sampled")
    watts = mean_watts(measure_joules(trace, [window])[0], [window])
    return _with_remark(watts, trace.doubt)


def measure_idle_watts(trace: GpuTrace, begin: float, end: float) -> Reading:
    """Power before anything of ours ran, when an average that reaches back shows the same."""
    steady = replace(trace, watts_kind=replace(trace.watts_kind, average_seconds=0.0))
    counted = measure_watts(steady, begin, end)
    if counted.value is not None:
        return counted
    # The slowest counters move too seldom in so short a time.
    series = {name: each for name, each in steady.series.items() if name != "joules"}
    sampled = measure_watts(replace(steady, series=series), begin, end)
    return counted if sampled.value is None else sampled


def mean_watts(joules: Reading, windows: Sequence[Window]) -> Reading:
    seconds = sum(end - begin for begin, end in windows)
    if joules.value is None or seconds <= 0:
        return Reading(None, joules.reason or NO_WINDOW)
    return Reading(joules.value / seconds, joules.reason)


def mean_utilization(trace: GpuTrace, windows: Sequence[Window]) -> Reading:
    seen = _pick(trace["utilization"], windows, statistics.fmean)
    short = any(end - begin < UTILIZATION_SECONDS for begin, end in windows)
    return _with_remark(seen, BLURRED if short else "")


def _with_remark(reading: Reading, remark: str) -> Reading:
    """A value with one more thing to know of it. What has no value has its reason already."""
    if reading.value is None or remark in reading.reason:
        return reading
    return Reading(reading.value, "; ".join(filter(None, (reading.reason, remark))))


def _pick(series: Series, windows: Sequence[Window], pick: Pick) -> Reading:
    if not windows:
        return Reading(None, NO_WINDOW)
    failed = series.reason_without(windows[-1][1])
    values = values_within(series, windows)
    if failed or not values:
        return Reading(None, failed or series.reason or "no sample fell into a slot")
    return Reading(pick(values))


def _throttled(trace: GpuTrace, limit: Quantity, windows: Sequence[Window]) -> Reading:
    counted = count_growth(trace[limit.name], windows)
    if counted.value is not None:
        return counted
    sampled = count_seconds_with(trace["clock_reasons"], limit.bit, windows)
    if sampled.value is None:
        return counted
    return Reading(sampled.value, "from samples of the current reasons; shorter events are missed")
