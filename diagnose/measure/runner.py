"""Who supervises? The parent: deadlines, replacement of a dead child, and what is kept.

The parent loads no torch. It asks one child for one stage after the other, samples NVML
beside it, and hands every finished stage to `save` before the next one begins.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from diagnose import __version__
from diagnose.codec import from_dict, to_dict
from diagnose.measure.child import Child, ChildDied, ChildHung
from diagnose.measure.power import PowerMeter
from diagnose.measure.stages import STAGES, Stage
from diagnose.model import METHOD, SCHEMA, Machine, RunRecord, StageResult, WorkloadFacts

OPEN_SECONDS = 600  # a cold disk, a first preprocessing of the data
STAGE_SECONDS: Mapping[str, float] = {"smoke": 120, "quick": 180, "full": 1800}


@dataclass(frozen=True)
class Request:
    """What is to be measured. None leaves the choice to the device that is found."""

    workload: str = "bert"
    size: str | None = None
    device: str | None = None
    data: str | None = None
    effort: str | None = None
    seed: int = 0
    stages: Sequence[str] = tuple(stage.key for stage in STAGES)
    stage_seconds: float | None = None


class Refused(Exception):
    """The request makes no sense here; the message says why and what to do."""


class CouldNotOpen(Exception):
    """The child ended before anything could be measured."""


class Watcher:
    """Hears what happens. The command line shows it; tests count it."""

    def opening(self) -> None: ...

    def stage_begins(self, stage: Stage) -> None: ...

    def stage_progress(self, name: str, slots: int, seconds_per_step: float) -> None: ...

    def stage_ended(self, result: StageResult) -> None: ...


class Runner:
    """One run: a record that grows by a stage at a time."""

    def __init__(self, request: Request, watcher: Watcher) -> None:
        self._request = request
        self._watcher = watcher
        self._child: Child | None = None
        self._meter = PowerMeter(salt=secrets.token_hex(8))

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()
        self._meter.stop()

    def open(self) -> RunRecord:
        """Start the child and say what will be measured where; no stage has run yet."""
        self._watcher.opening()
        try:
            ready = self._open_child()
        except (ChildDied, ChildHung) as error:
            raise CouldNotOpen(str(error) or f"not ready after {OPEN_SECONDS} s") from None
        self._meter.watch(ready["identities"])
        machine = from_dict(Machine, ready["machine"], "machine")
        return RunRecord(
            schema=SCHEMA,
            method=METHOD,
            tool_version=__version__,
            label="",
            created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            source="fake device" if ready["is_fake"] else self._meter.source,
            effort=ready["effort"],
            seed=self._request.seed,
            machine=self._meter.describe(machine),
            workload=from_dict(WorkloadFacts, ready["workload"], "workload"),
            planned=tuple(self._request.stages),
        )

    def measure(self, record: RunRecord, save: Callable[[RunRecord], None]) -> RunRecord:
        """Run every planned stage that the record does not hold yet; save after each."""
        have = {stage.key for stage in record.stages}
        for stage in STAGES:
            if stage.key not in record.planned or stage.key in have:
                continue
            self._watcher.stage_begins(stage)
            result = self._run(stage, record)
            record = with_stage(record, result)
            record = replace(record, machine=self._meter.with_periods(record.machine))
            save(record)
            self._watcher.stage_ended(result)
        record = replace(record, complete=True)
        save(record)
        return record

    def _run(self, stage: Stage, record: RunRecord) -> StageResult:
        limit = self._request.stage_seconds or STAGE_SECONDS[record.effort]
        earlier = {each.key: to_dict(each) for each in record.stages if each.status == "done"}
        began = time.monotonic()

        def ended(status: Any, reason: str) -> StageResult:
            # Whatever state the child is in, the next stage deserves a fresh one.
            self._end_child()
            seconds = time.monotonic() - began
            return StageResult(stage.key, stage.title, status, reason, seconds=seconds)

        try:
            if self._child is None:
                self._open_child()
            assert self._child is not None
            kind, content = self._child.ask(
                {
                    "stage": stage.key,
                    "earlier": earlier,
                    "energy_period_seconds": self._meter.energy_period_seconds,
                },
                limit,
                lambda seen: self._watcher.stage_progress(*seen),
            )
        except ChildHung:
            return ended("hung", f"no result after {limit:g} s; the measuring process was killed")
        except ChildDied as error:
            return ended("failed", str(error))
        except (Refused, CouldNotOpen) as error:
            return ended("failed", f"the measuring process could not be replaced: {error}")
        if kind == "failed":
            return ended("failed", content)
        result = from_dict(StageResult, content, stage.key)
        return self._meter.attach(result, began)

    def _open_child(self) -> dict[str, Any]:
        request = self._request
        self._child = Child()
        kind, content = self._child.ask(
            {
                "open": {
                    "workload": request.workload,
                    "size": request.size,
                    "device": request.device,
                    "data": request.data,
                    "effort": request.effort or "",
                    "seed": request.seed,
                }
            },
            OPEN_SECONDS,
            lambda seen: None,
        )
        if kind == "refused":
            self._end_child()
            raise Refused(content)
        if kind == "failed":
            self._end_child()
            raise CouldNotOpen(content)
        ready: dict[str, Any] = content
        return ready

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def with_stage(record: RunRecord, result: StageResult) -> RunRecord:
    """Stages stay in ladder order, whatever order they were measured in."""
    order = [stage.key for stage in STAGES]
    stages = sorted([*record.stages, result], key=lambda each: order.index(each.key))
    return replace(record, stages=tuple(stages))


def resumed(fresh: RunRecord, earlier: RunRecord) -> RunRecord:
    """The earlier run's good stages under the fresh run's plan, if both are the same run."""
    for name, now, then in (
        ("measuring method", fresh.method, earlier.method),
        ("workload", fresh.workload, earlier.workload),
        ("effort", fresh.effort, earlier.effort),
        ("seed", fresh.seed, earlier.seed),
        ("device", fresh.machine.device_name, earlier.machine.device_name),
        ("torch version", fresh.machine.versions["torch"], earlier.machine.versions["torch"]),
        ("source", fresh.source, earlier.source),
    ):
        if now != then:
            raise Refused(
                f"cannot resume: the {name} of the interrupted run differs from this one; "
                "run without --resume to measure everything again"
            )
    kept = tuple(stage for stage in earlier.stages if stage.status in ("done", "skipped"))
    planned = tuple(s.key for s in STAGES if s.key in {*fresh.planned, *earlier.planned})
    return replace(earlier, machine=fresh.machine, planned=planned, stages=kept, complete=False)
