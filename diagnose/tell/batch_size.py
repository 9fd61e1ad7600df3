"""Which batch size is right? The largest that fits, the smallest that is fast, the one to use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnose.model import Measurement
from diagnose.sizes import (
    Configuration,
    MemoryLine,
    fit_memory,
    largest_fitting,
    smallest_failing,
)
from diagnose.stats import Interval, log_ratio_interval
from diagnose.tell import derive

# Less than this of the best throughput is worth another batch size.
KEEP_SHARE = 0.95


@dataclass(frozen=True)
class Row:
    """One batch size of the sweep, against the fastest and against the first."""

    batch: int
    measurement: Measurement
    samples_per_second: Interval
    of_peak: Interval  # share of the highest samples/s, block by block
    gain: float  # samples/s over those of the smallest batch


@dataclass(frozen=True)
class Answer:
    """Three answers for one configuration; None where nothing could be measured."""

    configuration: Configuration
    largest: int | None
    is_exact: bool
    is_confirmed: bool
    knee: int | None
    use: int | None
    reason: str
    rows: tuple[Row, ...]
    line: MemoryLine | None
    loader_samples_per_second: float | None


def judge(configuration: Configuration) -> Answer:
    probes = configuration.probes
    largest = largest_fitting(probes) or None
    rows = sweep_rows(configuration)
    knee = find_knee(rows)
    loader = _loader_rate(configuration)
    use, reason = recommend(configuration, rows, knee, loader)
    return Answer(
        configuration=configuration,
        largest=largest,
        is_exact=largest is not None and smallest_failing(probes) == largest + 1,
        is_confirmed=any(p.fresh and p.fits and p.batch == largest for p in probes),
        knee=knee,
        use=use,
        reason=reason,
        rows=rows,
        line=fit_memory([p for p in probes if p.fits]),
        loader_samples_per_second=loader,
    )


def sweep_rows(configuration: Configuration) -> tuple[Row, ...]:
    sweep = configuration.sweep
    if sweep is None or sweep.status != "done":
        return ()
    timed = [m for m in sweep.measurements if m.samples_per_step]
    rates = [_rate(measurement) for measurement in timed]
    best = max(range(len(timed)), key=lambda place: rates[place].center)
    return tuple(
        Row(
            batch=each.samples_per_step or 1,
            measurement=each,
            samples_per_second=rate,
            of_peak=_share_of(each, timed[best]),
            gain=rate.center / rates[0].center,
        )
        for each, rate in zip(timed, rates, strict=True)
    )


def find_knee(rows: tuple[Row, ...]) -> int | None:
    """The smallest batch that keeps nearly all of the highest samples/s."""
    return min((row.batch for row in rows if row.of_peak.center >= KEEP_SHARE), default=None)


def recommend(
    configuration: Configuration,
    rows: tuple[Row, ...],
    knee: int | None,
    loader: float | None,
) -> tuple[int | None, str]:
    """The batch to use, and why not a larger or a smaller one."""
    if not largest_fitting(configuration.probes):
        return None, configuration.reason or "nothing fits"
    if knee is None:
        sweep = configuration.sweep
        why = sweep.reason if sweep is not None and sweep.reason else "no sweep was measured"
        return None, f"the throughput is unknown: {why}"
    fed = [row.batch for row in rows if loader and row.samples_per_second.center >= loader]
    if fed and min(fed) <= knee and loader is not None:
        return min(fed), (
            f"do not raise it: the loader is the limit, it brings {loader:.4g} samples/s and "
            f"batch {min(fed)} already takes them all"
        )
    if knee < rows[-1].batch:
        return knee, (
            f"do not raise it: larger ones bring less than {1 - KEEP_SHARE:.0%} more samples/s "
            "and only take memory"
        )
    if knee < largest_fitting(configuration.probes):
        return knee, "the fastest of the batches that were timed; larger ones fit, so time them too"
    if configuration.stopped:
        return (
            knee,
            f"it may be raised further: the throughput still grows; {configuration.stopped}",
        )
    return knee, "memory is the limit: the throughput still grows, but a larger batch does not fit"


def _rate(measurement: Measurement) -> Interval:
    seconds = derive.step_seconds(measurement)
    samples = measurement.samples_per_step or 1
    return Interval(
        samples / seconds.center,
        None if seconds.high is None else samples / seconds.high,
        None if seconds.low is None else samples / seconds.low,
    )


def _share_of(measurement: Measurement, best: Measurement) -> Interval:
    """Samples/s over those of the best, from pairs that ran in the same block."""
    ratio = log_ratio_interval(
        derive.step_values(best.timing), derive.step_values(measurement.timing)
    )
    factor = (measurement.samples_per_step or 1) / (best.samples_per_step or 1)
    return Interval(
        math.exp(ratio.center) * factor,
        None if ratio.low is None else math.exp(ratio.low) * factor,
        None if ratio.high is None else math.exp(ratio.high) * factor,
    )


def _loader_rate(configuration: Configuration) -> float | None:
    loader = configuration.loader
    if loader is None or loader.status != "done":
        return None
    return derive.samples_per_second(loader.measurements[0]).value
