"""What does a run look like? Builders of whole records, with every number chosen by the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagnose.records.header import Header, Reading, Setting, Source, WorkloadFacts
from diagnose.records.run import Measurement, PowerTrace, RunRecord, StageResult, Timing
from tests.support.records.parts import NO_GPU, data_facts, gpu_use, machine

# Under their own names again, so that other tests may take them from here beside whole runs.
from tests.support.records.parts import measurement as measurement
from tests.support.records.parts import stage as stage
from tests.support.records.parts import timing as timing

PLANNED = (
    "ceilings",
    "inference",
    "training",
    "precision",
    "loader",
    "real_data",
    "full_model",
)
# One training step of this many floating-point operations.
STEP_FLOPS = 8.5e12
STEP_BYTES = 50e9  # 16 % of a step of 0.34 s at 0.9 TB/s


def loader_stage(
    milliseconds: Mapping[tuple[int, str], float] | None = None,
) -> StageResult:
    """Milliseconds per batch by (workers, storage); by default all are the same."""
    milliseconds = milliseconds or {
        (workers, storage): 12.4 for storage in ("mmap", "preload") for workers in (0, 2, 4, 8)
    }
    return stage(
        "loader",
        *(
            measurement(
                f"{workers} workers, {storage}",
                timing(each / 1e3, seed=workers + len(storage)),
                settings={
                    "workers": workers,
                    "storage": storage,
                    "pin_memory": True,
                    "batch_size": 128,
                    "prefetch_factor": 2 if workers else None,
                },
            )
            for (workers, storage), each in milliseconds.items()
        ),
    )


def ceilings_stage(half: float = 150e12, full: float = 40e12) -> StageResult:
    """Matrix products at the given FLOP/s, beside memory, launch and copy."""
    gpus = [gpu_use()]
    return stage(
        "ceilings",
        *(
            measurement(
                f"matmul {dtype}",
                1e12 / speed,
                flops=1e12,
                samples=None,
                gpus=gpus,
                settings={"ceiling": "matmul", "dtype": dtype},
            )
            for dtype, speed in (("float32", full), ("bfloat16", half))
        ),
        measurement(
            "memory",
            2e-3,
            nbytes=1.8e9,
            samples=None,
            gpus=gpus,
            settings={"ceiling": "memory"},
        ),
        measurement(
            "launch",
            timing(4e-6, steps_per_slot=2000),
            samples=None,
            gpus=gpus,
            settings={"ceiling": "launch"},
        ),
        measurement(
            "copy pinned",
            5e-3,
            nbytes=1.25e8,
            samples=None,
            gpus=gpus,
            settings={"ceiling": "copy", "pinned": True},
        ),
    )


def pair(
    key: str,
    seconds: float,
    before: float,
    watts: float,
    dtype: str = "float32",
    flops: float = STEP_FLOPS,
    noise: float = 0.004,
    nbytes: float = STEP_BYTES,
    **settings: Setting,
) -> StageResult:
    """A stage with its result and, in the same blocks, its reference."""
    common: dict[str, Setting] = {
        "batch_size": 128,
        "sequence_length": 128,
        "dtype": dtype,
        **settings,
    }
    gpus = [gpu_use(watts)]
    return stage(
        key,
        measurement(
            key,
            timing(seconds, noise=noise, seed=1, single_steps=70),
            flops=flops,
            nbytes=nbytes,
            gpus=gpus,
            settings=common,
        ),
        measurement(
            "reference",
            timing(before, noise=noise, seed=2),
            "reference",
            gpus=gpus,
            settings=common,
        ),
        power=(power_trace(key, watts),),
    )


def power_trace(key: str, watts: float, gpu: int = 0) -> PowerTrace:
    """Twelve seconds of each stage, which begin 20 s apart."""
    return PowerTrace(
        gpu,
        tuple(20.0 * PLANNED.index(key) + each for each in range(12)),
        tuple(watts + each % 3 for each in range(12)),
    )


def run_record(
    *changed: StageResult,
    without: Sequence[str] = (),
    source: Source = "hardware",
    complete: bool = True,
    gpus: int = 1,
    padding_share: float = 0.12,
) -> RunRecord:
    """A healthy run of the first report's job on one GPU; pass stages to replace its own."""
    inference = measurement(
        "inference",
        0.1116,
        flops=STEP_FLOPS / 3,
        gpus=[gpu_use()],
        settings={"batch_size": 128, "sequence_length": 128, "dtype": "float32"},
    )
    stages = {
        "ceilings": ceilings_stage(),
        "inference": stage("inference", inference, power=(power_trace("inference", 400),)),
        "training": pair("training", 0.3353, 0.1116, 402),
        "precision": pair("precision", 0.1629, 0.3353, 350, "bfloat16 autocast", 1.65e13),
        "loader": loader_stage(),
        "real_data": pair("real_data", 0.3360, 0.3353, 398, workers=4, storage="mmap"),
        "full_model": pair("full_model", 0.3400, 0.3355, 396, workers=4, storage="mmap"),
    }
    stages.update({each.key: each for each in changed})
    return RunRecord(
        header=Header(
            tool_version="0.1.0",
            label="rtx-4090",
            created="2025-12-22T10:30Z",
            source=source,
            effort="full",
            seed=7,
            machine=machine(gpus),
        ),
        workload=WorkloadFacts(
            name="bert",
            size="seed",
            settings={"batch_size": 128, "sequence_length": 128, "layers": 12, "hidden": 768},
            parameters=102_267_648,
            data=data_facts(padding_share),
        ),
        planned=tuple(key for key in PLANNED if key not in without),
        stages=tuple(stages[key] for key in PLANNED if key not in without),
        complete=complete,
    )


def slowed_input() -> RunRecord:
    """Half of the step waits for data."""
    return run_record(
        pair("real_data", 0.6700, 0.3353, 210, workers=0, storage="mmap"),
        loader_stage({(0, "mmap"): 340.0, (4, "mmap"): 90.0}),
        without=["full_model"],
    )


def slow_full_model() -> RunRecord:
    """The full model of the first report: 579 ms against 186 ms, at 200 W of 450 W."""
    return run_record(pair("full_model", 0.5794, 0.1864, 200, flops=4e12))


def slow_half() -> RunRecord:
    """Half precision is emulated: slower as a product and as a training step."""
    return run_record(
        ceilings_stage(half=10e12),
        pair("precision", 0.60, 0.3353, 350, "bfloat16 autocast"),
    )


def golden_record() -> RunRecord:
    """Two GPUs, a cause, a failed stage, and a reading that is missing."""
    record = slow_full_model()
    failed = stage("precision", status="failed", reason="the loss was not finite after 3 steps")
    stages = tuple(failed if each.key == "precision" else each for each in record.stages)
    return replace(
        record,
        header=replace(record.header, machine=run_record(gpus=2).header.machine),
        stages=stages,
    )


def with_timing(record: RunRecord, key: str, clock: Timing) -> RunRecord:
    """The same run with another clock reading of one stage's result."""
    stages = []
    for each in record.stages:
        if each.key == key:
            first = replace(each.measurements[0], timing=clock)
            each = replace(each, measurements=(first, *each.measurements[1:]))
        stages.append(each)
    return replace(record, stages=tuple(stages))


def use_gpu(
    record: RunRecord, key: str, **changes: Reading | dict[str, Reading] | str | int
) -> RunRecord:
    """The same run, with other readings of the GPU in one stage."""

    def change(each: Measurement) -> Measurement:
        return replace(each, gpus=tuple(replace(use, **changes) for use in each.gpus))  # type: ignore[arg-type]

    stages = tuple(
        replace(each, measurements=tuple(map(change, each.measurements)))
        if each.key == key
        else each
        for each in record.stages
    )
    return replace(record, stages=stages)


def on_cpu() -> RunRecord:
    """Nothing of a GPU is known, and every cell must say why."""
    record = run_record(gpus=0)
    stages = tuple(
        replace(
            each,
            power=(),
            measurements=tuple(
                replace(
                    m,
                    gpus=(),
                    gpus_reason=NO_GPU,
                    peak_bytes=Reading(None, "the host does not count peaks"),
                )
                for m in each.measurements
                if m.settings.get("ceiling") != "copy"
            ),
            notes=("copy: not applicable on the CPU",) if each.key == "ceilings" else (),
        )
        for each in record.stages
    )
    return replace(record, header=replace(record.header, label="xeon"), stages=stages)
