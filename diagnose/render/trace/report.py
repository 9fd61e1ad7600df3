"""What does a person read about a trace? The answer, one step as a picture, and who owns the time.

The lanes of host and device stand above each other; where the device idles, its gap has the color
of what the host did meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.analyze.script.words import name_line
from diagnose.analyze.trace.rules import diagnose, idle_seconds, slowest
from diagnose.analyze.units import BYTES, MILLISECONDS, PERCENT, number, percent
from diagnose.records.diagnosis import ScriptFinding
from diagnose.records.trace import (
    DOINGS,
    UNRECORDED,
    Device,
    KernelGroup,
    MemoryUse,
    Piece,
    RankTrace,
    TraceDiagnosis,
    TraceRecord,
)
from diagnose.render.figures import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, new_axes
from diagnose.render.markdown import prose
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.script.report import bullets, suspect_columns
from diagnose.render.script.terminal import excluded_lines, layout_causes
from diagnose.render.table import Cell, Column, code, pairs, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_NAME = "trace.svg"
MOST_ROWS = 12
_BUSY = {
    "compute": INK,
    "set": INK,
    "copy to or from the host": FAINT,
    "communication": "#882255",
}
_COLORS = {
    "launching": ORANGE,
    "python": PURPLE,
    "loader": SKY,
    "sync": GREEN,
    "copy": BLUE,
    "allocation": "#F0E442",
    "collective": "#882255",
    UNRECORDED: "#DDDDDD",
}
_NAMES = {"python": "Python", "loader": "loader wait", "sync": "synchronizing call"}


# --- in the terminal ---


def summarize(record: TraceRecord) -> str:
    diagnosis, rank = diagnose(record), slowest(record)
    lines = [each.text for each in layout_causes(diagnosis)]
    if rank.device is not None:
        idle = [f"{_name(kind)} {number(s * 1e3, 3)}" for kind, s in idle_seconds(rank).items()]
        lines.append(f"  idle in ms per step, by what the host did: {', '.join(idle)}")
    lines += [f"  undecided: {each.cause}: {each.reason}" for each in diagnosis.cannot_tell]
    lines.append("  a trace proves no cause: every gain is a bound; `diagnose script` tries them")
    return "\n".join([*lines, *(f"  note: {each}" for each in diagnosis.notes)])


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)


# --- in the report ---


def page(record: TraceRecord) -> Page:
    diagnosis, rank = diagnose(record), slowest(record)
    return Page(
        header=record.header,
        title=f"{record.header.label}: what the trace of {record.script} shows",
        question="What does the trace show?",
        answer=diagnosis.sentence,
        sections=[
            Section(Place.FIRST_SCREEN, "Where the time goes", _first_screen(record, diagnosis)),
            Section(Place.TO_DO, "What to do", _advice(diagnosis.findings)),
            Section(Place.EXCLUDED, "Excluded", bullets(excluded_lines(diagnosis))),
            Section(
                Place.LEFT,
                "Undecided",
                bullets(f"{each.cause}: {each.reason}" for each in diagnosis.cannot_tell),
            ),
            Section(Place.LEFT, "Notes", bullets(diagnosis.notes)),
            Section(Place.DETAILS, "Ranks", _ranks(record.ranks), folded=True),
            Section(Place.DETAILS, "Steps", _steps(rank), folded=True),
            Section(Place.DETAILS, "Kernels by operator and line", _kernels(rank), folded=True),
            Section(Place.DETAILS, "The host by line", _lines(rank), folded=True),
        ],
        method=[
            ("files", ", ".join(each.file for each in record.ranks)),
            ("a step ends with", rank.boundary),
            ("steps seen", rank.steps_found),
            ("gains", "bounds by replay of the trace without that work; nothing was tried"),
        ],
    )


def _first_screen(record: TraceRecord, diagnosis: TraceDiagnosis) -> list[str]:
    rank = slowest(record)
    causes = [each for each in diagnosis.findings if each.cause != "compute"]
    columns: list[Column[ScriptFinding]] = [
        Column("cause", lambda each: each.cause),
        Column("line", lambda each: code(name_line(each.file, each.line)), left=True),
        Column("likely, ms per step", lambda each: each.gain_ms / 1e3, MILLISECONDS),
        Column("of a step", lambda each: each.share, PERCENT),
        Column("at most, ms per step", lambda each: each.gain_ci[1] / 1e3, MILLISECONDS),
    ]
    blocks = [*image("one step of host and device", FIGURE_NAME, figures(record))]
    blocks += table(causes, columns)
    if rank.device is not None:
        blocks += pairs(_device_rows(rank, rank.device), "device")
        blocks += pairs(
            [(_name(kind), f"{number(s * 1e3, 3)} ms") for kind, s in idle_seconds(rank).items()],
            "idle per step, while the host is in",
        )
    if rank.memory is not None:
        where = "device" if rank.memory.on_device else "host"
        blocks += pairs(_memory_rows(rank.memory), f"memory of the {where}")
    return blocks


def _device_rows(rank: RankTrace, device: Device) -> list[tuple[str, Cell]]:
    steps = len(rank.steps)
    kernels = sum(each.kernels for each in rank.steps) / steps
    rows: list[tuple[str, Cell]] = [
        ("busy, first to last event", percent(device.busy / device.seconds)),
        ("computing", percent(device.computing / device.seconds)),
        ("exposed copies", percent(device.exposed_copy / device.seconds)),
        ("exposed communication", percent(device.exposed_communication / device.seconds)),
        ("kernels per step", number(kernels, 4)),
        ("queue when a kernel begins", number(device.queue_length, 3)),
    ]
    if device.kernels:
        mean = device.kernel_seconds / device.kernels
        rows += [
            ("mean kernel", f"{number(mean * 1e6, 3)} µs"),
            ("on tensor cores", percent(device.tensor_core_seconds / device.kernel_seconds)),
        ]
    if device.graph_launches:
        rows.append(("graph launches", device.graph_launches))
    return rows


def _memory_rows(memory: MemoryUse) -> list[tuple[str, Cell]]:
    rows: list[tuple[str, Cell]] = [
        ("allocations and frees per step", number(memory.events, 3)),
        ("allocated per step", BYTES.write(memory.allocated_bytes)),
    ]
    if memory.peak_bytes:  # old traces tell changes only
        rows.append(("peak", BYTES.write(memory.peak_bytes)))
    if memory.growth_bytes:
        rows.append(("more after each step", BYTES.write(memory.growth_bytes)))
    return rows


def _advice(findings: Sequence[ScriptFinding]) -> list[str]:
    lines = [
        f"- **{each.cause}** at {code(name_line(each.file, each.line))}: {prose(each.advice)}. "
        f"{prose(each.evidence[:1].upper() + each.evidence[1:])}."
        for each in findings
    ]
    return ["\n".join(lines)] if lines else []


def _ranks(ranks: Sequence[RankTrace]) -> list[str]:
    columns: list[Column[RankTrace]] = [
        Column("rank", lambda each: each.rank),
        Column("file", lambda each: code(each.file), left=True),
        Column("ms per step", lambda each: _mean(each), MILLISECONDS),
        Column("without collectives", lambda each: each.own_seconds, MILLISECONDS),
        Column("collectives", lambda each: each.collectives),
        Column("comes later by ms", lambda each: each.skew_seconds, MILLISECONDS),
        Column("clock offset ms", lambda each: each.clock_offset, MILLISECONDS),
    ]
    return table(ranks, columns) if len(ranks) > 1 else []


def _mean(rank: RankTrace) -> float:
    return sum(each.seconds for each in rank.steps) / len(rank.steps)


def _steps(rank: RankTrace) -> list[str]:
    has_device = rank.device is not None
    columns: list[Column[int]] = [
        Column("step", lambda at: at + 1),
        Column("ms", lambda at: rank.steps[at].seconds, MILLISECONDS),
        Column("busy", lambda at: rank.steps[at].busy if has_device else None, MILLISECONDS),
        *(_idle_column(rank, doing) for doing in (*DOINGS, UNRECORDED)),
        Column("exposed copies", lambda at: rank.steps[at].exposed_copy or None, MILLISECONDS),
        Column(
            "exposed communication",
            lambda at: rank.steps[at].exposed_communication or None,
            MILLISECONDS,
        ),
        Column("kernels", lambda at: rank.steps[at].kernels or None),
    ]
    return table(range(min(len(rank.steps), 4 * MOST_ROWS)), columns)


def _idle_column(rank: RankTrace, doing: str) -> Column[int]:
    return Column(
        f"idle: {_name(doing)}", lambda at: (rank.steps[at].idle or {}).get(doing), MILLISECONDS
    )


def _kernels(rank: RankTrace) -> list[str]:
    columns: list[Column[KernelGroup]] = [
        Column("operator", lambda each: code(each.operator)),
        Column("line", lambda each: code(_where(each)), left=True),
        Column("kernels per step", lambda each: number(each.kernels, 3)),
        Column("ms per step", lambda each: each.seconds, MILLISECONDS),
        Column("backward ms", lambda each: each.backward_seconds or None, MILLISECONDS),
    ]
    return table(rank.kernels[:MOST_ROWS], columns)


def _where(group: KernelGroup) -> str:
    return name_line(group.site.file, group.site.line) if group.site is not None else ""


def _lines(rank: RankTrace) -> list[str]:
    return table(rank.suspects[:MOST_ROWS], suspect_columns())


def figures(record: TraceRecord) -> Mapping[str, Callable[[], Figure]]:
    rank = slowest(record)
    return {FIGURE_NAME: functools.partial(draw_step, rank.picture)} if rank.picture else {}


def draw_step(pieces: Sequence[Piece]) -> Figure:
    """Two lanes of one step; a gap of the device is thin, in the color of its cause."""
    figure, axes = new_axes(2.3)
    lanes = list(dict.fromkeys(each.lane for each in pieces))
    kinds = list(dict.fromkeys(each.kind for each in pieces))
    for kind in sorted(kinds, key=lambda each: each not in _BUSY):
        for place, lane in enumerate(lanes):
            spans = [
                (each.start * 1e3, (each.end - each.start) * 1e3)
                for each in pieces
                if each.lane == lane and each.kind == kind
            ]
            gap = lane == "device" and kind not in _BUSY
            bottom, height = (place - 0.12, 0.24) if gap else (place - 0.36, 0.72)
            color = _BUSY.get(kind) or _COLORS[kind]
            axes.broken_barh(spans, (bottom, height), facecolor=color, linewidth=0)
        told = f"device: {kind}" if kind in _BUSY else _name(kind)
        axes.barh(0, 0, color=_BUSY.get(kind) or _COLORS[kind], label=told)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, max(each.end for each in pieces) * 1e3)
    axes.set_xlabel("ms of one step; thin: the device idles, in the color of what the host does")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    return figure


PART = Part(TraceRecord, "What does the trace show?", page, figures)
