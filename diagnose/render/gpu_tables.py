"""What did the GPU do in each stage? Power, clocks, heat and link, while the step ran."""

from __future__ import annotations

from collections.abc import Callable

from diagnose.analyze.run.input_causes import fastest
from diagnose.analyze.units import number, pcie_link
from diagnose.records.header import Gpu, Reading
from diagnose.records.run import GpuUse, RunRecord, StageResult
from diagnose.render.markdown import Align, Footnotes, Markup, escape, table

_HEADERS = (
    "stage",
    "GPU",
    "W",
    "idle W",
    "net W",
    "SM MHz",
    "memory MHz",
    "°C first → last",
    "PCIe under load (highest)",
    "clock limited s",
    "energy from",
)
_ALIGN: tuple[Align, ...] = ("left", *("right",) * 7, "left", "left", "left")


def gpu_use(record: RunRecord) -> list[str]:
    """Empty where no GPU was observed."""
    notes = Footnotes()
    rows = [
        _row(stage, use, record.header.machine.gpus[use.gpu], notes)
        for stage in record.stages
        if stage.key != "ceilings"
        for use in _shown(stage)
    ]
    if not rows:
        return []
    reasons = ["\n".join(notes.lines())] if notes.lines() else []
    text = "Net W is W less idle W: what the step itself draws."
    return ["## What the GPU did", table(_HEADERS, rows, _ALIGN), *reasons, text]


def _shown(stage: StageResult) -> tuple[GpuUse, ...]:
    """Of the measurement that the table of stages shows."""
    results = [each for each in stage.measurements if each.role == "result"]
    shown = fastest(results or stage.measurements)
    return shown.gpus if shown else ()


def _row(stage: StageResult, use: GpuUse, gpu: Gpu, notes: Footnotes) -> list[str]:
    return [
        stage.title,
        str(use.gpu),
        _cell(use.watts, _whole, notes),
        _cell(use.idle_watts, _whole, notes),
        _cell(_net_watts(use), _whole, notes),
        _cell(use.sm_hertz, _megahertz, notes),
        _cell(use.memory_hertz, _megahertz, notes),
        _pair(use.celsius_first, use.celsius_last, lambda a, b: f"{a:.0f} → {b:.0f}", notes),
        _link(use, gpu, notes),
        _limits(use, notes),
        _energy(use, notes),
    ]


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _megahertz(hertz: float) -> str:
    return f"{hertz / 1e6:.0f}"


def _cell(reading: Reading, write: Callable[[float], str], notes: Footnotes) -> Markup:
    if reading.value is None:
        return notes.missing(reading.reason)
    return notes.doubt(write(reading.value), reading.reason)


def _pair(
    first: Reading, second: Reading, write: Callable[[float, float], str], notes: Footnotes
) -> Markup:
    if first.value is None:
        return notes.missing(first.reason)
    if second.value is None:
        return notes.missing(second.reason)
    return notes.doubt(write(first.value, second.value), first.reason or second.reason)


def _net_watts(use: GpuUse) -> Reading:
    if use.watts.value is None or use.idle_watts.value is None:
        return use.idle_watts if use.idle_watts.value is None else use.watts
    return Reading(use.watts.value - use.idle_watts.value)


def _link(use: GpuUse, gpu: Gpu, notes: Footnotes) -> Markup:
    seen = _pair(use.pcie_generation, use.pcie_width, pcie_link, notes)
    highest = _pair(gpu.pcie_generation_max, gpu.pcie_width_max, pcie_link, notes)
    return Markup(f"{seen} ({highest})")


def _limits(use: GpuUse, notes: Footnotes) -> Markup:
    """Seconds by reason. They are not added: two reasons can limit the same moment."""
    if not use.throttle_seconds:
        return notes.missing("the limits of the clock were not read")
    known = {name: each for name, each in use.throttle_seconds.items() if each.value is not None}
    unknown = [each for each in use.throttle_seconds.values() if each.value is None]
    cells = [
        f"{escape(name)} {_cell(each, lambda value: number(value, 3), notes)}"
        for name, each in known.items()
        if each.value
    ]
    if known and not cells:
        cells = ["0"]
    return Markup(", ".join([*cells, *dict.fromkeys(notes.missing(u.reason) for u in unknown)]))


def _energy(use: GpuUse, notes: Footnotes) -> Markup:
    if use.joules.value is None:
        return notes.missing(use.joules.reason)
    dropped = f", {use.dropped_samples} samples of 0 W dropped" if use.dropped_samples else ""
    return notes.doubt(use.joules_source + dropped, use.joules.reason)
