"""How does a run go from stage to stage? One after the other, each saved before the next.

No torch here: a supervised child measures, while NVML is sampled beside it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from diagnose.measure.gpu.power import PowerMeter
from diagnose.measure.stages import STAGE_KEYS, STAGES, Hints, Stage
from diagnose.measure.supervisor import Broken, Job, Refused, Supervisor
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Header, Machine, WorkloadFacts
from diagnose.records.run import Measurement, RunRecord, StageResult
from diagnose.records.stats import hodges_lehmann

STAGE_SECONDS: Mapping[str, float] = {"smoke": 120, "quick": 180, "full": 1800}


class Watcher:
    """Hears what happens. The command line shows it; tests count it."""

    def opening(self) -> None: ...

    def stage_begins(self, stage: Stage) -> None: ...

    def stage_progress(self, name: str, slots: int, seconds_per_step: float) -> None: ...

    def stage_ended(self, result: StageResult) -> None: ...


class Runner:
    """One run: a record that grows by a stage at a time."""

    def __init__(
        self,
        job: Job,
        watcher: Watcher,
        stages: Sequence[str] = STAGE_KEYS,
        stage_seconds: float | None = None,
    ) -> None:
        self._seed = job.seed
        self._stages = stages
        self._stage_seconds = stage_seconds
        self._watcher = watcher
        self._supervisor = Supervisor(job)
        self._meter = PowerMeter(salt=secrets.token_hex(8))

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.end()
        self._meter.stop()

    def open(self) -> RunRecord:
        """Start the child and say what will be measured where; no stage has run yet."""
        self._watcher.opening()
        ready = self._supervisor.open()
        self._meter.watch(ready["identities"])
        return RunRecord(
            **common_facts(ready, self._meter, self._seed), planned=tuple(self._stages)
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
            record = replace(
                record,
                header=replace(
                    record.header, machine=self._meter.with_periods(record.header.machine)
                ),
            )
            save(record)
            self._watcher.stage_ended(result)
        record = replace(record, complete=True)
        save(record)
        return record

    def _run(self, stage: Stage, record: RunRecord) -> StageResult:
        began = time.monotonic()
        answer = self._supervisor.ask(
            {
                "stage": stage.key,
                "hints": to_dict(find_hints(record)),
                "energy_period_seconds": self._meter.energy_period_seconds,
            },
            self._stage_seconds or STAGE_SECONDS[record.header.effort],
            lambda seen: self._watcher.stage_progress(*seen),
        )
        if isinstance(answer, Broken):
            seconds = time.monotonic() - began
            return StageResult(
                stage.key, stage.title, answer.status, answer.reason, seconds=seconds
            )
        return self._meter.attach(from_dict(StageResult, answer, stage.key), began)


def find_hints(record: RunRecord) -> Hints:
    """Few numbers: a stopped child must not block us by not reading a long request."""

    def pace(measurement: Measurement) -> float:
        timing = measurement.timing
        return hodges_lehmann(timing.slot_seconds).center / timing.steps_per_slot

    found = {stage.key: stage for stage in record.stages if stage.status == "done"}
    loaders = found["loader"].measurements if "loader" in found else ()
    return Hints(
        training_seconds=pace(found["training"].measurements[0]) if "training" in found else None,
        loader=min(loaders, key=pace).settings if loaders else None,
    )


def common_facts(ready: Mapping[str, Any], meter: PowerMeter, seed: int) -> dict[str, Any]:
    """What every kind of record says about where, with what and how it was measured."""
    header = Header(
        label="",
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        source="fake device" if ready["is_fake"] else meter.source,
        effort=ready["effort"],
        seed=seed,
        machine=meter.describe(from_dict(Machine, ready["machine"], "machine")),
    )
    return {
        "header": header,
        "workload": from_dict(WorkloadFacts, ready["workload"], "workload"),
    }


def with_stage(record: RunRecord, result: StageResult) -> RunRecord:
    """Stages stay in ladder order, whatever order they were measured in."""
    order = [stage.key for stage in STAGES]
    stages = sorted([*record.stages, result], key=lambda each: order.index(each.key))
    return replace(record, stages=tuple(stages))


def resumed(fresh: RunRecord, earlier: RunRecord) -> RunRecord:
    """The earlier run's good stages under the fresh run's plan, if both are the same run."""
    for name, now, then in (
        ("measuring method", fresh.header.method, earlier.header.method),
        ("workload", fresh.workload, earlier.workload),
        ("effort", fresh.header.effort, earlier.header.effort),
        ("seed", fresh.header.seed, earlier.header.seed),
        ("device", fresh.header.machine.device_name, earlier.header.machine.device_name),
        (
            "torch version",
            fresh.header.machine.versions["torch"],
            earlier.header.machine.versions["torch"],
        ),
        ("number of threads", fresh.header.machine.threads, earlier.header.machine.threads),
        ("source", fresh.header.source, earlier.header.source),
    ):
        if now != then:
            raise Refused(
                f"cannot resume: the {name} of the interrupted run differs from this one; "
                "run without --resume to measure everything again"
            )
    kept = tuple(stage for stage in earlier.stages if stage.status in ("done", "skipped"))
    planned = tuple(s.key for s in STAGES if s.key in {*fresh.planned, *earlier.planned})
    return replace(
        earlier,
        header=replace(earlier.header, machine=fresh.header.machine),
        planned=planned,
        stages=kept,
        complete=False,
    )
