"""How far can the numbers be trusted? What disturbed the run, and which stages are missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Literal

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.units import number, percent, scaled
from diagnose.records import stats
from diagnose.records.run import Measurement, RunRecord, StageResult

Severity = Literal["info", "warning", "critical"]

# IQR/median of the slots, as torch.utils.benchmark warns.
SPREAD_WARNING = 0.10
SPREAD_CRITICAL = 0.25
# stdev/mean and the distance of the extremes from the mean, as pyperf warns.
DEVIATION_WARNING = 0.10
EXTREME_WARNING = 0.50
# Under a millisecond the timer and the synchronisation are a visible part of the slot (pyperf).
SHORT_SLOT_SECONDS = 1e-3
# Any thermal limit moved the clock; above a twentieth of the time the number is another one.
THROTTLED_CRITICAL = 0.05
# Of NVML's reasons for a lower clock, those that no healthy GPU shows. Running into the power
# cap is how a loaded one should run.
FAULT_LIMITS = ("thermal", "brake")
# SM clock below its own median (nvbench discards a trial at -25 %).
CLOCK_DROP_WARNING = 0.05
CLOCK_DROP_CRITICAL = 0.25
# A context of another process takes more than this; a display server takes less.
OTHERS_MEMORY_BYTES = 64 * 2**20
OTHERS_BUSY = 0.05
# One line each is enough to see the pattern; the record has them all.
MOST_PLACES = 4

_FATE: dict[str, tuple[Severity, str]] = {
    "skipped": ("info", "was skipped"),
    "failed": ("critical", "failed"),
    "hung": ("critical", "hung and was stopped"),
    "invalid": ("critical", "was measured but is not valid"),
}


def stages(record: RunRecord) -> list[Finding]:
    """Stages that did not end well, and those that were never reached."""
    found = []
    for stage in record.stages:
        if stage.status != "done":
            severity, fate = _FATE[stage.status]
            kind = f"stage_{stage.status}"
            sentence = f"The stage {stage.key} {fate}."
            found.append(Finding(kind, "flag", severity, sentence, stage.reason))
    reached = {stage.key for stage in record.stages}
    missing = [key for key in record.planned if key not in reached]
    if missing or not record.complete:
        found.append(
            Finding(
                "unfinished",
                "flag",
                "critical",
                "The run was not finished.",
                f"not reached: {', '.join(missing) or 'none, it ended after the last stage'}",
                "Run it again; what is shown was measured before it ended.",
            )
        )
    return found


def throttled(record: RunRecord) -> list[Finding]:
    evidence, severity = [], "warning"
    for place, each in measurements(record):
        slots = sum(each.timing.slot_seconds)
        for use in each.gpus:
            for limit, reading in use.throttle_seconds.items():
                if not reading.value or not any(sign in limit for sign in FAULT_LIMITS):
                    continue
                share = reading.value / slots
                severity = "critical" if share > THROTTLED_CRITICAL else severity
                evidence.append(f"{place}: {limit} for {percent(share)} of the time")
            lowest, usual = use.sm_hertz_lowest.value, use.sm_hertz.value
            if lowest is not None and usual and lowest < (1 - CLOCK_DROP_WARNING) * usual:
                drop = 1 - lowest / usual
                severity = "critical" if drop > CLOCK_DROP_CRITICAL else severity
                evidence.append(f"{place}: the SM clock fell {percent(drop)} below its median")
    advice = "Cool the device or lower its power limit, and measure again."
    return collect("throttled", severity, "The GPU lowered its clock.", evidence, advice)


def shared(record: RunRecord) -> list[Finding]:
    evidence = []
    busy = record.header.machine.cpu_busy_before.value
    if busy is not None and busy > OTHERS_BUSY:
        evidence.append(f"other work kept {percent(busy)} of the processors busy before the run")
    for index, gpu in enumerate(record.header.machine.gpus):
        memory, use = gpu.memory_used_before_bytes.value, gpu.utilization_before.value
        if memory is not None and memory > OTHERS_MEMORY_BYTES:
            evidence.append(f"GPU {index} had {scaled(memory, 'B')} in use before the run")
        if use is not None and use > OTHERS_BUSY:
            evidence.append(f"GPU {index} was {percent(use)} utilised before the run")
    advice = "Stop the other work, or read every number as an upper bound."
    return collect("shared", "warning", "The machine was shared.", evidence, advice)


def not_steady(record: RunRecord) -> list[Finding]:
    evidence = [
        f"{place}: {m.timing.not_steady}"
        for place, m in measurements(record)
        if m.timing.not_steady
    ]
    sentence = "The warm-up ended before the step time was steady."
    return collect("not_steady", "warning", sentence, evidence, "Run with --full.")


def imprecise(record: RunRecord) -> list[Finding]:
    evidence = [f"{place}: {m.timing.unmet}" for place, m in measurements(record) if m.timing.unmet]
    sentence = "Time ran out before the wanted precision was reached."
    return collect("imprecise", "warning", sentence, evidence, "Run with --full.")


def too_noisy(measurement: Measurement) -> bool:
    """Scattered so widely that the number must not be built on."""
    return stats.relative_iqr(measurement.timing.slot_seconds) > SPREAD_CRITICAL


def noisy(record: RunRecord) -> list[Finding]:
    evidence, severity = [], "warning"
    for place, each in measurements(record):
        slots = each.timing.slot_seconds
        mean, spread = statistics.fmean(slots), stats.relative_iqr(slots)
        signs = []
        if spread > SPREAD_WARNING:
            severity = "critical" if too_noisy(each) else severity
            signs.append(f"IQR is {percent(spread)} of the median")
        if len(slots) > 1 and statistics.stdev(slots) > DEVIATION_WARNING * mean:
            signs.append(f"stdev is {percent(statistics.stdev(slots) / mean)} of the mean")
        if max(slots) > (1 + EXTREME_WARNING) * mean or min(slots) < (1 - EXTREME_WARNING) * mean:
            signs.append("a slot lies more than half the mean away from it")
        if min(slots) < SHORT_SLOT_SECONDS:
            signs.append(f"a slot lasted only {number(1e6 * min(slots), 3)} µs")
        if signs:
            evidence.append(f"{place}: {', '.join(signs)}")
    advice = "Close other programs and measure again; the intervals already contain this noise."
    return collect("noisy", severity, "Some step times scatter widely.", evidence, advice)


def outliers(record: RunRecord) -> list[Finding]:
    mild, severe, slots, places = 0, 0, 0, []
    for place, each in measurements(record):
        found = stats.outliers(each.timing.slot_seconds)
        mild, severe = mild + found.mild, severe + found.severe
        slots += len(each.timing.slot_seconds)
        if found.slow_first:
            places.append(f"{place}: the first slot is slow")
        elif found.severe:
            places.append(f"{place}: {found.severe} severe")
    if not mild + severe:
        return []
    evidence = [f"{mild} mild and {severe} severe among {slots} slots", *places]
    sentence = "Outliers were counted and kept."
    return collect("outliers", "warning" if places else "info", sentence, evidence, "")


def ceiling_exceeded(record: RunRecord) -> list[Finding]:
    evidence = []
    for place, each in measurements(record):
        share = derive.attainable_share(record, each).value
        if share is not None and share > derive.CEILING_EXCEEDED:
            evidence.append(f"{place}: {percent(share)}")
    sentence = "A step is faster than the ceiling that was measured for it."
    advice = "Do not use the share of attainable of this run; the ceiling was disturbed."
    return collect("ceiling_exceeded", "warning", sentence, evidence, advice)


def measurements(record: RunRecord) -> Iterator[tuple[str, Measurement]]:
    for stage in record.stages:
        for measurement in stage.measurements:
            yield _place(stage, measurement), measurement


def _place(stage: StageResult, measurement: Measurement) -> str:
    same = len(stage.measurements) == 1 or measurement.name == stage.key
    return stage.key if same else f"{stage.key} ({measurement.name})"


def collect(
    kind: str, severity: str, sentence: str, evidence: list[str], advice: str
) -> list[Finding]:
    """One finding for the whole run: eight loader settings would else drown the causes."""
    if not evidence:
        return []
    level: Severity = "info" if severity == "info" else "warning"
    if severity == "critical":
        level = "critical"
    shown = evidence[:MOST_PLACES]
    if len(evidence) > len(shown):
        shown.append(f"and {len(evidence) - len(shown)} more")
    return [Finding(kind, "flag", level, sentence, "; ".join(shown), advice)]
