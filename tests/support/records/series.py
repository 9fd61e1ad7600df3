"""What does an `optimize` of the recurrent model look like? Records with known gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.header import Reading, Setting
from diagnose.records.run import Measurement
from tests.support.records.experiments import compare, ended, not_claimed, optimize_record

EPOCH = "training epoch"
COMPILED = {"took_effect": True, "graph_breaks": 2, "recompiles": 1, "compile_seconds": 20.0}


def epoch(key: str, ratio: float | None, **options: object) -> Comparison:
    return compare(key, ratio, scope=EPOCH, **options)  # type: ignore[arg-type]


def rung(key: str, ratio: float, **options: object) -> Comparison:
    return epoch(key, ratio, facts={"added": key}, **options)


def batch(size: int, ratio: float, peaks: tuple[float, float] | None = None) -> Comparison:
    facts: Mapping[str, Setting] = {"before_batch_size": 128, "after_batch_size": size}
    made = epoch(f"batch_{size}", ratio, facts=facts, equality=not_claimed(), peaks=peaks)
    curves = {"before": (1.0, 0.5, 0.25), "after": (1.0, 0.7, 0.5)}
    return replace(made, curves=curves, after_text=f"batch {size}")


def other_model(key: str, ratio: float, flops: tuple[int, int]) -> Comparison:
    facts = {
        "changes_model": True,
        "before_flops_per_sample": flops[0],
        "after_flops_per_sample": flops[1],
    }
    return epoch(key, ratio, facts=facts, equality=not_claimed(), after_text=key)


def series_record(
    *comparisons: Comparison, rungs: Sequence[Comparison] = (), gpus: int = 0
) -> OptimizeRecord:
    record = optimize_record(*comparisons, gpus=gpus)
    return replace(record, workload=replace(record.workload, name="timeseries"), rungs=tuple(rungs))


def with_utilization(made: Comparison, before: float, after: float) -> Comparison:
    """As NVML would have seen both sides; the comparison needs watts."""

    def set_use(side: Measurement | None, share: float) -> Measurement | None:
        if side is None:
            return None
        uses = tuple(replace(use, utilization=Reading(share)) for use in side.gpus)
        return replace(side, gpus=uses)

    return replace(
        made,
        before=set_use(made.before, before),
        control=set_use(made.control, before),
        after=set_use(made.after, after),
    )


def whole_series() -> OptimizeRecord:
    """What a sound run on a CPU finds."""
    return series_record(
        batch(192, 1.12),
        batch(256, 1.2, peaks=(1e9, 1.128e9)),
        batch(512, 1.4, peaks=(1e9, 1.384e9)),
        ended("tf32", "skipped", "TF32 is a mode of NVIDIA GPUs, and this is cpu"),
        epoch("workers_8", 0.7, facts={"preprocessing_seconds": 0.05}),
        epoch("no_workers", 1.6),
        other_model("hidden_128", 0.5, (1000, 4000)),
        other_model("hidden_256", 0.2, (1000, 16000)),
        epoch("compile_default", 1.3, facts=COMPILED),
        ended("compile_max_autotune", "skipped", "there is no C++ compiler"),
        epoch("set_to_none", 1.0),
        compare("evaluate_on_device", 1.0, scope="evaluation"),
        compare("importance_on_device", 1.0, scope="importance"),
        epoch("accumulate_4", 0.9, peaks=(2e9, 1.5e9)),
        other_model("sequence_60", 0.5, (1000, 2000)),
        rungs=(rung("no_workers", 1.6), rung("batch_512", 1.9), rung("compile_default", 2.2)),
    )
