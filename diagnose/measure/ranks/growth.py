"""How does a record grow from what the ranks say? Its head once, then a line at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Identity
from diagnose.measure.machine.describe import with_gpus
from diagnose.measure.ranks.link.surroundings import read_surroundings
from diagnose.records.codec import from_dict
from diagnose.records.experiments import Comparison
from diagnose.records.header import Header, Machine, Reading, Source, WorkloadFacts
from diagnose.records.ranks import (
    BandwidthRecord,
    CadenceCost,
    Rank,
    ScalingRecord,
    Series,
    SizeResult,
)


def make_header(ready: Mapping[str, Any], effort: str, seed: int = 0) -> Header:
    """Where and how it is measured; the label is given by whoever keeps the record."""
    machine, source = _describe_machine(ready)
    created = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Header("", created, source, effort, machine, seed)


def _describe_machine(ready: Mapping[str, Any]) -> tuple[Machine, Source]:
    """The machine with its GPUs, which only NVML knows, and how far it can be believed."""
    found = [from_dict(Identity, each, "identity") for each in ready["identities"]]
    machine = from_dict(Machine, ready["machine"], "machine")
    with nvml.open_session() as session:
        is_stub = isinstance(session, nvml.Session) and nvml.is_stub(session)
        machine = with_gpus(machine, session, found, salt=secrets.token_hex(8))
    if ready["is_fake"]:
        return machine, "fake device"
    return machine, "stub" if found and is_stub else "hardware"


def _ranks(ready: Mapping[str, Any]) -> tuple[Rank, ...]:
    return tuple(from_dict(Rank, each, "rank") for each in ready["ranks"])


def begin_link(ready: Mapping[str, Any], effort: str, overhead_seconds: float) -> BandwidthRecord:
    header, ranks = make_header(ready, effort), _ranks(ready)
    home = Path.home() if os.environ.get("HOME") else None
    return BandwidthRecord(
        header=header,
        backend=ready["backend"],
        nodes=ready["nodes"],
        ranks=ranks,
        surroundings=read_surroundings(os.environ, header.machine, ranks, home),
        overhead_seconds=overhead_seconds,
    )


def begin_scaling(
    ready: Mapping[str, Any],
    seed: int,
    *,
    workload: Mapping[str, Any],
    effort: str,
    samples_per_step: int,
    gradient_bytes: int,
    settings: Mapping[str, Any],
) -> ScalingRecord:
    return ScalingRecord(
        header=make_header(ready, effort, seed),
        workload=from_dict(WorkloadFacts, workload, "workload"),
        backend=ready["backend"],
        nodes=ready["nodes"],
        ranks=_ranks(ready),
        samples_per_step=samples_per_step,
        gradient_bytes=gradient_bytes,
        bucket_bytes=(),
        settings=settings,
    )


def add_size(record: BandwidthRecord, content: Any) -> BandwidthRecord:
    return replace(record, sizes=(*record.sizes, from_dict(SizeResult, content, "size")))


def add_line(record: ScalingRecord, kind: str, content: Any) -> ScalingRecord:
    """The record with what one line of the ranks says."""
    if kind == "buckets":
        return replace(record, bucket_bytes=tuple(content))
    if kind == "series":
        found = tuple(from_dict(Series, each, "series") for each in content)
        return replace(record, series=found)
    if kind == "backward":
        return replace(record, backward_seconds=tuple(content))
    if kind == "watts":
        return replace(record, watts=tuple(from_dict(Reading, each, "watts") for each in content))
    if kind == "size":
        return replace(record, curve=(*record.curve, from_dict(SizeResult, content, "size")))
    if kind == "cadence":
        return replace(record, cadence=from_dict(CadenceCost, content, "cadence"))
    if kind == "comparison":
        made = from_dict(Comparison, content, "comparison")
        return replace(record, comparisons=(*record.comparisons, made))
    raise ValueError(f"a rank sent a line of the unknown kind '{kind}'")
