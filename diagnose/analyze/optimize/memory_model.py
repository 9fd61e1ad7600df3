"""How large may the batch be? Measured peaks on a line: what is fixed, and what a sample adds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.units import scaled
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Setting
from diagnose.records.run import Measurement

KIND, WHAT = "out_of_memory", "Memory"
# Batches are advised in multiples of a warp.
BATCH_STEP = 32
# What allocators lose to fragmentation, and what others hold on the same card.
USABLE = 0.9


@dataclass(frozen=True)
class MemoryModel:
    """Peak bytes = fixed + per_sample x batch."""

    fixed_bytes: float
    bytes_per_sample: float

    def largest_batch(self, limit_bytes: float) -> int:
        fits = (USABLE * limit_bytes - self.fixed_bytes) / self.bytes_per_sample
        return max(0, math.floor(fits / BATCH_STEP) * BATCH_STEP)

    def describe(self) -> str:
        return (
            f"{scaled(self.fixed_bytes, 'B')} + {scaled(self.bytes_per_sample, 'B')} per sample "
            "of a batch"
        )


def fit_memory(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> MemoryModel | str:
    """Through the peaks of the smallest and the largest batch; or why there is no line."""
    if record.header.machine.device == "cpu":
        return "the resident size of a process keeps what was freed, so it has no memory model"
    points: dict[int, float] = {}
    for each in outcomes:
        facts = each.comparison.facts
        _add(points, facts.get("before_batch_size"), each.comparison.before)
        _add(points, facts.get("after_batch_size"), each.comparison.after)
    if len(points) < 2:
        return "the peaks of two batch sizes were not both measured"
    small, large = min(points), max(points)
    slope = (points[large] - points[small]) / (large - small)
    if slope <= 0:
        return "the peaks do not rise with the batch"
    return MemoryModel(points[small] - slope * small, slope)


def advise_on_memory(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
    """Whether a setting ran out of memory; if so, which one to lower and by how much."""
    fitted, limit = fit_memory(record, outcomes), _limit_bytes(record)
    model = fitted if isinstance(fitted, MemoryModel) else None
    known = fitted if isinstance(fitted, str) else fitted.describe()
    failed = [
        each
        for each in outcomes
        if each.verdict == "FAILED" and each.reason.startswith("out of memory")
    ]
    if failed:
        names = ", ".join(dict.fromkeys(each.name for each in failed))
        sentence = f"Out of memory: {names}."
        return Finding(KIND, "cause", "critical", sentence, known, _advice(failed[0], model, limit))
    evidence = f"nothing that was tried ran out of memory; {known}"
    if model is not None and limit is not None:
        evidence += f"; {scaled(limit, 'B')} hold a batch of about {model.largest_batch(limit)}"
    return Finding(KIND, "excluded", "info", f"{WHAT} is not the limit.", evidence)


def _advice(failed: Outcome, model: MemoryModel | None, limit: float | None) -> str:
    asked = re.fullmatch(r"batch_(\d+)", failed.comparison.key)
    if asked is None:
        return "Lower the batch size to half of it, or accumulate gradients over two batches."
    batch = int(asked[1])
    fits = model.largest_batch(limit) if model is not None and limit is not None else batch // 2
    # It did run out: a line that says otherwise is not believed.
    target = min(fits, batch // 2) if fits >= batch else fits
    if target <= 0:
        return "Lower the hidden size: no batch fits beside the model."
    return (
        f"Lower the batch size from {batch} to {target}, by {batch - target}, and accumulate over "
        f"{math.ceil(batch / target)} batches if the larger one is wanted."
    )


def _limit_bytes(record: OptimizeRecord) -> float | None:
    machine = record.header.machine
    return machine.gpus[0].memory_bytes.value if machine.gpus else machine.memory_bytes.value


def _add(points: dict[int, float], batch: Setting, side: Measurement | None) -> None:
    if isinstance(batch, int) and side is not None and side.peak_bytes.value is not None:
        # The job as it was is measured several times, beside others that hold memory of their own;
        # the lowest of its peaks has the least of theirs in it.
        points[batch] = min(points.get(batch, math.inf), side.peak_bytes.value)
