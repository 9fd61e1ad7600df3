"""How is one kind of record told as another? They share a header, which is copied here alone."""

from __future__ import annotations

from typing import TypeVar

from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Header, WorkloadFacts
from diagnose.records.run import RunRecord
from diagnose.render.store import Record

Kind = TypeVar("Kind", RunRecord, OptimizeRecord)


def retell(
    record: Record,
    kind: type[Kind],
    *,
    seed: int,
    workload: WorkloadFacts,
    planned: tuple[str, ...],
) -> Kind:
    """A record of the other kind, still without results; a kind may lack what is passed by name."""
    return kind(
        header=Header(
            label=record.header.label,
            created=record.header.created,
            source=record.header.source,
            effort=record.header.effort,
            seed=seed,
            machine=record.header.machine,
        ),
        workload=workload,
        planned=planned,
        complete=record.complete,
    )
