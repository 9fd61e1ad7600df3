"""What does the report of a run say, and in which order? A pure function from a record to a page.

The answer comes first, then what it rests on, then everything needed to doubt it. No date but
the record's own and no path, so that the same record renders to the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.run.rules import answer, judge
from diagnose.analyze.units import number
from diagnose.records.run import RunRecord
from diagnose.render.findings import finding_sections
from diagnose.render.markdown import prose
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.run import tables
from diagnose.render.run.export import export
from diagnose.render.run.figures import figures
from diagnose.render.table import Cell


def page(record: RunRecord) -> Page:
    findings = judge(record)
    drawn = figures(record)
    stages = image("Milliseconds per step, stage by stage", "stages.svg", drawn)
    loader = image("Milliseconds per batch by number of loader workers", "loader.svg", drawn)
    return Page(
        header=record.header,
        title=f"{record.header.label}: {record.workload.name} on "
        f"{record.header.machine.device_name}",
        question="Where does the time go?",
        answer=answer(record, findings),
        sections=[
            Section(Place.FIRST_SCREEN, "Stages", [*stages, *tables.stages(record)]),
            *finding_sections(findings, "Stages"),
            _detail("What each part costs", tables.ledger(record)),
            _detail("DataLoader", [*tables.loader(record), *loader]),
            _detail("What the GPU did", _gpu(record)),
            _detail("What this device attains", tables.ceilings(record)),
            _detail("Slow steps", tables.percentiles(record)),
        ],
        workload=record.workload,
        method=_method(record),
    )


def _detail(title: str, blocks: Sequence[str]) -> Section:
    return Section(Place.DETAILS, title, blocks, folded=True)


def _gpu(record: RunRecord) -> list[str]:
    """Nothing where no GPU was observed: the table of stages says why."""
    used = tables.gpu_use(record)
    power = image("GPU power over the run", "power.svg", figures(record))
    if used and not power:
        power = [f"There is no power figure: {prose(derive.no_power_reason(record))}."]
    return [*used, *power]


def _method(record: RunRecord) -> list[tuple[str, Cell]]:
    slots = [
        len(measurement.timing.slot_seconds)
        for stage in record.stages
        for measurement in stage.measurements
    ]
    fewest, most = (min(slots), max(slots)) if slots else (0, 0)
    return [
        ("slots per measurement", str(most) if fewest == most else f"{fewest} to {most}"),
        ("stages planned", ", ".join(record.planned)),
        ("seconds", number(sum(stage.seconds for stage in record.stages), 3)),
        *(
            (f"note on {stage.key}", note)
            for stage in record.stages
            for note in stage.notes
            if stage.key != "ceilings"
        ),
    ]


PART = Part(RunRecord, "Where does the time go?", page, figures, export)
