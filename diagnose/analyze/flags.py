"""How far can the numbers be trusted? What disturbed a measurement, on any machine.

Each flag is one row: what it says, what to do, and the signs by which it is seen. One flag stands
for the whole run: eight loader settings would else drown the causes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from diagnose.analyze.findings import Finding
from diagnose.analyze.units import number, pcie_link, percent, scaled
from diagnose.records import stats
from diagnose.records.header import Machine, Reading
from diagnose.records.run import GpuUse, Measurement, StageResult, Timing

Severity = Literal["info", "warning", "critical"]
Sign = tuple[Severity, str]
Placed = tuple[str, Measurement]  # where it was measured, for the reader

# IQR/median of the slots, as torch.utils.benchmark warns.
SPREAD_WARNING = 0.10
SPREAD_CRITICAL = 0.25
# stdev/mean and the distance of the extremes from the mean, as pyperf warns.
DEVIATION_WARNING = 0.10
EXTREME_WARNING = 0.50
# Under a millisecond the timer and the synchronization are a visible part of the slot (pyperf).
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


@dataclass(frozen=True)
class Flag:
    """A doubt about the numbers, and the signs by which it is seen."""

    kind: str
    sentence: str
    advice: str
    signs: Callable[[Machine, Sequence[Placed]], Iterable[Sign]]


def find_flags(machine: Machine, measured: Sequence[Placed] = ()) -> list[Finding]:
    """Everything that casts doubt on these measurements, or on this machine alone."""
    return [
        finding
        for flag in FLAGS
        for finding in collect(flag.kind, flag.sentence, flag.signs(machine, measured), flag.advice)
    ]


def collect(kind: str, sentence: str, signs: Iterable[Sign], advice: str = "") -> list[Finding]:
    """One finding for all signs, as severe as the worst of them; none without a sign."""
    seen = list(signs)
    if not seen:
        return []
    severities: list[Severity] = ["critical", "warning", "info"]
    worst = next(each for each in severities if each in {severity for severity, _ in seen})
    shown = [text for _, text in seen[:MOST_PLACES]]
    if len(seen) > len(shown):
        shown.append(f"and {len(seen) - len(shown)} more")
    return [Finding(kind, "flag", worst, sentence, "; ".join(shown), advice)]


def placed(stages: Iterable[StageResult]) -> list[Placed]:
    """Every measurement of some stages, with the name of its place."""
    return [(_place(stage, each), each) for stage in stages for each in stage.measurements]


def _place(stage: StageResult, measurement: Measurement) -> str:
    same = len(stage.measurements) == 1 or measurement.name == stage.key
    return stage.key if same else f"{stage.key} ({measurement.name})"


def too_noisy(measurement: Measurement) -> bool:
    """Scattered so widely that the number must not be built on."""
    return stats.relative_iqr(measurement.timing.slot_seconds) > SPREAD_CRITICAL


def _throttled(_: Machine, measured: Sequence[Placed]) -> Iterator[Sign]:
    for place, each in measured:
        slots = sum(each.timing.slot_seconds)
        for use in each.gpus:
            for limit, reading in use.throttle_seconds.items():
                if reading.value and any(sign in limit for sign in FAULT_LIMITS):
                    share = reading.value / slots
                    severity: Severity = "critical" if share > THROTTLED_CRITICAL else "warning"
                    yield severity, f"{place}: {limit} for {percent(share)} of the time"
            lowest, usual = use.sm_hertz_lowest.value, use.sm_hertz.value
            if lowest is not None and usual and lowest < (1 - CLOCK_DROP_WARNING) * usual:
                drop = 1 - lowest / usual
                severity = "critical" if drop > CLOCK_DROP_CRITICAL else "warning"
                yield severity, f"{place}: the SM clock fell {percent(drop)} below its median"


def _shared(machine: Machine, _: Sequence[Placed]) -> Iterator[Sign]:
    busy = machine.cpu_busy_before.value
    if busy is not None and busy > OTHERS_BUSY:
        yield "warning", f"other work kept {percent(busy)} of the processors busy before the run"
    for index, gpu in enumerate(machine.gpus):
        memory, use = gpu.memory_used_before_bytes.value, gpu.utilization_before.value
        if memory is not None and memory > OTHERS_MEMORY_BYTES:
            yield "warning", f"GPU {index} had {scaled(memory, 'B')} in use before the run"
        if use is not None and use > OTHERS_BUSY:
            yield "warning", f"GPU {index} was {percent(use)} utilized before the run"


def _link_below_maximum(machine: Machine, measured: Sequence[Placed]) -> Iterator[Sign]:
    """The best link that any stage saw: an idle one drops to a lower generation by itself."""
    for index, gpu in enumerate(machine.gpus):
        uses = [use for _, each in measured for use in each.gpus if use.gpu == index]
        generation = _highest(uses, lambda use: use.pcie_generation)
        width = _highest(uses, lambda use: use.pcie_width)
        if _below(generation, gpu.pcie_generation_max) or _below(width, gpu.pcie_width_max):
            possible = pcie_link(gpu.pcie_generation_max.value, gpu.pcie_width_max.value)
            yield (
                "warning",
                f"GPU {index}: at best {pcie_link(generation, width)} under load, where "
                f"{possible} is possible",
            )


def _highest(uses: Iterable[GpuUse], read: Callable[[GpuUse], Reading]) -> float | None:
    values = (read(use).value for use in uses)
    return max((value for value in values if value is not None), default=None)


def _below(seen: float | None, highest: Reading) -> bool:
    return seen is not None and highest.value is not None and seen < highest.value


def _doubtful_identity(machine: Machine, _: Sequence[Placed]) -> Iterator[Sign]:
    for index, gpu in enumerate(machine.gpus):
        if gpu.nvml_index.value is not None and gpu.nvml_index.reason:
            yield "warning", f"GPU {index}: {gpu.nvml_index.reason}"


def _doubtful_energy(_: Machine, measured: Sequence[Placed]) -> Iterator[Sign]:
    for place, each in measured:
        for use in each.gpus:
            if "disagree" in use.joules_source:
                yield "warning", f"{place}: GPU {use.gpu}, {use.joules_source}"
            if use.dropped_samples:
                yield "warning", f"{place}: GPU {use.gpu}, {use.dropped_samples} samples of 0 W"


def _complaints(read: Callable[[Timing], str]) -> Callable[..., Iterator[Sign]]:
    """What the clock itself says of each measurement."""

    def signs(_: Machine, measured: Sequence[Placed]) -> Iterator[Sign]:
        for place, each in measured:
            if read(each.timing):
                yield "warning", f"{place}: {read(each.timing)}"

    return signs


def _noisy(_: Machine, measured: Sequence[Placed]) -> Iterator[Sign]:
    for place, each in measured:
        slots = each.timing.slot_seconds
        mean, spread = statistics.fmean(slots), stats.relative_iqr(slots)
        signs = []
        if spread > SPREAD_WARNING:
            signs.append(f"IQR is {percent(spread)} of the median")
        if len(slots) > 1 and statistics.stdev(slots) > DEVIATION_WARNING * mean:
            signs.append(f"stdev is {percent(statistics.stdev(slots) / mean)} of the mean")
        if max(slots) > (1 + EXTREME_WARNING) * mean or min(slots) < (1 - EXTREME_WARNING) * mean:
            signs.append("a slot lies more than half the mean away from it")
        if min(slots) < SHORT_SLOT_SECONDS:
            signs.append(f"a slot lasted only {number(1e6 * min(slots), 3)} µs")
        if signs:
            yield "critical" if too_noisy(each) else "warning", f"{place}: {', '.join(signs)}"


def _outliers(_: Machine, measured: Sequence[Placed]) -> Iterator[Sign]:
    found = [(place, stats.outliers(each.timing.slot_seconds)) for place, each in measured]
    mild, severe = sum(each.mild for _, each in found), sum(each.severe for _, each in found)
    if mild + severe:
        slots = sum(len(each.timing.slot_seconds) for _, each in measured)
        yield "info", f"{mild} mild and {severe} severe among {slots} slots"
    for place, each in found:
        if each.slow_first:
            yield "warning", f"{place}: the first slot is slow"
        elif each.severe:
            yield "warning", f"{place}: {each.severe} severe"


# First what disturbed the machine, then what the samples look like.
FLAGS: tuple[Flag, ...] = (
    Flag(
        "throttled",
        "The GPU lowered its clock.",
        "Cool the device or lower its power limit, and measure again.",
        _throttled,
    ),
    Flag(
        "shared",
        "The machine was shared.",
        "Stop the other work, or read every number as an upper bound.",
        _shared,
    ),
    Flag(
        "pcie_link",
        "A PCIe link is slower than GPU and board allow.",
        "Reseat the card or use another slot, and look for a riser or a firmware setting that "
        "limits the link: every copy between host and GPU runs at its speed.",
        _link_below_maximum,
    ),
    Flag(
        "gpu_identity",
        "Power and clocks may belong to another GPU.",
        "Compare times only, or measure on a machine where the GPU can be told for sure.",
        _doubtful_identity,
    ),
    Flag(
        "gpu_energy",
        "Some readings of power cannot be right.",
        "Do not compare watts and joules of these stages with those of other machines.",
        _doubtful_energy,
    ),
    Flag(
        "not_steady",
        "The warm-up ended before the step time was steady.",
        "Run with --full.",
        _complaints(lambda timing: timing.not_steady),
    ),
    Flag(
        "imprecise",
        "Time ran out before the intended precision was reached.",
        "Run with --full.",
        _complaints(lambda timing: timing.unmet),
    ),
    Flag(
        "noisy",
        "Some step times scatter widely.",
        "Close other programs and measure again; the intervals already contain this noise.",
        _noisy,
    ),
    Flag("outliers", "Outliers were counted and kept.", "", _outliers),
)
