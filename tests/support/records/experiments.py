"""What do experiments look like? Builders of comparisons and records with known ratios."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from diagnose.records.experiments import (
    Comparison,
    Equality,
    EqualityCheck,
    LaunchLine,
    LaunchMap,
    OptimizeRecord,
)
from diagnose.records.header import Header, Reading, Setting, Status, WorkloadFacts
from diagnose.records.run import GpuUse, Measurement, Timing
from tests.support.records.parts import NO_GPU, data_facts, gpu_use, machine

Form = Literal["after", "as published"]
# Enough that one clear effect is provable among all experiments of a record.
BLOCKS = 14
BATCH = 32
# What a step of the fusion asks the allocator for, with a vocabulary tensor less.
FUSED = {
    "vocabulary_tensor_bytes": 346_161_152,
    "before_peak_bytes": 5_000_000_000,
    "after_peak_bytes": 4_650_000_000,
}


def timing(slot_seconds: Sequence[float], steps_per_slot: int = 1, not_steady: str = "") -> Timing:
    return Timing(
        steps_per_slot=steps_per_slot,
        slot_starts=tuple(float(index) for index in range(len(slot_seconds))),
        slot_seconds=tuple(slot_seconds),
        warmup_seconds=(),
        not_steady=not_steady,
        unmet="",
        overhead_seconds=1e-6,
    )


def side(
    name: str,
    slot_seconds: Sequence[float],
    steps_per_slot: int = 1,
    samples: int | None = BATCH,
    peak_bytes: float | None = None,
    gpus: Sequence[GpuUse] = (),
    not_steady: str = "",
) -> Measurement:
    """One side of an experiment, with exactly these slots."""
    seconds = sum(slot_seconds)
    return Measurement(
        name=name,
        role="result",
        settings={"batch_size": BATCH},
        timing=timing(slot_seconds, steps_per_slot, not_steady),
        samples_per_step=samples,
        flops_per_step=Reading(None, "operations are not counted here"),
        bytes_per_step=Reading(None, "bytes are not counted here"),
        peak_bytes=Reading(None, "the host does not count peaks")
        if peak_bytes is None
        else Reading(peak_bytes),
        gpus=tuple(
            replace(use, joules=Reading((use.watts.value or 0.0) * seconds)) for use in gpus
        ),
        gpus_reason="" if gpus else NO_GPU,
    )


def equal(tolerance: float = 1e-5, worst: float = 2e-7) -> Equality:
    return Equality(
        (
            EqualityCheck("outputs", tolerance, worst, 0, 16, True),
            EqualityCheck("gradients", tolerance, worst / 2, None, 16, True),
        )
    )


def unequal(worst: float | None = 3.2, differing: int | None = 15) -> Equality:
    return Equality(
        (
            EqualityCheck("outputs", 1e-5, worst, differing, 16, False),
            EqualityCheck("loss", 1e-5, 0.02, None, 16, False),
            EqualityCheck("gradients", 1e-5, 1e-9, None, 16, True),
        )
    )


def not_claimed() -> Equality:
    check = EqualityCheck("outputs", 1e-5, 0.004, 16, 16, False)
    return Equality((check,), "not claimed", "low precision rounds")


def noisy_blocks(
    seconds: float, ratio: float, blocks: int = BLOCKS, noise: float = 0.001, seed: str = ""
) -> tuple[list[float], list[float], list[float]]:
    """Slots of {before, control, after} whose blocks drift together by some percent."""
    dice = random.Random(f"{seed} {seconds} {ratio} {blocks}")
    sides: tuple[list[float], list[float], list[float]] = ([], [], [])
    for block in range(blocks):
        drift = 1 + 0.03 * math.sin(block)
        for slots, expected in zip(sides, (seconds, seconds, seconds / ratio), strict=True):
            slots.append(expected * drift * (1 + noise * dice.gauss(0, 1)))
    return sides


def compare(
    key: str,
    ratio: float | None = 1.0,
    seconds: float = 0.5,
    scope: str = "training step",
    form: Form = "after",
    equality: Equality | None = None,
    blocks: int = BLOCKS,
    noise: float = 0.001,
    peaks: tuple[float, float] | None = None,
    watts: tuple[float, float] | None = None,
    after_text: str = "the change",
    facts: Mapping[str, Setting] | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """An experiment whose second side is `ratio` times as fast; None: nothing was timed."""
    made = Comparison(
        key=key,
        title=key.replace("_", " "),
        form=form,
        scope=scope,
        before_text="the original",
        after_text=after_text,
        status="done",
        equality=equality or equal(),
        facts=facts or {},
        notes=tuple(notes),
    )
    if ratio is None:
        return made
    before, control, after = noisy_blocks(seconds, ratio, blocks, noise, f"{key} {scope} {form}")
    first = None if peaks is None else peaks[0]
    second = None if peaks is None else peaks[1]
    used = [gpu_use(watts[0])] if watts else []
    return replace(
        made,
        before=side("before", before, peak_bytes=first, gpus=used),
        control=side("control", control, peak_bytes=first, gpus=used),
        after=side("after", after, peak_bytes=second, gpus=[gpu_use(watts[1])] if watts else []),
    )


def wrong(key: str, form: Form = "as published", scope: str = "training step") -> Comparison:
    """An experiment that ended at its proof of equality."""
    return compare(key, None, scope=scope, form=form, equality=unequal())


def ended(key: str, status: Status, reason: str) -> Comparison:
    made = compare(key, None)
    return replace(made, status=status, reason=reason, equality=None)


def slots_of(
    before: Iterable[float], control: Iterable[float], after: Iterable[float]
) -> Comparison:
    """An experiment with exactly these slots."""
    return replace(
        compare("apply_prompt", None),
        before=side("before", list(before)),
        control=side("control", list(control)),
        after=side("after", list(after)),
    )


def launch_line(
    function: str, trips: int, forward: int, backward: int = 0, seconds: float = 0.01, **more: str
) -> LaunchLine:
    return LaunchLine(
        file=more.get("file", "bench/dgca/model.py"),
        line=141,
        function=function,
        code=more.get("code", "x[i, at[i, j]] = r[j]"),
        forward=forward,
        backward=backward,
        trips=trips,
        syncs=0,
        sync_operators=(),
        allocated_bytes=1024,
        largest_bytes=512,
        flops=0,
        seconds=Reading(seconds),
        operators={"aten::copy_": forward},
    )


def launch_map(form: str = "original", trips: int = 6 * BATCH) -> LaunchMap:
    lines = (
        launch_line("_apply_prompt", trips, trips, 3 * trips, 0.4),
        launch_line("forward", 1, 40, 80, 0.5, code="self.bert(x)"),
        launch_line("forward", 1, 6, 12, 0.1, code="self.detector(h)"),
    )
    return LaunchMap(
        form=form,
        settings={"batch_size": BATCH, "prompt_length": 3, "sequence_length": 128},
        lines=lines,
        launches=sum(each.forward + each.backward for each in lines),
        unattributed=0,
    )


def optimize_record(
    *comparisons: Comparison,
    maps: Sequence[LaunchMap] = (),
    gpus: int = 0,
    planned: Sequence[str] | None = None,
    complete: bool = True,
) -> OptimizeRecord:
    return OptimizeRecord(
        header=Header(
            tool_version="0.1.0",
            label="rtx-4090" if gpus else "xeon",
            created="2025-12-22T10:30Z",
            source="hardware",
            effort="quick",
            seed=7,
            machine=machine(gpus),
        ),
        workload=WorkloadFacts(
            name="dgca",
            size="small",
            settings={"batch_size": BATCH, "sequence_length": 128, "prompt_length": 3},
            parameters=12_000_000,
            data=data_facts(),
        ),
        planned=tuple(dict.fromkeys(each.key for each in comparisons))
        if planned is None
        else tuple(planned),
        comparisons=comparisons,
        maps=tuple(maps),
        complete=complete,
    )


def whole_catalogue(gpus: int = 0) -> OptimizeRecord:
    """What a sound run of the whole catalogue finds, wrong published forms included."""
    watts = (200.0, 320.0) if gpus else None
    fp32: dict[str, Setting] = {
        "fp32_time_share": 0.31,
        "fp32_operators": "softmax (20%), log (11%)",
    }
    return optimize_record(
        compare("apply_prompt", 1.05, 0.05, "forward", watts=watts),
        compare("apply_prompt", 1.6, 0.5, peaks=(9e9, 8e9), watts=watts),
        wrong("apply_prompt", scope="forward"),
        compare(
            "apply_prompt",
            1.05,
            0.05,
            "forward",
            "as published",
            after_text="index_copy_, sentences of one length",
        ),
        compare("dynamic_mask", 9.0, 0.005, "mask"),
        wrong("dynamic_mask", scope="mask"),
        compare("gated_fusion", 1.3, 0.3, "forward", facts=FUSED),
        compare("gated_fusion", 1.2, 0.5, facts=FUSED),
        wrong("gated_fusion", scope="forward"),
        compare("dataset_clone", 2.0, 0.005, "batch"),
        compare("dataset_preload", 1.0, 0.005, "batch"),
        compare("dataset_batched", 4.0, 0.005, "batch"),
        compare("loader_workers", 1.0, 0.012, "batch"),
        compare("loader_prefetch", 1.0, 0.012, "batch"),
        compare("loader_persistent", 1.1, 1.2, "epoch"),
        compare("loader_drop_last", 1.0, 1.2, "epoch"),
        compare("logging_sync", 1.0),
        compare(
            "torch_compile",
            1.2,
            facts={"compile_seconds": 20.5, "graph_breaks": 3},
        ),
        ended("fused_optimizer", "skipped", "this device has no fused optimiser"),
        compare("hidden_states", 1.0),
        compare("mixed_precision", 0.8, equality=not_claimed(), facts=fp32, watts=watts),
        compare("all_together", 2.3, peaks=(9e9, 7e9), watts=watts),
        maps=(launch_map(), launch_map("optimised", 1)),
        gpus=gpus,
    )
