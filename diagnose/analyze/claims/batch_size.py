"""What became of the claims about batch sizes? The evaluation guides, held against every probe."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from diagnose.analyze.batch_size.choice import Answer, Row
from diagnose.analyze.claims.generation_arithmetic import first_estimate
from diagnose.analyze.claims.generation_judges import ABOUT
from diagnose.analyze.claims.judges import Claim, ClaimResult, contrary_on, not_testable
from diagnose.analyze.derive import utilization
from diagnose.analyze.units import number, percent, scaled, spread
from diagnose.records.batch_size import BatchSizeRecord

# The guides are about evaluating models that write.
WORKLOADS = ("textgen", "vqa")
# Of a claim that memory doubles with the batch: so much may be missing to twice as much.
NEARLY_TWICE = 0.05
# Printed beside the gains of the guide's table: a kernel runs for this share of the time.
UTILIZATION_OF_1, UTILIZATION_OF_8 = 0.30, 0.85
TOO_FEW_BLOCKS = "too few blocks of the sweep for an interval"

SizeJudge = Callable[[BatchSizeRecord, Sequence[Answer]], ClaimResult]


def judge_batch_claims(
    record: BatchSizeRecord, answers: Sequence[Answer]
) -> list[tuple[Claim, ClaimResult]]:
    """Rows for the ledger of claims; none for a job that the guides are not about."""
    if record.workload.name not in WORKLOADS:
        return []
    judged = [(id_, says, judge(record, answers)) for id_, says, judge in CLAIMS]
    return [(Claim(id_, says, _settled(result)), result) for id_, says, result in judged]


def judge_doubling(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    """Twice the batch, twice the memory? Only without anything that is there once."""
    lines = [each.line for each in answers if each.line is not None]
    if not lines:
        return not_testable("the memory of fewer than two batch sizes is known")
    line, batch = lines[0], 32
    factor = line.predict_bytes(2 * batch) / line.predict_bytes(batch)
    measured = (
        f"peak = {scaled(line.fixed_bytes, 'B')} + {scaled(line.bytes_per_sample, 'B')} per "
        f"sample: from 32 to 64 it grows {number(factor, 3)}x"
    )
    if factor >= 2 * (1 - NEARLY_TWICE):
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("REFUTED", measured, "what is there once, such as weights, does not double")


def judge_probes(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    most, longest = 5, 2.0
    probes = [each.configuration.probes for each in answers if each.configuration.probes]
    if not probes:
        return not_testable("nothing was probed")
    counts = [len(each) for each in probes]
    seconds = statistics.median(probe.seconds for each in probes for probe in each)
    span = " to ".join(map(str, sorted({min(counts), max(counts)})))
    measured = (
        f"{span} probes per configuration, {number(seconds, 3)} s in the middle, new processes "
        "included"
    )
    few, short = max(counts) <= most, seconds <= longest
    if few and short:
        return ClaimResult("CONFIRMED", measured)
    if not few and not short:
        return contrary_on(record.header.machine.device, measured)
    condition = "the probes are short, but more" if short else "the probes are few, but longer"
    return ClaimResult("CONDITIONAL", measured, f"on what is counted: {condition}")


def judge_no_crash(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    """What was found must run: in a process that has tried nothing before, and in the sweep."""
    found = [each for each in answers if each.largest is not None]
    if not found:
        return not_testable("no batch fits")
    crashed = [each for each in found if _ran_out(each)]
    if crashed:
        sweep = crashed[0].configuration.sweep
        measured = f"{len(crashed)} of {len(found)} sweeps ended for want of memory"
        return ClaimResult("REFUTED", measured, "" if sweep is None else sweep.reason)
    refused = sum(not probe.fits for each in answers for probe in each.configuration.probes)
    if not refused:
        return not_testable("every probe fitted, so nothing could have run out of memory")
    confirmed = sum(each.is_confirmed for each in found)
    measured = (
        f"{confirmed} of {len(found)} answers ran again in a fresh process; {refused} probes did "
        "not fit, all in children that the command outlives"
    )
    if confirmed == len(found):
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("CONDITIONAL", measured, "on the answers that were confirmed")


def _ran_out(answer: Answer) -> bool:
    """Whether the sweep, which times only what fits, broke for want of memory."""
    sweep = answer.configuration.sweep
    return (
        sweep is not None and sweep.status == "failed" and sweep.reason.startswith("out of memory")
    )


def judge_largest(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    """Refuted where a fresh process takes back what had fitted, and no limit is left to tell."""
    found = [each for each in answers if each.largest is not None]
    if not found:
        return not_testable("no batch fits")
    measured = "; ".join(
        f"{each.configuration.key}: {'' if each.is_exact else 'at least '}{each.largest}"
        for each in found
    )
    unknown = [each for each in found if not each.is_exact]
    if not unknown:
        return ClaimResult("CONFIRMED", measured, "one more does not fit")
    if any(_is_contradictory(each) for each in unknown):
        return ClaimResult("REFUTED", measured, "a batch fitted once and not again")
    return ClaimResult("CONDITIONAL", measured, f"on a search to the end: {unknown[0].doubt}")


def _is_contradictory(answer: Answer) -> bool:
    probes = answer.configuration.probes
    fitting = {probe.batch for probe in probes if probe.fits}
    return any(not probe.fits and probe.batch in fitting for probe in probes)


def judge_more_crops(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    """More tiles, larger batch?"""
    found = _by_crops(answers)
    if len(found) < 2:
        return not_testable("fewer than two settings of max_crops were searched to the end")
    measured = "; ".join(f"max_crops {crops}: {largest}" for crops, largest in found)
    if all(second > first for (_, first), (_, second) in pairwise(found)):
        return ClaimResult("CONFIRMED", measured)
    if all(second >= first for (_, first), (_, second) in pairwise(found)):
        condition = "on pictures that have as many tiles: max_crops is a cap"
        return ClaimResult("CONDITIONAL", measured, condition)
    return ClaimResult("REFUTED", measured, "more tiles take more memory")


def judge_scale_factors(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    """The guide's factors against the ratios of what was found."""
    found = _by_crops(answers)
    if len(found) < 2:
        return not_testable("fewer than two settings of max_crops were searched to the end")
    (first, base), rest = found[0], found[1:]
    told, right = [], True
    for crops, largest in rest:
        expected = first_estimate(crops) / first_estimate(first)
        told.append(
            f"{first} → {crops} crops: {number(largest / base, 3)} of the batch, "
            f"{number(expected, 3)} by the guide"
        )
        right = right and abs(largest / base / expected - 1) <= ABOUT
    if right:
        return ClaimResult("CONFIRMED", "; ".join(told))
    if all(largest == base for _, largest in rest):
        condition = "on pictures that have as many tiles: max_crops is a cap"
        return ClaimResult("CONDITIONAL", "; ".join(told), condition)
    return contrary_on(record.header.machine.device, "; ".join(told))


def rule_of_thumb(unit: str) -> SizeJudge:
    """A table that recommends a batch; the unit tells which one."""

    def judge(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
        told, right = [], True
        for each in answers:
            rules = [rule for rule in each.configuration.estimates if rule.source.endswith(unit)]
            if not rules or each.largest is None or not each.is_exact:
                continue
            low, high = rules[0].low, rules[0].high
            told.append(f"{rules[0].source}: {low} to {high}, {each.largest} fit")
            right = right and low <= each.largest <= high
        if not told:
            return not_testable("no limit is known exactly")
        measured = "; ".join(told)
        if right:
            return ClaimResult("CONFIRMED", measured)
        return contrary_on(record.header.machine.device, measured)

    return judge


def gain_of(batch: int, claimed: float) -> SizeJudge:
    """The gain of a batch over single samples, in the sweep."""

    def judge(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
        rows = _rows(answers, 1, batch)
        if rows is None:
            return not_testable(f"batches of 1 and {batch} were not both timed")
        gain = rows[1].gain
        measured = f"{spread(gain)}x"
        if gain.low is None or gain.high is None:
            return ClaimResult("NOT TESTABLE HERE", measured, TOO_FEW_BLOCKS)
        least, most = claimed * (1 - ABOUT), claimed * (1 + ABOUT)
        if least <= gain.low and gain.high <= most:
            return ClaimResult("CONFIRMED", measured)
        if gain.high <= 1:
            return contrary_on(record.header.machine.device, measured)
        if gain.high < least or gain.low > most:
            words = "less" if gain.high < least else "more"
            return ClaimResult("CONDITIONAL", measured, f"on the device: the gain is {words} here")
        undecided = f"undecided: the interval reaches out of {number(least, 3)} to "
        return ClaimResult("NOT TESTABLE HERE", measured, f"{undecided}{number(most, 3)}x")

    return judge


def judge_memory_use(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    """More of it in use is no better use: that is more samples/s from every byte."""
    peaks, rows = _peaks(answers), answers[0].rows if answers else ()
    known = [row for row in rows if row.batch in peaks]
    if len(known) < 2 or known[0] is not rows[0]:
        return not_testable("of fewer than two batch sizes are both memory and time known")
    first, last = known[0], known[-1]
    (peak, share), (last_peak, last_share) = peaks[first.batch], peaks[last.batch]
    times = last_peak / peak
    measured = (
        f"batch {first.batch}: {percent(share)} of the free memory, batch {last.batch}: "
        f"{percent(last_share)}; {number(times, 3)}x the memory for {spread(last.gain)}x the "
        "samples/s"
    )
    if last.gain.low is None or last.gain.high is None:
        return ClaimResult("NOT TESTABLE HERE", measured, TOO_FEW_BLOCKS)
    if last.gain.low > times:
        return ClaimResult("CONFIRMED", measured)
    if last.gain.high < times:
        return contrary_on(record.header.machine.device, measured)
    return ClaimResult("NOT TESTABLE HERE", measured, "undecided: the interval holds both")


def _peaks(answers: Sequence[Answer]) -> dict[int, tuple[float, float]]:
    """By batch, of the first configuration: the peak, and its share of what was free."""
    return {
        probe.batch: (probe.peak_bytes.value, probe.peak_bytes.value / probe.available_bytes.value)
        for probe in (probe for each in answers[:1] for probe in each.configuration.probes)
        if probe.fits and probe.peak_bytes.value and probe.available_bytes.value
    }


def judge_utilization(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    rows = _rows(answers, 1, 8)
    if rows is None:
        return not_testable("batches of 1 and 8 were not both timed")
    first, second = (utilization(row.measurement) for row in rows)
    if first.value is None or second.value is None:
        return not_testable(first.reason or second.reason)
    measured = f"{percent(first.value)} → {percent(second.value)} (one reading a side, no interval)"
    if second.value <= first.value:
        return ClaimResult("REFUTED", measured)
    printed = ((first.value, UTILIZATION_OF_1), (second.value, UTILIZATION_OF_8))
    if all(abs(seen / told - 1) <= ABOUT for seen, told in printed):
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("CONDITIONAL", measured, "on the device: it rises, between other shares")


def judge_use_largest(record: BatchSizeRecord, answers: Sequence[Answer]) -> ClaimResult:
    """Is the largest that fits the one to use?"""
    found = [each for each in answers if each.largest is not None and each.knee is not None]
    if not found:
        return not_testable("no batch was both found and proven to be fast enough")
    measured = "; ".join(
        f"{each.configuration.key}: {each.largest} fit, use {each.use}" for each in found
    )
    others = [each for each in found if each.use != each.largest]
    if others:
        return ClaimResult("REFUTED", measured, others[0].reason)
    unknown = [each for each in found if not each.is_exact]
    if unknown:
        return ClaimResult("CONDITIONAL", measured, f"on what is larger: {unknown[0].doubt}")
    return ClaimResult("CONFIRMED", measured)


def _by_crops(answers: Sequence[Answer]) -> list[tuple[int, int]]:
    """max_crops and the largest batch, where it is known exactly; the fewest crops first."""
    found = []
    for each in answers:
        crops = each.configuration.settings.get("max_crops")
        named = each.configuration.key.startswith("max_crops")
        if named and isinstance(crops, int) and each.largest is not None and each.is_exact:
            found.append((crops, each.largest))
    return sorted(found)


def _rows(answers: Sequence[Answer], first: int, second: int) -> tuple[Row, Row] | None:
    """Both batches, from the first configuration in which both were timed."""
    for each in answers:
        timed = {row.batch: row for row in each.rows}
        if first in timed and second in timed:
            return timed[first], timed[second]
    return None


def _settled(result: ClaimResult) -> Callable[[object], ClaimResult]:
    return lambda evidence: result


# In the order of the guides.
CLAIMS: tuple[tuple[str, str, SizeJudge], ...] = (
    ("000-08", "twice the batch takes twice the memory", judge_doubling),
    ("002-13", "to begin with many crops allows the larger batch first", judge_more_crops),
    ("002-14", "1, 0.75, 0.5 and 0.4 of the batch for more and more crops", judge_scale_factors),
    ("002-28", "1 to 5 tests of 1 to 2 s per max_crops", judge_probes),
    ("002-30", "no run ends out of memory", judge_no_crash),
    ("002-31", "each max_crops gets its largest batch", judge_largest),
    ("004-02", "batches use the device's memory better", judge_memory_use),
    ("004-09", "a batch size by the device's memory", rule_of_thumb("memory")),
    ("004-14", "a batch size by the number of parameters", rule_of_thumb("parameters")),
    ("004-47", "batches of 2 gain 1.7x", gain_of(2, 1.7)),
    ("004-48", "batches of 4 gain 2.7x", gain_of(4, 2.7)),
    ("004-49", "batches of 8 gain 3.4x", gain_of(8, 3.4)),
    ("004-49", "utilisation rises from 30 to 85 % with the batch", judge_utilization),
    ("004-53", "the largest batch that fits is the one to use", judge_use_largest),
)
