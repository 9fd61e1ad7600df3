"""What does a search for a batch size look like? Records whose answers are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from diagnose.records.batch_size import BatchSizeRecord, Configuration, Estimate, Probe, ProbeStatus
from diagnose.records.header import Header, Reading, WorkloadFacts
from diagnose.records.run import StageResult
from tests.support.records.parts import gpu_use, machine, measurement, timing

MB = 1e6
FREE = 1000 * MB
# Seconds per step: 100 samples/s at batch 1, then nearly flat from 8 on.
STEPS = {1: 0.010, 2: 0.011, 4: 0.014, 8: 0.020, 16: 0.0390, 25: 0.0605}
LIMIT = 25
NO_LOADER = StageResult("loader", "Loader", "skipped", "workload w has no datasets")


def probe(
    batch: int, *, fresh: bool = False, limit: int = LIMIT, fixed: float = 200, each: float = 28
) -> Probe:
    """Peaks on a line: so many fixed MB, so many for each sample."""
    fits = batch <= limit
    return Probe(
        batch,
        "fits" if fits else "over the limit",
        Reading((fixed + each * batch) * MB),
        Reading(FREE),
        (0.01, 0.02, 0.03),
        "" if fits else "its peak is over 90% of what was free",
        seconds=0.5,
        fresh=fresh,
    )


def broken(batch: int, status: ProbeStatus) -> Probe:
    reason = "no result after 5 s" if status == "hung" else "KeyError: 'x'"
    return replace(probe(batch), status=status, reason=reason, step_seconds=())


def sweep(steps: Mapping[int, float] = STEPS, slots: int = 10, noise: float = 0.004) -> StageResult:
    made = [
        measurement(
            f"batch {batch}",
            timing(seconds, slots=slots, noise=noise),
            samples=batch,
            gpus=[gpu_use()],
        )
        for batch, seconds in steps.items()
    ]
    return StageResult("sweep", "Batch sizes", "done", measurements=tuple(made), seconds=9.0)


def loader(samples_per_second: float) -> StageResult:
    made = measurement("2 workers, mmap", 32 / samples_per_second, samples=32)
    return StageResult("loader", "Loader", "done", measurements=(made,), seconds=1.0)


def configuration(**changes: object) -> Configuration:
    made = Configuration(
        key="as it is",
        settings={"batch_size": 32},
        status="done",
        estimates=(Estimate("base batch 64", 64, 64), Estimate("1 GB of memory", 1, 2)),
        probes=(*map(probe, (1, 2, 6, 25, 26)), probe(25, fresh=True)),
        sweep=sweep(),
        loader=NO_LOADER,
        seconds=14.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def batch_size_record(*configurations: Configuration, workload: str = "w") -> BatchSizeRecord:
    made = configurations or (configuration(),)
    return BatchSizeRecord(
        header=Header(
            tool_version="0.1.0",
            label="b",
            created="2026-01-01 00:00 UTC",
            source="hardware",
            effort="full",
            seed=0,
            machine=machine(),
        ),
        workload=WorkloadFacts(workload, "seed", {"batch_size": 32}, 100_000_000),
        task="training step",
        planned=tuple(each.key for each in made),
        configurations=made,
        complete=True,
    )


def golden_record() -> BatchSizeRecord:
    """One configuration that is exact, one that was cut short, one that never began."""
    cut = configuration(
        key="max_crops 12",
        probes=(probe(1), probe(25, fresh=True)),
        stopped="--max-attempts 2 was reached",
        asked=(8, 64),
        loader=loader(250.0),
    )
    lost = configuration(
        key="max_crops 13", status="skipped", reason="no time", probes=(), sweep=None
    )
    return batch_size_record(configuration(key="max_crops 4"), cut, lost)
