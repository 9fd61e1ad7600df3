"""Which batch size is right? The largest that fits, the smallest that is fast, the one to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.analyze import derive
from diagnose.analyze.units import percent
from diagnose.records.batch_size import (
    AS_IT_IS,
    REFUSED_BY_MEMORY,
    BatchSizeRecord,
    Configuration,
    MemoryLine,
    crops_factor,
    fit_memory,
    largest_fitting,
    smallest_failing,
)
from diagnose.records.header import Reading
from diagnose.records.run import Measurement
from diagnose.records.stats import FEWEST_FOR_INTERVAL, Interval, log_ratio_interval

# Less than this of the best throughput is worth another batch size.
KEEP_SHARE = 0.95


@dataclass(frozen=True)
class Row:
    """One batch size of the sweep, against the fastest and against the first."""

    batch: int
    measurement: Measurement
    samples_per_second: Interval
    of_peak: Interval  # share of the highest samples/s, block by block
    gain: Interval  # samples/s over those of the smallest batch, block by block


@dataclass(frozen=True)
class Answer:
    """Three answers for one configuration; None where nothing could be measured."""

    configuration: Configuration
    largest: int | None
    is_exact: bool
    doubt: str  # why a larger one may fit; empty if it is exact
    knee: int | None  # proven by intervals
    use: int | None
    reason: str
    rows: tuple[Row, ...]
    line: MemoryLine | None
    loader_samples_per_second: Interval | None


def answer(record: BatchSizeRecord) -> str:
    """One clause per configuration, the batch to use first."""
    clauses = [_clause(judge(each)) for each in record.configurations]
    text = "; ".join(clauses) + "." if clauses else "Nothing was tried."
    return text if record.complete else f"{text} The run was not finished."


def _clause(each: Answer) -> str:
    key, clause = each.configuration.key, _advice(each)
    return clause[0].upper() + clause[1:] if key == AS_IT_IS else f"{key}: {clause}"


def _advice(each: Answer) -> str:
    if each.largest is None:
        return f"no batch size can be used: {each.configuration.reason}"
    largest = f"the largest that fits is {'' if each.is_exact else 'at least '}{each.largest}"
    if each.use is None:
        return f"{largest}; {each.reason}"
    return f"use batch {each.use} ({largest}): {each.reason}"


def judge(configuration: Configuration) -> Answer:
    probes = configuration.probes
    largest = largest_fitting(probes) or None
    rows = sweep_rows(configuration)
    knee = find_knee(rows)
    loader = _loader_rate(configuration)
    use, reason = recommend(configuration, rows, knee, loader)
    doubt = "" if largest is None else find_doubt(configuration, largest)
    return Answer(
        configuration=configuration,
        largest=largest,
        is_exact=largest is not None and not doubt,
        doubt=doubt,
        knee=knee,
        use=use,
        reason=reason,
        rows=rows,
        line=fit_memory([p for p in probes if p.fits]),
        loader_samples_per_second=loader,
    )


def with_batch_used(record: BatchSizeRecord) -> BatchSizeRecord:
    """For whoever reads the file and not the report."""
    found = [(each, judge(each)) for each in record.configurations]
    used = tuple(replace(each, batch_size_used=it.use or it.largest) for each, it in found)
    return replace(record, configurations=used)


@dataclass(frozen=True)
class CropsRow:
    """What the memory allows at one cap of tiles, and what the published factors would take."""

    max_crops: int
    answer: Answer
    peak_bytes: Reading
    samples_per_second: Interval | None  # of the largest batch that was timed
    factor: float  # of the guide
    guide_batch: int | None  # from the largest batch at the caps where its factor is 1
    error: float | None  # of the guide's batch; positive does not fit


def crops_rows(answers: Sequence[Answer]) -> list[CropsRow]:
    """One row per cap, if there are several."""
    by_cap = {
        cap: each
        for each in answers
        if each.configuration.key != AS_IT_IS
        and isinstance(cap := each.configuration.settings.get("max_crops"), int)
    }
    bases = [cap for cap in by_cap if crops_factor(cap) == 1 and by_cap[cap].largest]
    base = by_cap[max(bases)].largest if bases else None
    return [_crops_row(cap, by_cap[cap], base) for cap in sorted(by_cap)] if by_cap else []


def _crops_row(cap: int, each: Answer, base: int | None) -> CropsRow:
    probes = [p for p in each.configuration.probes if p.fits and p.batch == each.largest]
    guide = None if base is None else max(1, int(base * crops_factor(cap)))
    return CropsRow(
        max_crops=cap,
        answer=each,
        peak_bytes=probes[-1].peak_bytes if probes else Reading(None, "nothing fits"),
        samples_per_second=each.rows[-1].samples_per_second if each.rows else None,
        factor=crops_factor(cap),
        guide_batch=guide,
        error=guide / each.largest - 1 if guide and each.largest and each.is_exact else None,
    )


def find_doubt(configuration: Configuration, largest: int) -> str:
    """Why the largest that fits may not be the largest there is; empty if the next has no room."""
    if smallest_refused(configuration) == largest + 1:
        return ""
    after = [p for p in configuration.probes if p.batch == largest + 1 and not p.fits]
    if not after:
        return configuration.stopped or "the search was cut short"
    status, reason = after[-1].status, after[-1].reason
    return f"batch {largest + 1} {status}, possibly not because of memory: {reason}"


def smallest_refused(configuration: Configuration) -> int | None:
    """The smallest batch that the memory refused; None if none was."""
    known = (p for p in configuration.probes if p.fits or p.status in REFUSED_BY_MEMORY)
    return smallest_failing(list(known))


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
            gain=_share_of(each, timed[0]),
        )
        for each, rate in zip(timed, rates, strict=True)
    )


def find_knee(rows: tuple[Row, ...]) -> int | None:
    """The smallest batch that surely keeps nearly all of the highest samples/s.

    None without intervals: then a smaller one may only have been lucky.
    """
    lows = {row.batch: row.of_peak.low for row in rows}
    if None in lows.values():
        return None
    return min((batch for batch, low in lows.items() if (low or 0) >= KEEP_SHARE), default=None)


def recommend(
    configuration: Configuration,
    rows: tuple[Row, ...],
    knee: int | None,
    loader: Interval | None,
) -> tuple[int | None, str]:
    """The batch to use, and why not a larger or a smaller one."""
    if not largest_fitting(configuration.probes):
        return None, configuration.reason or "nothing fits"
    if not rows:
        sweep = configuration.sweep
        why = sweep.reason if sweep is not None and sweep.reason else "no sweep was measured"
        return None, f"the throughput is unknown: {why}"
    if knee is None:
        return _recommend_unproven(rows)
    fed = [row.batch for row in rows if loader is not None and _takes_all(row, loader)]
    if fed and min(fed) <= knee and loader is not None:
        return min(fed), (
            f"do not raise it: the loader delivers only {loader.center:.4g} samples/s, and batch "
            f"{min(fed)} already consumes them all"
        )
    return knee, _why_not_larger(configuration, rows, knee) + _rivals_below(rows, knee)


def _recommend_unproven(rows: tuple[Row, ...]) -> tuple[int, str]:
    likely = min(row.batch for row in rows if row.of_peak.center >= KEEP_SHARE)
    blocks = min(len(row.measurement.timing.slot_seconds) for row in rows)
    return likely, (
        f"not proven: point estimates only, because intervals need {FEWEST_FOR_INTERVAL} blocks "
        f"of the sweep and there are {blocks}"
    )


def _takes_all(row: Row, loader: Interval) -> bool:
    """Surely more samples/s than the loader brings; the two were not timed in the same blocks."""
    low, high = row.samples_per_second.low, loader.high
    return low is not None and high is not None and low >= high


def _why_not_larger(configuration: Configuration, rows: tuple[Row, ...], knee: int) -> str:
    largest = largest_fitting(configuration.probes)
    if knee < rows[-1].batch:
        return (
            f"do not raise it: larger batches gain less than {percent(1 - KEEP_SHARE)} samples/s "
            "and only take memory"
        )
    if knee < largest:
        return "the fastest batch that was timed; larger ones fit, so time them too"
    smaller = [row.of_peak.high for row in rows[:-1]]
    grows = bool(smaller) and all(high is not None and high < 1 for high in smaller)
    doubt = find_doubt(configuration, largest)
    if doubt:
        still = "the throughput still grows" if grows else "a larger batch may be better"
        return f"{still}; {doubt}"
    still = "the throughput still grows, but " if grows else ""
    return f"memory is the limit: {still}a larger batch does not fit"


def _rivals_below(rows: tuple[Row, ...], knee: int) -> str:
    """Smaller ones that the intervals do not exclude."""
    open_ = [
        str(row.batch)
        for row in rows
        if row.batch < knee and row.of_peak.high is not None and row.of_peak.high >= KEEP_SHARE
    ]
    if not open_:
        return ""
    return f"; {' or '.join(open_)} may be as good: the intervals overlap"


def _rate(measurement: Measurement) -> Interval:
    samples = measurement.samples_per_step or 1
    return derive.step_seconds(measurement).map(lambda seconds: samples / seconds)


def _share_of(measurement: Measurement, best: Measurement) -> Interval:
    """Samples/s over those of the best, from pairs that ran in the same block."""
    if measurement is best:
        return Interval(1.0, 1.0, 1.0)
    ratio = log_ratio_interval(
        derive.step_values(best.timing), derive.step_values(measurement.timing)
    )
    factor = (measurement.samples_per_step or 1) / (best.samples_per_step or 1)
    return ratio.map(lambda logarithm: math.exp(logarithm) * factor)


def _loader_rate(configuration: Configuration) -> Interval | None:
    loader = configuration.loader
    if loader is None or loader.status != "done":
        return None
    return _rate(loader.measurements[0])
