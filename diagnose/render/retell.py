"""How is one kind of record told as another? They share a header, which is copied here alone."""

from __future__ import annotations

from typing import TypeVar

from diagnose.records.run import OptimizeRecord, RunRecord, WorkloadFacts
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
        schema=record.schema,
        method=record.method,
        tool_version=record.tool_version,
        label=record.label,
        created=record.created,
        source=record.source,
        effort=record.effort,
        seed=seed,
        machine=record.machine,
        workload=workload,
        planned=planned,
        complete=record.complete,
    )
