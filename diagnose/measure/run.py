"""How does a run go from stage to stage? One after the other, each saved before the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diagnose.measure.session import Refused, Session
from diagnose.measure.stages import STAGES, Hints
from diagnose.records.codec import to_dict
from diagnose.records.run import Measurement, RunRecord, StageResult
from diagnose.records.stats import hodges_lehmann

STAGE_SECONDS: Mapping[str, float] = {"smoke": 120, "quick": 180, "full": 1800}


def open_run(session: Session, stages: Sequence[str]) -> RunRecord:
    """What will be measured where; no stage has run yet."""
    return RunRecord(session.header, session.workload, planned=tuple(stages))


def measure_run(
    session: Session,
    record: RunRecord,
    save: Callable[[RunRecord], None],
    seconds: float | None = None,
) -> RunRecord:
    """Run every planned stage that the record does not hold yet; save after each.

    `seconds` is the longest that one stage may take.
    """
    have = {stage.key for stage in record.stages}
    for stage in STAGES:
        if stage.key not in record.planned or stage.key in have:
            continue
        session.watcher.stage_begins(stage)
        result = session.measure_stage(
            "stage",
            stage.key,
            stage.title,
            seconds or STAGE_SECONDS[record.header.effort],
            stage=stage.key,
            hints=to_dict(find_hints(record)),
        )
        machine = session.meter.with_periods(record.header.machine)
        record = replace(with_stage(record, result), header=replace(record.header, machine=machine))
        save(record)
        session.watcher.stage_ended(result)
    record = replace(record, complete=True)
    save(record)
    return record


def find_hints(record: RunRecord) -> Hints:
    """What later stages may know of earlier ones: few numbers, for a short request."""

    def seconds_per_step(measurement: Measurement) -> float:
        timing = measurement.timing
        return hodges_lehmann(timing.slot_seconds).center / timing.steps_per_slot

    found = {each.key: each.measurements for each in record.stages if each.status == "done"}
    training, loaders = found.get("training"), found.get("loader")
    return Hints(
        training_seconds=seconds_per_step(training[0]) if training else None,
        loader=min(loaders, key=seconds_per_step).settings if loaders else None,
    )


def with_stage(record: RunRecord, result: StageResult) -> RunRecord:
    """Stages stay in ladder order, whatever order they were measured in."""
    order = [stage.key for stage in STAGES]
    stages = sorted([*record.stages, result], key=lambda each: order.index(each.key))
    return replace(record, stages=tuple(stages))


def resumed(fresh: RunRecord, earlier: RunRecord) -> RunRecord:
    """The earlier run's good stages under the fresh run's plan, if both are the same run."""
    now, then = _identify(fresh), _identify(earlier)
    for name in now:
        if now[name] != then[name]:
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


def _identify(record: RunRecord) -> dict[str, object]:
    """What must be the same for two records to be one run."""
    header = record.header
    return {
        "measuring method": header.method,
        "workload": record.workload,
        "effort": header.effort,
        "seed": header.seed,
        "device": header.machine.device_name,
        "torch version": header.machine.versions["torch"],
        "number of threads": header.machine.threads,
        "source": header.source,
    }
